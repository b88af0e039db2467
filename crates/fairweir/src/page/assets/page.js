// Compiled from web/page/page.ts, sha256 381f68f745937ed02443a5ffb160ea732b5d043ac6bdac44710d4b977783e73b: run `make page-script` after a change.
"use strict";
// Keeps the document of `fairweir page` current: numbers, the chart, and forms that are sent without
// leaving the page. Without this script the document shows the same and its forms work.
/** Seconds that the chart shows. */
const SPAN_S = 120;
const CHART_HEIGHT_PX = 220;
/** The slider's end, if no weight is larger; any weight can be typed. */
const SLIDER_MAX = 16;
// ------------------------------------------------------------------------------------------------
// Numbers, as `html.rs` writes them
const rate = (bps) => `${(bps / 1e6).toFixed(2)} Mbit/s`;
const ms = (value) => `${value.toFixed(1)} ms`;
const volume = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const timeOfDay = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
const dayOfMonth = (at) => new Date(at * 1000).toLocaleDateString("en-GB");
const DAY_S = 86_400;
function orElse(value, text, otherwise) {
    return value === null ? otherwise : text(value);
}
// ------------------------------------------------------------------------------------------------
// The document
function field(parent, name) {
    return parent?.querySelector(`[data-field="${name}"]`) ?? null;
}
function put(parent, name, text) {
    const element = field(parent, name);
    if (element !== null && element.textContent !== text)
        element.textContent = text;
}
function element(name, ...children) {
    const made = document.createElement(name);
    made.append(...children);
    return made;
}
function sectionOf(daemon) {
    const all = document.querySelectorAll("section[data-daemon]");
    return [...all].find((section) => section.dataset["daemon"] === daemon) ?? null;
}
function rowOf(section, group) {
    const all = section.querySelectorAll("tr[data-group]");
    return [...all].find((row) => row.dataset["group"] === group) ?? null;
}
/** What the document has rows and forms for; if it changes, the document is fetched again. */
function shapeOf(view) {
    return JSON.stringify(view.daemons.map((daemon) => [
        daemon.name,
        daemon.error,
        daemon.link?.isPaused,
        daemon.link?.latencyMs === null,
        daemon.link?.groups.map((group) => [group.name, group.matches]),
        daemon.tables.map((table) => table.key),
        daemon.household,
        daemon.facts.map(([about]) => about),
        daemon.notes.map(([about]) => about),
    ]));
}
function showList(section, name, entries) {
    const values = field(section, name)?.querySelectorAll("dd") ?? [];
    entries.forEach(([, text], i) => {
        const value = values[i];
        if (value !== undefined && value.textContent !== text)
            value.textContent = text;
    });
}
/** A row whose first cell is its heading. */
function rowWith(heading, ...cells) {
    const th = element("th", heading);
    th.setAttribute("scope", "row");
    return element("tr", th, ...cells.map((cell) => element("td", cell)));
}
function showTable(section, table) {
    const rows = table.rows.map(([first = "", ...rest]) => rowWith(first, ...rest));
    field(section, table.key)?.replaceChildren(...rows);
}
function showDaemon(daemon) {
    const section = sectionOf(daemon.name);
    if (section === null)
        return;
    put(section, "headline", daemon.headline);
    showList(section, "facts", daemon.facts);
    showList(section, "notes", daemon.notes);
    for (const table of daemon.tables)
        showTable(section, table);
    const link = daemon.link;
    if (link === null)
        return;
    put(section, "capacity", orElse(link.capacityBps, rate, "unknown"));
    put(section, "queue", orElse(link.queueMs, ms, "unknown"));
    put(section, "latency", orElse(link.latencyMs, ms, "none"));
    for (const group of link.groups)
        showGroup(rowOf(section, group.name), group);
    put(section, "connections-all", String(link.connectionsAll));
    field(section, "connections")?.replaceChildren(...link.connections.map((connection) => element("tr", ...[
        connection.group,
        connection.host,
        String(connection.port),
        rate(connection.rateBps),
        orElse(connection.rttMs, ms, ""),
        connection.limitedBy,
    ].map((text) => element("td", text)))));
    field(section, "changes")?.replaceChildren(...link.changes.map((change) => element("li", `${Math.round(change.agoS)} s ago: ${change.reason}`)));
}
function showGroup(row, group) {
    put(row, "rate", rate(group.rateBps));
    put(row, "share", rate(group.shareBps));
    put(row, "demand", orElse(group.demandBps, rate, "unknown"));
    put(row, "received", volume(group.receivedBytes));
    put(row, "state", group.state);
    put(row, "weight", String(group.weight));
    const form = row?.querySelector("form");
    // What a person is about to send stays.
    if (form && form.dataset["dirty"] === undefined)
        setWeight(form, String(group.weight));
}
// ------------------------------------------------------------------------------------------------
// The chart: rates of the groups, stacked, and the capacity
/** Each column is the sum of the groups up to it; drawn from the largest to the smallest. */
function stacked(times, rates, capacity) {
    const sums = [];
    rates.forEach((rates, i) => {
        sums.push(rates.map((rate, at) => rate + (sums[i - 1]?.[at] ?? 0)));
    });
    return [times, ...sums.reverse(), capacity];
}
/** Beyond the groups of the table, which have colours, all have the last one. */
function plot(parent, section, groups, spanS, data) {
    const style = getComputedStyle(document.body);
    const [ink, grid] = ["--ink", "--grid"].map((name) => style.getPropertyValue(name));
    const marks = [...section.querySelectorAll("tr[data-group] .colour")];
    const colours = marks.map((mark) => getComputedStyle(mark).backgroundColor);
    const areas = Array.from({ length: groups }, (_, i) => colours[Math.min(i, colours.length - 1)] ?? ink);
    areas.reverse();
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    const label = spanS > DAY_S ? dayOfMonth : timeOfDay;
    parent.replaceChildren();
    parent.setAttribute("role", "img");
    parent.setAttribute("aria-label", "Rates of the groups over time, stacked, and the capacity of the link. The tables have the numbers.");
    const options = {
        width: parent.clientWidth,
        height: CHART_HEIGHT_PX,
        legend: { show: false },
        cursor: { show: false },
        scales: {
            x: { range: (_, __, last) => [last - spanS, last] },
            y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] },
        },
        axes: [
            { ...axis, values: (_, all) => all.map(label) },
            { ...axis, label: "Mbit/s", labelSize: 20 },
        ],
        series: [
            {},
            ...areas.map((fill) => ({ stroke: fill, fill, width: 1, points: { show: false } })),
            { stroke: ink, width: 2, dash: [6, 4], points: { show: false }, spanGaps: true },
        ],
    };
    const made = new uPlot(options, data, parent);
    new ResizeObserver(() => {
        made.setSize({ width: parent.clientWidth, height: CHART_HEIGHT_PX });
    }).observe(parent);
    return made;
}
/** The last two minutes, as far as this document was open. */
class Chart {
    groups;
    times = [];
    rates;
    capacity = [];
    plot = null;
    constructor(groups) {
        this.groups = groups;
        this.rates = Array.from({ length: groups }, () => []);
    }
    add(now, link) {
        this.times.push(now);
        this.capacity.push(link.capacityBps === null ? null : link.capacityBps / 1e6);
        link.groups.forEach((group, i) => this.rates[i]?.push(group.rateBps / 1e6));
        while ((this.times[0] ?? now) < now - SPAN_S) {
            for (const column of [this.times, this.capacity, ...this.rates])
                column.shift();
        }
    }
    draw(parent, section) {
        const data = stacked(this.times, this.rates, this.capacity);
        if (this.plot === null)
            this.plot = plot(parent, section, this.groups, SPAN_S, data);
        else
            this.plot.setData(data);
    }
    /** The document was replaced, or its colours changed. */
    detach() {
        this.plot?.destroy();
        this.plot = null;
    }
}
const charts = new Map();
function showChart(daemon) {
    const section = sectionOf(daemon.name);
    const parent = field(section, "chart");
    if (daemon.link === null || section === null || parent === null)
        return;
    const key = JSON.stringify([daemon.name, daemon.link.groups.map((group) => group.name)]);
    const chart = charts.get(key) ?? new Chart(daemon.link.groups.length);
    charts.set(key, chart);
    chart.add(Date.now() / 1000, daemon.link);
    // The chart of a document with a history shows that.
    if (parent.dataset["span"] === undefined)
        chart.draw(parent, section);
}
// ------------------------------------------------------------------------------------------------
// The history
const PAST_PERIOD_MS = 10_000;
/** By daemon, each with the element that it is in and the number of its groups. */
const pastPlots = new Map();
function showPast(daemon, past) {
    const section = sectionOf(daemon);
    const parent = field(section, "chart");
    if (section === null)
        return;
    showSums(section, past);
    // A proxy has no chart: pairs of devices and applications are too many.
    if (parent === null)
        return;
    const mbit = (bps) => (bps === null ? null : bps / 1e6);
    const rates = past.groups.map((group) => group.ratesBps.map((bps) => bps / 1e6));
    const data = stacked(past.timesS, rates, past.capacityBps.map(mbit));
    const old = pastPlots.get(daemon);
    const groups = past.groups.length;
    if (old?.parent === parent && old.groups === groups) {
        old.plot.setData(data);
    }
    else {
        old?.plot.destroy();
        pastPlots.set(daemon, { plot: plot(parent, section, groups, past.spanS, data), parent, groups });
    }
}
function showSums(section, past) {
    for (const group of past.groups) {
        const rows = [...section.querySelectorAll("tr[data-past]")];
        const row = rows.find((row) => row.dataset["past"] === group.name) ?? null;
        put(row, "past-received", volume(group.receivedBytes));
        put(row, "past-late", volume(group.lateBytes));
        put(row, "past-mean", rate(((group.receivedBytes - group.lateBytes) * 8) / past.spanS));
        put(row, "past-peak", rate(group.peakBps));
    }
}
/** Fetches the history that the document shows, if it shows one. */
async function fetchPast() {
    const span = document.querySelector(".chart[data-span]")?.dataset["span"];
    if (span === undefined || document.hidden)
        return;
    const response = await fetch(`/history?span=${encodeURIComponent(span)}`);
    if (!response.ok)
        return;
    const all = (await response.json());
    for (const [daemon, past] of Object.entries(all))
        showPast(daemon, past);
}
/** A page that cannot be reached is tried again. */
function showHistory() {
    fetchPast().catch(() => undefined);
}
// ------------------------------------------------------------------------------------------------
// Forms
function setWeight(form, weight) {
    for (const input of form.querySelectorAll("input[type=number], input[type=range]")) {
        if (input.value !== weight)
            input.value = weight;
    }
}
/** Adds a slider to each field of a weight. */
function enhance() {
    for (const number of document.querySelectorAll("input[type=number]")) {
        const form = number.form;
        if (form === null || form.querySelector("input[type=range]") !== null)
            continue;
        const slider = document.createElement("input");
        slider.type = "range";
        slider.min = "1";
        slider.max = String(Math.max(SLIDER_MAX, 2 * Number(number.value)));
        slider.value = number.value;
        slider.setAttribute("aria-label", number.labels?.[0]?.textContent?.trim() ?? "Weight");
        form.prepend(slider);
        form.addEventListener("input", (event) => {
            if (event.target instanceof HTMLInputElement)
                setWeight(form, event.target.value);
        });
    }
}
function notify(message, isError, undo, csrf) {
    const notice = document.getElementById("notice");
    const text = element("p", message);
    text.className = isError ? "message error" : "message";
    // What was just changed is named beside the button that undoes it.
    notice?.replaceChildren(...(message === undo ? [] : [text]));
    if (undo === null)
        return;
    const token = document.createElement("input");
    Object.assign(token, { type: "hidden", name: "csrf", value: csrf });
    const form = element("form", token, element("span", `Last change: ${undo}`), " ", element("button", "Undo"));
    form.className = "undo";
    form.setAttribute("action", "/undo");
    form.setAttribute("method", "post");
    notice?.append(form);
}
async function send(form) {
    const body = new URLSearchParams();
    for (const [name, value] of new FormData(form))
        body.append(name, String(value));
    const path = form.getAttribute("action") ?? "/set";
    const response = await fetch(path, { method: "POST", body, headers: { Accept: "application/json" } });
    if (!response.headers.get("content-type")?.startsWith("application/json")) {
        throw new Error(`the page answered ${response.status}`);
    }
    const outcome = (await response.json());
    notify(outcome.message, !response.ok, outcome.undo, body.get("csrf") ?? "");
    if (response.ok)
        delete form.dataset["dirty"];
}
document.addEventListener("input", (event) => {
    const form = event.target instanceof Element ? event.target.closest("form") : null;
    if (form !== null)
        form.dataset["dirty"] = "";
});
document.addEventListener("submit", (event) => {
    const form = event.target;
    // A search opens a document of its own.
    if (!(form instanceof HTMLFormElement) || form.method === "get")
        return;
    event.preventDefault();
    send(form).catch((error) => notify(`Nothing was changed: ${String(error)}`, true, null, ""));
});
// ------------------------------------------------------------------------------------------------
// Events
let shape = null;
/** What a form changes; a suggestion has fewer fields than the group's own form. */
function settingOf(form) {
    const data = new FormData(form);
    return JSON.stringify([data.get("daemon"), data.get("key"), form.elements.length]);
}
/** What a person is about to send, and the focus, move from the old document to the new one. */
function keepForms(old, fresh, focused) {
    const forms = new Map([...fresh.querySelectorAll("form")].map((form) => [settingOf(form), form]));
    for (const form of old.querySelectorAll("form")) {
        const same = forms.get(settingOf(form));
        if (same === undefined)
            continue;
        const isDirty = form.dataset["dirty"] !== undefined;
        if (isDirty)
            same.dataset["dirty"] = "";
        [...form.elements].forEach((from, i) => {
            const to = same.elements[i];
            if (from === focused && to instanceof HTMLElement)
                to.focus();
            if (!isDirty || from.getAttribute("type") === "hidden")
                return;
            if (from instanceof HTMLInputElement && to instanceof HTMLInputElement)
                to.value = from.value;
            if (from instanceof HTMLSelectElement && to instanceof HTMLSelectElement)
                to.value = from.value;
        });
    }
}
/** Fetches the document again, because it has other rows or forms now. */
async function refresh() {
    const response = await fetch(`/${location.search}`);
    if (!response.ok)
        return;
    const fetched = new DOMParser().parseFromString(await response.text(), "text/html");
    const main = fetched.querySelector("main");
    if (main === null)
        return;
    for (const chart of charts.values())
        chart.detach();
    const old = document.querySelector("main");
    const focused = document.activeElement;
    old?.replaceWith(document.adoptNode(main));
    enhance();
    if (old !== null)
        keepForms(old, main, focused);
    showHistory();
}
async function show(view) {
    const now = shapeOf(view);
    if (shape !== null && shape !== now)
        await refresh();
    shape = now;
    for (const daemon of view.daemons) {
        showDaemon(daemon);
        showChart(daemon);
    }
}
function live(text) {
    const element = document.getElementById("live");
    if (element !== null && element.textContent !== text)
        element.textContent = text;
}
function listen() {
    const events = new EventSource("/events");
    events.onmessage = (event) => {
        live("Live, once a second.");
        void show(JSON.parse(event.data));
    };
    events.onerror = () => {
        const isOver = events.readyState === EventSource.CLOSED;
        live(isOver
            ? "You are not signed in any more. Run `fairweir page --open` and open the link."
            : "The connection to the page is lost. Trying again.");
    };
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts.values())
        chart.detach();
    for (const { plot } of pastPlots.values())
        plot.destroy();
    pastPlots.clear();
    showHistory();
});
enhance();
listen();
showHistory();
setInterval(showHistory, PAST_PERIOD_MS);
