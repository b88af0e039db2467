// What the scripts beside this file have in common. The tests in crates/fairweir/tests/it/page start a script, and
// answer each line that it prints with a line. BROWSER is chromium or firefox.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { chromium, firefox } from "playwright-core";

export const isFirefox = process.env.BROWSER === "firefox";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Tells the test what was done, and waits until it has looked. */
export async function tell(text) {
  console.log(text);
  const { done } = await lines.next();
  assert(!done, `the test ended at: ${text}`);
}

/** Debian's browsers. Firefox is driven by WebDriver BiDi, and prefers dark, which Chromium can change later. */
export function launch() {
  if (isFirefox) {
    return firefox.launch({
      channel: "moz-firefox",
      executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr",
      firefoxUserPrefs: { "layout.css.prefers-color-scheme.content-override": 0 },
    });
  }
  return chromium.launch({
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
}

/** Firefox reports that the style `body {}`, which playwright adds for a screenshot, is blocked. */
const OF_SCREENSHOTS = "'sha256-YjaKGiklmzC6wjXA513HAMmzus8VE61XCOT+SmwNZWA='";

/** A page of a context of its own; `wrong` gets what must not happen. */
export async function open(browser, origin, wrong) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 900 } });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  page.on("request", (request) => {
    if (!request.url().startsWith(origin)) wrong.push(`asked for ${request.url()}`);
  });
  page.on("pageerror", (error) => {
    if (!String(error).includes(OF_SCREENSHOTS)) wrong.push(`script: ${error}`);
  });
  page.on("console", (message) => {
    if (message.type() === "error") wrong.push(`console: ${message.text()}`);
  });
  return { context, page };
}

/** No violation of the rules of axe. */
export async function axe(page) {
  const path = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
  await page.evaluate(readFileSync(path, "utf8"));
  const { violations } = await page.evaluate(() => axe.run());
  const texts = violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(" ")}`);
  assert.deepEqual(texts, []);
}

/** Nothing but the tables, which scroll by themselves, is wider than a telephone. */
export async function narrow(page) {
  const before = page.viewportSize();
  await page.setViewportSize({ width: 360, height: 740 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert(wide <= 0, `the document is ${wide} px too wide`);
  await axe(page);
  await page.setViewportSize(before);
}

/** When the first visit of a browser painted, in ms, and how many bytes it transferred, as the browser says. */
export async function firstVisit(page) {
  return page.evaluate(() => {
    const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    return {
      paintMs: performance.getEntriesByName("first-contentful-paint")[0].startTime,
      bytes: all.reduce((sum, entry) => sum + entry.transferSize, 0),
      files: all.length,
    };
  });
}

/** Presses Tab until the element that `wanted` describes has the focus. */
export async function tabTo(page, wanted) {
  for (let i = 0; i < 250; i++) {
    await page.keyboard.press("Tab");
    const focused = await page.evaluate(() => {
      const { activeElement: e } = document;
      const text = (e.tagName === "SELECT" ? e.labels[0] : e).textContent.trim();
      return [e.tagName, e.getAttribute("type") ?? "", e.getAttribute("aria-label") ?? "", text].join(" ");
    });
    if (wanted.test(focused)) return;
  }
  assert.fail(`no ${wanted} by Tab`);
}

/** Ends the script; `wrong` must be empty. */
export async function end(browser, wrong) {
  assert.deepEqual(wrong, []);
  await browser.close();
  console.log("done");
  process.exit(0);
}
