// A new user opens the link of `fairweir setup` and moves a slider. The test in
// crates/fairweir/tests/it/page/evening.rs measures what the programs receive.
//
// usage: node evening.mjs LINK PICTURE

import assert from "node:assert/strict";
import { axe, end, launch, open, tell } from "./browser.mjs";

const [link, picture] = process.argv.slice(2);
const origin = new URL(link).origin;
const wrong = [];
const browser = await launch();
const { page } = await open(browser, origin, wrong);
const row = (group) => page.locator(`tr[data-group="${group}"]`);

await page.goto(link);
await page.waitForURL(`${origin}/`);
await page.getByText("Live, once a second.").waitFor();
await page.locator(".chart canvas").waitFor();

/** The rates that the page shows are as the weights that it shows. */
async function obeyed() {
  await page.waitForFunction(() => {
    const [video, backup] = ["video", "backup"].map((group) => {
      const row = document.querySelector(`tr[data-group="${group}"]`);
      const rate = parseFloat(row.querySelector('[data-field="rate"]').textContent);
      return rate / Number(row.querySelector("input[type=number]").value);
    });
    return Math.abs(video / backup - 1) < 0.15;
  });
}

async function move() {
  await row("video").locator("input[type=range]").focus();
  await page.keyboard.press("End");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.getByText("Last change: weight.video = 16").waitFor();
}

await obeyed();
await move();
await tell("moved");
await obeyed();
await axe(page);
await page.screenshot({ path: picture });
assert.equal(await row("video").locator("input[type=number]").inputValue(), "16");
await page.getByRole("button", { name: "Undo" }).click();
await page.getByText("undone: weight.video = 16").waitFor();
await tell("undone");
await move();
await tell("moved again");
await end(browser, wrong);
