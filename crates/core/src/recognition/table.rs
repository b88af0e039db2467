//! Which systems and kinds each sign leaves possible.

use super::{Claim, Kind, Os, Set, Source};

/// The longest text of a sign that is kept; the rest is cut off.
pub const SEEN_MAX: usize = 200;

/// The systems and kinds that are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    /// Operating systems.
    pub os: Set<Os>,
    /// Kinds.
    pub kinds: Set<Kind>,
}

impl What {
    /// All systems and kinds.
    pub fn anything() -> What {
        What { os: Set::all(), kinds: Set::all() }
    }
}

/// A DHCP client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpEntry {
    /// The options that it asks for, in its order; `None` matches any.
    pub requests: Option<Vec<u8>>,
    /// The beginning of the vendor that it names; empty matches any vendor, and none.
    pub vendor: String,
    /// The systems and kinds that have such a client.
    pub what: What,
}

/// A TCP implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynEntry {
    /// The initial hop limit of its packets.
    pub hops: u8,
    /// Its options in order, as [`Syn::layout`](crate::relay::Syn::layout) writes them.
    pub layout: String,
    /// The systems and kinds that have such an implementation.
    pub what: What,
}

/// An HTTP client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentEntry {
    /// Words that must all occur in its `User-Agent`.
    pub words: Vec<String>,
    /// The systems and kinds that have such a client.
    pub what: What,
}

/// Entries by source. If several entries match, the first one counts; for DHCP, the entry with the longest vendor
/// prefix, and among equal ones an entry with a list of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// DHCP clients.
    pub dhcp: Vec<DhcpEntry>,
    /// TCP implementations.
    pub syn: Vec<SynEntry>,
    /// HTTP clients.
    pub agents: Vec<AgentEntry>,
}

impl Table {
    /// The claim for a DHCP client that asks for `requests` and names `vendor`.
    pub(super) fn of_dhcp(&self, requests: &[u8], vendor: &[u8]) -> Claim {
        let fits = |entry: &&DhcpEntry| {
            vendor.starts_with(entry.vendor.as_bytes())
                && entry.requests.as_ref().is_none_or(|wanted| wanted == requests)
        };
        let best = self.dhcp.iter().filter(fits);
        let best = best.max_by_key(|entry| (entry.vendor.len(), entry.requests.is_some()));
        let numbers: Vec<_> = requests.iter().map(u8::to_string).collect();
        let mut seen = numbers.join(",");
        if !vendor.is_empty() {
            seen = format!("{} {seen}", String::from_utf8_lossy(vendor));
        }
        claim(Source::Dhcp, &seen, best.map(|entry| entry.what))
    }

    /// The claim for a first packet with `hops` left and these options.
    pub(super) fn of_syn(&self, hops: u8, layout: &str) -> Claim {
        let fits = |entry: &&SynEntry| {
            (entry.hops.saturating_sub(HOPS_INSIDE)..=entry.hops).contains(&hops)
                && entry.layout == layout
        };
        let best = self.syn.iter().find(fits);
        claim(Source::Syn, &format!("{hops} {layout}"), best.map(|entry| entry.what))
    }

    /// The claim for a `User-Agent`.
    pub(super) fn of_agent(&self, agent: &[u8]) -> Claim {
        let agent = &agent[..agent.len().min(AGENT_MAX)];
        let text = String::from_utf8_lossy(agent);
        let fits = |entry: &&AgentEntry| entry.words.iter().all(|word| text.contains(&word[..]));
        let best = self.agents.iter().find(fits);
        claim(Source::Agent, &text, best.map(|entry| entry.what))
    }
}

fn claim(source: Source, seen: &str, what: Option<What>) -> Claim {
    let printable = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    let seen = seen.chars().take(SEEN_MAX).map(printable).collect();
    Claim { source, seen, what: what.unwrap_or(What::anything()) }
}

/// The maximum number of routers of the home between a device and the gateway.
const HOPS_INSIDE: u8 = 4;
/// The part of a `User-Agent` that is examined, in bytes.
const AGENT_MAX: usize = 512;
