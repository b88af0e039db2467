//! Behaviour of flows: each application is a state machine that drives connections. In virtual time
//! these are the engine's connections, in the emulated home real ones.
//!
//! The caller tells an [`App`] when its flow starts and stops, which connections are open, how
//! much has arrived and what time it is, and takes out what the application wants ([`Want`]). It
//! drains [`App::poll_want`] after each `handle_*` and calls [`App::handle_timeout`] at
//! [`App::next_timeout`]; too early is harmless.
//!
//! Terms: a *slot* is a small number that an application gives to a connection. After a
//! [`Want::Close`] the same slot may be opened again at once, as another connection; from then on
//! nothing may be reported about the closed one. The *client* is the receiver, behind the access
//! link; the *server* sends.
//!
//! | module | kind of flow |
//! |---|---|
//! | `source` | `bulk`, `quic` and `on-off`: a server that sends all it can, at a rate, or nothing |
//! | `datagram` | `udp` and `ping` |
//! | [`player`] | the film player on its own: which quality to ask for, and when |
//! | `video` | `video`: that player on one connection |
//! | `web` | `web`: pages of objects that depend on each other |
//! | `short` | `short`: downloads that arrive at random |
//!
//! Properties: the same flow, seed and events give the same wants; at most
//! [`crate::CONNECTIONS_MAX`] slots are in use; the data kept about a flow is bounded by the length
//! of the run, and nothing is allocated per packet.

use std::collections::VecDeque;
use std::fmt::Debug;

use fairweir_core::units::{Bytes, Time};
use serde::{Deserialize, Serialize};

use crate::report::{PingSamples, Run, ShortSamples, VideoSamples, WebSamples};
use crate::{Flow, Kind, Page, Web};

mod chance;
mod datagram;
mod objects;
pub mod player;
mod random;
mod short;
mod source;
mod video;
mod web;

pub use chance::{Chance, seeds};
use datagram::{Cbr, Pinger};
use objects::Objects;
use short::Shorts;
use source::{Bulk, OnOffBulk};
use video::Film;
use web::Browser;

/// What an application wants of its flow's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Open the connection `slot`.
    Open {
        /// Number of the slot; below [`crate::CONNECTIONS_MAX`].
        slot: u32,
    },
    /// Ask the server for this much payload on an open connection: a request crosses the uplink, then
    /// the server writes it.
    Fetch {
        /// Which connection.
        slot: u32,
        /// Payload to ask for; `None` is without end.
        volume: Option<Bytes>,
    },
    /// The server writes this much without being asked, by its own clock. If more than `unsent_max`
    /// would then wait in its kernel to be sent for the first time, it writes nothing, and does not
    /// try again.
    Write {
        /// Which connection.
        slot: u32,
        /// How much payload.
        volume: Bytes,
        /// How much may wait.
        unsent_max: Bytes,
    },
    /// The server stops writing: of the data that waits to be sent for the first time, only
    /// `unsent_max` goes out, since its kernel had already taken that part.
    Withdraw {
        /// Which connection.
        slot: u32,
        /// How much still goes out.
        unsent_max: Bytes,
    },
    /// Close the connection: nothing more is sent; data under way arrives and is ignored.
    Close {
        /// Which connection.
        slot: u32,
    },
    /// A datagram from the server.
    Datagram {
        /// UDP payload in bytes.
        payload: u32,
    },
    /// A small datagram to the server, which answers with one of the same size
    /// ([`crate::PING_PAYLOAD`]).
    Ping {
        /// Number of the request, which comes back with the answer.
        id: u64,
    },
}

/// What an application measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Nothing beyond what the link measures itself.
    Nothing,
    /// Round-trip times.
    Ping(PingSamples),
    /// Quality of a film as it was watched.
    Video(VideoSamples),
    /// How long web pages took.
    Web(WebSamples),
    /// How long short downloads took.
    Short(ShortSamples),
}

