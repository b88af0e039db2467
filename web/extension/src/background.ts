// The extension's part that always runs: it watches requests and tells the daemon of each to which
// group its site belongs. Names of hosts leave the browser only hashed, and only to this machine's
// daemon.

import { Daemon, type Config, type Rate } from "./daemon.js";
import { Requests, type Answered, type Committed, type Details, type Sent } from "./requests.js";
import { hostOf, Sites } from "./sites.js";

/** Asked by the popup. */
export type Question =
  | { kind: "state"; url: string | undefined }
  | { kind: "assign"; host: string; group: string | null };

/** The answer to the popup. */
export interface State {
  error: string | null;
  host: string | null;
  /** The name of the group that is in force for the host. */
  group: string | null;
  /** The group that the user has chosen for it. */
  chosen: string | null;
  groups: { name: string; weight: number; rate: Rate | null }[];
}

const STORED = "groups";
const HASHES_MAX = 1024;
const ALL = { urls: ["<all_urls>"] };

const requests = new Requests();
let config: Config | null = null;
let sites = new Sites([], {});
let chosen: Record<string, string> = {};
const hashes = new Map<string, string>();
const daemon = new Daemon((told) => {
  config = told;
  hashes.clear();
  sites = new Sites(told?.groups ?? [], chosen);
});

async function tell(request: Sent | Answered): Promise<void> {
  const known = config;
  if (known === null) return;
  const group = sites.groupOf(request.site);
  const host = await hash(known.salt, request.host);
  // Meanwhile there may be another configuration.
  if (known !== config) return;
  daemon.push({
    host,
    address: "address" in request ? request.address : null,
    port: request.port,
    group,
    begin_ms: request.beginMs,
    start_ms: "startMs" in request ? request.startMs : null,
    unsure: request.isUnsure,
    http1: request.isHttp1,
  });
}

async function hash(salt: string, host: string): Promise<string> {
  const known = hashes.get(host);
  if (known !== undefined) return known;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(salt + host));
  const hex = Array.from(new Uint8Array(digest), (b) => b.toString(16).padStart(2, "0")).join("");
  if (hashes.size >= HASHES_MAX) hashes.clear();
  hashes.set(host, hex);
  return hex;
}

function state(url: string | undefined): State {
  const host = hostOf(url);
  const group = host === null ? null : sites.groupOf(host);
  const last = sites.groups.length - 1;
  return {
    error: daemon.error,
    host,
    group: sites.groups[group ?? last]?.name ?? null,
    chosen: host === null ? null : (chosen[host] ?? null),
    groups: sites.groups.map(({ name, weight }, i) => ({
      name,
      weight,
      rate: daemon.rates[i] ?? null,
    })),
  };
}

async function assign(host: string, group: string | null): Promise<void> {
  if (group === null) delete chosen[host];
  else chosen[host] = group;
  await chrome.storage.local.set({ [STORED]: chosen });
  sites = new Sites(config?.groups ?? [], chosen);
}

chrome.webRequest.onSendHeaders.addListener((d) => {
  const sent = requests.handleSent(d as Details);
  if (sent !== null) void tell(sent);
}, ALL);
chrome.webRequest.onResponseStarted.addListener((d) => {
  const answered = requests.handleAnswered(d as Details);
  if (answered !== null) void tell(answered);
}, ALL);
chrome.webNavigation.onCommitted.addListener((d) => requests.handleCommitted(d as Committed));
chrome.runtime.onMessage.addListener((question: Question, _sender, answer) => {
  if (question.kind === "assign") {
    void assign(question.host, question.group).then(() => answer(null));
    return true;
  }
  daemon.ask();
  answer(state(question.url));
  return false;
});

void chrome.storage.local.get(STORED).then((stored) => {
  chosen = { ...(stored[STORED] as Record<string, string> | undefined) };
  sites = new Sites(config?.groups ?? [], chosen);
});
// Tabs that were open before the extension started.
void chrome.tabs.query({}).then((tabs) => {
  for (const tab of tabs) if (tab.id !== undefined) requests.handleTab(tab.id, tab.url);
});
daemon.ask();
