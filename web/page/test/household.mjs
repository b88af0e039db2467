// Looks at a gateway's proxy and at the agent of the credit market, and says by keyboard what the household wants.
// The test in crates/fairweir/tests/it/market/browsers.rs starts both.
//
// usage: node household.mjs LINK PROXY-PICTURE AGENT-PICTURE

import assert from "node:assert/strict";
import { axe, end, launch, narrow, open, tabTo, tell } from "./browser.mjs";

const [link, proxyPicture, agentPicture] = process.argv.slice(2);
const origin = new URL(link).origin;
const wrong = [];
const browser = await launch();
const { page } = await open(browser, origin, wrong);
await page.goto(link);
await page.waitForURL(`${origin}/`);
await page.getByText("Live, once a second.").waitFor();

// The proxy: a class with its rate, and what a device has received, live.
const proxy = page.locator('section[data-daemon="proxy"]');
const home = proxy.locator('[data-field="classes"] tr', { hasText: "home" });
assert.equal(await home.locator("td").first().textContent(), "10.00 Mbit/s");
const usage = proxy.locator('[data-field="usage"] tr').first();
assert.match(await usage.textContent(), /^192\.168\.7\./);
const before = await usage.textContent();
await page.waitForFunction(
  (before) => document.querySelector('[data-field="usage"] tr').textContent !== before,
  before,
);

// The agent: credits, the slots to come, the reasons.
const agent = page.locator('section[data-daemon="market-agent"]');
await agent.locator("caption", { hasText: "Importance" }).waitFor();
assert.match(await agent.locator('[data-field="headline"]').textContent(), /credits [\d.]+ of at most [\d.]+/);
assert((await agent.locator('[data-field="slots"] tr').count()) > 0);
await agent.getByText("film night").first().waitFor();
await axe(page);
await proxy.screenshot({ path: proxyPicture });
await agent.screenshot({ path: agentPicture });
await narrow(page);

/** Chooses by keyboard alone. While slots begin and end, the choice and the focus stay. */
async function choose(name, key, more) {
  await tabTo(page, new RegExp(`^SELECT {3}${name}`));
  await page.keyboard.press(key);
  const chosen = () => page.evaluate(() => document.activeElement.value);
  const value = await chosen();
  await page.waitForTimeout(more);
  assert.equal(await chosen(), value, name);
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Apply");
  await page.keyboard.press("Enter");
}

await choose("Importance of web, always", "3", 4_500);
await page.getByText("Last change: always.web = 3").waitFor();
await tell("importance");
await page.getByRole("button", { name: "Undo" }).click();
await page.getByText("undone: always.web = 3").waitFor();
await tell("undone");

await choose("Boost streaming now", "3", 0);
await page.getByText("Last change: streaming is above all else from the next slot on, for 30 minutes").waitFor();
await tell("boosted");
await agent.getByText("for 30 min").waitFor();
await axe(page);
await end(browser, wrong);
