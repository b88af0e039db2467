//! Turns a policy into the tables that the classifier looks up.
//!
//! A rule is one number: the rank of its group in the upper half (the first group of the policy has
//! the highest rank) and the slot of its class in the lower half; 0 is none. So the classifier
//! takes the greatest of the rules that the kinds of matches give. Within a table, an entry that
//! two groups claim belongs to the policy's first group.
//!
//! A leaf below another group is looked up among the packets of one class only: its rules are in a
//! separate table (`leaves`), and the rule of that class says that there are such leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use fairweir_core::packet::Mac;
use fairweir_core::policy::{GROUPS_MAX, Match, Policy};
use fairweir_core::sites::InnerSites;
use ipnet::IpNet;
use nix::unistd::User;

use crate::Error;
use crate::bpf::Table;
use crate::bpf::abi::{self, PORT_TABLES, Plain, Prefix4, Prefix6, SLOTS_MAX};
use crate::classify::cgroup::Tree;
use crate::classify::leaf::{self, LeafRules};
use crate::classify::ports::port_tables;

/// Everything that the classifier looks up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) prefix4: Table,
    pub(crate) prefix6: Table,
    pub(crate) apps: Table,
    pub(crate) users: Table,
    pub(crate) cgroups: Table,
    /// Rules of devices behind a router, by MAC address.
    pub(crate) macs: Table,
    /// Rules for all devices of an interface, by its name.
    pub(crate) lans: BTreeMap<String, u32>,
    /// Rules of groups within devices.
    pub(crate) leaves: Table,
    /// Rules by port, in order; one map for each table of ports.
    pub(crate) ports: [BTreeMap<u16, u32>; PORT_TABLES],
    /// Whether flows are bound to groups one by one.
    pub(crate) has_sites: bool,
}

impl Rules {
    /// The tables for `policy`, whose group `i` has the class `slots[i]`.
    ///
    /// # Errors
    /// [`Error::NoUser`] if a user does not exist.
    pub(crate) fn new(policy: &Policy, slots: &[u16], tree: &Tree) -> Result<Rules, Error> {
        assert_eq!(policy.groups().len(), slots.len(), "each group has a slot");
        let mut rules = Rules { has_sites: needs_sites(policy), ..Rules::default() };
        let mut leaves = LeafRules::default();
        for (order, group) in policy.groups().iter().enumerate() {
            let rule = rule(order, slot_of(policy, order, slots));
            for criterion in &group.matches {
                match policy.within(order) {
                    // The host of a device knows only the outermost group, not the groups between.
                    Some(above) if matches!(criterion, Match::Class(_)) => {
                        leaves.add(criterion, slots[policy.outermost(above)], rule);
                    }
                    Some(above) => leaves.add(criterion, slots[above], rule),
                    None => rules.add(criterion, rule, tree)?,
                }
            }
        }
        for (label, leads) in InnerSites::of(policy).leads.iter().enumerate() {
            for lead in leads {
                let rule = rule(lead.group, slot_of(policy, lead.group, slots));
                leaves.add_label(label, slots[lead.within], rule);
            }
        }
        rules.leaves = leaves.into_table();
        Ok(rules)
    }

    fn add(&mut self, criterion: &Match, rule: u32, tree: &Tree) -> Result<(), Error> {
        let claim = |table: &mut Table, key: &[u8]| {
            table.entry(key.to_vec()).or_insert(rule);
        };
        match criterion {
            Match::App(name) => claim(&mut self.apps, &abi::name(name)),
            Match::User(name) => claim(&mut self.users, &user_id(name)?.to_ne_bytes()),
            Match::Unit(name) => {
                for id in tree.named(name) {
                    claim(&mut self.cgroups, &id.to_ne_bytes());
                }
            }
            Match::Cgroup(path) => {
                if let Some(id) = tree.at(path) {
                    claim(&mut self.cgroups, &id.to_ne_bytes());
                }
            }
            Match::Ip(net @ IpNet::V4(_)) => claim(&mut self.prefix4, &prefix_key(net)),
            Match::Ip(net @ IpNet::V6(_)) => claim(&mut self.prefix6, &prefix_key(net)),
            // The classifier does not look up names: see `classify/site.rs` and `Router::set_hosts`.
            Match::Web(_) | Match::Host(_) => {}
            // Such matches exist only below devices.
            Match::Class(_) => {}
            Match::Mac(mac) => claim(&mut self.macs, &mac.0),
            Match::Lan(name) => {
                self.lans.entry(name.clone()).or_insert(rule);
            }
            Match::Port(ports) => {
                for table in port_tables(ports) {
                    for port in ports.first..=ports.last {
                        self.ports[table].entry(port).or_insert(rule);
                    }
                }
            }
        }
        Ok(())
    }

