//! To which class a connection belongs, and its priority there.

use std::net::IpAddr;

use fairweir_core::evidence::{HostName, Sites};
use fairweir_core::policy::{Group, Mac, Match, Policy, PolicyError};
use fairweir_core::relay::Alpha;
use fairweir_core::share::Weight;
use fairweir_core::units::Rate;
use ipnet::IpNet;

/// Connections that share a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Unique.
    pub name: String,
    /// What its downloads have together; `None` is as much as comes.
    pub rate: Option<Rate>,
    /// Devices (`ip:`, `mac:`) and servers (`web:`); any of these suffices.
    pub matches: Vec<Match>,
}

/// An application, by the names of its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct App {
    /// Unique.
    pub name: String,
    /// The priority of its connections in their classes.
    pub alpha: Alpha,
    /// Only `web:`.
    pub sites: Vec<Match>,
}

/// Which connection is what. The first class of the list that names the device or the server has it.
#[derive(Clone, Debug)]
pub struct Rules {
    classes: Vec<Class>,
    apps: Vec<App>,
    class_sites: Sites,
    app_sites: Sites,
}

impl Rules {
    /// Rules of these, in their order.
    ///
    /// # Errors
    /// If a name is not unique, or no name.
    pub fn new(classes: Vec<Class>, apps: Vec<App>) -> Result<Rules, PolicyError> {
        let group = |name: &String, matches: &Vec<Match>| Group {
            name: name.clone(),
            weight: Weight::ONE,
            matches: matches.clone(),
        };
        let of_classes = classes.iter().map(|c| group(&c.name, &c.matches)).collect();
        let of_apps = apps.iter().map(|a| group(&a.name, &a.sites)).collect();
        let class_sites = Sites::of(&Policy::new(of_classes)?);
        let app_sites = Sites::of(&Policy::new(of_apps)?);
        Ok(Rules { classes, apps, class_sites, app_sites })
    }

    /// The classes.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The applications.
    pub fn apps(&self) -> &[App] {
        &self.apps
    }

    /// Prefixes and link-layer addresses outside of which no connection has a class; `None` if a class
    /// names servers.
    pub fn clients(&self) -> Option<(Vec<IpNet>, Vec<Mac>)> {
        let (mut prefixes, mut macs) = (Vec::new(), Vec::new());
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
        name: Option<&HostName>,
    ) -> Option<usize> {
        let by_device = self.classes.iter().position(|class| {
            class.matches.iter().any(|matched| match matched {
                Match::Ip(net) => net.contains(&client),
                Match::Mac(wanted) => mac == Some(*wanted),
                _ => false,
            })
        });
        let by_name = name.and_then(|name| self.class_sites.group_of(name));
        match (by_device, by_name) {
            (Some(device), Some(name)) => Some(device.min(name)),
            (found, other) => found.or(other),
        }
    }

    /// Index of the application, if a name tells.
    pub(crate) fn app_of(&self, name: Option<&HostName>) -> Option<usize> {
        name.and_then(|name| self.app_sites.group_of(name))
    }

    /// The priority of an application's connections.
    pub(crate) fn alpha_of(&self, app: Option<usize>) -> Alpha {
        app.map_or(Alpha::DEFAULT, |app| self.apps[app].alpha)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, matches: &[&str]) -> Class {
        let matches = matches.iter().map(|text| text.parse().unwrap()).collect();
        Class { name: name.to_owned(), rate: None, matches }
    }

    #[test]
    fn the_first_class_that_names_device_or_server_has_it() {
        let classes = vec![
            class("film", &["web:film.example.com"]),
            class("child", &["mac:02:00:5e:00:53:01", "ip:192.0.2.0/28"]),
            class("rest", &["web:example.com", "ip:2001:db8::/32"]),
        ];
        let rules = Rules::new(classes, Vec::new()).unwrap();
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
            let found = rules.class_of(client.parse().unwrap(), mac, named.as_ref());
            assert_eq!(found, wanted, "{client} {mac:?} {named:?}");
        }
        assert_eq!(rules.clients(), None, "any device may be in a class");
        let devices = Rules::new(vec![class("child", &["ip:192.0.2.0/28"])], Vec::new()).unwrap();
        assert_eq!(devices.clients().unwrap().0.len(), 1);
    }
}
