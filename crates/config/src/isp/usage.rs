//! What subscribers used, written for billing: the table `[usage]`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use fairweir_core::packet::Transport;
use fairweir_core::units::Span;

use crate::{ConfigError, Placed, Table};

/// Table `[usage]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageSection {
    /// How often rows are written.
    pub interval: Span,
    /// The number of days for which files are kept.
    pub days: u64,
    /// The collector to which the same data is sent as IPFIX.
    pub collector: Option<Collector>,
}

/// An IPFIX collector, such as `udp:192.0.2.30:4739`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collector {
    /// The transport protocol.
    pub transport: Transport,
    /// The collector's address and port.
    pub at: SocketAddr,
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Collector, String> {
        let parsed = || {
            let (transport, at) = text.split_once(':')?;
            let transport = match transport {
                "tcp" => Transport::Tcp,
                "udp" => Transport::Udp,
                _ => return None,
            };
            let at: SocketAddr = at.parse().ok()?;
            (at.port() != 0).then_some(Collector { transport, at })
        };
        let wanted = "udp or tcp, an address and a port, such as \"udp:192.0.2.30:4739\"";
        parsed().ok_or_else(|| format!("`{text}` is not {wanted}"))
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "tcp",
            Transport::Udp => "udp",
        };
        write!(f, "{transport}:{}", self.at)
    }
}

/// Shorter intervals would fill the disk; with longer ones a killed daemon loses more.
const INTERVAL_RANGE: (Span, Span) = (Span::secs(10), Span::secs(86_400));
const INTERVAL_DEFAULT: Span = Span::secs(3_600);
const DAYS_MAX: u64 = 3_650;
const DAYS_DEFAULT: u64 = 31;

impl UsageSection {
    /// Reads the table.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn read(mut table: Table<'_>) -> Result<UsageSection, ConfigError> {
        let interval = match table.parsed::<Span>("interval")? {
            None => INTERVAL_DEFAULT,
            Some(Placed { value, place }) => {
                let (least, most) = INTERVAL_RANGE;
                if value < least || value > most {
                    let what = format!("interval {value} is out of range ({least} to {most})");
                    return Err(place.error(what));
                }
                value
            }
        };
        let days = table.integer("days", 1, DAYS_MAX)?.map_or(DAYS_DEFAULT, |days| days.value);
        let collector = table.parsed::<Collector>("collector")?.map(|placed| placed.value);
        table.finish()?;
        Ok(UsageSection { interval, days, collector })
    }
}
