//! The request of a router to its proxy: which devices' connections to relay, and at which rates.
//!
//! A request holds for a few seconds, is repeated, and ends by itself: if a router dies or hangs, no
//! device stays behind the proxy.

use serde::{Deserialize, Serialize};

use crate::policy::{GROUPS_MAX, Match, is_name};
use crate::units::Rate;

/// The longest time for which one request holds, in milliseconds.
pub const FOR_MS_MAX: u64 = 10_000;
/// Most addresses of a device, as for a class in a file.
const MATCHES_MAX: usize = 64;

/// The request, see the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// The devices in the router's order; at most [`GROUPS_MAX`].
    pub devices: Vec<ToldDevice>,
    /// How long the request holds, in milliseconds.
    pub for_ms: u64,
}

/// A device whose connections are to be relayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldDevice {
    /// The name of the device in the router's file.
    pub name: String,
    /// Its addresses: `ip:` and `mac:`.
    #[serde(rename = "match")]
    pub matches: Vec<Match>,
    /// The rate of its downloads together; `None` means no limit.
    pub rate_bps: Option<Rate>,
}

impl Told {
    /// Whether the request is valid.
    ///
    /// # Errors
    /// What is wrong, and what would be valid.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=FOR_MS_MAX).contains(&self.for_ms) {
            return Err(format!("for_ms: {} is out of range (1 to {FOR_MS_MAX})", self.for_ms));
        }
        if self.devices.len() > GROUPS_MAX {
            return Err(format!("{} devices: at most {GROUPS_MAX}", self.devices.len()));
        }
        for (i, ToldDevice { name, matches, .. }) in self.devices.iter().enumerate() {
            if !is_name(name) || self.devices[..i].iter().any(|other| other.name == *name) {
                return Err(format!("device {i}: the name is not valid, or another device has it"));
            }
            if !(1..=MATCHES_MAX).contains(&matches.len()) || !matches.iter().all(Match::is_address)
            {
                return Err(format!(
                    "device `{name}`: expected 1 to {MATCHES_MAX} addresses, ip: or mac:"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_with_addresses_are_taken() {
        let device = |name: &str, matched: &str| ToldDevice {
            name: name.to_owned(),
            matches: vec![matched.parse().unwrap()],
            rate_bps: Some(Rate::mbit(3)),
        };
        let told = |devices: Vec<ToldDevice>, for_ms| Told { devices, for_ms };
        let tv = || device("tv", "mac:02:00:5e:00:53:01");
        assert_eq!(told(vec![tv(), device("pc", "ip:192.0.2.1")], 3_000).check(), Ok(()));
        assert_eq!(told(Vec::new(), 1).check(), Ok(()));
        let many = (0..=GROUPS_MAX).map(|n| device(&format!("d{n}"), "ip:192.0.2.1")).collect();
        for (wrong, says) in [
            (told(vec![tv()], 0), "for_ms: 0"),
            (told(vec![tv()], u64::MAX), "for_ms"),
            (told(many, 1), "at most 256"),
            (told(vec![tv(), tv()], 1), "device 1"),
            (told(vec![device("a b", "ip:192.0.2.1")], 1), "device 0"),
            (told(vec![device("tv", "web:example.com")], 1), "ip: or mac:"),
            (told(vec![ToldDevice { matches: Vec::new(), ..tv() }], 1), "1 to 64"),
        ] {
            let error = wrong.check().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let text = serde_json::to_string(&tv()).unwrap();
        assert_eq!(text, r#"{"name":"tv","match":["mac:02:00:5e:00:53:01"],"rate_bps":3000000}"#);
    }
}
