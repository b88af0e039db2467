//! Host names, and the patterns of them that users write.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::policy::{Match, Policy};

/// The longest host name, in bytes. Source: RFC 1035, section 3.1, less the root's dot.
pub const HOST_NAME_MAX: usize = 253;

/// A host name as on the wire: lower case, ASCII, no dot at the end, not an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

    /// The index of the group to which `name` belongs, if any names it.
    pub fn group_of(&self, name: &HostName) -> Option<usize> {
        if let Some(group) = self.by_name.get(name.as_str()).and_then(|groups| groups.whole) {
            return Some(group);
        }
        let mut rest = name.as_str();
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

const LABEL_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Group;
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

    proptest! {
        #[test]
        fn names_from_any_bytes_are_bounded_and_stable(bytes: Vec<u8>) {
            if let Some(name) = HostName::from_wire(&bytes) {
                prop_assert!(name.as_str().len() <= HOST_NAME_MAX);
                prop_assert_eq!(HostName::from_wire(name.as_str().as_bytes()), Some(name.clone()));
            }
        }
    }
}
