//! Other hosts of this network that control the same link: they exchange messages, and divide the
//! link. See `fairweir_core::agreement::peers`.
//!
//! A router that divides tells the hosts behind it, and they leave the division to it.
//!
//! Messages come from a link-local address and were not forwarded, so they are from this network.
//! They are used only if they are consistent with the traffic that arrives.

use std::net::{SocketAddr, SocketAddrV6, UdpSocket};

use fairweir_core::agreement::PEERS;
use fairweir_core::agreement::peers::said::SAID_MAX;
use fairweir_core::agreement::peers::{Peers, Said};
use fairweir_core::hash::fnv1a;
use fairweir_core::receiver::{Beside, ControlLoop};
use fairweir_core::units::{Span, Time};
use fairweir_linux::{datagram, random};
use tracing::{debug, info};

use super::settings::Settings;
use super::wire::DividerStatus;
use crate::words::{count, mbit};

/// The most datagrams that are read in a tick: a few from each host that is heard.
const BURST_MAX: usize = 64;
/// How long to wait before the socket is tried again.
const LOOK_PAUSE: Span = Span::secs(10);
/// How often a host announces itself to hosts that it does not hear.
const TO_ALL: Span = Span::secs(1);

/// The peers, on a host, or the announcements of a router; see the module.
#[derive(Debug, Default)]
pub(super) struct PeersControl {
    joined: Option<Joined>,
    look_at: Time,
    /// When the router last told its hosts.
    told_at: Time,
}

#[derive(Debug)]
struct Joined {
    network: u64,
    socket: UdpSocket,
    all: SocketAddrV6,
    said_at: Time,
    peers: Peers,
}

impl PeersControl {
    /// Reads messages; returns the peers of this tick.
    pub(super) fn handle_tick(
        &mut self,
        settings: &Settings,
        network: Option<&String>,
        now: Time,
    ) -> Beside {
        let network = network.filter(|_| settings.has_peers()).map(|name| fnv1a(name.as_bytes()));
        if self.joined.as_ref().map(|joined| joined.network) != network {
            self.joined = None;
        }
        let Some(network) = network else { return Beside::Nobody };
        if self.joined.is_none() && now >= self.look_at {
            self.look_at = now + LOOK_PAUSE;
            match Joined::new(&settings.dev, network) {
                Ok(joined) => self.joined = Some(joined),
                Err(e) => debug!("other hosts of this network are not heard: {e}"),
            }
        }
        self.joined.as_mut().map_or(Beside::Nobody, |joined| joined.handle_tick(now))
    }

    /// Tells the hosts behind `lans` that their router divides.
    pub(super) fn tell(&mut self, lans: &[String], now: Time) {
        if now.since(self.told_at) < TO_ALL {
            return;
        }
        self.told_at = now;
        for lan in lans {
            let said = Said { is_router: true, ..Said::default() };
            let group = SocketAddr::from(PEERS);
            let sent = datagram::connect_over(lan, group).and_then(|to| to.send(&said.bytes(0)));
            if let Err(e) = sent {
                debug!(lan, "hosts are not told: {e}");
            }
        }
    }

    /// Tells the peers what was decided.
    pub(super) fn say(&mut self, control: &ControlLoop, now: Time) {
        if let Some(joined) = &mut self.joined {
            joined.say(control, now);
        }
    }

    /// The status of the division among peers; `None` while this host divides alone.
    pub(super) fn status(&self) -> Option<DividerStatus> {
        let peers = &self.joined.as_ref()?.peers;
        let others = count(peers.heard().len(), "other host");
        let (address, rate_bps, words) = match peers.beside() {
            Beside::Nobody => return None,
            Beside::Led(_) => {
                (None, None, format!("this host divides the link between itself and {others}"))
            }
            Beside::Told(told) => {
                let leader = peers.heard().find(|heard| !heard.said.parts.is_empty());
                let leader = leader.map(|heard| heard.from);
                let who = leader.map_or("another host".to_owned(), |from| from.to_string());
                let [part, link] = [told.part, told.link].map(|rate| mbit(rate.as_bps()));
                let words = format!("{who} divides the link: this host may take {part} of {link}");
                (leader.map(Into::into), Some(told.part), words)
            }
        };
        Some(DividerStatus { address, rate_bps, words, ..DividerStatus::default() })
    }
}

impl Joined {
    fn new(dev: &str, network: u64) -> anyhow::Result<Joined> {
        let (group, port) = PEERS;
        let (socket, all) = datagram::join_at(dev, group, port)?;
        Ok(Joined { network, socket, all, said_at: Time::ZERO, peers: Peers::new(random()?) })
    }

    fn handle_tick(&mut self, now: Time) -> Beside {
        let mut bytes = [0; SAID_MAX + 1];
        for _ in 0..BURST_MAX {
            let Ok(heard) = datagram::receive_on_link(&self.socket, &mut bytes) else { break };
            if let Some((length, from)) = heard
                && let Some(said) = Said::read(&bytes[..length], self.network)
            {
                self.peers.handle_said(said, from, now);
            }
        }
        let was = std::mem::discriminant(self.peers.beside());
        let beside = self.peers.handle_tick(now);
        if std::mem::discriminant(beside) != was {
            match beside {
                Beside::Nobody => info!("this host divides its link alone"),
                Beside::Led(_) => info!("this host divides the link among itself and others"),
                Beside::Told(told) => info!(part = %told.part, "another host divides the link"),
            }
        }
        beside.clone()
    }

    fn say(&mut self, control: &ControlLoop, now: Time) {
        let Some(said) = self.peers.say(control.decision(), control.at_link(), now) else {
            return;
        };
        let bytes = said.bytes(self.network);
        let is_due = now.since(self.said_at) >= TO_ALL;
        let heard = self
            .peers
            .heard()
            .map(|heard| SocketAddrV6::new(heard.from, PEERS.1, 0, self.all.scope_id()));
        for to in heard.chain(is_due.then_some(self.all)) {
            if let Err(e) = self.socket.send_to(&bytes, to) {
                debug!(%to, "not said: {e}");
            }
        }
        if is_due {
            self.said_at = now;
        }
    }
}
