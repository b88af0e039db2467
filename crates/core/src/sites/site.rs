//! The group to which a host name belongs, by the patterns of a policy.

use std::collections::BTreeMap;

use crate::host_name::HostName;
use crate::policy::{Match, Policy};

/// The `web:` patterns of a policy: to which group a host name belongs.
///
/// The most specific pattern that matches a name wins; among equally specific ones, that of the first group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    by_name: BTreeMap<Box<str>, Groups>,
}

/// The groups of the two patterns with the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Groups {
    whole: Option<usize>,
    below: Option<usize>,
}

impl Sites {
    /// The patterns of `policy`.
    pub fn of(policy: &Policy) -> Sites {
        Sites::of_lists(policy.groups().iter().map(|group| &group.matches[..]))
    }

    /// The patterns of lists, each of which is a group.
    pub fn of_lists<'m>(lists: impl Iterator<Item = &'m [Match]>) -> Sites {
        let mut sites = Sites::default();
        for (group, matches) in lists.enumerate() {
            for matched in matches {
                let Match::Web(site) = matched else { continue };
                let groups = sites.by_name.entry(site.name().as_str().into()).or_default();
                let entry =
                    if site.is_only_below() { &mut groups.below } else { &mut groups.whole };
                entry.get_or_insert(group);
            }
        }
        sites
    }

    /// Whether there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The name of each pattern, and whether the pattern matches only names below it.
    fn patterns(&self) -> impl Iterator<Item = (&str, bool)> {
        self.by_name.iter().flat_map(|(name, groups)| {
            let both = [(groups.whole, false), (groups.below, true)];
            both.into_iter().filter_map(move |(group, is_below)| group.map(|_| (&**name, is_below)))
        })
    }

    /// The index of the group to which `name` belongs, if a pattern matches.
    pub fn group_of(&self, name: &HostName) -> Option<usize> {
        self.find(name.as_str())
    }

    fn find(&self, name: &str) -> Option<usize> {
        if let Some(group) = self.by_name.get(name).and_then(|groups| groups.whole) {
            return Some(group);
        }
        let mut rest = name;
        while let Some((_, parent)) = rest.split_once('.') {
            // Of two patterns with the same name, `*.name` is the more specific one.
            let groups = self.by_name.get(parent).copied().unwrap_or_default();
            if let Some(group) = groups.below.or(groups.whole) {
                return Some(group);
            }
            rest = parent;
        }
        None
    }
}

/// The `web:` patterns beneath the devices of a policy.
///
/// Devices divide host names differently, and a connection may belong to any device. So names get labels: on every
/// device, all names of one label have the same group. Which group that is depends on the device, and is looked
/// up for each packet.
///
/// The patterns that match a name form a chain from the widest to the most specific one. So the most specific
/// pattern determines which patterns of each device match, and which one wins there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InnerSites {
    /// The label to which a host name belongs.
    pub labels: Sites,
    /// The groups to which each label leads.
    pub leads: Vec<Vec<Lead>>,
}

/// Packets of a label that belong to group `within` belong to `group` instead; both are indices in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lead {
    /// The default group of the device or branch, to which the packets belong without this rule.
    pub within: usize,
    /// The group to which they belong.
    pub group: usize,
}

impl InnerSites {
    /// The patterns of `policy`'s groups that are beneath others.
    pub fn of(policy: &Policy) -> InnerSites {
        let mut levels: BTreeMap<usize, Vec<&[Match]>> = BTreeMap::new();
        for (index, group) in policy.groups().iter().enumerate() {
            let Some(within) = policy.within(index) else { continue };
            let lists = levels.entry(within).or_insert_with(|| vec![&[]; policy.groups().len()]);
            lists[index] = &group.matches;
        }
        let levels: Vec<(usize, Sites)> = levels
            .into_iter()
            .map(|(within, lists)| (within, Sites::of_lists(lists.into_iter())))
            .collect();
        let patterns = levels.iter().flat_map(|(_, sites)| sites.patterns());
        let mut inner = InnerSites::default();
        let mut known: BTreeMap<Vec<Lead>, usize> = BTreeMap::new();
        for (name, is_below) in patterns {
            // No pattern's name has a star, so this is a name below `name` that no pattern names.
            let example = if is_below { format!("*.{name}") } else { name.to_owned() };
            let of_level = |(within, sites): &(usize, Sites)| {
                Some(Lead { within: *within, group: sites.find(&example)? })
            };
            let leads: Vec<Lead> = levels.iter().filter_map(of_level).collect();
            let label = *known.entry(leads).or_insert_with_key(|leads| {
                inner.leads.push(leads.clone());
                inner.leads.len() - 1
            });
            let groups = inner.labels.by_name.entry(name.into()).or_default();
            let entry = if is_below { &mut groups.below } else { &mut groups.whole };
            *entry = Some(label);
        }
        inner
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Branch, Group};
    use crate::share::Weight;

