//! Values that files and the command line have in common.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use fairweir_core::policy::{Match, MatchError};
use fairweir_core::receiver::{CAPACITY_MIN, CAPACITY_MIN_RBM, Control, LATENCY_RANGE};
use fairweir_core::units::{Rate, Span};

use nix::unistd::User;

use crate::words::choices;

/// The largest capacity of a link; more is probably a slip of the unit.
pub const CAPACITY_MAX: Rate = Rate::mbit(400_000);

/// Where a daemon serves metrics over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsAt {
    /// At a loopback address, which every local user can read.
    Loopback(SocketAddr),
    /// At a Unix socket of the run directory.
    Unix,
}

impl MetricsAt {
    /// Reads `unix`, or a loopback address and port.
    ///
    /// # Errors
    /// Says what is allowed.
    pub fn parse(text: &str) -> Result<MetricsAt, String> {
        let allowed = "a loopback address and port such as 127.0.0.1:9115, or `unix`";
        if text == "unix" {
            return Ok(MetricsAt::Unix);
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(MetricsAt::Loopback(address)),
            Ok(address) => {
                Err(format!("{address} can be reached from other hosts; expected {allowed}"))
            }
            Err(_) => Err(format!("`{text}` is not an address; expected {allowed}")),
        }
    }
}

impl fmt::Display for MetricsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAt::Loopback(address) => write!(f, "http://{address}/metrics"),
            MetricsAt::Unix => f.write_str("a Unix socket of the run directory"),
        }
    }
}

/// The longest name of an interface, in bytes. Source: IFNAMSIZ of linux/if.h, without its end.
const DEV_NAME_MAX: usize = 15;

/// Reads the name of an interface.
///
/// # Errors
/// Says what is allowed.
pub fn parse_dev(text: &str) -> Result<String, String> {
    let ok = (1..=DEV_NAME_MAX).contains(&text.len())
        && !text.chars().any(|c| c == '/' || c.is_whitespace() || c.is_control())
        && text != "."
        && text != "..";
    if ok {
        return Ok(text.to_owned());
    }
    let expected = format!("expected 1 to {DEV_NAME_MAX} bytes, such as eth0");
    Err(format!("`{text}` is not a name of an interface; {expected}"))
}

/// Reads the name of a control that a host can have.
///
/// # Errors
/// Says what is allowed.
pub fn parse_control(text: &str) -> Result<Control, String> {
    Control::from_str(text).map_err(|_| {
        let allowed = Control::ALL.map(Control::name);
        match text {
            "wfq" | "crab-printed" => format!(
                "`{text}` is for comparison, in the simulator and the lab only; allowed: {}",
                allowed.join(", ")
            ),
            _ => format!("unknown control `{text}`{}", choices(text, &allowed)),
        }
    })
}

/// Reads the capacity of a link.
///
/// # Errors
/// Says what is allowed.
pub fn parse_capacity(text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|e| format!("{e}"))?;
    if (CAPACITY_MIN_RBM..=CAPACITY_MAX).contains(&rate) {
        return Ok(rate);
    }
    Err(format!("capacity {rate} is out of range ({CAPACITY_MIN_RBM} to {CAPACITY_MAX})"))
}

/// Reads what a group may receive at most.
///
/// # Errors
/// Says what is allowed.
pub fn parse_max(text: &str) -> Result<Rate, String> {
    parse_limit("max", text)
}

/// Reads what a group receives at least.
///
/// # Errors
/// Says what is allowed.
pub fn parse_min(text: &str) -> Result<Rate, String> {
    parse_limit("min", text)
}

fn parse_limit(key: &str, text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|e| format!("{e}"))?;
    if (CAPACITY_MIN..=CAPACITY_MAX).contains(&rate) {
        return Ok(rate);
    }
    Err(format!("{key} {rate} is out of range ({CAPACITY_MIN} to {CAPACITY_MAX})"))
}

