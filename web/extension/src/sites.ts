// To which group a site belongs: the patterns of the daemon's configuration, as the daemon reads
// them, and the groups that the user has chosen in this browser.

export interface Group {
  name: string;
  weight: number;
  /** Patterns: a host and all below it, or with `*.` in front only what is below it. */
  sites: string[];
}

interface Entry {
  whole?: number;
  below?: number;
}

export class Sites {
  readonly #patterns = new Map<string, Entry>();
  readonly #chosen = new Map<string, number>();

  /** `chosen` has names of groups by host; one that does not exist is left out. */
  constructor(readonly groups: readonly Group[], chosen: Readonly<Record<string, string>>) {
    groups.forEach((group, index) => {
      for (const pattern of group.sites) {
        const onlyBelow = pattern.startsWith("*.");
        const name = onlyBelow ? pattern.slice(2) : pattern;
        const entry = this.#patterns.get(name) ?? {};
        // The group that is first in the configuration wins.
        if (onlyBelow) entry.below ??= index;
        else entry.whole ??= index;
        this.#patterns.set(name, entry);
      }
    });
    for (const [host, name] of Object.entries(chosen)) {
      const index = groups.findIndex((group) => group.name === name);
      if (index >= 0) this.#chosen.set(host, index);
    }
  }

  /** The index of the site's group; null if no pattern matches. */
  groupOf(host: string): number | null {
    for (const name of namesOf(host)) {
      const chosen = this.#chosen.get(name);
      if (chosen !== undefined) return chosen;
    }
    for (const name of namesOf(host)) {
      const entry = this.#patterns.get(name);
      const group = name === host ? entry?.whole : (entry?.below ?? entry?.whole);
      if (group !== undefined) return group;
    }
    return null;
  }
}

/** A host, and what it is below, the most specific first. */
function* namesOf(host: string): Generator<string> {
  let name = host;
  for (;;) {
    yield name;
    const dot = name.indexOf(".");
    if (dot < 0) return;
    name = name.slice(dot + 1);
  }
}

/** The host of an address that a connection leads to; null of all others. */
export function hostOf(url: string | undefined): string | null {
  if (url === undefined || !/^(https?|wss?):/.test(url)) return null;
  try {
    return new URL(url).hostname.replace(/\.$/, "") || null;
  } catch {
    return null;
  }
}

/** The port of such an address. */
export function portOf(url: string): number {
  const { port, protocol } = new URL(url);
  if (port !== "") return Number(port);
  return protocol === "https:" || protocol === "wss:" ? 443 : 80;
}
