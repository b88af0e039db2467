//! To which class a connection belongs, and its priority in that class.

use std::net::IpAddr;

use fairweir_core::host_name::HostName;
use fairweir_core::market::utility::Kind;
use fairweir_core::packet::Mac;
use fairweir_core::policy::Match;
use fairweir_core::recognition::{DeviceMatch, Identity};
use fairweir_core::relay::{Alpha, alphas};
use fairweir_core::sites::Sites;
use fairweir_core::units::Rate;
use ipnet::IpNet;

/// A class: connections that share a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Unique name.
    pub name: String,
    /// Total rate of its downloads; `None` is unlimited.
    pub rate: Option<Rate>,
    /// Devices (`ip:`, `mac:`) and servers (`web:`); one match here or in `devices` suffices.
    pub matches: Vec<Match>,
    /// Matches by what a device is recognised as.
    pub devices: Vec<DeviceMatch>,
}

/// An application, defined by the names of its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct App {
    /// Unique.
    pub name: String,
    /// The priority of its connections in their classes.
    pub alpha: Alpha,
    /// Servers; only `web:` matches.
    pub sites: Vec<Match>,
}

/// An application of the program's built-in table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Unique.
    pub name: String,
    /// What it is used for.
    pub kind: Kind,
    /// The priority that the user gave to this kind of use.
    pub alpha: Option<Alpha>,
    /// Servers; only `web:` matches.
    pub sites: Vec<Match>,
}

/// How connections are classified. The first class in the list that names the device or the server wins.
#[derive(Clone, Debug)]
pub struct Rules {
    classes: Vec<Class>,
    apps: Vec<App>,
    known: Vec<Known>,
    class_sites: Sites,
    app_sites: Sites,
    known_sites: Sites,
    weights: Option<[f64; 4]>,
    /// Alphas by class and kind of use.
    alphas: Vec<[Alpha; 4]>,
}

impl Rules {
    /// Rules with these classes, in this order. The user's applications `apps` come before those of the
    /// table `known`, whose priorities follow the `weights` of their kinds of use if `weights` is given.
    pub fn new(
        classes: Vec<Class>,
        apps: Vec<App>,
        known: Vec<Known>,
        weights: Option<[f64; 4]>,
    ) -> Rules {
        let class_sites = Sites::of_lists(classes.iter().map(|class| &class.matches[..]));
        let app_sites = Sites::of_lists(apps.iter().map(|app| &app.sites[..]));
        let known_sites = Sites::of_lists(known.iter().map(|known| &known.sites[..]));
        let of_class = |class: &Class| match (class.rate, weights) {
            (Some(rate), Some(weights)) => alphas(rate, weights),
            _ => [Alpha::DEFAULT; 4],
        };
        let alphas = classes.iter().map(of_class).collect();
        Rules { classes, apps, known, class_sites, app_sites, known_sites, weights, alphas }
    }

    /// The classes.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The weight of each kind of use, if alphas follow weights.
    pub fn weights(&self) -> Option<[f64; 4]> {
        self.weights
    }

    /// Prefixes and link-layer addresses of all clients that can be in a class; `None` if a class names
    /// servers or kinds of device, so that any client can be.
    pub fn clients(&self) -> Option<(Vec<IpNet>, Vec<Mac>)> {
        let (mut prefixes, mut macs) = (Vec::new(), Vec::new());
        if self.classes.iter().any(|class| !class.devices.is_empty()) {
            return None;
        }
        for matched in self.classes.iter().flat_map(|class| &class.matches) {
            match matched {
                Match::Ip(net) => prefixes.push(*net),
                Match::Mac(mac) => macs.push(*mac),
                _ => return None,
            }
        }
        Some((prefixes, macs))
    }

    /// Index of the class, if there is one.
    pub(crate) fn class_of(
        &self,
        client: IpAddr,
        mac: Option<Mac>,
        identity: Identity,
        name: Option<&HostName>,
    ) -> Option<usize> {
        let by_device = self.classes.iter().position(|class| {
            let is_listed = class.matches.iter().any(|matched| match matched {
                Match::Ip(net) => net.contains(&client),
                Match::Mac(wanted) => mac == Some(*wanted),
                _ => false,
            });
            is_listed || class.devices.iter().any(|wanted| wanted.is_of(identity))
        });
        let by_name = name.and_then(|name| self.class_sites.group_of(name));
        match (by_device, by_name) {
            (Some(device), Some(name)) => Some(device.min(name)),
            (found, other) => found.or(other),
        }
    }

    /// Index of the application that the name tells, if any. Those of the table follow the user's.
    pub(crate) fn app_of(&self, name: Option<&HostName>) -> Option<usize> {
        let name = name?;
        let of_table = || Some(self.apps.len() + self.known_sites.group_of(name)?);
        self.app_sites.group_of(name).or_else(of_table)
    }

    /// The name of an application.
    pub(crate) fn name_of(&self, app: usize) -> &str {
        match self.apps.get(app) {
            Some(app) => &app.name,
            None => &self.known[app - self.apps.len()].name,
        }
    }

