//! Values that are used both in files and on the command line.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use fairweir_core::calendar::{DAY_MIN, DAYS, Period, Quota, Window};
use fairweir_core::policy::{Match, MatchError};
use fairweir_core::receiver::{CAPACITY_MIN, CAPACITY_MIN_RBM, Control, LATENCY_RANGE};
use fairweir_core::units::{Bytes, Rate, Span};

use nix::unistd::User;

use crate::words::choices;

/// The largest capacity of a link; a larger one is probably a wrong unit.
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

/// The longest interface name, in bytes. Source: IFNAMSIZ of linux/if.h, without the final null byte.
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

/// Reads the name of a control that a host supports.
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

/// Reads the cap of a group.
///
/// # Errors
/// Says what is allowed.
pub fn parse_max(text: &str) -> Result<Rate, String> {
    parse_limit("max", text)
}

/// Reads the floor of a group.
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

/// A single page uses up a smaller amount, and a larger one is probably a wrong unit.
const QUOTA_AMOUNTS: RangeInclusive<Bytes> = Bytes::kb(1_000)..=Bytes::kb(1_000_000_000_000);

/// Reads the amount that a group may receive in a period, and its rate afterwards: `50 GB per month, then 1mbit`.
/// Without a rate it is the lowest that can be enforced, like that of a paused group.
///
/// # Errors
/// Says what is allowed.
pub fn parse_quota(text: &str) -> Result<Quota, String> {
    let (first, then) = match text.split_once(',') {
        Some((first, then)) => (first, Some(then.trim())),
        None => (text, None),
    };
    let expected = "expected for example \"50 GB per month\" or \"2 GB per day, then 1mbit\"";
    let wrong = || format!("`{text}` is not a quota; {expected}");
    let (amount, per) = first.split_once(" per ").ok_or_else(wrong)?;
    let amount: Bytes = amount.parse().map_err(|e| format!("{e}"))?;
    if !QUOTA_AMOUNTS.contains(&amount) {
        let (least, most) = (QUOTA_AMOUNTS.start(), QUOTA_AMOUNTS.end());
        return Err(format!("a quota of {amount} is out of range ({least} to {most})"));
    }
    let known = Period::ALL.into_iter().find(|known| known.name() == per.trim());
    let names = Period::ALL.map(Period::name);
    let per = known.ok_or_else(|| crate::not_one_of(per.trim(), &names))?;
    let Some(then) = then else { return Ok(Quota { amount, per, then: CAPACITY_MIN }) };
    let rate = then.strip_prefix("then ").ok_or_else(wrong)?.trim();
    if !rate.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!(
            "`{rate}` is not a rate such as 1mbit; the least is {CAPACITY_MIN}, which keeps connections open"
        ));
    }
    Ok(Quota { amount, per, then: parse_limit("the rate after a quota,", rate)? })
}

/// Reads times on days of the week: `mon-fri 08:00-18:00`, `sat,sun 22:00-06:00`; without days it
/// means every day: `20:00-24:00`.
///
/// # Errors
/// Says what is allowed.
pub fn parse_window(text: &str) -> Result<Window, String> {
    let (named, times) = match text.trim().rsplit_once(char::is_whitespace) {
        Some((named, times)) => (Some(named.trim()), times),
        None => (None, text.trim()),
    };
    let expected = "expected for example \"mon-fri 08:00-18:00\" or \"sat,sun 22:00-06:00\"";
    let wrong = || format!("`{text}` is not a time of the week; {expected}");
    let (from, to) = times.split_once('-').ok_or_else(wrong)?;
    let (from, to) = (minute(from)? % DAY_MIN, minute(to)?);
    let mut days = [named.is_none(); DAYS.len()];
    let day = |name: &str| {
        let known = DAYS.iter().position(|known| *known == name);
        known.ok_or_else(|| crate::not_one_of(name, &DAYS))
    };
    for part in named.into_iter().flat_map(|named| named.split(',')).map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        // From Friday to Monday there are four days.
        for i in 0..=(last + DAYS.len() - first) % DAYS.len() {
            days[(first + i) % DAYS.len()] = true;
        }
    }
    Ok(Window { days, from, to })
}

/// Reads a time of day as minutes since midnight.
pub(crate) fn minute(text: &str) -> Result<u16, String> {
    let number = |digits: &str| {
        let is_number = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse::<u16>().ok().filter(|_| is_number)
    };
    let read = text.split_once(':').and_then(|(h, m)| Some((number(h)?, number(m)?)));
    let read = read.filter(|&(h, m)| m < 60 && h * 60 + m <= DAY_MIN);
    let wrong = || format!("`{text}` is not a time; expected 00:00 to 24:00");
    read.map(|(h, m)| h * 60 + m).ok_or_else(wrong)
}

const MATCH_KINDS: [&str; 8] = ["app", "unit", "cgroup", "user", "ip", "port", "local-port", "web"];

