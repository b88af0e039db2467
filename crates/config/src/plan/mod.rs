//! How a rate is shared, in a scenario's `[[police]]` and in an operator's `[[plan]]`.
//!
//! Both have the same keys: `rtt_max`, `signal`, and either `queues`, to which flows are assigned
//! by a hash, or `share` with a list `class`, whose entries have the same keys again. They differ
//! only in the keys that name the traffic of a class; these are read by [`Members`].

use fairweir_core::phantom::plan::{CLIENT_LEAVES_MAX, LEAVES_MAX, WEIGHT_MAX};
use fairweir_core::phantom::{Class, Criterion, PlanError, PlanSpec, Share, Signal};
use fairweir_core::policy::Match;
use fairweir_core::units::{Rate, Span};

use crate::error::ConfigError;
use crate::table::{Place, Placed, Table};
use crate::words::not_one_of;

/// The default round-trip time for which a plan is sized: that of a host on another continent.
pub const RTT_MAX: Span = Span::millis(100);
/// The default number of queues of a plan without classes.
pub const QUEUES: u8 = 16;
/// The default number of queues of a class.
pub const QUEUES_OF_CLASS: u8 = 1;

/// The keys that name the traffic of a class.
pub trait Members {
    /// Takes them from the table of the class `name`; no criteria mean all traffic that no other
    /// class takes.
    ///
    /// # Errors
    /// [`ConfigError`] if one of them is wrong.
    fn take(&mut self, table: &mut Table<'_>, name: &str) -> Result<Vec<Criterion>, ConfigError>;

    /// Whether `share = "client"` is allowed: subscribers' clients divide the rate.
    fn has_clients(&self) -> bool {
        false
    }
}

/// The key of an operator's class: `match = ["dscp:ef", "port:udp/5060", "ip:203.0.113.0/24"]`.
#[derive(Clone, Copy, Debug)]
pub struct ByMatch;

impl Members for ByMatch {
    fn take(&mut self, table: &mut Table<'_>, _: &str) -> Result<Vec<Criterion>, ConfigError> {
        let Some(Placed { value, place }) = table.texts("match")? else { return Ok(Vec::new()) };
        if value.is_empty() {
            return Err(place.error("empty list; leave `match` out to take all other traffic"));
        }
        value.iter().map(|text| criterion(&text.value).map_err(|e| text.place.error(e))).collect()
    }

    fn has_clients(&self) -> bool {
        true
    }
}

/// How a rate is shared, and the places of its parts.
#[derive(Clone)]
pub struct Sharing<'t> {
    /// The longest round-trip time at which a connection can reach the rate.
    pub rtt_max: Span,
    /// How senders are signalled.
    pub signal: Signal,
    /// How the rate is shared; if clients may divide it, how it is shared without an agreement.
    pub share: Share,
    /// The place of the key that lets subscribers' clients divide, if it is set.
    pub clients: Option<Place<'t>>,
    place: Place<'t>,
    rtt_max_place: Option<Place<'t>>,
    /// The place of each class by its name; of two classes with the same name the later comes first.
    classes: Vec<(String, Place<'t>)>,
}

impl Sharing<'_> {
    /// The specification of a plan for a rate.
    pub fn spec(&self, rate: Rate) -> PlanSpec {
        PlanSpec { rate, rtt_max: self.rtt_max, signal: self.signal, share: self.share.clone() }
    }

    /// The error of a plan, with its place; `rate_place` is the place of the plan's rate.
    pub fn error(&self, error: &PlanError, rate_place: &Place<'_>) -> ConfigError {
        let class = |name: &String| self.classes.iter().find(|(n, _)| n == name).map(|(_, p)| p);
        match error {
            PlanError::Rate(_) => rate_place.error(error),
            PlanError::RttMax(_) => self.rtt_max_place.as_ref().unwrap_or(&self.place).error(error),
            PlanError::Weight { class: name, .. }
            | PlanError::TooDeep(name)
            | PlanError::DuplicateClass(name)
            | PlanError::MatchesOnDivided(name)
            | PlanError::TwoDefaults(_, name) => class(name).unwrap_or(&self.place).error(error),
            PlanError::Queues(_)
            | PlanError::ClientQueues(_)
            | PlanError::NoClass(_)
            | PlanError::TooManyLeaves(_)
            | PlanError::TooManyInners(_)
            | PlanError::NoDefault
            | PlanError::TooManyMatches(_)
            | PlanError::Dscp(_) => self.place.error(error),
        }
    }
}

/// Takes the keys `rtt_max`, `signal`, `queues`, `share` and `class` from a table and leaves other keys in it.
///
/// # Errors
/// [`ConfigError`]: the first mistake in one of them.
pub fn sharing<'t>(
    table: &mut Table<'t>,
    members: &mut dyn Members,
) -> Result<Sharing<'t>, ConfigError> {
    let rtt_max = table.parsed::<Span>("rtt_max")?;
    let signals = [("soft", Signal::Soft), ("hard", Signal::Hard)];
    let signal = table.word("signal", &signals)?.map_or(Signal::Soft, |p| p.value);
    let mut classes = Vec::new();
    let (share, clients) = match how(table, members.has_clients())? {
        Some(Placed { value: How::Client, place }) => (of_clients(table)?, Some(place)),
        by => (share(table, by, members, QUEUES, &mut classes)?, None),
    };
    classes.reverse();
    Ok(Sharing {
        rtt_max: rtt_max.as_ref().map_or(RTT_MAX, |p| p.value),
        signal,
        share,
        clients,
        place: table.place(),
        rtt_max_place: rtt_max.map(|p| p.place),
        classes,
    })
}

