// Looks at `fairweir page` in Chromium. The test in crates/fairweir/tests/page.rs starts it, plays the daemon's part, and
// answers each line that is printed here with a line.
//
// usage: node page.mjs LINK PICTURE

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [link, picture] = process.argv.slice(2);
const origin = new URL(link).origin;
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Tells the test what was done, and waits until it has looked. */
async function tell(text) {
  console.log(text);
  const { done } = await lines.next();
  assert(!done, `the test ended at: ${text}`);
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
  ],
});
const context = await browser.newContext({ viewport: { width: 1100, height: 900 } });
const page = await context.newPage();
page.setDefaultTimeout(15_000);

const wrong = [];
let bytes = 0;
page.on("request", (request) => {
  if (!request.url().startsWith(origin)) wrong.push(`asked for ${request.url()}`);
});
page.on("pageerror", (error) => wrong.push(`script: ${error}`));
page.on("console", (message) => {
  // While the daemon or the page restarts, the browser reports what it cannot fetch.
  if (message.type() === "error") wrong.push(`console: ${message.text()}`);
});
page.on("requestfinished", async (request) => {
  const sizes = await request.sizes().catch(() => null);
  bytes += sizes === null ? 0 : sizes.responseBodySize + sizes.responseHeadersSize;
});

const row = (group) => page.locator(`tr[data-group="${group}"]`);
const slider = (group) => row(group).locator("input[type=range]");

async function axe() {
  const path = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
  await page.evaluate(readFileSync(path, "utf8"));
  const { violations } = await page.evaluate(() => axe.run());
  const texts = violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(" ")}`);
  assert.deepEqual(texts, []);
}

// Signed in, live, and the chart is drawn.
await page.goto(link);
await page.waitForURL(`${origin}/`);
await page.getByText("Live, once a second.").waitFor();
await page.locator(".chart canvas").waitFor();
assert(bytes < 200_000, `${bytes} bytes were transferred`);
const paint = await page.evaluate(
  () => performance.getEntriesByName("first-contentful-paint")[0].startTime,
);
await tell(`loaded ${bytes} bytes, first paint after ${Math.round(paint)} ms`);

// The cells follow the daemon.
const before = await row("video").locator('[data-field="received"]').textContent();
await page.waitForFunction(
  (before) =>
    document.querySelector('tr[data-group="video"] [data-field="received"]').textContent !== before,
  before,
);

// By keyboard alone: a slider, then its button.
await slider("video").focus();
for (let i = 0; i < 3; i++) await page.keyboard.press("ArrowRight");
assert.equal(await row("video").locator("input[type=number]").inputValue(), "4");
await page.keyboard.press("Tab");
await page.keyboard.press("Tab");
assert.equal(await page.evaluate(() => document.activeElement.textContent), "Apply");
await page.keyboard.press("Enter");
await tell("weight 4");
await page.getByText("Last change: weight.video = 4").waitFor();
assert.equal(await slider("video").inputValue(), "4");
await axe();
await tell("watch");
await page.screenshot({ path: picture });

// The history: a link, a chart and sums that grow.
await page.getByRole("link", { name: "last 10 minutes" }).click();
await page.waitForURL(`${origin}/?span=10min`);
await page.locator(".chart[data-span] canvas").waitFor();
const received = page.locator('tr[data-past="video"] [data-field="past-received"]');
const sum = parseFloat(await received.textContent());
assert(sum > 1, `${sum} MB were received`);
await page.waitForFunction(
  (sum) =>
    parseFloat(document.querySelector('tr[data-past="video"] [data-field="past-received"]').textContent) > sum,
  sum,
);
await page.getByText("Suggested weights: 0").click();
await page.getByText("nothing is suggested: since weights were last changed").waitFor();
await axe();
await page.getByRole("link", { name: "live" }).click();
await page.getByText("Live, once a second.").waitFor();

await page.getByRole("button", { name: "Undo" }).click();
await page.getByText("undone: weight.video = 4").waitFor();
await tell("undone");
await page.waitForFunction(
  () => document.querySelector('tr[data-group="video"] input[type=range]').value === "1",
);

// Pause asks first.
await page.getByText("Pause", { exact: true }).click();
await page.getByRole("button", { name: "Pause now" }).click();
await page.getByRole("button", { name: "Resume" }).waitFor();
await tell("paused");
await page.getByRole("button", { name: "Resume" }).click();
await page.getByText("Pause", { exact: true }).waitFor();
await tell("resumed");

// What a person types is not overwritten by what arrives.
await row("video").locator("input[type=number]").fill("7");
await page.waitForTimeout(2_500);
assert.equal(await row("video").locator("input[type=number]").inputValue(), "7");

// The document follows a new group, without a daemon, and the daemon's restart.
await tell("another group");
await row("backup").waitFor();
await tell("stop");
await page.getByText("No daemon of fairweir runs here").waitFor();
await tell("start");
await row("video").waitFor();
await page.locator(".chart canvas").waitFor();

// A telephone, and dark.
await page.setViewportSize({ width: 360, height: 740 });
await page.emulateMedia({ colorScheme: "dark" });
const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
assert(wide <= 0, `the document is ${wide} px too wide`);
await axe();

// Without a script the same form works.
const cookies = await context.cookies();
assert.deepEqual(
  cookies.map(({ name, httpOnly, sameSite }) => [name, httpOnly, sameSite]),
  [["fairweir_page", true, "Strict"]],
);
const plain = await browser.newContext({ javaScriptEnabled: false });
await plain.addCookies(cookies);
const plainPage = await plain.newPage();
await plainPage.goto(origin);
await plainPage.locator('tr[data-group="video"] input[type=number]').fill("6");
await plainPage.locator('tr[data-group="video"] button').click();
await plainPage.getByText("Last change: weight.video = 6").waitFor();
await tell("weight 6");

assert.deepEqual(wrong, []);
await browser.close();
console.log("done");
process.exit(0);