    pub(crate) fn policy(groups: &[(&str, &[&str])]) -> Policy {
        let group = |&(name, matches): &(&str, &[&str])| {
            Group::new(
                name.to_owned(),
                Weight::ONE,
                matches.iter().map(|m| m.parse().unwrap()).collect(),
            )
        };
        Policy::new(groups.iter().map(group).collect()).unwrap()
    }

    fn name(text: &str) -> HostName {
        HostName::from_wire(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_most_specific_pattern_wins() {
        let policy = policy(&[
            ("a", &["web:x.com", "web:*.deep.y.org"]),
            ("b", &["web:*.x.com", "web:y.org", "web:x.com"]),
            ("c", &["web:deep.y.org", "app:firefox"]),
        ]);
        let sites = Sites::of(&policy);
        let group = |text: &str| sites.group_of(&name(text));
        assert_eq!(group("x.com"), Some(0), "the first group of two that name it");
        assert_eq!(group("www.x.com"), Some(1), "strictly below is more specific");
        assert_eq!(group("a.b.x.com"), Some(1));
        assert_eq!(group("y.org"), Some(1));
        assert_eq!(group("www.y.org"), Some(1));
        assert_eq!(group("deep.y.org"), Some(2));
        assert_eq!(group("a.deep.y.org"), Some(0));
        assert_eq!(group("notx.com"), None);
        assert_eq!(group("com"), None);
        assert_eq!(group("x.com.evil.net"), None);
    }

    /// A device for each list, with a group for each pattern.
    fn devices(lists: &[Vec<String>]) -> Policy {
        let group = |name: String, matches: Vec<Match>| {
            Branch::from(Group::new(name, Weight::ONE, matches))
        };
        let device = |(i, patterns): (usize, &Vec<String>)| {
            let inner = patterns.iter().enumerate().map(|(j, pattern)| {
                group(format!("g{j}"), vec![format!("web:{pattern}").parse().unwrap()])
            });
            let address = format!("ip:192.0.2.{i}").parse().unwrap();
            Branch { beneath: inner.collect(), ..group(format!("d{i}"), vec![address]) }
        };
        Policy::nested(lists.iter().enumerate().map(device).collect()).unwrap()
    }

    /// The group of `name` in the device `number`, by labels.
    fn led(policy: &Policy, number: usize, name: &HostName) -> Option<String> {
        let inner = InnerSites::of(policy);
        let leads = &inner.leads[inner.labels.group_of(name)?];
        let groups = policy.groups();
        let lead = leads.iter().find(|l| groups[l.within].name == format!("d{number}/default"));
        lead.map(|lead| groups[lead.group].name.clone())
    }

    #[test]
    fn names_that_no_device_tells_apart_have_one_label() {
        let of = |lists: &[&[&str]]| {
            let owned = |list: &&[&str]| list.iter().map(|&p| p.to_owned()).collect();
            devices(&lists.iter().map(owned).collect::<Vec<_>>())
        };
        let policy = of(&[&["video.com"], &["a.video.com", "mail.org"]]);
        let inner = InnerSites::of(&policy);
        assert_eq!(inner.leads.len(), 3);
        let group = |number, text: &str| led(&policy, number, &name(text));
        assert_eq!(group(0, "a.video.com").as_deref(), Some("d0/g0"));
        assert_eq!(group(1, "a.video.com").as_deref(), Some("d1/g0"));
        assert_eq!(group(0, "b.video.com").as_deref(), Some("d0/g0"));
        assert_eq!(group(1, "b.video.com"), None);
        assert_eq!(group(0, "mail.org"), None);
        let same = InnerSites::of(&of(&[&["video.com", "*.video.com"], &[]]));
        assert_eq!(same.leads.len(), 2, "one group for each pattern");
        assert_eq!(InnerSites::of(&of(&[&[], &[]])), InnerSites::default());
    }

    proptest! {
        /// Labels lead to the group that the patterns of the device alone would name.
        #[test]
        fn labels_change_nothing_for_a_device(
            lists in vec(vec("(\\*\\.)?((a|b)\\.){0,2}x\\.com", 0..5), 1..4),
            names in vec("((a|b)\\.){0,3}x\\.com", 10),
        ) {
            let policy = devices(&lists);
            for text in names {
                let name = name(&text);
                for (i, list) in lists.iter().enumerate() {
                    let alone = devices(&[vec![], list.clone()]);
                    let sites: Vec<_> = alone.groups().iter().map(|g| &g.matches[..]).collect();
                    let group = Sites::of_lists(sites.into_iter()).group_of(&name);
                    let wanted = group.map(|g| alone.groups()[g].name.replacen("d1", &format!("d{i}"), 1));
                    prop_assert_eq!(led(&policy, i, &name), wanted);
                }
            }
        }
    }
}
