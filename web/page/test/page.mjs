// Changes a host's weights in a browser. The test in crates/fairweir/tests/it/page/browsers.rs plays the daemon's part.
//
// usage: node page.mjs LINK PICTURE

import assert from "node:assert/strict";
import { axe, end, firstVisit, isFirefox, launch, narrow, open, tell } from "./browser.mjs";

const [link, picture] = process.argv.slice(2);
const origin = new URL(link).origin;
const wrong = [];
const browser = await launch();
const { context, page } = await open(browser, origin, wrong);

const row = (group) => page.locator(`tr[data-group="${group}"]`);
const slider = (group) => row(group).locator("input[type=range]");

// Signed in, live, and the chart is drawn.
await page.goto(link);
await page.waitForURL(`${origin}/`);
await page.getByText("Live, once a second.").waitFor();
await page.locator(".chart canvas").waitFor();
const { paintMs, bytes, files } = await firstVisit(page);
assert(files >= 5 && bytes > 50_000 && bytes < 200_000, `${bytes} bytes were transferred, ${files} files`);
await tell(`loaded ${bytes} bytes, first paint after ${Math.round(paintMs)} ms`);

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
await axe(page);
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
await axe(page);
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
if (!isFirefox) await page.emulateMedia({ colorScheme: "dark" });
assert(await page.evaluate(() => matchMedia("(prefers-color-scheme: dark)").matches));
await narrow(page);

// Without a script the same form works. Firefox cannot be told so by WebDriver BiDi.
const cookies = await context.cookies();
assert.deepEqual(
  cookies.map(({ name, httpOnly, sameSite }) => [name, httpOnly, sameSite]),
  [["fairweir_page", true, "Strict"]],
);
if (!isFirefox) {
  const plain = await browser.newContext({ javaScriptEnabled: false });
  await plain.addCookies(cookies);
  const plainPage = await plain.newPage();
  await plainPage.goto(origin);
  await plainPage.locator('tr[data-group="video"] input[type=number]').fill("6");
  await plainPage.locator('tr[data-group="video"] button').click();
  await plainPage.getByText("Last change: weight.video = 6").waitFor();
  await tell("weight 6");
}
await end(browser, wrong);
