// For which site each request of the browser is.
//
// A site is what the address bar shows. The document that asks is known by its id (Chromium) or its
// ancestors (Firefox). The tab alone may mislead, since pages are also fetched before they are shown,
// and a service worker has no tab: what only these tell is marked as unsure.

import { hostOf, portOf } from "./sites.js";

/** What webRequest says of a request, as far as it is used; each browser has other fields. */
export interface Details {
  requestId: string;
  url: string;
  type: string;
  tabId: number;
  timeStamp: number;
  documentId?: string | undefined;
  parentDocumentId?: string | undefined;
  initiator?: string | undefined;
  documentUrl?: string | undefined;
  frameAncestors?: { url: string }[] | undefined;
  ip?: string | undefined;
  fromCache?: boolean | undefined;
  statusLine?: string | undefined;
}

/** What webNavigation says of a document that is shown. */
export interface Committed {
  tabId: number;
  frameId: number;
  url: string;
  documentId?: string | undefined;
  parentDocumentId?: string | undefined;
}

/** A request that leaves. */
export interface Sent {
  site: string;
  host: string;
  port: number;
  beginMs: number;
  isUnsure: boolean;
  /** The host has answered by HTTP/1.1, where each request has a connection of its own. */
  isHttp1: boolean;
}

/** A request whose response has begun. */
export interface Answered extends Sent {
  address: string;
  startMs: number;
}

/** A map that forgets its oldest entries. */
class Bounded<K, V> extends Map<K, V> {
  constructor(readonly max: number) {
    super();
  }

  override set(key: K, value: V): this {
    this.delete(key);
    for (const oldest of this.keys()) {
      if (this.size < this.max) break;
      this.delete(oldest);
    }
    return super.set(key, value);
  }
}

const DOCUMENTS_MAX = 4096;
const TABS_MAX = 1024;
const REQUESTS_MAX = 4096;
const PAIRS_MAX = 1024;
/** A browser that needs a connection opens it within milliseconds, and for many requests at once one. */
const AGAIN_MS = 100;
/** Only HTTP/1.1 has a reason phrase; Chromium writes "HTTP/1.1 200" also for HTTP/2 and HTTP/3. */
const HTTP1 = /^HTTP\/1\.\d \d+ \S/;

export class Requests {
  /** The site of each document, by its id. */
  readonly #documents = new Bounded<string, string>(DOCUMENTS_MAX);
  readonly #tabs = new Bounded<number, string>(TABS_MAX);
  /**
   * When each request was sent, by its id, until it is answered. One that fails stays until the map is full:
   * to hear of each end would double what the browser tells the extension.
   */
  readonly #begun = new Bounded<string, number>(REQUESTS_MAX);

  handleTab(tabId: number, url: string | undefined): void {
    const host = hostOf(url);
    if (host === null) this.#tabs.delete(tabId);
    else this.#tabs.set(tabId, host);
  }

  handleCommitted(document: Committed): void {
    const isTop = document.frameId === 0;
    if (isTop) this.handleTab(document.tabId, document.url);
    const site = isTop
      ? hostOf(document.url)
      : (this.#siteOfDocument(document.parentDocumentId) ?? this.#tabs.get(document.tabId));
    if (document.documentId !== undefined && site) this.#documents.set(document.documentId, site);
  }

  /** When the last request of each site to each host was told of. */
  readonly #told = new Bounded<string, number>(PAIRS_MAX);
  #lastMs = -Infinity;
  /** Whether each host and port has last answered by HTTP/1.1. */
  readonly #isHttp1 = new Bounded<string, boolean>(PAIRS_MAX);

  /**
   * The request leaves; again after each redirection. Null if it is for no site that is known, or may share the
   * connection of one of that site to that host that has just left. An unsure one is told too: else connections that are opened for it would be
   * taken for those of another site, whose requests are known.
   */
  handleSent(details: Details): Sent | null {
    const beginMs = this.#distinct(details.timeStamp);
    this.#begun.set(details.requestId, beginMs);
    const host = hostOf(details.url);
    const whose = host === null ? null : this.#siteOf(details, host);
    if (host === null || whose === null) return null;
    const pair = `${whose.site} ${host}`;
    const port = portOf(details.url);
    const isHttp1 = this.#isHttp1.get(`${host}:${port}`) ?? false;
    if (!isHttp1 && beginMs - (this.#told.get(pair) ?? -Infinity) < AGAIN_MS) return null;
    this.#told.set(pair, beginMs);
    return { ...whose, host, port, beginMs, isHttp1 };
  }

  /** The response begins; null if it came by no connection, or for no site that is known. */
  handleAnswered(details: Details): Answered | null {
    const beginMs = this.#begun.get(details.requestId);
    this.#begun.delete(details.requestId);
    const host = hostOf(details.url);
    if (beginMs === undefined || host === null || !details.ip || details.fromCache) return null;
    const port = portOf(details.url);
    const isHttp1 = HTTP1.test(details.statusLine ?? "");
    this.#isHttp1.set(`${host}:${port}`, isHttp1);
    const whose = this.#siteOf(details, host);
    if (whose === null) return null;
    return {
      ...whose,
      host,
      address: details.ip.replace(/^\[|\]$/g, ""),
      port,
      beginMs,
      isHttp1,
      startMs: details.timeStamp,
    };
  }

  /** A later time for each of the requests of one millisecond, since Firefox rounds to whole ones. */
  #distinct(ms: number): number {
    const isLater = ms > this.#lastMs || ms < this.#lastMs - 1;
    return (this.#lastMs = isLater ? ms : this.#lastMs + 0.001);
  }

  #siteOf(details: Details, host: string): { site: string; isUnsure: boolean } | null {
    if (details.type === "main_frame") return { site: host, isUnsure: false };
    const ancestor = details.frameAncestors?.at(-1)?.url ?? details.documentUrl;
    const sure =
      this.#siteOfDocument(details.parentDocumentId) ??
      this.#siteOfDocument(details.documentId) ??
      (details.tabId >= 0 ? hostOf(ancestor) : null);
    if (sure !== null) return { site: sure, isUnsure: false };
    const guess = this.#tabs.get(details.tabId) ?? hostOf(details.initiator ?? ancestor);
    return guess === null ? null : { site: guess, isUnsure: true };
  }

  #siteOfDocument(id: string | undefined): string | null {
    return (id === undefined ? undefined : this.#documents.get(id)) ?? null;
  }
}
