//! What the lab tells its agents, and what they tell it, as JSON.
//!
//! The types of scenarios and reports are written for people; here times are nanoseconds and rates
//! bit/s, so that what is read is exactly what was written.

use std::net::SocketAddr;

use fairweir_core::units::{Bytes, Rate, Span, Time};
use fairweir_scenario::app::{App, Outcome};
use fairweir_scenario::report::{PingSamples, ShortSamples, VideoSamples, WebSamples};
use fairweir_scenario::{
    CongestionControl, DemandStep, ETHERNET_HEADER, Flow, Ip, Kind, OnOff, Short, Video, Web,
};
use serde::{Deserialize, Serialize};

/// What sender and receiver of a flow have to know, as told to their processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) server: SocketAddr,
    pub(crate) what: What,
    /// Index of the flow's group.
    pub(crate) group: usize,
    pub(crate) congestion_control: String,
    /// Whether its senders spread their packets.
    pub(crate) paced: bool,
    pub(crate) connections: u32,
    pub(crate) start_ns: u64,
    pub(crate) stop_ns: u64,
    /// From when on the flow wants how many bit/s of L2 bytes; `None` is without end.
    pub(crate) demands_bps: Vec<(u64, Option<u64>)>,
    /// The largest IP packet.
    pub(crate) mtu: u32,
    /// Of the flow's application.
    pub(crate) seed: u64,
    /// The only certificate that a client of QUIC trusts, as DER.
    pub(crate) certificate: Option<Vec<u8>>,
}

/// What a flow does: a [`Kind`] in numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum What {
    Bulk,
    Quic,
    Ping {
        interval_ns: u64,
    },
    Udp,
    OnOff {
        on_ns: u64,
        off_ns: u64,
    },
    Video {
        ladder_bps: Vec<u64>,
        length_ns: Option<u64>,
    },
    Web {
        hosts: u32,
        objects: (u32, u32),
        object: u64,
        think_ns: u64,
        session_gap_ns: u64,
        pages: u32,
    },
    Short {
        interval_ns: u64,
        size: u64,
        sigma_ppm: u32,
        arrivals: Option<u32>,
    },
}

/// What the server says when every port is open.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Its certificate for QUIC as DER, if it needs one.
    pub(crate) certificate: Option<Vec<u8>>,
}

/// What an application measured: an [`Outcome`] in numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Measured {
    Nothing,
    Ping { sent: u64, rtts_ns: Vec<u64> },
    Video(Watched),
    Web { loads_ns: Vec<u64>, unfinished: u64, volume: u64 },
    Short { completions_ns: Vec<u64>, unfinished: u64, volume: u64 },
}

/// How a film was played.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Watched {
    /// Rate in bit/s and time in ns of each quality.
    played: Vec<(u64, u64)>,
    stalls: u64,
    stalled_ns: u64,
    startup_ns: Option<u64>,
    switches: u64,
}

impl Job {
    pub(crate) fn new(flow: &Flow, server: SocketAddr, mtu: u32, seed: u64) -> Job {
        let demand = |step: &DemandStep| (step.at.as_nanos(), step.demand.map(Rate::as_bps));
        Job {
            server,
            what: What::new(&flow.kind),
            group: flow.group,
            congestion_control: flow.congestion_control.name().to_owned(),
            paced: flow.paced,
            connections: flow.connections,
            start_ns: flow.start.as_nanos(),
            stop_ns: flow.stop.as_nanos(),
            demands_bps: flow.demands.iter().map(demand).collect(),
            mtu,
            seed,
            certificate: None,
        }
    }

    pub(crate) fn start(&self) -> Time {
        Time::from_nanos(self.start_ns)
    }

    pub(crate) fn stop(&self) -> Time {
        Time::from_nanos(self.stop_ns)
    }

    /// Payload of a full packet of the flow's connections.
    pub(crate) fn segment(&self) -> u64 {
        self.flow().segment(self.mtu).as_u64()
    }

    /// From when on how much payload per second each connection has to send; `None` is without end.
    pub(crate) fn goodputs(&self) -> Vec<(u64, Option<u64>)> {
        // A demand counts L2 bytes of all connections; a sender counts payload of its own.
        let (segment, wire) = (self.segment(), u64::from(self.mtu) + ETHERNET_HEADER);
        let goodput = |bps: u64| {
            let per_connection = Rate::bps(bps) / u64::from(self.connections);
            per_connection.scale(segment, wire).bytes_per_second_floor()
        };
        self.demands_bps.iter().map(|&(at, bps)| (at, bps.map(goodput))).collect()
    }

    /// The simulator's application, which decides what happens when.
    pub(crate) fn app(&self) -> App {
        let flow = self.flow();
        App::new(&flow, self.seed, flow.segment(self.mtu))
    }

    /// The flow as far as its application has to know it.
    fn flow(&self) -> Flow {
        let demand = |&(at, bps): &(u64, Option<u64>)| DemandStep {
            at: Time::from_nanos(at),
            demand: bps.map(Rate::bps),
        };
        Flow {
            group: self.group,
            kind: self.what.kind(),
            congestion_control: CongestionControl::Cubic,
            paced: self.paced,
            connections: self.connections,
            rtt: Span::ZERO,
            start: self.start(),
            stop: self.stop(),
            demands: self.demands_bps.iter().map(demand).collect(),
            ip: if self.server.is_ipv4() { Ip::V4 } else { Ip::V6 },
            app: None,
            server: None,
        }
    }
}

