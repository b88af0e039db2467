// Looks at a page without daemons, with a router's devices and an ISP's subscribers, with 24 groups, and after
// the page was started anew. The test in crates/fairweir/tests/it/page/browsers.rs starts and ends the daemons.
//
// usage: node views.mjs LINK ROUTER-PICTURE ISP-PICTURE

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { axe, end, firstVisit, isFirefox, launch, narrow, open, tabTo, tell } from "./browser.mjs";

const [link, routerPicture, ispPicture] = process.argv.slice(2);
const origin = new URL(link).origin;
const wrong = [];
const browser = await launch();
const { page } = await open(browser, origin, wrong);
assert(isFirefox || (await page.evaluate(() => matchMedia("(prefers-color-scheme: light)").matches)));
const row = (group) => page.locator(`tr[data-group="${group}"]`);

// Nothing runs.
await page.goto(link);
await page.getByText("No daemon of fairweir runs here").waitFor();
await page.getByText("Live, once a second.").waitFor();
await axe(page);

// Devices of a router: names, states, rates, weights.
await tell("router");
const router = page.locator('section[data-daemon="router-wan"]');
await router.locator("caption", { hasText: "Devices" }).waitFor();
assert.equal(await router.locator("tr[data-group]").count(), 4);
assert.match(await row("tv").locator("th small").textContent(), /^mac:02:00:5e:00:53:01$/);
await page.waitForFunction(() => {
  const cell = document.querySelector('tr[data-group="phone"] [data-field="rate"]');
  return parseFloat(cell?.textContent ?? "0") > 1;
});
assert.match(await row("tv").locator('[data-field="state"]').textContent(), /^Its? /);
await router.locator(".chart canvas").waitFor();
// What they send: acknowledgements at least.
const upload = router.locator('[data-field="upload"] tr', { hasText: "phone" });
assert.equal(await router.locator('[data-field="upload"] tr').count(), 4);
const sent = await upload.textContent();
await page.waitForFunction((sent) => {
  const rows = [...document.querySelectorAll('[data-field="upload"] tr')];
  return rows.find((row) => row.textContent.startsWith("phone")).textContent !== sent;
}, sent);
await tell("watch");
await router.screenshot({ path: routerPicture });

// A device's weight by keyboard alone.
await tabTo(page, /^INPUT range Weight of phone/);
for (let i = 0; i < 5; i++) await page.keyboard.press("ArrowRight");
await page.keyboard.press("Tab");
await page.keyboard.press("Tab");
await page.keyboard.press("Enter");
await page.getByText("Last change: weight.phone = 6").waitFor();
await tell("weight 6");
await axe(page);
await narrow(page);
await page.getByRole("button", { name: "Undo" }).click();
await page.getByText("undone: weight.phone = 6").waitFor();

// The ISP's plans and segments are live.
await tell("isp");
const isp = page.locator('section[data-daemon="isp"]');
const plan = isp.locator('[data-field="plans"] tr', { hasText: "home-20" });
assert.equal(await plan.locator("td").nth(1).textContent(), "20.00 Mbit/s");
await page.waitForFunction(() => {
  const rows = [...document.querySelectorAll('[data-field="plans"] tr')];
  const cells = rows.find((row) => row.textContent.startsWith("home-20"))?.querySelectorAll("td");
  return parseFloat(cells?.[3]?.textContent ?? "0") > 1;
});
assert.match(await plan.textContent(), /16 queues/);
assert.equal(await page.locator("tr[data-group]").count(), 4);
const segment = isp.locator('[data-field="segments"] tr', { hasText: "pon-3" });
assert.equal(await segment.locator("td").nth(2).textContent(), "9");
await tell("watch");
await isp.screenshot({ path: ispPicture });
await axe(page);

// A subscriber by keyboard alone: its plan, queues, what passed and what was lost.
await isp.locator("input[name=find]").focus();
await page.keyboard.type("house");
await page.keyboard.press("Enter");
await page.waitForURL(`${origin}/subscribers?find=house`);
const household = page.locator('[data-field="found"] tr', { hasText: "download" });
const cells = await household.locator("td").allTextContents();
assert.deepEqual(cells.slice(0, 5), ["10.9.0.2", "home-20", cells[2], "download", "20.00 Mbit/s"]);
assert.match(cells[2], /16 queues/);
assert(parseFloat(cells[5]) > 1 && Number(cells[6]) + Number(cells[7]) > 0, `${cells}`);
await axe(page);
await narrow(page);
// An address, and a text that names nobody.
for (const [text, wanted] of [
  ["192.0.2.3", "customer-3"],
  ["nobody", "No subscriber has this address"],
]) {
  await tabTo(page, /^INPUT  {2}/);
  await page.keyboard.press("Control+a");
  await page.keyboard.type(text);
  await page.keyboard.press("Enter");
  await page.getByText(wanted).first().waitFor();
}
await axe(page);
await page.getByRole("link", { name: "All daemons" }).click();
await page.getByText("Live, once a second.").waitFor();

// 24 groups and `default`; each has a field with a name of its own.
await tell("24 groups");
await row("group-24").waitFor();
assert.equal(await page.locator("tr[data-group]").count(), 25);
await page.locator(".chart canvas").waitFor();
assert.equal(await page.getByRole("slider", { name: "Weight of group-24" }).count(), 1);
await tabTo(page, /^INPUT range Weight of group-24/);
await axe(page);
await narrow(page);

// First visits, each of a browser that has nothing in its cache; the machine may stand still meanwhile.
const visits = [];
for (let i = 0; i < 3; i++) {
  await tell("link");
  const fresh = await open(browser, origin, wrong);
  await fresh.page.goto(readFileSync(`${process.env.HOME}/link`, "utf8"));
  await fresh.page.waitForURL(`${origin}/`);
  await fresh.page.getByText("Live, once a second.").waitFor();
  await fresh.page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
  visits.push(await firstVisit(fresh.page));
  await fresh.context.close();
}
const best = Math.min(...visits.map((visit) => visit.paintMs));
const bytes = Math.max(...visits.map((visit) => visit.bytes));
assert(best < 1_000, `first paint after ${best} ms at best`);
assert(bytes > 50_000 && bytes < 200_000, `${bytes} bytes were transferred`);
await tell(`24 groups: ${bytes} bytes, first paint after ${visits.map((v) => Math.round(v.paintMs)).join(", ")} ms`);

// The page restarts: the session is over, and a new link goes on.
assert.deepEqual(wrong, []);
await tell("restart");
await page.getByText("You are not signed in any more.").waitFor();
await tell("link");
await page.goto(readFileSync(`${process.env.HOME}/link`, "utf8"));
await page.getByText("Live, once a second.").waitFor();
// The browser reports what it could not fetch meanwhile.
await end(browser, wrong.filter((text) => !/events|status of 401|ERR_|connection/i.test(text)));
