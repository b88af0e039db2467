//! Host names, and the patterns of them that users write.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::policy::{Match, Policy};

/// The longest host name, in bytes. Source: RFC 1035, section 3.1, less the root's dot.
pub const HOST_NAME_MAX: usize = 253;

/// A host name as on the wire: lower case, ASCII, no dot at the end, not an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(Box<str>);

impl HostName {
    /// Reads a name from a packet; `None` if it is none.
    pub fn from_wire(bytes: &[u8]) -> Option<HostName> {
        let bytes = bytes.strip_suffix(b".").unwrap_or(bytes);
        if bytes.len() > HOST_NAME_MAX {
            return None;
        }
        let is_label = |label: &[u8]| {
            (1..=LABEL_MAX).contains(&label.len())
                && label.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
        };
        let mut labels = bytes.split(|&c| c == b'.');
        let last = bytes.rsplit(|&c| c == b'.').next()?;
        // The last label of an IPv4 address is a number, that of a name never is (RFC 3696).
        if !labels.all(is_label) || last.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?;
        Some(HostName(text.to_ascii_lowercase().into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The registrable domain, which browsers take for the site; `None` of a public suffix.
    pub fn domain(&self) -> Option<&str> {
        psl::domain_str(&self.0)
    }
}

impl TryFrom<String> for HostName {
    type Error = SiteError;

    fn try_from(text: String) -> Result<HostName, SiteError> {
        HostName::from_wire(text.as_bytes()).ok_or(SiteError::NotAName)
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> String {
        name.0.into()
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A pattern of host names: a name and all below it, or with `*.` in front only what is below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    name: HostName,
    only_below: bool,
}

impl Site {
    /// The name, without `*.`.
    pub fn name(&self) -> &HostName {
        &self.name
    }
}

/// Why a text is not a [`Site`]; says what would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SiteError {
    /// Not a host name.
    #[error(
        "expected a host name such as netflix.com or *.netflix.com, without scheme, port or path"
    )]
    NotAName,
    /// Everybody's.
    #[error(
        "a public suffix, below which unrelated sites are registered; expected a name below it"
    )]
    PublicSuffix,
}

impl FromStr for Site {
    type Err = SiteError;

    fn from_str(text: &str) -> Result<Site, SiteError> {
        let (name, only_below) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let ascii = idna::domain_to_ascii_strict(name).map_err(|_| SiteError::NotAName)?;
        let name = HostName::from_wire(ascii.as_bytes()).ok_or(SiteError::NotAName)?;
        match name.domain() {
            Some(_) => Ok(Site { name, only_below }),
            None => Err(SiteError::PublicSuffix),
        }
    }
}

/// As users write it, with names in other scripts as on the wire (`xn--`).
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let below = if self.only_below { "*." } else { "" };
        write!(f, "{below}{}", self.name)
    }
}

/// The `web:` patterns of a policy: to which group a host name belongs.
///
/// Of the patterns that match a name the most specific wins, of equal ones that of the first group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    by_name: BTreeMap<Box<str>, Groups>,
}

/// The groups of the two patterns with one name.
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
                let groups = sites.by_name.entry(site.name.0.clone()).or_default();
                let entry = if site.only_below { &mut groups.below } else { &mut groups.whole };
                entry.get_or_insert(group);
            }
        }
        sites
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The name of each pattern, and whether it is for what is below only.
    fn patterns(&self) -> impl Iterator<Item = (&str, bool)> {
        self.by_name.iter().flat_map(|(name, groups)| {
            let both = [(groups.whole, false), (groups.below, true)];
            both.into_iter().filter_map(move |(group, is_below)| group.map(|_| (&**name, is_below)))
        })
    }

    /// The index of the group to which `name` belongs, if any names it.
    pub fn group_of(&self, name: &HostName) -> Option<usize> {
        self.find(name.as_str())
    }

    fn find(&self, name: &str) -> Option<usize> {
        if let Some(group) = self.by_name.get(name).and_then(|groups| groups.whole) {
            return Some(group);
        }
        let mut rest = name;
        while let Some((_, parent)) = rest.split_once('.') {
            // Of two patterns with one name the narrower is the more specific.
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
/// Devices divide host names differently, and a connection may be any device's. So names get labels: all
/// devices have the same group for all names of one label. Which group that is depends on the device, and
/// is looked up where packets are.
///
/// The patterns that match a name are a chain from the widest to the most specific one, so the latter tells
/// which patterns of each device match, and with them which one wins there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InnerSites {
    /// To which label a host name belongs.
    pub labels: Sites,
    /// For each label the groups to which it leads.
    pub leads: Vec<Vec<Lead>>,
}

/// Among the packets of the group `within` those of a label belong to `group`; both are indices in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lead {
    /// The default group of the device, or of the group, without its groups.
    pub within: usize,
    /// The group there.
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
            // No name has a star, so this is one below `name` that no pattern names.
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

const LABEL_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::policy::{Branch, Group};
    use crate::share::Weight;

    pub(crate) fn policy(groups: &[(&str, &[&str])]) -> Policy {
        let group = |&(name, matches): &(&str, &[&str])| Group {
            name: name.to_owned(),
            weight: Weight::ONE,
            matches: matches.iter().map(|m| m.parse().unwrap()).collect(),
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

    #[test]
    fn patterns_are_names_below_public_suffixes() {
        let site = |text: &str| text.parse::<Site>().map(|site| site.to_string());
        assert_eq!(site("Netflix.COM").unwrap(), "netflix.com");
        assert_eq!(site("*.bücher.de").unwrap(), "*.xn--bcher-kva.de");
        assert_eq!(site("a.b.co.uk").unwrap(), "a.b.co.uk");
        for suffix in ["com", "co.uk", "*.com", "github.io", "localhost"] {
            assert_eq!(site(suffix), Err(SiteError::PublicSuffix), "{suffix}");
        }
        for wrong in [
            "",
            "*",
            "*.",
            "a..com",
            ".com",
            "https://x.com",
            "x.com/a",
            "x.com:443",
            "192.0.2.1",
            "www.*.com",
            "x y.com",
            "[::1]",
        ] {
            assert_eq!(site(wrong), Err(SiteError::NotAName), "{wrong}");
        }
        let long = format!("{}.com", "a".repeat(64));
        assert_eq!(site(&long), Err(SiteError::NotAName));
    }

    #[test]
    fn names_from_the_wire_are_normalised_and_addresses_refused() {
        assert_eq!(name("WWW.X.com.").as_str(), "www.x.com");
        for wrong in [&b"192.0.2.1"[..], b"", b".", b"a..b", b"x\0.com", b"b\xc3\xbc.de", b"::1"] {
            assert_eq!(HostName::from_wire(wrong), None, "{wrong:?}");
        }
        let labels = "a.".repeat(127);
        assert_eq!(HostName::from_wire(labels.as_bytes()).unwrap().as_str().len(), 253);
        assert_eq!(HostName::from_wire(format!("{labels}a").as_bytes()), None);
    }

    /// A device for each list, with a group for each pattern.
    fn devices(lists: &[Vec<String>]) -> Policy {
        let group = |name: String, matches: Vec<Match>| {
            Branch::from(Group { name, weight: Weight::ONE, matches })
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

        #[test]
        fn names_from_any_bytes_are_bounded_and_stable(bytes: Vec<u8>) {
            if let Some(name) = HostName::from_wire(&bytes) {
                prop_assert!(name.as_str().len() <= HOST_NAME_MAX);
                prop_assert_eq!(HostName::from_wire(name.as_str().as_bytes()), Some(name.clone()));
            }
        }
    }
}
