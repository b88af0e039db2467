//! A user who looks at web pages.
//!
//! A page is a document and the objects that it needs, which come in two waves: the objects that
//! the document names (half of them), and those that these objects name. A wave begins when
//! everything before it has arrived. Each object comes from one of the page's hosts at random, the
//! document from the first. As in browsers with HTTP/1.1, there are at most
//! [`CONNECTIONS_PER_HOST`] connections to a host; each carries one object at a time and lasts as
//! long as the page. A connection is opened if an object waits for one; the first connection to
//! become free takes the object. Slot `host * 6 + i` is connection `i` to a host.
//!
//! The times between the pages of a session, and between sessions, are exponential, as in CRAB §5.3.

use std::collections::VecDeque;

use fairweir_core::units::{Bytes, Time};

use super::random::Random;
use super::{Outcome, Play, Want, Wants};
use crate::Web;
use crate::report::WebSamples;

/// Connections that Chrome and Firefox open to a host with HTTP/1.1.
const CONNECTIONS_PER_HOST: u32 = 6;
/// Standard deviation of the logarithm of the size. Source: Barford and Crovella, SIGMETRICS 1998, body of the file sizes.
const OBJECT_SIGMA: f64 = 1.318;
/// The largest object: one in two million is as large.
const OBJECT_MAX: Bytes = Bytes::kb(10_000);
/// How many waves follow the document.
const WAVES: u32 = 2;

/// A user who looks at web pages.
#[derive(Debug)]
pub(super) struct Browser {
    web: Web,
    random: Random,
    hosts: Vec<Host>,
    state: State,
    /// Number of pages left in this session.
    pages_left: u32,
    samples: WebSamples,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before the start and after the stop.
    Idle,
    /// The user reads the last page until then.
    Reads(Time),
    Loads(Page),
}

/// A page that is being loaded.
#[derive(Clone, Copy, Debug)]
struct Page {
    begun: Time,
    /// Number of waves that follow.
    waves_left: u32,
    /// Number of objects in the waves that follow.
    objects_left: u32,
    /// Number of objects of this wave that have not arrived yet.
    missing: u32,
    volume: Bytes,
}

#[derive(Debug, Default)]
struct Host {
    /// Sizes of the objects that wait for a connection.
    ready: VecDeque<Bytes>,
    connections: [Connection; CONNECTIONS_PER_HOST as usize],
}

#[derive(Clone, Copy, Debug, Default)]
enum Connection {
    #[default]
    Closed,
    Connecting,
    /// Free; the volume that it has carried.
    Free(Bytes),
    /// Carries an object, which is complete when the connection has carried this volume.
    Busy(Bytes),
}

impl Browser {
    pub(super) fn new(group: usize, web: Web, seed: u64) -> Browser {
        Browser {
            web,
            random: Random::new(seed),
            hosts: (0..web.hosts).map(|_| Host::default()).collect(),
            state: State::Idle,
            pages_left: web.pages_per_session,
            samples: WebSamples { group, ..WebSamples::default() },
        }
    }

    fn begin_page(&mut self, now: Time, wants: &mut Wants) {
        let (least, most) = self.web.objects;
        let objects = least + self.random.below(u64::from(most - least) + 1) as u32;
        let mut page = Page {
            begun: now,
            waves_left: WAVES,
            objects_left: objects - 1,
            missing: 1,
            volume: Bytes::ZERO,
        };
        let size = self.draw_size();
        page.volume += size;
        self.hosts[0].ready.push_back(size);
        self.state = State::Loads(page);
        self.dispatch(0, wants);
    }

    /// Makes the objects of the next wave ready; `false` if there is none.
    fn begin_wave(&mut self, mut page: Page, wants: &mut Wants) -> bool {
        if page.objects_left == 0 {
            return false;
        }
        page.missing = page.objects_left.div_ceil(page.waves_left);
        page.objects_left -= page.missing;
        page.waves_left -= 1;
        for _ in 0..page.missing {
            let host = self.random.below(self.hosts.len() as u64) as usize;
            let size = self.draw_size();
            page.volume += size;
            self.hosts[host].ready.push_back(size);
        }
        self.state = State::Loads(page);
        (0..self.hosts.len()).for_each(|host| self.dispatch(host, wants));
        true
    }

