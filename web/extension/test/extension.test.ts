import assert from "node:assert/strict";
import test from "node:test";

import { Requests, type Details } from "../src/requests.js";
import { hostOf, portOf, Sites } from "../src/sites.js";

const GROUPS = [
  { name: "a", weight: 1, sites: ["x.com", "*.deep.y.org"] },
  { name: "b", weight: 1, sites: ["*.x.com", "y.org", "x.com"] },
  { name: "c", weight: 1, sites: ["deep.y.org"] },
  { name: "default", weight: 1, sites: [] },
];

test("the most specific pattern wins, as in the daemon", () => {
  const sites = new Sites(GROUPS, {});
  const expected: [string, number | null][] = [
    ["x.com", 0], ["www.x.com", 1], ["a.b.x.com", 1], ["y.org", 1], ["www.y.org", 1],
    ["deep.y.org", 2], ["a.deep.y.org", 0], ["notx.com", null], ["com", null],
    ["x.com.evil.net", null],
  ];
  for (const [host, group] of expected) assert.equal(sites.groupOf(host), group, host);
});

test("what the user has chosen goes before patterns, and a group that is gone is left out", () => {
  const sites = new Sites(GROUPS, { "x.com": "c", "other.org": "gone", "www.y.org": "default" });
  assert.equal(sites.groupOf("www.x.com"), 2);
  assert.equal(sites.groupOf("other.org"), null);
  assert.equal(sites.groupOf("www.y.org"), 3);
  assert.equal(sites.groupOf("y.org"), 1);
});

test("hosts and ports are those of connections", () => {
  assert.equal(hostOf("https://WWW.X.com:8443/a"), "www.x.com");
  assert.equal(hostOf("wss://x.com."), "x.com");
  for (const url of [undefined, "", "about:blank", "file:///a", "https://"]) {
    assert.equal(hostOf(url), null);
  }
  assert.equal(portOf("https://x.com/"), 443);
  assert.equal(portOf("http://x.com/"), 80);
  assert.equal(portOf("wss://x.com:8443/"), 8443);
});

function details(more: Partial<Details>): Details {
  return {
    requestId: "1", url: "https://cdn.net/a", type: "image", tabId: 1, timeStamp: 1000,
    ip: "192.0.2.1", ...more,
  };
}

function answered(requests: Requests, more: Partial<Details>) {
  requests.handleSent(details(more));
  return requests.handleAnswered(details({ ...more, timeStamp: 1020 }));
}

test("a request belongs to the site of the document that asks, in Chromium", () => {
  const requests = new Requests();
  requests.handleCommitted({ tabId: 1, frameId: 0, url: "https://a.com/", documentId: "A" });
  requests.handleCommitted({
    tabId: 1, frameId: 5, url: "https://frame.net/", documentId: "F", parentDocumentId: "A",
  });
  // The tab has gone on to another site.
  requests.handleCommitted({ tabId: 1, frameId: 0, url: "https://b.com/", documentId: "B" });
  assert.deepEqual(answered(requests, { documentId: "F" }), {
    site: "a.com", isUnsure: false, host: "cdn.net", address: "192.0.2.1", port: 443,
    beginMs: 1000, startMs: 1020, isHttp1: false,
  });
  assert.equal(answered(requests, { documentId: "B" })?.site, "b.com");
  assert.equal(answered(requests, { type: "main_frame", documentId: "B" })?.site, "cdn.net");
  const guess = answered(requests, {});
  assert.deepEqual([guess?.site, guess?.isUnsure], ["b.com", true]);
  const worker = answered(requests, { tabId: -1, initiator: "https://w.com" });
  assert.deepEqual([worker?.site, worker?.isUnsure], ["w.com", true]);
  assert.equal(answered(requests, { tabId: -1 }), null);
});

test("the outermost ancestor is the site, in Firefox", () => {
  const requests = new Requests();
  const frameAncestors = [{ url: "https://frame.net/" }, { url: "https://a.com/" }];
  const site = answered(requests, { documentUrl: "https://inner.net/", frameAncestors });
  assert.deepEqual([site?.site, site?.isUnsure], ["a.com", false]);
  assert.equal(answered(requests, { documentUrl: "https://a.com/", frameAncestors: [] })?.site, "a.com");
});

test("what came by no connection is not told", () => {
  const requests = new Requests();
  requests.handleTab(1, "https://a.com/");
  assert.equal(answered(requests, { fromCache: true }), null);
  assert.equal(answered(requests, { ip: undefined }), null);
  assert.equal(requests.handleAnswered(details({})), null, "it never left");
  assert.equal(answered(requests, { ip: "[2001:db8::1]" })?.address, "2001:db8::1");
});

test("of the requests of a site that leave at once to one host one is told of", () => {
  const requests = new Requests();
  requests.handleCommitted({ tabId: 1, frameId: 0, url: "https://a.com/", documentId: "A" });
  const sent = (timeStamp: number, more: Partial<Details>) =>
    requests.handleSent(details({ documentId: "A", timeStamp, ...more }));
  assert.deepEqual(sent(1000, {}), {
    site: "a.com", isUnsure: false, host: "cdn.net", port: 443, beginMs: 1000, isHttp1: false,
  });
  assert.equal(sent(1099, {}), null);
  assert.equal(sent(1050, { url: "https://other.net/" })?.host, "other.net");
  assert.equal(sent(1060, { type: "main_frame" })?.site, "cdn.net", "for another site");
  assert.equal(sent(1100, {})?.beginMs, 1100);
  assert.equal(sent(1300, { documentId: undefined })?.isUnsure, true, "told too");
  assert.equal(sent(1500, { documentId: undefined, tabId: -1 }), null);
});

test("of each request to a host that answers by HTTP/1.1 is told, since each has its connection", () => {
  const requests = new Requests();
  requests.handleCommitted({ tabId: 1, frameId: 0, url: "https://a.com/", documentId: "A" });
  let timeStamp = 1000;
  const told = (statusLine: string, more: Partial<Details> = {}) => {
    timeStamp += 10;
    const request = details({ documentId: "A", timeStamp, statusLine, ...more });
    return [requests.handleSent(request) !== null, requests.handleAnswered(request)?.isHttp1];
  };
  assert.deepEqual(told("HTTP/1.1 200"), [true, false], "as Chromium says of HTTP/2");
  assert.deepEqual(told("HTTP/2.0 200 "), [false, false], "Firefox");
  assert.deepEqual(told("HTTP/1.1 200 OK"), [false, true], "not known yet");
  assert.deepEqual(told("HTTP/1.1 404 Not Found"), [true, true]);
  assert.deepEqual(told("HTTP/1.1 200 OK", { url: "https://cdn.net:8443/" }), [false, true], "another port");
  assert.deepEqual(told("HTTP/1.1 200"), [true, false]);
  assert.deepEqual(told("HTTP/1.1 200"), [false, false]);
});

test("requests of one millisecond have different times, in their order", () => {
  const requests = new Requests();
  requests.handleTab(1, "https://a.com/");
  const begun = [1000, 1000, 1000, 1001, 1005, 900].map((timeStamp, id) => {
    const request = details({ requestId: `${id}`, timeStamp });
    requests.handleSent(request);
    return requests.handleAnswered(request)?.beginMs ?? NaN;
  });
  assert.deepEqual(begun.map((ms) => ms.toFixed(3)), [
    "1000.000", "1000.001", "1000.002", "1001.000", "1005.000", "900.000",
  ]);
});
