//! Decides who divides: this host or router, or another one before the queue that divides by the
//! same weights. See `fairweir_core::agreement`.
//!
//! While another one divides, this one marks its flows and verifies what arrives. It divides itself
//! again as soon as the client's state machine says so.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use fairweir_config::host::{DividerChoice, Role};
use fairweir_core::agreement::PORT;
use fairweir_core::agreement::client::{Client, classes_of};
use fairweir_core::agreement::message::MESSAGE_MAX;
use fairweir_core::agreement::verify::Received;
use fairweir_core::policy::Policy;
use fairweir_core::receiver::{ConnectionSample, GroupSample};
use fairweir_core::share::Tree;
use fairweir_core::units::{Span, Time};
use fairweir_linux::{datagram, network, random};
use tracing::{debug, info, warn};

use super::point::Point;
use super::settings::Settings;
use super::wire::DividerStatus;

/// The most datagrams that are read in a tick; a divider sends one or two.
const BURST_MAX: usize = 16;
/// How long to wait before looking for a gateway or opening a socket again.
const LOOK_PAUSE: Span = Span::secs(10);

/// The divider that is asked; see the module.
#[derive(Debug, Default)]
pub(super) struct DividerControl {
    asked: Option<Asked>,
    /// The reason if no divider can be asked, and when to try again.
    obstacle: Option<(String, Time)>,
    network: Option<String>,
}

/// A divider that is asked, which may not exist.
#[derive(Debug)]
struct Asked {
    choice: DividerChoice,
    to: IpAddr,
    socket: UdpSocket,
    client: Client,
    weights: (Tree, usize),
    /// The class of each group, as requested.
    class_of: Vec<u8>,
    /// The classes by name, as the divider has them, and the class of the default group.
    in_force: (BTreeMap<String, u8>, u8),
    /// The mark that the kernel sets, by group.
    marks: Option<Vec<u8>>,
    divides: bool,
}

impl DividerControl {
    /// Handles what arrived in a tick, by group and connection. Returns whether another divides
    /// now; another may do so only while this one `is_free`.
    pub(super) fn handle_tick(
        &mut self,
        settings: &Settings,
        (point, network, is_free): (&mut Point, Option<&String>, bool),
        (samples, connections): (&[GroupSample], &[ConnectionSample]),
        now: Time,
    ) -> bool {
        let choice = settings.config.host.divider;
        if !is_free || !may_ask(settings) {
            self.stop(Some(point), now);
            return false;
        }
        // A daemon that starts with the link may identify the network late; that is no move.
        let has_moved =
            self.network.is_some() && network.is_some_and(|to| self.network.as_ref() != Some(to));
        if has_moved || self.asked.as_ref().is_some_and(|asked| asked.choice != choice) {
            self.stop(Some(&mut *point), now);
            self.obstacle = None;
        }
        self.network = network.cloned().or(self.network.take());
        if self.asked.is_none() && self.obstacle.as_ref().is_none_or(|(_, until)| now >= *until) {
            match Asked::new(choice, &settings.dev, settings.policy(), now) {
                Ok(asked) => (self.asked, self.obstacle) = (Some(asked), None),
                Err(e) => self.obstacle = Some((format!("{e:#}"), now + LOOK_PAUSE)),
            }
        }
        let Some(asked) = &mut self.asked else { return false };
        match asked.handle_tick(settings.policy(), point, samples, connections, now) {
            Ok(divides) => divides,
            Err(e) => {
                warn!("no other host can divide: {e}");
                self.stop(Some(point), now);
                self.obstacle = Some((e.to_string(), Time::from_nanos(u64::MAX)));
                false
            }
        }
    }

    /// Tells the divider, if there is one, that this host divides itself from now on.
    pub(super) fn stop(&mut self, point: Option<&mut Point>, now: Time) {
        if let Some(mut asked) = self.asked.take() {
            asked.client.stop(now);
            asked.send();
            let point = point.filter(|_| asked.marks.is_some());
            if let Some(Err(e)) = point.map(|point| point.set_marks(None)) {
                debug!("marks stay until the next change: {e}");
            }
        }
    }

    /// Whether another divides.
    pub(super) fn divides(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.divides)
    }

    /// The kernel has a new policy, or was attached again, and has no marks.
    pub(super) fn handle_policy(&mut self) {
        if let Some(asked) = &mut self.asked {
            asked.marks = None;
        }
    }

    /// `None` if no divider is to be asked.
    pub(super) fn status(&self, settings: &Settings, now: Time) -> Option<DividerStatus> {
        let here = match settings.role {
            Role::Host => "this host divides",
            Role::Router => "this router divides",
        };
        let by_itself = |why: &str| {
            Some(DividerStatus { words: format!("{here}: {why}"), ..DividerStatus::default() })
        };
        if let Some(why) = hindrance(settings).filter(|_| settings.marks()) {
            return by_itself(why);
        }
        if let (Some((obstacle, _)), None) = (&self.obstacle, &self.asked) {
            return by_itself(obstacle);
        }
        let asked = self.asked.as_ref().filter(|_| may_ask(settings))?;
        let ago = |at: Time| now.since(at).as_secs_f64();
        let agreement = asked.client.agreement();
        let verified_s = agreement.and_then(|agreement| agreement.verified_at).map(ago);
        let who = match asked.choice {
            DividerChoice::Address(_) | DividerChoice::Off => "your ISP",
            DividerChoice::Auto => "your gateway",
        };
        let to = asked.to;
        let words = match (agreement, asked.client.waits()) {
            (Some(agreement), _) => {
                let rate = agreement.rate().map(|rate| format!(" {rate}")).unwrap_or_default();
                let refused = match agreement.agreed.seen.refused {
                    0 => String::new(),
                    refused => format!("; {refused} marks found no room there"),
                };
                let verified = match verified_s {
                    Some(ago) => format!("verified {ago:.0} s ago"),
                    None => "not verified yet".to_owned(),
                };
                format!("{who} divides{rate} ({to}); {verified}{refused}")
            }
            (None, Some((why, until))) => {
                let wait = until.since(now).as_secs_f64();
                format!("{here}: {why} ({to}); asked again in {wait:.0} s")
            }
            (None, None) => format!("{here}: {to} is asked"),
        };
        Some(DividerStatus {
            address: Some(to),
            divides: agreement.is_some(),
            rate_bps: agreement.and_then(|agreement| agreement.rate()),
            since_s: agreement.map(|agreement| ago(agreement.since)),
            verified_s,
            words,
        })
    }
}