    /// The rule of a device behind a router's interface, as the router's programs find it.
    pub(crate) fn device(&self, lan: &str, mac: Mac, address: IpAddr) -> Option<u32> {
        let by_prefix = |length: u8| {
            let net = IpNet::new(address, length).ok()?.trunc();
            let (table, key) = match net {
                IpNet::V4(_) => (&self.prefix4, prefix_key(&net)),
                IpNet::V6(_) => (&self.prefix6, prefix_key(&net)),
            };
            table.get(&key).copied()
        };
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let by_address = (0..=longest).rev().find_map(by_prefix);
        let by_mac = self.macs.get(mac.0.as_slice()).copied();
        by_mac.max(by_address).max(self.lans.get(lan).copied())
    }

    /// The needed kinds of lookup, as `FEATURE_*`.
    pub(crate) fn features(&self, needs_owners: bool) -> u32 {
        let [tcp_remote, udp_remote, tcp_local, udp_local] = &self.ports;
        [
            (!self.prefix4.is_empty(), abi::FEATURE_PREFIX4),
            (!self.prefix6.is_empty(), abi::FEATURE_PREFIX6),
            (!tcp_remote.is_empty() || !udp_remote.is_empty(), abi::FEATURE_REMOTE_PORTS),
            (!tcp_local.is_empty() || !udp_local.is_empty(), abi::FEATURE_LOCAL_PORTS),
            (needs_owners, abi::FEATURE_OWNERS),
            (self.has_sites, abi::FEATURE_SITES),
        ]
        .iter()
        .fold(0, |features, &(used, feature)| if used { features | feature } else { features })
    }
}

/// The slot in a group's rule, with the bit that says whether the group contains groups.
pub(crate) fn slot_of(policy: &Policy, order: usize, slots: &[u16]) -> u16 {
    let is_above = |i| policy.within(i) == Some(order);
    let flag = if (0..slots.len()).any(is_above) { leaf::RULE_HAS_GROUPS } else { 0 };
    slots[order] | flag
}

/// Whether `policy` asks who owns a socket.
pub(crate) fn needs_owners(policy: &Policy) -> bool {
    let owner =
        |m: &Match| matches!(m, Match::App(_) | Match::Unit(_) | Match::Cgroup(_) | Match::User(_));
    policy.groups().iter().flat_map(|g| &g.matches).any(owner)
}

/// Whether `policy` asks for cgroups.
pub(crate) fn needs_cgroups(policy: &Policy) -> bool {
    let cgroup = |m: &Match| matches!(m, Match::Unit(_) | Match::Cgroup(_));
    policy.groups().iter().flat_map(|g| &g.matches).any(cgroup)
}

/// Whether `policy` asks for sites.
pub(crate) fn needs_sites(policy: &Policy) -> bool {
    policy.groups().iter().flat_map(|g| &g.matches).any(|m| matches!(m, Match::Web(_)))
}

fn prefix_key(net: &IpNet) -> Vec<u8> {
    let length = net.prefix_len().into();
    match net {
        IpNet::V4(net) => Prefix4 { length, address: net.network().octets() }.as_bytes().to_vec(),
        IpNet::V6(net) => Prefix6 { length, address: net.network().octets() }.as_bytes().to_vec(),
    }
}

/// The slots of those devices in `policy` that run fairweir themselves and choose the classes of their flows.
pub(crate) fn clients_of(policy: &Policy, slots: &[u16]) -> BTreeSet<u16> {
    let groups = policy.groups().iter().enumerate();
    let divided = groups.filter(|(_, g)| g.matches.iter().any(|m| matches!(m, Match::Class(_))));
    divided.map(|(order, _)| slots[policy.outermost(order)]).collect()
}

/// A slot for each group of `policy`: a group of the old policy keeps its slot, so that its queue
/// and its counters stay; the others take the lowest free ones.
pub(crate) fn assign_slots(policy: &Policy, old: &BTreeMap<String, u16>) -> Vec<u16> {
    let kept = |name: &str| old.get(name).copied();
    let mut taken = [false; SLOTS_MAX];
    for slot in policy.groups().iter().filter_map(|g| kept(&g.name)) {
        taken[usize::from(slot)] = true;
    }
    let mut free = (0..SLOTS_MAX as u16).filter(|&slot| !taken[usize::from(slot)]);
    let fresh = "invariant: a policy has no more groups than there are slots";
    let groups = policy.groups().iter();
    groups.map(|g| kept(&g.name).unwrap_or_else(|| free.next().expect(fresh))).collect()
}

