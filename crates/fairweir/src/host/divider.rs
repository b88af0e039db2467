//! Who divides: this host, or another before the queue that divides by the same weights. See
//! `fairweir_core::agreement`.
//!
//! While another divides, this host marks its flows and verifies what arrives; it divides itself as soon as
//! the client's state machine says so.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use fairweir_config::host::DividerChoice;
use fairweir_core::agreement::client::{Client, classes_of};
use fairweir_core::agreement::message::MESSAGE_MAX;
use fairweir_core::agreement::verify::Received;
use fairweir_core::agreement::{Classes, PORT};
use fairweir_core::policy::Policy;
use fairweir_core::receiver::{ConnectionSample, GroupSample};
use fairweir_core::share::Weight;
use fairweir_core::units::{Span, Time};
use fairweir_linux::{Host, datagram, network, random};
use tracing::{debug, info, warn};

use super::settings::Settings;
use super::wire::DividerStatus;

/// The most datagrams that are read in a tick; a divider sends one or two.
const BURST_MAX: usize = 16;
/// When a gateway or a socket is looked for again.
const LOOK_PAUSE: Span = Span::secs(10);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DividerControl {
    asked: Option<Asked>,
    /// Why no divider can be asked, and when that is looked at again.
    obstacle: Option<(String, Time)>,
    network: Option<String>,
}

/// A divider, which may not be there.
#[derive(Debug)]
struct Asked {
    choice: DividerChoice,
    to: IpAddr,
    socket: UdpSocket,
    client: Client,
    weights: (Vec<Weight>, usize),
    /// The class of each group.
    class_of: Vec<u8>,
    /// What the kernel marks, by group.
    marks: Option<Vec<u8>>,
    divides: bool,
}

impl DividerControl {
    /// Takes in what arrived in a tick, by group and connection; whether another divides now.
    pub(super) fn handle_tick(
        &mut self,
        settings: &Settings,
        (host, network): (Option<&mut Host>, Option<&String>),
        (samples, connections): (&[GroupSample], &[ConnectionSample]),
        now: Time,
    ) -> bool {
        let choice = settings.config.host.divider;
        let Some(host) = host else {
            self.asked = None;
            return false;
        };
        if !may_ask(settings) {
            self.stop(Some(host), now);
            return false;
        }
        // The network shows up late where the daemon starts with the link.
        let has_moved =
            self.network.is_some() && network.is_some_and(|to| self.network.as_ref() != Some(to));
        if has_moved || self.asked.as_ref().is_some_and(|asked| asked.choice != choice) {
            self.stop(Some(&mut *host), now);
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
        match asked.handle_tick(settings.policy(), host, samples, connections, now) {
            Ok(divides) => divides,
            Err(e) => {
                warn!("no other host can divide: {e}");
                self.stop(Some(host), now);
                self.obstacle = Some((e.to_string(), Time::from_nanos(u64::MAX)));
                false
            }
        }
    }

    /// Tells the divider, if there is one, that this host divides itself from now on.
    pub(super) fn stop(&mut self, host: Option<&mut Host>, now: Time) {
        if let Some(mut asked) = self.asked.take() {
            asked.client.stop(now);
            asked.send();
            if let Some(Err(e)) = host.filter(|_| asked.marks.is_some()).map(|h| h.set_marks(None))
            {
                debug!("marks stay until the next change: {e}");
            }
        }
    }

    /// The kernel has another policy, and no marks.
    pub(super) fn handle_policy(&mut self) {
        if let Some(asked) = &mut self.asked {
            asked.marks = None;
        }
    }

    /// `None` if no divider is to be asked.
    pub(super) fn status(&self, settings: &Settings, now: Time) -> Option<DividerStatus> {
        if settings.marks() && !settings.policy().weights().is_by_weight() {
            let words = "this host divides: another holds neither `max` nor `min`".to_owned();
            return Some(DividerStatus { words, ..DividerStatus::default() });
        }
        if let (Some((obstacle, _)), None) = (&self.obstacle, &self.asked) {
            let words = format!("this host divides: {obstacle}");
            return Some(DividerStatus { words, ..DividerStatus::default() });
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
                format!("this host divides: {why} ({to}); asked again in {wait:.0} s")
            }
            (None, None) => format!("this host divides: {to} is asked"),
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

/// Whether another may divide what this daemon would divide.
fn may_ask(settings: &Settings) -> bool {
    let policy = settings.policy();
    settings.marks() && policy.groups().len() > 1 && policy.weights().is_by_weight()
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
        let weights = weights(policy);
        let (classes, class_of) = classes(&weights);
        let client = Client::new(classes, random()?, now);
        Ok(Asked { choice, to, socket, client, weights, class_of, marks: None, divides: false })
    }

    fn handle_tick(
        &mut self,
        policy: &Policy,
        host: &mut Host,
        samples: &[GroupSample],
        connections: &[ConnectionSample],
        now: Time,
    ) -> anyhow::Result<bool> {
        let weights = weights(policy);
        if weights != self.weights {
            let (classes, class_of) = classes(&weights);
            (self.weights, self.class_of) = (weights, class_of);
            self.client.set_classes(classes, now);
            self.send();
        }
        let mut bytes = [0; MESSAGE_MAX + 1];
        for _ in 0..BURST_MAX {
            // Also if nothing listens there, which the client finds out by itself.
            let Ok(length) = self.socket.recv(&mut bytes) else { break };
            self.client.handle_datagram(&bytes[..length], now);
            self.send();
        }
        self.client.handle_tick(&self.received(samples, connections), now);
        self.send();
        self.follow(host)
    }

    /// What arrived by class.
    fn received(&self, samples: &[GroupSample], connections: &[ConnectionSample]) -> Vec<Received> {
        let count = self.class_of.iter().max().map_or(0, |last| usize::from(*last) + 1);
        let mut received = vec![Received::default(); count];
        for (class, sample) in self.class_of.iter().zip(samples) {
            received[usize::from(*class)].bytes += sample.received;
        }
        for connection in connections {
            if let Some(class) = self.class_of.get(connection.group) {
                received[usize::from(*class)].losses += connection.holes;
                received[usize::from(*class)].acknowledged += connection.received;
            }
        }
        received
    }

    /// Marks while another divides; whether it does.
    fn follow(&mut self, host: &mut Host) -> anyhow::Result<bool> {
        let marks = self.client.agreement().map(|agreement| {
            let mark = |class: &u8| agreement.agreed.marks.get(usize::from(*class)).copied();
            self.class_of.iter().map(|class| mark(class).unwrap_or(0)).collect::<Vec<u8>>()
        });
        if marks != self.marks {
            host.set_marks(marks.as_deref())?;
            self.marks = marks;
        }
        let divides = self.client.agreement().is_some();
        if divides != self.divides {
            self.divides = divides;
            match self.client.waits() {
                None => info!(to = %self.to, "another divides from now on"),
                Some((why, _)) => info!(to = %self.to, "this host divides from now on: {why}"),
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

/// The weights of the groups, and which one is the default.
fn weights(policy: &Policy) -> (Vec<Weight>, usize) {
    (policy.groups().iter().map(|group| group.weight).collect(), policy.default_group())
}

fn classes((weights, default): &(Vec<Weight>, usize)) -> (Classes, Vec<u8>) {
    classes_of(weights, *default).expect("invariant: a policy has a default group")
}