/// Whether another may divide the traffic that this daemon would divide.
fn may_ask(settings: &Settings) -> bool {
    settings.marks() && settings.policy().groups().len() > 1 && hindrance(settings).is_none()
}

/// What another divider could not do.
fn hindrance(settings: &Settings) -> Option<&'static str> {
    if !settings.policy().weights().is_by_weight() {
        return Some("another holds neither `max` nor `min`");
    }
    // The outer header of a tunnel does not carry the marks of the inner packets.
    if settings.wans().nth(1).is_some() {
        return Some("`wan` lists several interfaces");
    }
    // Traffic to the proxy is in no device's class.
    (!settings.config.relayed.is_empty()).then_some("its proxy relays devices")
}

impl Asked {
    fn new(choice: DividerChoice, dev: &str, policy: &Policy, now: Time) -> anyhow::Result<Asked> {
        let to = match choice {
            DividerChoice::Address(address) => address,
            DividerChoice::Auto | DividerChoice::Off => {
                network::gateway(dev)?.ok_or_else(|| anyhow::anyhow!("no gateway to ask"))?
            }
        };
        let socket = datagram::connect_over(dev, SocketAddr::new(to, PORT))?;
        let weights = (policy.weights(), policy.default_group());
        let (classes, class_of) = classes_of(policy);
        let client = Client::new(classes, random()?, now);
        let in_force = (BTreeMap::new(), 0);
        let (marks, divides) = (None, false);
        Ok(Asked { choice, to, socket, client, weights, class_of, in_force, marks, divides })
    }

    fn handle_tick(
        &mut self,
        policy: &Policy,
        point: &mut Point,
        samples: &[GroupSample],
        connections: &[ConnectionSample],
        now: Time,
    ) -> anyhow::Result<bool> {
        let weights = (policy.weights(), policy.default_group());
        if weights != self.weights {
            let (classes, class_of) = classes_of(policy);
            (self.weights, self.class_of) = (weights, class_of);
            self.client.set_classes(classes, now);
            self.send();
        }
        let mut bytes = [0; MESSAGE_MAX + 1];
        for _ in 0..BURST_MAX {
            // An error may mean that nothing listens there; the client detects that by itself.
            let Ok(length) = self.socket.recv(&mut bytes) else { break };
            self.client.handle_datagram(&bytes[..length], now);
            self.send();
        }
        let class_of = self.classes_in_force(policy);
        self.client.handle_tick(&received(&class_of, samples, connections), now);
        self.send();
        self.follow(&class_of, point)
    }

    /// The class of each group as the divider has it. While it still has earlier classes, a group is found by name, so
    /// that a device that changes its classes is never put into those of another.
    fn classes_in_force(&mut self, policy: &Policy) -> Vec<u8> {
        let names = policy.groups().iter().map(|group| &group.name);
        if self.client.is_as_asked() || self.client.agreement().is_none() {
            let default = self.class_of[policy.default_group()];
            let named = names.cloned().zip(self.class_of.iter().copied());
            self.in_force = (named.collect(), default);
            return self.class_of.clone();
        }
        let (known, default) = &self.in_force;
        names.map(|name| known.get(name).copied().unwrap_or(*default)).collect()
    }

    /// Sets marks while another divides; returns whether it does.
    fn follow(&mut self, class_of: &[u8], point: &mut Point) -> anyhow::Result<bool> {
        let marks = self.client.agreement().map(|agreement| {
            let mark = |class: &u8| agreement.agreed.marks.get(usize::from(*class)).copied();
            class_of.iter().map(|class| mark(class).unwrap_or(0)).collect::<Vec<u8>>()
        });
        if marks != self.marks {
            point.set_marks(marks.as_deref())?;
            self.marks = marks;
        }
        let divides = self.client.agreement().is_some();
        if divides != self.divides {
            self.divides = divides;
            match self.client.waits() {
                None => info!(to = %self.to, "another divides from now on"),
                Some((why, _)) => info!(to = %self.to, "divided here from now on: {why}"),
            }
        }
        Ok(divides)
    }

    fn send(&mut self) {
        while let Some(message) = self.client.poll_datagram() {
            if let Err(e) = self.socket.send(&message.bytes()) {
                debug!(to = %self.to, "cannot ask: {e}");
            }
        }
    }
}

/// What arrived by class.
fn received(
    class_of: &[u8],
    samples: &[GroupSample],
    connections: &[ConnectionSample],
) -> Vec<Received> {
    let count = class_of.iter().max().map_or(0, |last| usize::from(*last) + 1);
    let mut received = vec![Received::default(); count];
    for (class, sample) in class_of.iter().zip(samples) {
        received[usize::from(*class)].bytes += sample.received;
    }
    for connection in connections {
        if let Some(class) = class_of.get(connection.group) {
            received[usize::from(*class)].losses += connection.holes;
            received[usize::from(*class)].acknowledged += connection.received;
        }
    }
    received
}