/// Reads a match for connections.
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
        Match::Mac(_) | Match::Host(_) | Match::Lan(_) => {
            let what = "`mac:`, `host:` and `lan:` are for the devices of `fairweir router`";
            return Err(what.to_owned());
        }
        _ => {}
    }
    Ok(parsed)
}

/// Parses a match that names a device behind a router.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse_device_match(text: &str) -> Result<Match, String> {
    match text.parse::<Match>() {
        Ok(parsed @ (Match::Mac(_) | Match::Ip(_))) => Ok(parsed),
        Err(e) if text.starts_with("mac:") || text.starts_with("ip:") => Err(e.to_string()),
        Ok(_) | Err(_) => Err(format!(
            "`{shown}` is no match of a device; allowed: mac:02:00:5e:00:53:01, ip:192.168.1.7, \
             ip:192.168.1.0/24, and for `fairweir router` host:tv, lan:br-guest",
            shown = text.chars().take(SHOWN_MAX).collect::<String>()
        )),
    }
}

/// Reads a match for a device of a router, which can also be a name or a network.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse_router_match(text: &str) -> Result<Match, String> {
    if text.starts_with("host:") || text.starts_with("lan:") {
        return text.parse::<Match>().map_err(|e| e.to_string());
    }
    parse_device_match(text)
}

/// Reads a match for a group within a device.
///
/// # Errors
/// Says what is wrong with it.
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

/// The kinds of match that a group within a device can have.
const INNER_KINDS: [&str; 4] = ["ip:", "port:", "local-port:", "web:"];

/// The most characters of an invalid match that a message shows.
const SHOWN_MAX: usize = 80;

/// Checks a user: any number is allowed; a name must be known to the system.
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
/// Reads a target of the queueing delay at the ISP, within [`LATENCY_RANGE`].
pub(crate) fn parse_latency(text: &str) -> Result<Span, String> {
    in_range(text, "latency", LATENCY_RANGE)
}

/// Checks that a span is within `range`; `name` is its name in messages.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read_and_what_is_wrong_is_one_line() {
        let quota = |amount, per, then| Ok(Quota { amount, per, then });
        let gb = |n: u64| Bytes::kb(n * 1_000_000);
        for (text, read) in [
            ("50 GB per month", quota(gb(50), Period::Month, CAPACITY_MIN)),
            ("2GB per day, then 1mbit", quota(gb(2), Period::Day, Rate::mbit(1))),
            ("1.5 TB per week,then 512kbit", quota(gb(1_500), Period::Week, Rate::kbit(512))),
        ] {
            assert_eq!(parse_quota(text), read, "{text}");
        }
        for (text, says) in [
            ("50 GB", "`50 GB` is not a quota; expected for example"),
            ("50 GB a month", "is not a quota"),
            ("50 per month", "`50` has no unit: B, kB, MB, GB, TB,"),
            ("50 Gbit per month", "unknown unit `Gbit`"),
            ("0 GB per month", "a quota of 0B is out of range (1MB to 1000000GB)"),
            ("9999 TB per month", "out of range"),
            ("5 GB per moth", "`moth` (did you mean `month`?); allowed: day, week, month"),
            ("5 GB per day, 1mbit", "is not a quota"),
            (
                "5 GB per day, then block",
                "`block` is not a rate such as 1mbit; the least is 100kbit",
            ),
            ("5 GB per day, then 1kbit", "the rate after a quota, 1kbit is out of range (100kbit"),
            ("5 GB per day, then 1mbps", "ambiguous"),
            ("", "is not a quota"),
        ] {
            let error = parse_quota(text).expect_err(text);
            assert!(error.contains(says) && error.lines().count() == 1, "{text}: {error}");
        }
    }

    #[test]
    fn times_of_the_week_are_read_and_what_is_wrong_is_one_line() {
        for (text, shown) in [
            ("mon-fri 08:00-18:00", "mon-fri 08:00-18:00"),
            ("sat,sun  22:00-06:00", "sat-sun 22:00-06:00"),
            ("fri-mon 00:00-24:00", "mon,fri-sun 00:00-24:00"),
            ("mon, wed 24:00-01:00", "mon,wed 00:00-01:00"),
            ("20:00-24:00", "mon-sun 20:00-24:00"),
        ] {
            assert_eq!(parse_window(text).unwrap().to_string(), shown, "{text}");
        }
        for (text, says) in [
            ("", "`` is not a time of the week; expected for example"),
            ("mon-fri", "`mon` is not a time; expected 00:00 to 24:00"),
            ("mon 8:00-18:00", "`8:00` is not a time"),
            ("mon 08:00", "is not a time of the week"),
            ("mon 08:00-24:01", "`24:01` is not a time"),
            ("monday 08:00-18:00", "`monday`"),
            ("mon-fry 08:00-18:00", "did you mean `fri`"),
            ("mon,,tue 08:00-18:00", "allowed: mon, tue"),
        ] {
            let error = parse_window(text).expect_err(text);
            assert!(error.contains(says) && error.lines().count() == 1, "{text}: {error}");
        }
    }
}