impl What {
    fn new(kind: &Kind) -> What {
        match kind {
            Kind::Bulk => What::Bulk,
            Kind::Quic => What::Quic,
            &Kind::Ping { interval } => What::Ping { interval_ns: interval.as_nanos() },
            Kind::Udp => What::Udp,
            Kind::OnOff(OnOff { on, off }) => {
                What::OnOff { on_ns: on.as_nanos(), off_ns: off.as_nanos() }
            }
            Kind::Video(Video { ladder, length }) => What::Video {
                ladder_bps: ladder.iter().map(|rate| rate.as_bps()).collect(),
                length_ns: length.map(Span::as_nanos),
            },
            Kind::Web(web) => What::Web {
                hosts: web.hosts,
                objects: web.objects,
                object: web.object.as_u64(),
                think_ns: web.think.as_nanos(),
                session_gap_ns: web.session_gap.as_nanos(),
                pages: web.pages_per_session,
            },
            &Kind::Short(Short { interval, size, sigma_ppm, arrivals }) => What::Short {
                interval_ns: interval.as_nanos(),
                size: size.as_u64(),
                sigma_ppm,
                arrivals,
            },
        }
    }

    fn kind(&self) -> Kind {
        match *self {
            What::Bulk => Kind::Bulk,
            What::Quic => Kind::Quic,
            What::Ping { interval_ns } => Kind::Ping { interval: Span::nanos(interval_ns) },
            What::Udp => Kind::Udp,
            What::OnOff { on_ns, off_ns } => {
                Kind::OnOff(OnOff { on: Span::nanos(on_ns), off: Span::nanos(off_ns) })
            }
            What::Video { ref ladder_bps, length_ns } => Kind::Video(Video {
                ladder: ladder_bps.iter().map(|&bps| Rate::bps(bps)).collect(),
                length: length_ns.map(Span::nanos),
            }),
            What::Web { hosts, objects, object, think_ns, session_gap_ns, pages } => {
                Kind::Web(Web {
                    hosts,
                    objects,
                    object: Bytes::new(object),
                    think: Span::nanos(think_ns),
                    session_gap: Span::nanos(session_gap_ns),
                    pages_per_session: pages,
                })
            }
            What::Short { interval_ns, size, sigma_ppm, arrivals } => Kind::Short(Short {
                interval: Span::nanos(interval_ns),
                size: Bytes::new(size),
                sigma_ppm,
                arrivals,
            }),
        }
    }
}

impl Measured {
    pub(crate) fn new(outcome: Outcome) -> Measured {
        match outcome {
            Outcome::Nothing => Measured::Nothing,
            Outcome::Ping(ping) => Measured::Ping { sent: ping.sent, rtts_ns: nanos(&ping.rtts) },
            Outcome::Video(video) => Measured::Video(Watched {
                played: video.played.iter().map(|(r, s)| (r.as_bps(), s.as_nanos())).collect(),
                stalls: video.stalls,
                stalled_ns: video.stalled.as_nanos(),
                startup_ns: video.startup.map(Span::as_nanos),
                switches: video.switches,
            }),
            Outcome::Web(web) => Measured::Web {
                loads_ns: nanos(&web.loads),
                unfinished: web.unfinished,
                volume: web.volume.as_u64(),
            },
            Outcome::Short(short) => Measured::Short {
                completions_ns: nanos(&short.completions),
                unfinished: short.unfinished,
                volume: short.volume.as_u64(),
            },
        }
    }

    /// As an outcome of the group `group`.
    pub(crate) fn outcome(self, group: usize) -> Outcome {
        match self {
            Measured::Nothing => Outcome::Nothing,
            Measured::Ping { sent, rtts_ns } => {
                Outcome::Ping(PingSamples { group, sent, rtts: spans(rtts_ns) })
            }
            Measured::Video(video) => Outcome::Video(VideoSamples {
                group,
                played: video
                    .played
                    .into_iter()
                    .map(|(bps, ns)| (Rate::bps(bps), Span::nanos(ns)))
                    .collect(),
                stalls: video.stalls,
                stalled: Span::nanos(video.stalled_ns),
                startup: video.startup_ns.map(Span::nanos),
                switches: video.switches,
            }),
            Measured::Web { loads_ns, unfinished, volume } => Outcome::Web(WebSamples {
                group,
                loads: spans(loads_ns),
                unfinished,
                volume: Bytes::new(volume),
            }),
            Measured::Short { completions_ns, unfinished, volume } => {
                Outcome::Short(ShortSamples {
                    group,
                    completions: spans(completions_ns),
                    unfinished,
                    volume: Bytes::new(volume),
                })
            }
        }
    }
}

fn nanos(spans: &[Span]) -> Vec<u64> {
    spans.iter().map(|span| span.as_nanos()).collect()
}

fn spans(nanos: Vec<u64>) -> Vec<Span> {
    nanos.into_iter().map(Span::nanos).collect()
}

#[cfg(test)]
mod tests {
    use fairweir_scenario::Scenario;

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
            let text = serde_json::to_string(&Measured::new(outcome.clone())).unwrap();
            let back: Measured = serde_json::from_str(&text).unwrap();
            assert_eq!(back.outcome(3), outcome);
        }
    }
}