    /// The priority of an application's connections in a class.
    pub(crate) fn alpha_of(&self, app: Option<usize>, class: usize) -> Alpha {
        let Some(app) = app else { return Alpha::DEFAULT };
        if let Some(app) = self.apps.get(app) {
            return app.alpha;
        }
        let known = &self.known[app - self.apps.len()];
        let of_kind = || self.alphas.get(class).map(|alphas| alphas[known.kind as usize]);
        known.alpha.or_else(of_kind).unwrap_or(Alpha::DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use fairweir_core::recognition::{Kind as Device, Os};

    use super::*;

    fn class(name: &str, matches: &[&str]) -> Class {
        let matches = matches.iter().map(|text| text.parse().unwrap()).collect();
        Class { name: name.to_owned(), rate: None, matches, devices: Vec::new() }
    }

    #[test]
    fn the_first_class_that_names_device_or_server_has_it() {
        let classes = vec![
            class("film", &["web:film.example.com"]),
            class("child", &["mac:02:00:5e:00:53:01", "ip:192.0.2.0/28"]),
            class("rest", &["web:example.com", "ip:2001:db8::/32"]),
        ];
        let rules = Rules::new(classes, Vec::new(), Vec::new(), None);
        let mac = Some(Mac([2, 0, 0x5e, 0, 0x53, 1]));
        let name = |text: &str| HostName::from_wire(text.as_bytes());
        for (client, mac, named, wanted) in [
            ("192.0.2.1", None, None, Some(1)),
            ("192.0.2.1", None, name("film.example.com"), Some(0)),
            ("192.0.2.1", None, name("www.example.com"), Some(1)),
            ("192.0.2.99", None, name("www.example.com"), Some(2)),
            ("192.0.2.99", mac, None, Some(1)),
            ("2001:db8::1", None, name("example.net"), Some(2)),
            ("192.0.2.99", None, name("example.net"), None),
        ] {
            let client = client.parse().unwrap();
            let found = rules.class_of(client, mac, Identity::default(), named.as_ref());
            assert_eq!(found, wanted, "{client} {mac:?} {named:?}");
        }
        assert_eq!(rules.clients(), None, "any device may be in a class");
        let devices = vec![class("child", &["ip:192.0.2.0/28"])];
        let devices = Rules::new(devices, Vec::new(), Vec::new(), None);
        assert_eq!(devices.clients().unwrap().0.len(), 1);
    }

    #[test]
    fn a_class_by_what_devices_are_has_only_those_that_are_known() {
        let mut tv = class("tv", &["ip:192.0.2.1"]);
        tv.devices = vec![DeviceMatch::Kind(Device::Television), DeviceMatch::Os(Os::Ios)];
        let rules = Rules::new(vec![tv], Vec::new(), Vec::new(), None);
        assert_eq!(rules.clients(), None, "any device may be one");
        for (client, os, kind, wanted) in [
            ("192.0.2.1", None, None, Some(0)),
            ("192.0.2.2", None, None, None),
            ("192.0.2.2", Some(Os::Ios), Some(Device::Phone), Some(0)),
            ("192.0.2.2", Some(Os::Linux), Some(Device::Television), Some(0)),
            ("192.0.2.2", Some(Os::Macos), None, None),
        ] {
            let identity = Identity { os, kind };
            let found = rules.class_of(client.parse().unwrap(), None, identity, None);
            assert_eq!(found, wanted, "{client} {identity:?}");
        }
    }

    #[test]
    fn the_users_applications_come_before_those_of_the_table() {
        let site = |text: &str| vec![text.parse().unwrap()];
        let mut class = class("all", &["ip:192.0.2.0/24"]);
        class.rate = Some(Rate::mbit(10));
        let app = App {
            name: "mine".to_owned(),
            alpha: Alpha::new(9).unwrap(),
            sites: site("web:example.com"),
        };
        let known = |name: &str, kind, alpha, text: &str| Known {
            name: name.to_owned(),
            kind,
            alpha,
            sites: site(text),
        };
        let table = vec![
            known("film", Kind::Streaming, None, "web:film.example.com"),
            known("files", Kind::Downloads, None, "web:example.net"),
            known("chat", Kind::Social, Alpha::new(7), "web:example.org"),
        ];
        let rules = Rules::new(vec![class], vec![app], table, Some([1.0; 4]));
        for (name, app, alphas) in [
            ("film.example.com", Some("mine"), [9, 9]),
            ("a.example.net", Some("files"), [255, 64]),
            ("example.org", Some("chat"), [7, 7]),
            ("other.example", None, [64, 64]),
        ] {
            let found = rules.app_of(HostName::from_wire(name.as_bytes()).as_ref());
            assert_eq!(found.map(|app| rules.name_of(app)), app);
            assert_eq!([0, 1].map(|class| rules.alpha_of(found, class).as_u8()), alphas, "{name}");
        }
    }
}
