//! `fairweir init --router`: a first configuration of a router, from what the kernel and the DHCP
//! server know about the devices in the LAN.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;

use anyhow::bail;
use fairweir_config::file::read_own;
use fairweir_core::lease_file;
use fairweir_core::packet::Mac;
use fairweir_core::policy::{Match, Policy};
use fairweir_linux::link::{self, Link};
use fairweir_linux::link_devices;
use fairweir_linux::network::{self, Neighbour};

use crate::device::check_named;
use crate::exit::Usage;

/// Where dnsmasq writes its leases, for each distribution.
const LEASE_FILES: [&str; 3] =
    ["/var/lib/misc/dnsmasq.leases", "/tmp/dhcp.leases", "/var/lib/dnsmasq/dnsmasq.leases"];
const LEASES_BYTES_MAX: u64 = 1 << 20;
/// The most devices that are listed; further ones belong to `default`.
const DEVICES_MAX: usize = 32;

/// A device behind the router.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    mac: Mac,
    addresses: BTreeSet<IpAddr>,
    /// The name that the device reports by DHCP.
    name: Option<String>,
}

impl Device {
    /// The device's table in the file, with a name that is not in `taken`.
    fn entry(&self, taken: &mut BTreeSet<String>) -> String {
        let [.., a, b] = self.mac.0;
        let named = self.name.clone().filter(|name| !taken.contains(name));
        let free = |name: &String| !taken.contains(name);
        let numbered = (1..).map(|n| format!("device-{a:02x}{b:02x}-{n}"));
        let unnamed = std::iter::once(format!("device-{a:02x}{b:02x}")).chain(numbered);
        let name = named.clone().or_else(|| unnamed.into_iter().find(free));
        let name = name.expect("invariant: finitely many names are taken");
        let makes_up = self.mac.is_made_up();
        let (rule, more) = match &named {
            Some(host) if makes_up => (format!("host:{host}"), format!("; now {}", self.mac)),
            _ if makes_up => (format!("mac:{}", self.mac), "; made up, may change".to_owned()),
            _ => (format!("mac:{}", self.mac), String::new()),
        };
        let addresses: Vec<_> = self.addresses.iter().map(IpAddr::to_string).collect();
        taken.insert(name.clone());
        format!(
            "\n[[device]]\nname = \"{name}\"   # {}{more}\nweight = 1\nmatch = [\"{rule}\"]\n",
            addresses.join(", "),
        )
    }
}

/// A router, and the devices behind it.
pub(crate) struct Found {
    pub(crate) lans: Vec<String>,
    pub(crate) wans: Vec<String>,
    devices: Vec<Device>,
}

impl Found {
    pub(crate) fn configuration(&self) -> String {
        configuration(&self.lans, &self.wans, &self.devices)
    }

    /// What a configuration lacks: the devices without a rule.
    pub(crate) fn additions(&self, policy: &Policy) -> String {
        let groups = policy.groups();
        let mut taken: BTreeSet<String> = groups.iter().map(|group| group.name.clone()).collect();
        let rules: Vec<&Match> = groups.iter().flat_map(|group| &group.matches).collect();
        let is_new = |device: &&Device| {
            !rules.iter().any(|rule| match rule {
                Match::Mac(mac) => *mac == device.mac,
                Match::Host(name) => device.name.as_deref() == Some(name.as_str()),
                Match::Ip(net) => device.addresses.iter().any(|address| net.contains(address)),
                _ => false,
            })
        };
        self.devices.iter().filter(is_new).map(|device| device.entry(&mut taken)).collect()
    }
}

/// Detects this router's interfaces and devices.
///
/// # Errors
/// If it is not clear which interfaces face the Internet and the devices.
pub(crate) fn look(wan: Option<&str>, lan: Option<&str>) -> anyhow::Result<Found> {
    let found = link_devices()?;
    let wans = match wan {
        Some(dev) => {
            check_named(dev)?;
            if found.iter().any(|other| other == dev) { found } else { vec![dev.to_owned()] }
        }
        None if found.is_empty() => {
            bail!("no interface has a default route; name the one of the Internet with --dev")
        }
        None => found,
    };
    let (links, neighbours) = (link::all()?, network::neighbours()?);
    if let Some(lan) = lan {
        check_named(lan)?;
    }
    let lan = match lan {
        Some(lan) => links.iter().find(|link| link.name == *lan),
        None => likely_lan(&links, &neighbours, &wans),
    };
    let Some(lan) = lan else {
        bail!("no bridge is up; name the interface of the devices with --lan");
    };
    if let Some(wan) = wans.iter().find(|wan| lan.name == **wan) {
        let what =
            format!("{wan} is the interface of the Internet; --lan names that of the devices");
        return Err(Usage(what).into());
    }
    let names = LEASE_FILES.iter().flat_map(|path| leases(Path::new(path))).collect();
    let devices = devices(lan.index, &neighbours, &names);
    Ok(Found { lans: vec![lan.name.clone()], wans, devices })
}

/// The bridge with the most neighbours.
fn likely_lan<'l>(
    links: &'l [Link],
    neighbours: &[Neighbour],
    wans: &[String],
) -> Option<&'l Link> {
    let bridges = links.iter();
    let bridges = bridges.filter(|l| l.kind == "bridge" && l.is_up() && !wans.contains(&l.name));
    bridges.max_by_key(|link| neighbours.iter().filter(|n| n.device == link.index).count())
}

