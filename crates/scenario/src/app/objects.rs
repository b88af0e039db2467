//! An endless page in a browser. From each of its hosts it loads one object of each size in [`Browser::OBJECTS`] at
//! a time; when an object is complete, it asks for the next one of that size.
//!
//! Over HTTP/1.1 each of these downloads has a connection of its own. Over HTTP/2 the downloads from one host share
//! a connection; the server then sends objects one after the other, not interleaved, as only their sum is seen.

use std::collections::VecDeque;

use fairweir_core::units::{Bytes, Time};

use super::{Play, Want, Wants};
use crate::{Browser, Http};

/// An endless page.
#[derive(Debug)]
pub(super) struct Objects {
    http: Http,
    connections: Vec<Connection>,
}

#[derive(Debug, Default)]
struct Connection {
    /// Volume asked for in all.
    asked: Bytes,
    /// Each object that is in flight: the total volume with which it is complete, and its size.
    under_way: VecDeque<(Bytes, Bytes)>,
}

impl Objects {
    pub(super) fn new(browser: &Browser) -> Objects {
        let connections = (0..browser.connections()).map(|_| Connection::default()).collect();
        Objects { http: browser.http, connections }
    }

    fn fetch(&mut self, slot: u32, size: Bytes, wants: &mut Wants) {
        let connection = &mut self.connections[slot as usize];
        connection.asked += size;
        connection.under_way.push_back((connection.asked, size));
        wants.push_back(Want::Fetch { slot, volume: Some(size) });
    }
}

impl Play for Objects {
    fn handle_start(&mut self, _: Time, wants: &mut Wants) {
        wants.extend((0..self.connections.len()).map(|slot| Want::Open { slot: slot as u32 }));
    }

    fn handle_stop(&mut self, _: Time, wants: &mut Wants) {
        wants.extend((0..self.connections.len()).map(|slot| Want::Close { slot: slot as u32 }));
    }

    fn handle_opened(&mut self, _: Time, slot: u32, wants: &mut Wants) {
        let at = slot as usize % Browser::OBJECTS.len();
        let sizes = match self.http {
            Http::One => &Browser::OBJECTS[at..=at],
            Http::Two => &Browser::OBJECTS[..],
        };
        sizes.iter().for_each(|&size| self.fetch(slot, size, wants));
    }

    fn handle_received(&mut self, _: Time, slot: u32, total: Bytes, wants: &mut Wants) {
        while let Some(&(complete, size)) = self.connections[slot as usize].under_way.front()
            && total >= complete
        {
            self.connections[slot as usize].under_way.pop_front();
            self.fetch(slot, size, wants);
        }
    }
}
