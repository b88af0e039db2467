//! What a device of the LAN is: its operating system and its kind, from traffic that passes the gateway.
//!
//! Problem: `os:ios` and `device-kind:television` name devices by what they are, but packets do not say
//! it. Method: three things differ between systems: the options that a DHCP client asks for and the
//! vendor that it names, the options of a connection's first packet, and the `User-Agent` of HTTP
//! without encryption. For each of these signs a [`Table`] says which systems and kinds remain possible.
//! The answer is what all signs of a device leave possible; if that is only one, the device is known.
//!
//! Terms: a *claim* is what one sign leaves possible. Claims without anything in common are a *conflict*,
//! which is shown and never applied.
//!
//! Properties, all tested: signs only narrow, so a sign that several systems share identifies no
//! single system; a sign without an entry says nothing; what the user says precedes all signs. A device
//! can pretend to be any other: a rule that must not be circumvented needs `mac:`.
//!
//! Bounds: [`DEVICES_MAX`] devices and [`CLAIMS_MAX`] claims of each; in both cases the one that was silent
//! longest makes room; texts of [`SEEN_MAX`] bytes.
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

/// The source of a sign.
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

/// The systems and kinds that one sign leaves possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The source of the sign.
    pub source: Source,
    /// What was seen, in printable ASCII; at most [`SEEN_MAX`] bytes.
    pub seen: String,
    /// The systems and kinds that remain possible.
    pub what: What,
}

/// How sure an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// One source narrows the possibilities to the answer.
    One,
    /// Two or more sources contribute to the answer, each by a sign of its own.
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
    /// The answer is this one.
    Known(W, Confidence),
    /// The answer is one of these, which may be all.
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
    /// The operating system; `None` if unknown or in conflict.
    pub os: Option<Os>,
    /// The kind; `None` if unknown or in conflict.
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
    /// Whether the device is known to match.
    pub fn is_of(self, identity: Identity) -> bool {
        match self {
            DeviceMatch::Os(os) => identity.os == Some(os),
            DeviceMatch::Kind(kind) => identity.kind == Some(kind),
        }
    }

    /// Reads the text form; `None` if the text is not a match of this kind.
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
