//! A film on one persistent connection.

use fairweir_core::units::{Bytes, Time};

use super::player::Player;
use super::{Outcome, Play, Want, Wants};
use crate::Video;

const SLOT: u32 = 0;

/// A film on one persistent connection.
#[derive(Debug)]
pub(super) struct Film {
    player: Player,
    is_open: bool,
    /// Volume that was asked for in all.
    asked: Bytes,
    received: Bytes,
}

impl Film {
    pub(super) fn new(group: usize, video: &Video) -> Film {
        let player = Player::new(group, &video.ladder, video.length);
        Film { player, is_open: false, asked: Bytes::ZERO, received: Bytes::ZERO }
    }
}

impl Play for Film {
    fn handle_start(&mut self, now: Time, wants: &mut Wants) {
        self.player.handle_start(now);
        wants.push_back(Want::Open { slot: SLOT });
    }

    fn handle_stop(&mut self, now: Time, wants: &mut Wants) {
        self.player.handle_stop(now);
        self.is_open = false;
        wants.push_back(Want::Close { slot: SLOT });
    }

    fn handle_timeout(&mut self, now: Time, wants: &mut Wants) {
        if !self.is_open {
            return;
        }
        if let Some(volume) = self.player.poll_request(now) {
            self.asked += volume;
            wants.push_back(Want::Fetch { slot: SLOT, volume: Some(volume) });
        }
    }

    fn handle_opened(&mut self, now: Time, _: u32, wants: &mut Wants) {
        self.is_open = true;
        self.handle_timeout(now, wants);
    }

    fn handle_received(&mut self, now: Time, _: u32, total: Bytes, wants: &mut Wants) {
        let is_news = total > self.received;
        self.received = total;
        if is_news && total >= self.asked {
            self.player.handle_chunk(now);
            self.handle_timeout(now, wants);
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        self.player.next_timeout().filter(|_| self.is_open)
    }

    fn outcome(self: Box<Self>) -> Outcome {
        Outcome::Video(self.player.samples())
    }
}