    fn draw_size(&mut self) -> Bytes {
        self.random.lognormal(self.web.object, OBJECT_SIGMA, OBJECT_MAX)
    }

    /// Gives objects to free connections, and opens connections for objects that wait.
    fn dispatch(&mut self, host: usize, wants: &mut Wants) {
        let Host { ready, connections } = &mut self.hosts[host];
        let slot = |i: usize| host as u32 * CONNECTIONS_PER_HOST + i as u32;
        for (i, connection) in connections.iter_mut().enumerate() {
            let Connection::Free(carried) = *connection else { continue };
            let Some(size) = ready.pop_front() else { return };
            *connection = Connection::Busy(carried + size);
            wants.push_back(Want::Fetch { slot: slot(i), volume: Some(size) });
        }
        let connecting = connections.iter().filter(|c| matches!(c, Connection::Connecting)).count();
        let more = ready.len().saturating_sub(connecting);
        let closed = connections.iter_mut().enumerate();
        let closed = closed.filter(|(_, c)| matches!(c, Connection::Closed));
        for (i, connection) in closed.take(more) {
            *connection = Connection::Connecting;
            wants.push_back(Want::Open { slot: slot(i) });
        }
    }

    fn end_page(&mut self, now: Time, page: Page, wants: &mut Wants) {
        self.samples.loads.push(now.since(page.begun));
        self.samples.volume += page.volume;
        self.close_all(wants);
        self.pages_left -= 1;
        let pause = if self.pages_left > 0 {
            self.random.exponential(self.web.think)
        } else {
            self.pages_left = self.web.pages_per_session;
            self.random.exponential(self.web.session_gap)
        };
        self.state = State::Reads(now + pause);
    }

    fn close_all(&mut self, wants: &mut Wants) {
        for (host, Host { ready, connections }) in self.hosts.iter_mut().enumerate() {
            ready.clear();
            for (i, connection) in connections.iter_mut().enumerate() {
                if !matches!(connection, Connection::Closed) {
                    *connection = Connection::Closed;
                    let slot = host as u32 * CONNECTIONS_PER_HOST + i as u32;
                    wants.push_back(Want::Close { slot });
                }
            }
        }
    }

    fn connection(&mut self, slot: u32) -> &mut Connection {
        let (host, i) = place(slot);
        &mut self.hosts[host].connections[i]
    }
}

impl Play for Browser {
    fn handle_start(&mut self, now: Time, wants: &mut Wants) {
        self.begin_page(now, wants);
    }

    fn handle_stop(&mut self, _: Time, wants: &mut Wants) {
        self.samples.unfinished += u64::from(matches!(self.state, State::Loads(_)));
        self.state = State::Idle;
        self.close_all(wants);
    }

    fn handle_timeout(&mut self, now: Time, wants: &mut Wants) {
        if matches!(self.state, State::Reads(until) if until <= now) {
            self.begin_page(now, wants);
        }
    }

    fn handle_opened(&mut self, _: Time, slot: u32, wants: &mut Wants) {
        let connection = self.connection(slot);
        if matches!(connection, Connection::Connecting) {
            *connection = Connection::Free(Bytes::ZERO);
            self.dispatch(place(slot).0, wants);
        }
    }

    fn handle_received(&mut self, now: Time, slot: u32, total: Bytes, wants: &mut Wants) {
        let connection = self.connection(slot);
        let Connection::Busy(complete) = *connection else { return };
        if total < complete {
            return;
        }
        // Bytes that arrived twice do not count towards the next object.
        *connection = Connection::Free(complete);
        self.dispatch(place(slot).0, wants);
        let State::Loads(page) = &mut self.state else { return };
        page.missing -= 1;
        let page = *page;
        if page.missing == 0 && !self.begin_wave(page, wants) {
            self.end_page(now, page, wants);
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        match self.state {
            State::Reads(until) => Some(until),
            State::Idle | State::Loads(_) => None,
        }
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Web(self.samples)
    }
}

/// Host and connection of a slot.
fn place(slot: u32) -> (usize, usize) {
    ((slot / CONNECTIONS_PER_HOST) as usize, (slot % CONNECTIONS_PER_HOST) as usize)
}