/// The devices behind an interface; those with names first.
fn devices(lan: u32, neighbours: &[Neighbour], names: &BTreeMap<Mac, String>) -> Vec<Device> {
    let mut found: BTreeMap<Mac, BTreeSet<IpAddr>> = BTreeMap::new();
    let here = |n: &&Neighbour| n.device == lan && n.mac.is_of_device();
    for neighbour in neighbours.iter().filter(here) {
        found.entry(neighbour.mac).or_default().insert(neighbour.address);
    }
    let device = |(mac, addresses)| Device { mac, addresses, name: names.get(&mac).cloned() };
    let mut devices: Vec<Device> = found.into_iter().map(device).collect();
    devices.sort_by_key(|device| (device.name.is_none(), device.name.clone()));
    devices.truncate(DEVICES_MAX);
    devices
}

/// The device names in a lease file of dnsmasq.
fn leases(path: &Path) -> BTreeMap<Mac, String> {
    match read_own(path, LEASES_BYTES_MAX) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
            // Expired leases also name their devices.
            let leases = lease_file::read(&text, 0).leases.into_iter();
            leases.filter_map(|lease| Some((lease.mac, lease.name?))).collect()
        }
        Err(e) => {
            let _ = writeln!(io::stderr(), "the names of devices in it are not used: {e}");
            BTreeMap::new()
        }
    }
}

fn configuration(lans: &[String], wans: &[String], devices: &[Device]) -> String {
    // A single name is written without a list.
    let names = |names: &[String]| match names {
        [one] => toml::Value::from(one.as_str()),
        several => toml::Value::from(several.to_vec()),
    };

    let mut text = format!(
        "# Written by `fairweir init --router`. While several devices download, each gets the download in\n\
         # proportion to its weight; what one does not use goes to the others.\n\
         version = 1\n\n[router]\nlan = {}\nwan = {}\n",
        names(lans),
        names(wans),
    );
    let mut taken = BTreeSet::from(["default".to_owned()]);
    for device in devices {
        text += &device.entry(&mut taken);
    }
    text + "\n[[device]]\nname = \"default\"   # all other devices together\nweight = 1\n"
}

#[cfg(test)]
mod tests {
    use fairweir_config::host::{Config, Role};
    use fairweir_core::policy::Group;
    use fairweir_core::units::Span;

    use super::*;

    fn mac(text: &str) -> Mac {
        text.parse().unwrap()
    }

    fn neighbour(device: u32, address: &str, of: &str) -> Neighbour {
        Neighbour { device, address: address.parse().unwrap(), mac: mac(of), silent: Span::ZERO }
    }

    #[test]
    fn what_is_proposed_is_a_valid_configuration() {
        let neighbours = [
            neighbour(3, "192.168.7.5", "00:00:5e:00:53:01"),
            neighbour(3, "2001:db8::5", "00:00:5e:00:53:01"),
            neighbour(3, "192.168.7.6", "02:00:5e:00:53:02"),
            neighbour(3, "192.168.7.7", "02:00:5e:00:53:03"),
            neighbour(3, "192.168.7.8", "00:00:5e:01:53:01"),
            neighbour(3, "192.168.7.9", "00:00:5e:02:53:01"),
            Neighbour {
                mac: Mac([1, 0, 0x5e, 0, 0, 22]),
                ..neighbour(3, "224.0.0.22", "00:00:5e:00:53:01")
            },
            neighbour(4, "203.0.113.1", "00:00:5e:00:53:99"),
        ];
        let names = BTreeMap::from([
            (mac("02:00:5e:00:53:02"), "phone".to_owned()),
            (mac("00:00:5e:02:53:01"), "default".to_owned()),
        ]);
        let devices = devices(3, &neighbours, &names);
        let text = configuration(&["br-lan".into()], &["wan0".into(), "ds0".into()], &devices);
        assert!(text.contains("# 192.168.7.5, 2001:db8::5\n"), "{text}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("router.toml");
        std::fs::write(&path, &text).unwrap();
        let config = Config::load_as(Role::Router, &path).unwrap();
        let groups = config.policy.groups().iter();
        let rule = |group: &Group| group.matches.first().map(ToString::to_string);
        let all: Vec<_> = groups.map(|group| (group.name.as_str(), rule(group))).collect();
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            all,
            [
                ("device-5301", some("mac:00:00:5e:02:53:01")),
                ("phone", some("host:phone")),
                ("device-5301-1", some("mac:00:00:5e:00:53:01")),
                ("device-5301-2", some("mac:00:00:5e:01:53:01")),
                ("device-5303", some("mac:02:00:5e:00:53:03")),
                ("default", None),
            ]
        );
    }

    #[test]
    fn names_come_only_from_a_file_of_the_caller_or_root() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases");
        let text = "1 00:00:5e:00:53:01 192.168.7.5 Desk 01:00\n\
                    2 00:00:5e:00:53:02 192.168.7.6 * *\n\
                    3 00:00:5e:00:53:03 192.168.7.7 a\u{1b}b *\nnonsense\n";
        std::fs::write(&path, text).unwrap();
        let expected = BTreeMap::from([(mac("00:00:5e:00:53:01"), "desk".to_owned())]);
        assert_eq!(leases(&path), expected);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(leases(&link), BTreeMap::new());
    }
}