/// The values of the key `share`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Weighted,
    Priority,
    Client,
}

fn how<'t>(
    table: &mut Table<'t>,
    has_clients: bool,
) -> Result<Option<Placed<'t, How>>, ConfigError> {
    let all = [("weighted", How::Weighted), ("priority", How::Priority), ("client", How::Client)];
    table.word("share", if has_clients { &all } else { &all[..2] })
}

/// How a rate that clients may divide is shared without a client.
fn of_clients(table: &mut Table<'_>) -> Result<Share, ConfigError> {
    let queues = table.integer("queues", 1, CLIENT_LEAVES_MAX as u64)?;
    if let Some(class) = table.tables("class")?.first() {
        let what = "classes beside `share = \"client\"`, where subscribers' hosts say the classes";
        return Err(class.place().error(what));
    }
    Ok(Share::Flows(queues.map_or(QUEUES, |p| p.value as u8)))
}

/// Reads the keys `queues` and `class`; `by` is the value of `share`.
fn share<'t>(
    table: &mut Table<'t>,
    by: Option<Placed<'t, How>>,
    members: &mut dyn Members,
    queues_default: u8,
    places: &mut Vec<(String, Place<'t>)>,
) -> Result<Share, ConfigError> {
    let queues = table.integer("queues", 1, LEAVES_MAX as u64)?;
    let is_priority = by.map(|by| Placed { value: by.value == How::Priority, place: by.place });
    let tables = table.tables("class")?;
    let Some(is_priority) = is_priority else {
        return match tables.first() {
            Some(class) => {
                let what =
                    "classes without `share` above them; expected \"weighted\" or \"priority\"";
                Err(class.place().error(what))
            }
            None => Ok(Share::Flows(queues.map_or(queues_default, |p| p.value as u8))),
        };
    };
    if let Some(queues) = queues {
        let what = "`queues` beside `share`; put `queues` into a class";
        return Err(queues.place.error(what));
    }
    if tables.is_empty() {
        let what = "`share` without classes; expected at least one table `class`";
        return Err(is_priority.place.error(what));
    }
    let is_priority = is_priority.value;
    let mut classes = Vec::new();
    for table in tables {
        classes.push(class(table, members, is_priority, places)?);
    }
    Ok(if is_priority { Share::Priority(classes) } else { Share::Weighted(classes) })
}

fn class<'t>(
    mut table: Table<'t>,
    members: &mut dyn Members,
    is_priority: bool,
    places: &mut Vec<(String, Place<'t>)>,
) -> Result<Class, ConfigError> {
    let name = table.text("name")?.ok_or_else(|| table.missing("name", "a class's name"))?;
    if name.value.is_empty() {
        return Err(name.place.error("empty; expected a name for the counters"));
    }
    let weight = table.integer("weight", 1, WEIGHT_MAX.into())?;
    if let Some(weight) = weight.as_ref().filter(|_| is_priority) {
        let what = "`weight` of a class under `share = \"priority\"`, where the order of classes decides; leave it out";
        return Err(weight.place.error(what));
    }
    places.push((name.value.clone(), name.place));
    let matches = members.take(&mut table, &name.value)?;
    let by = how(&mut table, false)?;
    let share = share(&mut table, by, members, QUEUES_OF_CLASS, places)?;
    table.finish()?;
    Ok(Class { name: name.value, weight: weight.map_or(1, |p| p.value as u16), matches, share })
}

/// Reads `dscp:ef`, `dscp:46`, `ip:203.0.113.0/24`, `port:udp/5060` or `local-port:8000-8010`.
///
/// # Errors
/// Says what is expected.
pub fn criterion(text: &str) -> Result<Criterion, String> {
    let kinds = "allowed: dscp:, ip:, port:, local-port:";
    match text.split_once(':') {
        Some(("dscp", value)) => dscp(value).map(Criterion::Dscp),
        Some(("ip" | "port" | "local-port", _)) => match text.parse::<Match>() {
            Ok(Match::Ip(net)) => Ok(Criterion::Ip(net)),
            Ok(Match::Port(port)) => Ok(Criterion::Port(port)),
            Ok(_) => Err(format!("`{text}`: {kinds}")),
            Err(e) => Err(e.to_string()),
        },
        Some((kind, _)) => {
            Err(not_one_of(&format!("{kind}:"), &["dscp:", "ip:", "port:", "local-port:"]))
        }
        None => Err(format!("`{text}` has no kind; {kinds}")),
    }
}

/// A DSCP by number or name. Source: the IANA registry (RFC 2474, 2597, 3246, 5865, 8622).
fn dscp(text: &str) -> Result<u8, String> {
    let lower = text.to_ascii_lowercase();
    let digits = |from: usize| -> Vec<u8> {
        lower.bytes().skip(from).map(|b| b.wrapping_sub(b'0')).collect()
    };
    let named = match lower.as_str() {
        "df" | "be" => Some(0),
        "le" => Some(1),
        "ef" => Some(46),
        "va" => Some(44),
        cs if cs.starts_with("cs") => match digits(2)[..] {
            [class @ 0..=7] => Some(8 * class),
            _ => None,
        },
        af if af.starts_with("af") => match digits(2)[..] {
            [class @ 1..=4, drop @ 1..=3] => Some(8 * class + 2 * drop),
            _ => None,
        },
        number => number.parse().ok().filter(|&n: &u8| n < 64),
    };
    let wanted = || {
        format!(
            "`{text}` is not a DSCP; allowed: 0 to 63, df, le, cs0 to cs7, af11 to af43, va, ef"
        )
    };
    named.ok_or_else(wanted)
}

#[cfg(test)]
mod tests;