const MATCH_KINDS: [&str; 8] = ["app", "unit", "cgroup", "user", "ip", "port", "local-port", "web"];

/// Reads a rule for connections.
///
/// # Errors
/// Says what is allowed.
pub fn parse_match(text: &str) -> Result<Match, String> {
    let parsed = text.parse::<Match>().map_err(|e| match &e {
        MatchError::UnknownKind { kind } => {
            format!("unknown kind `{kind}:`{}", choices(kind, &MATCH_KINDS))
        }
        _ => e.to_string(),
    })?;
    match &parsed {
        Match::User(name) => check_user(name)?,
        Match::Class(_) => {
            return Err(format!("unknown kind `class:`{}", choices("class", &MATCH_KINDS)));
        }
        Match::Mac(_) | Match::Host(_) => {
            return Err("`mac:` and `host:` are for the devices of `fairweir router`".to_owned());
        }
        _ => {}
    }
    Ok(parsed)
}

/// A match of a device behind a router.
///
/// # Errors
/// What is wrong with it.
pub fn parse_device_match(text: &str) -> Result<Match, String> {
    match text.parse::<Match>() {
        Ok(parsed @ (Match::Mac(_) | Match::Ip(_))) => Ok(parsed),
        Err(e) if text.starts_with("mac:") || text.starts_with("ip:") => Err(e.to_string()),
        Ok(_) | Err(_) => Err(format!(
            "`{shown}` is no match of a device; allowed: mac:02:00:5e:00:53:01, ip:192.168.1.7, \
             ip:192.168.1.0/24, and for `fairweir router` host:tv",
            shown = text.chars().take(SHOWN_MAX).collect::<String>()
        )),
    }
}

/// A device of a router, which may be known by its name too.
///
/// # Errors
/// What is wrong with it.
pub fn parse_router_match(text: &str) -> Result<Match, String> {
    if text.starts_with("host:") {
        return text.parse::<Match>().map_err(|e| e.to_string());
    }
    parse_device_match(text)
}

/// What a group within a device is known by.
///
/// # Errors
/// What is wrong with it.
pub fn parse_inner_match(text: &str) -> Result<Match, String> {
    match text.parse::<Match>() {
        Ok(parsed @ (Match::Ip(_) | Match::Port(_) | Match::Web(_))) => Ok(parsed),
        Err(e) if INNER_KINDS.iter().any(|kind| text.starts_with(kind)) => Err(e.to_string()),
        Ok(_) | Err(_) => Err(format!(
            "`{shown}` is no match of a group within a device; allowed: ip:203.0.113.7 (the server), \
             ip:203.0.113.0/24, port:udp/443, local-port:8000-8010, web:netflix.com",
            shown = text.chars().take(SHOWN_MAX).collect::<String>()
        )),
    }
}

/// Kinds of match of a group within a device.
const INNER_KINDS: [&str; 4] = ["ip:", "port:", "local-port:", "web:"];

/// The longest part of a text that is not a match, in a message.
const SHOWN_MAX: usize = 80;

/// A number needs no user; a name must be one that the system knows.
fn check_user(name: &str) -> Result<(), String> {
    if name.parse::<u32>().is_ok() {
        return Ok(());
    }
    match User::from_name(name) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(format!("unknown user `{name}`; expected a name or number of a user")),
        Err(e) => Err(format!("cannot look up user `{name}`: {e}")),
    }
}
/// A target of the queue at the ISP, within [`LATENCY_RANGE`].
pub(crate) fn parse_latency(text: &str) -> Result<Span, String> {
    in_range(text, "latency", LATENCY_RANGE)
}

/// A span within `range`; `name` is what messages call it.
pub(crate) fn in_range(
    text: &str,
    name: &str,
    range: RangeInclusive<Span>,
) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|e| format!("{e}"))?;
    if range.contains(&span) {
        return Ok(span);
    }
    Err(format!("{name} {span} is out of range ({} to {})", range.start(), range.end()))
}
