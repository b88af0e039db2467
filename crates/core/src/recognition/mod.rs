//! What a device of the LAN is: its operating system and its kind, from what passes the gateway.
//!
//! Problem: `os:ios` and `device-kind:television` name devices by what they are, but packets do not say
//! it. Method: three things differ between systems: the options that a DHCP client asks for and the
//! vendor that it names, the options of a connection's first packet, and the `User-Agent` of HTTP
//! without encryption. A [`Table`] says of each which systems and kinds it leaves possible. What all
//! signs of a device leave is the answer; if it is one, the device is known.
//!
//! Terms: a *claim* is what one sign leaves possible. Claims that leave nothing in common
//! are a *conflict*, which is shown and never applied.
//!
//! Properties, all tested: signs only narrow, so what several systems have in common identifies no
//! single one; a sign without an entry says nothing; what the user says precedes all signs. A device can
//! pretend to be any other: what must not be circumvented needs `mac:`.
//!
//! Bounds: [`DEVICES_MAX`] devices, the one that was silent longest makes room; [`CLAIMS_MAX`] claims of
//! each, likewise; texts of [`SEEN_MAX`] bytes.
//!
//! Source: RFC 2132, sections 9.8 and 9.13; RFC 9293, section 3.2; RFC 9110, section 10.1.5.

mod agent;
mod devices;
mod table;
mod word;

pub use agent::agent;
pub use devices::{CLAIMS_MAX, DEVICES_MAX, Devices, Portrait};
pub use table::{AgentEntry, DhcpEntry, SEEN_MAX, SynEntry, Table, What};
pub use word::{Kind, Os, Set, Word};

/// Where a sign is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The user.
    User,
    /// Options 55 and 60 of a DHCP request.
    Dhcp,
    /// The options of a connection's first packet.
    Syn,
    /// The `User-Agent` of an HTTP request.
    Agent,
}

impl Source {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Source::User => "user",
            Source::Dhcp => "dhcp",
            Source::Syn => "syn",
            Source::Agent => "user-agent",
        }
    }
}

/// What one sign leaves possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Where it is from.
    pub source: Source,
    /// What was seen, in printable ASCII; at most [`SEEN_MAX`] bytes.
    pub seen: String,
    /// Which systems and kinds it leaves.
    pub what: What,
}

/// How sure an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// One source narrows to it.
    One,
    /// Two sources or more do, each by something of its own.
    Several,
    /// The user has said so.
    User,
}

impl Confidence {
    /// A few words.
    pub fn name(self) -> &'static str {
        match self {
            Confidence::One => "one source",
            Confidence::Several => "several sources",
            Confidence::User => "user",
        }
    }
}

/// What all signs of a device say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<W> {
    /// This one.
    Known(W, Confidence),
    /// One of these, which may be all.
    Unknown(Set<W>),
    /// The claims have nothing in common.
    Conflict,
}

impl<W: Word> Verdict<W> {
    /// The answer, if there is one.
    pub fn known(self) -> Option<W> {
        match self {
            Verdict::Known(word, _) => Some(word),
            Verdict::Unknown(_) | Verdict::Conflict => None,
        }
    }

    /// The verdict of these claims.
    fn of<'c>(claims: impl Iterator<Item = (Source, &'c Set<W>)>) -> Verdict<W> {
        let (mut left, mut sources) = (Set::all(), Vec::new());
        for (source, set) in claims {
            if source == Source::User
                && let Some(word) = set.only()
            {
                return Verdict::Known(word, Confidence::User);
            }
            left = left.and(*set);
            if *set != Set::all() && !sources.contains(&source) {
                sources.push(source);
            }
        }
        if left.is_empty() {
            return Verdict::Conflict;
        }
        let confidence = if sources.len() > 1 { Confidence::Several } else { Confidence::One };
        left.only().map_or(Verdict::Unknown(left), |word| Verdict::Known(word, confidence))
    }
}

/// What rules see of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `None` is unknown or in conflict.
    pub os: Option<Os>,
    /// Likewise.
    pub kind: Option<Kind>,
}

/// A criterion for a device. Text form: `os:ios`, `device-kind:television`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceMatch {
    /// Its operating system.
    Os(Os),
    /// Its kind.
    Kind(Kind),
}

impl DeviceMatch {
    /// Whether the device is known to be so.
    pub fn is_of(self, identity: Identity) -> bool {
        match self {
            DeviceMatch::Os(os) => identity.os == Some(os),
            DeviceMatch::Kind(kind) => identity.kind == Some(kind),
        }
    }

    /// Reads the text form; `None` if the text is of no such kind of match.
    ///
    /// # Errors
    /// The words that are allowed.
    pub fn parse(text: &str) -> Option<Result<DeviceMatch, String>> {
        if let Some(word) = text.strip_prefix("os:") {
            return Some(word::parse(word).map(DeviceMatch::Os));
        }
        let word = text.strip_prefix("device-kind:")?;
        Some(word::parse(word).map(DeviceMatch::Kind))
    }
}

impl std::fmt::Display for DeviceMatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceMatch::Os(os) => write!(f, "os:{}", os.name()),
            DeviceMatch::Kind(kind) => write!(f, "device-kind:{}", kind.name()),
        }
    }
}
