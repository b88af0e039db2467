// Keeps the page of a host open while the test measures what that costs.
//
// usage: node stay.mjs LINK

import { end, launch, open, tell } from "./browser.mjs";

const [link] = process.argv.slice(2);
const wrong = [];
const browser = await launch();
const { page } = await open(browser, new URL(link).origin, wrong);
await page.goto(link);
await page.getByText("Live, once a second.").waitFor();
await page.locator(".chart canvas").waitFor();
await tell("open");
await end(browser, wrong);
