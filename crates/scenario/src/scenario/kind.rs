//! The kinds of flows, and their demands.

use std::iter::Sum;
use std::ops::Add;

use fairweir_core::units::{Bytes, Rate, Span};
use serde::{Deserialize, Serialize};

/// What a flow does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A TCP download that always has more to send, up to its demand.
    Bulk,
    /// The same over QUIC, whose receive window cannot be bounded on the path.
    Quic,
    /// A small UDP request at every interval, answered by the server.
    Ping {
        /// Time from one request to the next.
        interval: Span,
    },
    /// A TCP download that is on and off by turns.
    OnOff(OnOff),
    /// Full UDP packets from the server at the demanded rate, whatever becomes of them.
    Udp,
    /// A film whose quality follows what the network carries.
    Video(Video),
    /// A user who looks at web pages.
    Web(Web),
    /// Short downloads that arrive at random.
    Short(Short),
    /// A web site in a browser, whose page loads from servers that all sites of the scenario share.
    Browser(Browser),
}

impl Kind {
    /// The kind's name in scenario files.
    pub const fn name(&self) -> &'static str {
        match self {
            Kind::Bulk => "bulk",
            Kind::Quic => "quic",
            Kind::Ping { .. } => "ping",
            Kind::OnOff(_) => "on-off",
            Kind::Udp => "udp",
            Kind::Video(_) => "video",
            Kind::Web(_) => "web",
            Kind::Short(_) => "short",
            Kind::Browser(_) => "browser",
        }
    }
}

/// Periods of an on-off flow: Pareto distributed, with these means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnOff {
    /// Mean time for which it sends.
    pub on: Span,
    /// Mean time for which it does not send.
    pub off: Span,
}

/// A film.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Video {
    /// Rates of the qualities in rising order; they are rates of the film, without headers.
    pub ladder: Vec<Rate>,
    /// Length of the film; `None` means until the flow stops.
    pub length: Option<Span>,
}

/// A user who looks at web pages, one after the other, in sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Web {
    /// Number of servers from which a page is loaded.
    pub hosts: u32,
    /// The fewest and the most objects of a page, the document included.
    pub objects: (u32, u32),
    /// Median size of an object.
    pub object: Bytes,
    /// Mean time from the completion of a page to the next page.
    pub think: Span,
    /// Mean time from a session to the next one.
    pub session_gap: Span,
    /// Number of pages in a session.
    pub pages_per_session: u32,
}

impl Web {
    /// The web pages of [`Page::Images`]: the document and its images.
    pub(crate) const fn images(hosts: u32, think: Span) -> Web {
        let objects = PAGE_IMAGES + 1;
        Web {
            hosts,
            objects: (objects, objects),
            object: Bytes::kb(15),
            think,
            session_gap: think,
            pages_per_session: u32::MAX,
        }
    }
}

/// Downloads that arrive as a Poisson process, each with a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Short {
    /// Mean time from one download to the next.
    pub interval: Span,
    /// Median size of the downloads.
    pub size: Bytes,
    /// Standard deviation of the size's logarithm, in millionths; zero if all sizes are equal.
    pub sigma_ppm: u32,
    /// Number of downloads, the first of which arrives at once; `None` leaves the number to chance.
    pub arrivals: Option<u32>,
}

/// A web site in a browser.
///
/// All sites of a scenario are open in one browser and load from the first `hosts` of the same
/// [`SHARED_HOSTS_MAX`] hosts, each of which has an address of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Browser {
    /// The host name in the address bar, as sent on the wire.
    pub site: String,
    /// Number of hosts from which the page loads.
    pub hosts: u32,
    /// The browser.
    pub program: Program,
    /// The version of HTTP that it uses.
    pub http: Http,
    /// What the page does.
    pub page: Page,
}

/// The most hosts that sites can share.
pub const SHARED_HOSTS_MAX: u32 = 16;

impl Browser {
    /// Sizes of the objects that an endless page loads from each host, one of each size at a time:
    /// two sizes, so that the objects do not end at the same time.
    pub const OBJECTS: [Bytes; 2] = [Bytes::kb(3_000), Bytes::kb(4_200)];

    /// Number of connections that an endless page uses.
    pub fn connections(&self) -> u32 {
        match self.http {
            Http::One => self.hosts * Browser::OBJECTS.len() as u32,
            Http::Two => self.hosts,
        }
    }
}

/// A browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// Chromium.
    Chromium,
    /// Firefox.
    Firefox,
}

/// A version of HTTP over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Http {
    /// HTTP/1.1: a connection carries one object at a time.
    One,
    /// HTTP/2: a host has one connection, which carries all its objects.
    Two,
}

/// What a site's page does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Page {
    /// It loads objects of [`Browser::OBJECTS`] from each host without end, one of each size at a time.
    Endless,
    /// It has [`PAGE_IMAGES`] images in two waves, and is loaded again and again.
    Images {
        /// Mean time from the completion of a page to the next page.
        think: Span,
    },
}

/// Number of images of a page.
pub const PAGE_IMAGES: u32 = 43;

/// The demand of a flow or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// This rate.
    Known(Rate),
    /// All the rate that it can have.
    Endless,
    /// It depends on the rate that it gets, or on chance.
    Unknown,
}

/// The demand of both together; an endless demand hides all others.
impl Add for Demand {
    type Output = Demand;
    fn add(self, other: Demand) -> Demand {
        match (self, other) {
            (Demand::Endless, _) | (_, Demand::Endless) => Demand::Endless,
            (Demand::Unknown, _) | (_, Demand::Unknown) => Demand::Unknown,
            (Demand::Known(a), Demand::Known(b)) => Demand::Known(a + b),
        }
    }
}

impl Sum for Demand {
    fn sum<I: Iterator<Item = Demand>>(parts: I) -> Demand {
        parts.fold(Demand::Known(Rate::ZERO), Add::add)
    }
}
