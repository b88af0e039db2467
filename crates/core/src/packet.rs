//! What the headers of a packet name: transport protocols, ends of a connection, link-layer addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An address as a socket for both families has it (RFC 4291 §2.5.5.2).
pub fn as_ip6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip4) => ip4.to_ipv6_mapped(),
        IpAddr::V6(ip6) => ip6,
    }
}

/// A transport protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// An end of a connection, as seen from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The sender of the download: the source port of what arrives.
    Remote,
    /// This host: the destination port of what arrives.
    Local,
}

/// A unicast link-layer address. serde form: `02:00:5e:00:53:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mac(pub [u8; 6]);

/// Why a text is not a [`Mac`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the MAC address of a device (such as 02:00:5e:00:53:01)")]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;
    fn from_str(text: &str) -> Result<Mac, MacError> {
        let bad = || MacError(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(bad)?;
            let is_hex = part.bytes().all(|b| b.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| is_hex).ok_or_else(bad)?;
        }
        let mac = Mac(bytes);
        if parts.next().is_none() && mac.is_of_device() { Ok(mac) } else { Err(bad()) }
    }
}

impl Mac {
    /// Whether one device can have it: the lowest bit of the first byte marks groups of devices (IEEE 802).
    pub fn is_of_device(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }

    /// Whether the device, not its maker, has chosen it, so that it may have another one tomorrow (IEEE 802).
    pub fn is_made_up(self) -> bool {
        self.0[0] & 2 != 0
    }
}

impl TryFrom<String> for Mac {
    type Error = MacError;
    fn try_from(text: String) -> Result<Mac, MacError> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> String {
        mac.to_string()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_devices_print_as_they_are_written_and_others_are_refused() {
        assert_eq!("02:00:5E:00:53:01".parse::<Mac>().unwrap().to_string(), "02:00:5e:00:53:01");
        for wrong in
            ["", "02:00:5e:00:53", "02:00:5e:00:53:01:02", "2:0:5e:0:53:1", "+2:00:5e:00:53:01"]
        {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
        for group in ["00:00:00:00:00:00", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff"] {
            assert!(group.parse::<Mac>().is_err(), "{group}");
        }
    }
}
