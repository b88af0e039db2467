//! Policing points: flows limited to a rate, how it is shared, and the algorithm that does it.

use fairweir_core::phantom::plan::{Deviation, limit_for};
use fairweir_core::phantom::{Bundle, BundleSpec, Plan, PlanSpec};
use fairweir_core::units::{Bytes, Rate, Span, Time};

/// The most copies of a policing point.
pub const POLICE_COPIES_MAX: u64 = 1_000;

/// A policing point before the bottleneck: an aggregate of flows and its plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Police {
    /// Its name, unique in the scenario.
    pub name: String,
    /// The enforced rate, and how it is shared. A class of the scenario is recognised by a DSCP
    /// that no other class has; see [`Police::class_of`].
    pub spec: PlanSpec,
    /// The class that holds a rate, and the class that pays for it.
    pub bundle: Option<BundleSpec>,
    /// The algorithm that enforces it.
    pub algorithm: Algorithm,
    /// Size of its bucket or its queues; without meaning for BC-PQP, whose plan contains it.
    pub size: PoliceSize,
    /// The deviation from the paper that its plan leaves out, for BC-PQP.
    pub without: Option<Deviation>,
    /// What chooses a connection's queue.
    pub queue_by: QueueBy,
    /// The element that polices in the emulated home; in the simulator it is a model of the plan.
    pub by: By,
    /// Rates of the segment that are guaranteed to it, each from a time on, in order; none before.
    pub guarantees: Vec<(Time, Rate)>,
    /// Its flows, by their indices in rising order.
    pub flows: Vec<usize>,
    /// The class of each of these; empty without classes.
    pub class_of: Vec<String>,
}

/// The element that polices in the emulated home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The model.
    Model,
    /// The daemon, with this plan.
    Daemon,
    /// The daemon, with a plan that is divided as hosts and router ask. Lab only.
    Agreement,
}

impl Police {
    /// The rate that it enforces.
    pub fn rate(&self) -> Rate {
        self.spec.rate
    }

    /// The plan, worked out.
    ///
    /// # Panics
    /// Never: it was checked when the scenario was read.
    pub fn plan(&self) -> Plan {
        let plan = Plan::new(&self.spec).expect("invariant: the reader has made it once");
        match self.without {
            Some(deviation) => plan.without(deviation, self.spec.rate),
            None => plan,
        }
    }

    /// The bundle of its plan, worked out.
    ///
    /// # Panics
    /// Never: it was checked when the scenario was read.
    pub fn bundle(&self) -> Option<Bundle> {
        let made = |spec| Bundle::new(spec, &self.spec, &self.plan());
        self.bundle.as_ref().map(|b| made(b).expect("invariant: the reader has made it once"))
    }

    /// The size of its bucket or of each of its queues.
    pub fn size(&self) -> Bytes {
        self.size.bytes(self.spec.rate, self.spec.rtt_max)
    }
}

/// What chooses a connection's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBy {
    /// Its turn among the connections of its class, so that no two connections share a queue while
    /// there are enough queues.
    Flow,
    /// A hash of its addresses and ports.
    Hash,
    /// Nothing: all connections are in the first queue, whatever the policy.
    One,
}

/// The algorithm that keeps an aggregate to its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Phantom queues with burst control.
    BcPqp,
    /// The same algorithm exactly as the paper prints it, with the paper's constants.
    BcPqpPrinted,
    /// Phantom queues without burst control.
    Pqp,
    /// A token bucket whose tokens the flows share.
    FairPolicer,
    /// One token bucket for all.
    TokenBucket,
    /// Real queues, served in rounds.
    Shaper,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::BcPqp,
        Algorithm::BcPqpPrinted,
        Algorithm::Pqp,
        Algorithm::FairPolicer,
        Algorithm::TokenBucket,
        Algorithm::Shaper,
    ];

    /// Whether this build contains it. The baselines need the feature `reference`.
    pub const fn is_built(self) -> bool {
        cfg!(feature = "reference") || matches!(self, Algorithm::BcPqp)
    }

    /// Its name in scenario files.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::BcPqp => "bc-pqp",
            Algorithm::BcPqpPrinted => "bc-pqp-printed",
            Algorithm::Pqp => "pqp",
            Algorithm::FairPolicer => "fair-policer",
            Algorithm::TokenBucket => "token-bucket",
            Algorithm::Shaper => "shaper",
        }
    }

    /// The default size of its bucket or queues. Source: BC-PQP §6.1 for the shaper, the token
    /// bucket and BC-PQP as printed; §3.5 for queues that Reno can keep busy.
    pub(super) const fn size(self) -> PoliceSize {
        match self {
            Algorithm::TokenBucket | Algorithm::Shaper => PoliceSize::Bdp { ppm: 1_000_000 },
            Algorithm::BcPqpPrinted => PoliceSize::Reno { ppm: 10_000_000 },
            Algorithm::BcPqp | Algorithm::Pqp | Algorithm::FairPolicer => {
                PoliceSize::Reno { ppm: 1_500_000 }
            }
        }
    }
}

/// Size of a bucket or a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoliceSize {
    /// This number of bytes.
    Bytes(Bytes),
    /// In millionths of the volume that the rate carries in the longest round-trip time.
    Bdp {
        /// Millionths.
        ppm: u64,
    },
    /// In millionths of what Reno needs to keep the queue busy, BDP² / (18 · MSS).
    Reno {
        /// Millionths.
        ppm: u64,
    },
}

impl PoliceSize {
    fn bytes(self, rate: Rate, rtt_max: Span) -> Bytes {
        let scaled = |bytes: Bytes, ppm: u64| {
            let bytes = u128::from(bytes.as_u64()) * u128::from(ppm) / 1_000_000;
            Bytes::new(u64::try_from(bytes).unwrap_or(u64::MAX))
        };
        match self {
            PoliceSize::Bytes(bytes) => bytes,
            PoliceSize::Bdp { ppm } => scaled(rate * rtt_max, ppm),
            PoliceSize::Reno { ppm } => scaled(limit_for(rate, rtt_max, 1), ppm),
        }
    }
}

impl std::str::FromStr for PoliceSize {
    type Err = String;

    /// Reads `1000kB`, `bdp`, `2bdp` or `1.5reno`.
    fn from_str(text: &str) -> Result<PoliceSize, String> {
        let wanted = || {
            format!(
                "`{text}` is not a size; expected a volume (1000kB), multiples of rate · rtt_max (bdp, \
                 2bdp) or of what Reno needs (1.5reno)"
            )
        };
        let ppm = |factor: &str| match factor.trim() {
            "" => Ok(1_000_000),
            factor => {
                let factor = factor.parse().ok().filter(|f: &f64| *f > 0.0 && *f <= 1e6);
                factor.map(|f| (f * 1e6).round() as u64).ok_or_else(wanted)
            }
        };
        if let Some(factor) = text.strip_suffix("bdp") {
            return Ok(PoliceSize::Bdp { ppm: ppm(factor)? });
        }
        if let Some(factor) = text.strip_suffix("reno") {
            return Ok(PoliceSize::Reno { ppm: ppm(factor)? });
        }
        match text.parse::<Bytes>() {
            Ok(Bytes::ZERO) | Err(_) => Err(wanted()),
            Ok(bytes) => Ok(PoliceSize::Bytes(bytes)),
        }
    }
}
