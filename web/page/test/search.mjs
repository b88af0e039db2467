// Searches among the subscribers of an ISP, and times it from the key Enter until the result is drawn.
//
// usage: node search.mjs LINK

import assert from "node:assert/strict";
import { end, launch, open, tell } from "./browser.mjs";

const [link] = process.argv.slice(2);
const origin = new URL(link).origin;
const wrong = [];
const browser = await launch();
const { page } = await open(browser, origin, wrong);
await page.goto(link);
await page.getByText("Live, once a second.").waitFor();

const times = [];
let rows = 0;
for (let i = 0; i < 40; i++) {
  const n = (i * 777_773) % 1_000_000;
  const text = i % 3 === 0 ? `customer-${n}` : i % 3 === 1 ? `11.${n >> 16}.${(n >> 8) & 255}.${n & 255}` : `customer-${n % 90}`;
  await page.goto(origin);
  const input = page.locator("input[name=find]");
  await input.fill(text);
  // Both clocks count from the same time, also over documents.
  await input.evaluate((e) => {
    e.form.addEventListener("submit", () => sessionStorage.setItem("at", performance.timeOrigin + performance.now()));
  });
  await page.keyboard.press("Enter");
  await page.waitForURL(/subscribers/);
  await page.locator('[data-field="found"] tr').first().waitFor();
  rows += await page.locator('[data-field="found"] tr').count();
  await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
  times.push(
    await page.evaluate(() => {
      const painted = performance.getEntriesByName("first-contentful-paint")[0].startTime;
      return performance.timeOrigin + painted - Number(sessionStorage.getItem("at"));
    }),
  );
}
times.sort((a, b) => a - b);
const at = (part) => Math.round(times[Math.floor(part * (times.length - 1))]);
await tell(`shown after ${at(0.5)} ms (median), ${at(0.9)} ms (9 of 10), ${at(1)} ms (all) of 40; ${rows} rows`);
assert(at(0.9) < 200, `${times}`);
await end(browser, wrong);
