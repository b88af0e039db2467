// The way to the daemon: messages to the program that the browser starts, one at a time.

import type { Group } from "./sites.js";

const NAME = "net.fairweir.extension";
const VERSION = 1;
/** A message stays below 16 KiB. */
const EVENTS_MAX = 60;
const QUEUE_MAX = 1000;
/** The daemon takes one message in 20 ms. */
const BATCH_MS = 20;
/** The daemon takes connections for a browser's that was heard in the last 60 s. */
const POLL_MS = 20_000;
const RETRY_MS = 3_000;

export interface Event {
  host: string;
  /** Null, as `start_ms`, of a request that leaves. */
  address: string | null;
  port: number;
  group: number | null;
  begin_ms: number;
  start_ms: number | null;
  unsure: boolean;
  http1: boolean;
}

export interface Rate {
  rate_bps: number;
  share_bps: number;
  state: string;
}

export interface Config {
  salt: string;
  groups: Group[];
}

interface Reply {
  error?: string;
  generation?: number;
  config?: Config | null;
  rates?: Rate[];
}

export class Daemon {
  /** Why nothing is told to the daemon; null if it is. */
  error: string | null = "not connected yet";
  rates: Rate[] = [];
  #port: chrome.runtime.Port | null = null;
  #generation: number | null = null;
  #queue: Event[] = [];
  #isAsked = false;
  #askedAtMs = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `onConfig` hears of each configuration; events that were queued for another one are dropped. */
  constructor(readonly onConfig: (config: Config | null) => void) {}

  /** Tells now, or with others soon after the last message. */
  push(event: Event): void {
    if (this.#queue.length >= QUEUE_MAX) this.#queue.shift();
    this.#queue.push(event);
    if (this.#isAsked) return;
    if (this.#generation !== null && Date.now() - this.#askedAtMs >= BATCH_MS) this.ask();
    else this.#wake(BATCH_MS);
  }

  /** Asks the daemon now, also if there is nothing to tell. */
  ask(): void {
    if (this.#isAsked) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    try {
      this.#port ??= this.#connect();
      const events = this.#generation === null ? [] : this.#queue.splice(0, EVENTS_MAX);
      this.#port.postMessage({ version: VERSION, generation: this.#generation, events });
      this.#isAsked = true;
      this.#askedAtMs = Date.now();
    } catch (e) {
      this.#lose(String(e));
    }
  }

  #connect(): chrome.runtime.Port {
    const port = chrome.runtime.connectNative(NAME);
    port.onMessage.addListener((reply: Reply) => this.#handleReply(reply));
    port.onDisconnect.addListener(() => {
      this.#port = null;
      this.#lose(chrome.runtime.lastError?.message ?? "fairweir extension host has ended");
    });
    return port;
  }

  #handleReply(reply: Reply): void {
    this.#isAsked = false;
    if (reply.error !== undefined || reply.generation === undefined) {
      this.#lose(reply.error ?? "not understood");
      return;
    }
    this.error = null;
    this.rates = reply.rates ?? [];
    if (reply.config) {
      this.#generation = reply.generation;
      this.#queue = [];
      this.onConfig(reply.config);
    }
    this.#wake(this.#queue.length > 0 ? BATCH_MS : POLL_MS);
  }

  #lose(error: string): void {
    this.error = error;
    this.#isAsked = false;
    this.#generation = null;
    this.#queue = [];
    this.rates = [];
    this.onConfig(null);
    this.#wake(RETRY_MS);
  }

  #wake(ms: number): void {
    // A batch does not wait for a poll, and is not put off by the next event.
    if (this.#timer !== undefined && ms === BATCH_MS && this.#isBatch) return;
    clearTimeout(this.#timer);
    this.#isBatch = ms === BATCH_MS;
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.ask();
    }, ms);
  }

  #isBatch = false;
}