/// The rule of the group that is number `order` of the policy.
pub(crate) fn rule(order: usize, slot: u16) -> u32 {
    ((GROUPS_MAX - order) as u32) << 16 | u32::from(slot)
}

/// A user's number by name, or the number itself.
fn user_id(name: &str) -> Result<u32, Error> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    match User::from_name(name) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(Error::NoUser(name.to_owned())),
        Err(e) => Err(Error::refused(format!("look up the user {name}"), e)),
    }
}

const _: () = assert!(GROUPS_MAX <= SLOTS_MAX, "every group has a slot");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::ports::port_table;
    use fairweir_core::policy::{Branch, Group};
    use fairweir_core::share::Weight;

    fn policy(groups: &[(&str, &[&str])]) -> Policy {
        let group = |&(name, matches): &(&str, &[&str])| {
            Group::new(
                name.to_owned(),
                Weight::ONE,
                matches.iter().map(|m| m.parse().unwrap()).collect(),
            )
        };
        Policy::new(groups.iter().map(group).collect()).unwrap()
    }

    fn rules(groups: &[(&str, &[&str])]) -> Rules {
        let policy = policy(groups);
        let slots = assign_slots(&policy, &BTreeMap::new());
        Rules::new(&policy, &slots, &Tree::default()).unwrap()
    }

    #[test]
    fn the_group_that_stands_first_keeps_an_entry_and_has_the_greater_rule() {
        let rules =
            rules(&[("a", &["app:x", "port:443"]), ("b", &["app:x", "app:y", "port:udp/443"])]);
        let app = |name| rules.apps[&abi::name(name).to_vec()];
        assert_eq!(app("x") & 0xffff, 0);
        assert_eq!(app("y") & 0xffff, 1);
        assert!(app("x") > app("y"));
        assert_eq!(rules.ports[1][&443], app("x"), "a claims both transports");
        assert_eq!(rules.features(true), abi::FEATURE_REMOTE_PORTS | abi::FEATURE_OWNERS);
    }

    #[test]
    fn leaves_are_looked_for_in_the_class_above_them() {
        let video = Group::new("video".to_owned(), Weight::ONE, vec!["port:443".parse().unwrap()]);
        let tv = Group::new("tv".to_owned(), Weight::ONE, vec!["ip:192.168.7.1".parse().unwrap()]);
        let tv = Branch { group: tv, beneath: vec![video.into()] };
        let policy = Policy::nested(vec![tv]).unwrap();
        let slots = assign_slots(&policy, &BTreeMap::new());
        let rules = Rules::new(&policy, &slots, &Tree::default()).unwrap();
        let above = *rules.prefix4.values().next().unwrap() as u16;
        assert_eq!(above, slots[1] | leaf::RULE_HAS_GROUPS, "tv/default decides further");
        assert_eq!(rules.leaves.len(), 2, "443 of TCP and of UDP");
        assert!(rules.leaves.values().all(|&rule| rule as u16 == slots[0]));
        assert!(rules.ports.iter().all(BTreeMap::is_empty), "it is no rule of other devices");
    }

    #[test]
    fn slots_stay_with_their_groups() {
        let old =
            BTreeMap::from([("a".to_owned(), 0), ("b".to_owned(), 1), ("default".to_owned(), 2)]);
        let new = policy(&[("c", &[]), ("b", &[]), ("d", &[])]);
        assert_eq!(assign_slots(&new, &old), [0, 1, 3, 2], "c takes a's, d the next");
    }

    #[test]
    fn a_table_of_ports_has_a_rule_at_each_port_of_a_range() {
        let rules = rules(&[("a", &["local-port:tcp/8000-8002"])]);
        let table = port_table(&rules.ports[2]);
        let at = |port: usize| u32::from_ne_bytes(table[port * 4..][..4].try_into().unwrap());
        assert_eq!([at(7999), at(8003)], [0, 0]);
        assert!(at(8000) == at(8002) && at(8000) > 0);
        assert!(rules.ports[3].is_empty());
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!(user_id("root").unwrap(), 0);
        assert_eq!(user_id("4242").unwrap(), 4242);
        let missing = user_id("no-such-user").unwrap_err().to_string();
        assert_eq!(missing, "no user `no-such-user`");
    }
}