impl Outcome {
    /// Adds the measurements to the run that is to be judged.
    pub fn add_to(self, run: &mut Run<'_>) {
        match self {
            Outcome::Nothing => {}
            Outcome::Ping(ping) => run.pings.push(ping),
            Outcome::Video(video) => run.videos.push(video),
            Outcome::Web(pages) => run.pages.push(pages),
            Outcome::Short(shorts) => run.shorts.push(shorts),
        }
    }
}

/// The application of a flow.
#[derive(Debug)]
pub struct App {
    play: Box<dyn Play>,
    wants: Wants,
}

impl App {
    /// The application of `flow`. No two flows of a run should have the same `seed`. `segment` is
    /// the payload of a full packet of its connections.
    pub fn new(flow: &Flow, seed: u64, segment: Bytes) -> App {
        let group = flow.group;
        let play: Box<dyn Play> = match &flow.kind {
            Kind::Bulk | Kind::Quic => Box::new(Bulk::new(flow, segment)),
            Kind::OnOff(means) => Box::new(OnOffBulk::new(flow, *means, seed, segment)),
            Kind::Udp => Box::new(Cbr::new(flow, segment)),
            Kind::Ping { interval } => Box::new(Pinger::new(flow, *interval)),
            Kind::Video(video) => Box::new(Film::new(group, video)),
            Kind::Web(web) => Box::new(Browser::new(group, *web, seed)),
            Kind::Short(short) => Box::new(Shorts::new(group, *short, seed)),
            Kind::Browser(browser) => match browser.page {
                Page::Endless => Box::new(Objects::new(browser)),
                Page::Images { think } => {
                    let web = Web::images(browser.hosts, think);
                    Box::new(Browser::new(group, web, seed))
                }
            },
        };
        App { play, wants: Wants::new() }
    }

    /// The flow starts.
    pub fn handle_start(&mut self, now: Time) {
        self.play.handle_start(now, &mut self.wants);
    }

    /// The flow ends: it closes all connections and does nothing more.
    pub fn handle_stop(&mut self, now: Time) {
        self.play.handle_stop(now, &mut self.wants);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.play.handle_timeout(now, &mut self.wants);
    }

    /// A connection is open.
    pub fn handle_opened(&mut self, now: Time, slot: u32) {
        self.play.handle_opened(now, slot, &mut self.wants);
    }

    /// The client has received this much payload of the connection in all.
    pub fn handle_received(&mut self, now: Time, slot: u32, total: Bytes) {
        self.play.handle_received(now, slot, total, &mut self.wants);
    }

    /// The client has the answer to [`Want::Ping`].
    pub fn handle_pong(&mut self, now: Time, id: u64) {
        self.play.handle_pong(now, id);
    }

    /// When to call [`App::handle_timeout`]; `None` if nothing happens by itself.
    pub fn next_timeout(&self) -> Option<Time> {
        self.play.next_timeout()
    }

    /// The next thing that the application wants.
    pub fn poll_want(&mut self) -> Option<Want> {
        self.wants.pop_front()
    }

    /// The measurements, after the stop.
    pub fn outcome(self) -> Outcome {
        self.play.outcome()
    }
}

/// Wants in the order in which they are to be carried out.
type Wants = VecDeque<Want>;

/// Reactions of each kind of application to events. By default an event is ignored.
trait Play: Debug + Send {
    fn handle_start(&mut self, now: Time, wants: &mut Wants);
    fn handle_stop(&mut self, now: Time, wants: &mut Wants);
    fn handle_timeout(&mut self, _now: Time, _wants: &mut Wants) {}
    fn handle_opened(&mut self, _now: Time, _slot: u32, _wants: &mut Wants) {}
    fn handle_received(&mut self, _now: Time, _slot: u32, _total: Bytes, _wants: &mut Wants) {}
    fn handle_pong(&mut self, _now: Time, _id: u64) {}
    fn next_timeout(&self) -> Option<Time> {
        None
    }
    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Nothing
    }
}

/// L2 size of the IP packet of a full segment.
fn full_packet(flow: &Flow, segment: Bytes) -> Bytes {
    segment + Bytes::new(flow.headers())
}

#[cfg(test)]
mod tests;
