//! What the lab tells its agents, in JSON.
//!
//! Flows, and the results of their applications ([`fairweir_scenario::app::Outcome`]), are serialised
//! with serde as they are: times in nanoseconds and rates in bit/s, so the reader gets exactly what was
//! written.

use std::net::SocketAddr;

use fairweir_core::delegate::BundleSpec;
use fairweir_core::share::Weight;
use fairweir_core::units::{Rate, Span, Time};
use fairweir_scenario::app::App;
use fairweir_scenario::{DemandStep, ETHERNET_HEADER, Flow};
use serde::{Deserialize, Serialize};

/// What the processes that send and receive a flow need to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Where the flow is served.
    pub(crate) server: SocketAddr,
    /// The flow, as the scenario describes it.
    pub(crate) flow: Flow,
    /// The largest IP packet.
    pub(crate) mtu: u32,
    /// Seed for the flow's application.
    pub(crate) seed: u64,
    /// The only certificate that a client of QUIC trusts, as DER.
    pub(crate) certificate: Option<Vec<u8>>,
    /// The role of the flow's connections in a bundle, if the server itself handles signals (over QUIC).
    pub(crate) seat: Option<Seat>,
}

/// The role of a flow's connections in a bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seat {
    /// The bundle's number in the scenario.
    pub(crate) bundle: usize,
    pub(crate) spec: BundleSpec,
    pub(crate) part: Part,
    /// The number of the flow's group among the groups with a target.
    pub(crate) free_group: Option<usize>,
    /// Number of groups with a target.
    pub(crate) free_groups: usize,
    /// The duration of the run.
    pub(crate) duration: Span,
}

/// The part that each of the connections plays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Part {
    /// The target is this rate at these times, interpolated linearly in between.
    Trace(Vec<(Time, Rate)>),
    /// The target is the rate of this number of the bundle's connections.
    Connections(Weight),
    /// The connection handles signals for others.
    Stunt { weight: Weight, min_rate: Rate },
}

/// Sent by the server when every port is open.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// The server's QUIC certificate as DER, if a flow needs one.
    pub(crate) certificate: Option<Vec<u8>>,
}

impl Job {
    pub(crate) fn new(flow: &Flow, server: SocketAddr, mtu: u32, seed: u64) -> Job {
        Job { server, flow: flow.clone(), mtu, seed, certificate: None, seat: None }
    }

    pub(crate) fn start(&self) -> Time {
        self.flow.start
    }

    pub(crate) fn stop(&self) -> Time {
        self.flow.stop
    }

    /// Payload bytes in a full packet of the flow's connections.
    pub(crate) fn segment(&self) -> u64 {
        self.flow.segment(self.mtu).as_u64()
    }

    /// Payload bytes per second that each connection has to send from each time on; `None` is unlimited.
    pub(crate) fn goodputs(&self) -> Vec<(Time, Option<u64>)> {
        // A demand counts L2 bytes of all connections; a sender counts payload of its own connection.
        let (segment, wire) = (self.segment(), u64::from(self.mtu) + ETHERNET_HEADER);
        let connections = u64::from(self.flow.connections);
        let goodput = |step: &DemandStep| {
            let per_connection = step.demand.map(|demand| demand / connections);
            per_connection.map(|rate| rate.scale(segment, wire).bytes_per_second_floor())
        };
        self.flow.demands.iter().map(|step| (step.at, goodput(step))).collect()
    }

    /// The flow's application, which decides what happens when; the same as in the simulator.
    pub(crate) fn app(&self) -> App {
        App::new(&self.flow, self.seed, self.flow.segment(self.mtu))
    }
}

#[cfg(test)]
mod tests {
    use fairweir_core::units::{Bytes, Rate, Span};
    use fairweir_scenario::app::Outcome;
    use fairweir_scenario::report::{PingSamples, ShortSamples, VideoSamples, WebSamples};
    use fairweir_scenario::{Ip, Scenario};

    use super::*;

    #[test]
    fn an_agent_gets_the_application_that_the_scenario_says() {
        let keys = [
            ("bulk", "connections = 3\ndemand = \"3mbit\""),
            ("quic", "ip = 6\nsteps = [{ at = \"2s\", demand = \"1mbit\" }]"),
            ("ping", ""),
            ("udp", "demand = \"1mbit\"\nsteps = [{ at = \"2s\", demand = \"2mbit\" }]"),
            ("on-off", "on = \"1.5s\"\noff = \"0.3s\""),
            ("video", "ladder = [\"1mbit\", \"2.5mbit\"]\nlength = \"7s\""),
            ("web", "hosts = 3\nobjects = [2, 9]\nthink = \"1s\""),
            ("short", "rate_per_s = 3\nsize = \"9kB\"\nsigma = 1.25"),
        ];
        let flow = |(kind, keys): (&str, &str)| {
            format!("[[flow]]\ngroup = \"a\"\nstart = \"1s\"\nkind = \"{kind}\"\n{keys}\n")
        };
        let text = "version = 1\nname = \"x\"\nduration = \"9s\"\n[link]\nrate = \"9mbit\"\n\
                    [[group]]\nname = \"a\"\nweight = 1\n"
            .to_owned()
            + &keys.map(flow).concat();
        for flow in Scenario::parse(&text, "x").unwrap().flows {
            let server = match flow.ip {
                Ip::V4 => "192.0.2.1:9".parse().unwrap(),
                Ip::V6 => "[2001:db8::1]:9".parse().unwrap(),
            };
            let job = serde_json::to_string(&Job::new(&flow, server, 1_500, 42)).unwrap();
            let job: Job = serde_json::from_str(&job).unwrap();
            assert_eq!(job.flow, flow);
            let told = App::new(&flow, 42, flow.segment(1_500));
            assert_eq!(format!("{:?}", job.app()), format!("{told:?}"));
        }
    }

    #[test]
    fn a_measurement_comes_back_as_it_was() {
        let span = Span::nanos(12_345_678_901);
        let outcomes = [
            Outcome::Nothing,
            Outcome::Ping(PingSamples { group: 3, sent: 7, rtts: vec![span] }),
            Outcome::Video(VideoSamples {
                group: 3,
                played: vec![(Rate::bps(300_001), span), (Rate::mbit(2), Span::ZERO)],
                stalls: 2,
                stalled: span,
                startup: Some(Span::nanos(3)),
                switches: 5,
            }),
            Outcome::Web(WebSamples {
                group: 3,
                loads: vec![span; 2],
                unfinished: 1,
                volume: Bytes::new(4_321),
            }),
            Outcome::Short(ShortSamples {
                group: 3,
                completions: vec![span; 3],
                unfinished: 2,
                volume: Bytes::new(9),
            }),
        ];
        for outcome in outcomes {
            let text = serde_json::to_string(&outcome).unwrap();
            assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
        }
    }
}
