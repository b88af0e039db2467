//! The classes of scenarios.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

macro_rules! classes {
    ($($class:ident $name:literal $weight:literal $what:literal)*) => {
        /// What is special about a scenario.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Class {
            $(#[doc = $what] $class),*
        }

        impl Class {
            pub(crate) const ALL: &[Class] = &[$(Class::$class),*];

            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Class::$class => $name),*
                }
            }

            /// A short description of the scenarios.
            pub(crate) const fn what(self) -> &'static str {
                match self {
                    $(Class::$class => $what),*
                }
            }

            /// How often the class is drawn, relative to the others.
            pub(super) const fn weight(self) -> u64 {
                match self {
                    $(Class::$class => $weight),*
                }
            }
        }
    };
}

classes! {
    Plain "plain" 15 "plain links: 1-1000 Mbit/s, RTT 1-500 ms, joins, leaves and demand steps"
    Late "late" 15 "control that starts 4 to 8 s after downloads have filled the queue"
    Apps "apps" 80 "videos, web pages, short downloads, on-off flows and calls beside downloads"
    Senders "senders" 30 "CUBIC, BBR, Reno and Vegas, QUIC, several connections against one"
    Steps "steps" 30 "the link changes its rate, by a factor of up to 5"
    Rtts "rtts" 25 "flows with RTTs of 1 to 500 ms on one link"
    Policed "policed" 35 "a policer before a fast link"
    Shaped "shaped" 20 "a link with a token bucket: bursts leave at the line rate"
    Shallow "shallow" 25 "buffers of 3 to 10 ms"
    Deep "deep" 15 "buffers of 300 to 1000 ms, 1 to 20 Mbit/s"
    Neighbours "neighbours" 35 "another host without control behind the same link"
    Hosts "hosts" 20 "two controlled hosts behind one link"
    Jitter "jitter" 30 "random delay of up to 1-30 ms: of each packet or of half of them, uniform, exponential or in bursts"
    Loss "loss" 20 "random losses of 0.01 to 2 %, single or in bursts"
    Far "far" 25 "RTTs of 200 to 500 ms"
    Slow "slow" 25 "1 to 4 Mbit/s with up to 32 connections"
    Crowded "crowded" 20 "16 to 128 connections"
    Remembered "remembered" 20 "a stored capacity of 0.3 to 3 times the true one"
    Trace "trace" 20 "capacity that changes every second"
    Silent "silent" 15 "no reflector, or one that loses, delays or bypasses answers; half of them without TCP timestamps, measured as the kernel does, some with an answer a second"
    Call "call" 20 "a ping and a call inside a busy group"
    Aqm "aqm" 30 "CoDel, FQ-CoDel or PIE at the ISP"
    Grants "grants" 15 "an uplink or a downlink that waits for grants, 1 to 10 ms apart"
    Cold "cold" 15 "2 to 10 connections that open at once on an idle link"
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Class {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Class, String> {
        let known = Class::ALL.iter().find(|class| class.name() == text);
        known.copied().ok_or_else(|| {
            let names: Vec<&str> = Class::ALL.iter().map(|class| class.name()).collect();
            format!("unknown class `{text}`; allowed: {}", names.join(", "))
        })
    }
}
