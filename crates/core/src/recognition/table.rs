//! Which systems and kinds each sign leaves possible.

use super::{Claim, Kind, Os, Set, Source};

/// The longest text of what was seen; the rest is cut off.
pub const SEEN_MAX: usize = 200;

/// What is left possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    /// Operating systems.
    pub os: Set<Os>,
    /// Kinds.
    pub kinds: Set<Kind>,
}

impl What {
    /// Anything.
    pub fn anything() -> What {
        What { os: Set::all(), kinds: Set::all() }
    }
}

/// A DHCP client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpEntry {
    /// What it asks for, in its order; `None` is anything.
    pub requests: Option<Vec<u8>>,
    /// How the vendor that it names begins; empty is any, and none.
    pub vendor: String,
    /// What has such a client.
    pub what: What,
}

/// A TCP implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynEntry {
    /// The hops that it allows to its packets.
    pub hops: u8,
    /// Its options in order, as [`Syn::layout`](crate::relay::Syn::layout) writes them.
    pub layout: String,
    /// What has such a one.
    pub what: What,
}

/// An HTTP client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentEntry {
    /// Words that its `User-Agent` has all of.
    pub words: Vec<String>,
    /// What has such a one.
    pub what: What,
}

/// Entries by source. Of several that fit, that with most of the vendor's name and then with a list of requests
/// counts for DHCP, else the first.
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
    /// What a DHCP client that asks for `requests` and names `vendor` may be.
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

    /// Systems that send a first packet with `hops` left and these options.
    pub(super) fn of_syn(&self, hops: u8, layout: &str) -> Claim {
        let fits = |entry: &&SynEntry| {
            (entry.hops.saturating_sub(HOPS_INSIDE)..=entry.hops).contains(&hops)
                && entry.layout == layout
        };
        let best = self.syn.iter().find(fits);
        claim(Source::Syn, &format!("{hops} {layout}"), best.map(|entry| entry.what))
    }

    /// What sends such a `User-Agent`.
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

/// Routers of the home between a device and the gateway.
const HOPS_INSIDE: u8 = 4;
/// What is looked at of a `User-Agent`.
const AGENT_MAX: usize = 512;
