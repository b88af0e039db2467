// What the extension's button shows: the site's group, its rate, and a way to choose another group.

import type { Question, State } from "./background.js";

const PERIOD_MS = 1_000;

function element<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`popup.html has no ${id}`);
  return found as T;
}

const [host, status, group, rate] = ["host", "status", "group", "rate"].map((id) => element(id)) as
  [HTMLElement, HTMLElement, HTMLElement, HTMLElement];
const choice = element<HTMLSelectElement>("choice");
const confirmation = element<HTMLElement>("confirmation");
const confirmText = element<HTMLElement>("confirm-text");

let shown: State | null = null;

const send = (question: Question): Promise<State> => chrome.runtime.sendMessage(question);

function megabits(bps: number): string {
  return `${(bps / 1e6).toFixed(1)} Mbit/s`;
}

async function refresh(): Promise<void> {
  const [tab] = await chrome.tabs.query({ active: true, currentWindow: true });
  show(await send({ kind: "state", url: tab?.url }));
}

function show(state: State): void {
  shown = state;
  host.textContent = state.host ?? "no web site";
  status.textContent = state.error === null ? "" : `The daemon is not told: ${state.error}`;
  const current = state.groups.find(({ name }) => name === state.group);
  group.textContent = current === undefined ? "-" : `${current.name} (weight ${current.weight})`;
  const known = current?.rate;
  rate.textContent = known
    ? `${megabits(known.rate_bps)} of ${megabits(known.share_bps)}, ${known.state.replace("_", " ")}`
    : "-";
  const names = ["", ...state.groups.map(({ name }) => name)];
  if (choice.options.length !== names.length) {
    choice.replaceChildren(
      ...names.map((name) => new Option(name === "" ? "as configured" : name, name)),
    );
  }
  choice.disabled = state.host === null || state.groups.length === 0;
  if (confirmation.hidden) choice.value = state.chosen ?? "";
}

choice.addEventListener("change", () => {
  const where = choice.value === "" ? "the group of the configuration" : `the group ${choice.value}`;
  confirmText.textContent = `Put ${shown?.host ?? ""} into ${where}, in this browser?`;
  confirmation.hidden = false;
});

element("confirm").addEventListener("click", () => {
  const site = shown?.host;
  confirmation.hidden = true;
  if (!site) return;
  void send({ kind: "assign", host: site, group: choice.value || null }).then(refresh);
});

element("cancel").addEventListener("click", () => {
  confirmation.hidden = true;
  void refresh();
});

void refresh();
setInterval(() => void refresh(), PERIOD_MS);
