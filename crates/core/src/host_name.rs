//! Host names as on the wire, and patterns of them that users write.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest host name, in bytes. Source: RFC 1035, section 3.1, less the root's dot.
pub const HOST_NAME_MAX: usize = 253;

/// A host name as on the wire: lower case, ASCII, no dot at the end, not an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(Box<str>);

impl HostName {
    /// Reads a name from a packet; `None` if it is not a host name.
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
        // The last label of an IPv4 address is a number, and that of a name never is (RFC 3696).
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

    /// The registrable domain, which browsers treat as the site; `None` for a public suffix.
    pub fn domain(&self) -> Option<&str> {
        fairweir_suffixes::registrable(&self.0)
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

/// A pattern of host names: a name and all below it, or with `*.` in front only names below it.
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

    /// Whether it matches only names below its name, not the name itself.
    pub fn is_only_below(&self) -> bool {
        self.only_below
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
    /// Shared by unrelated sites.
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

/// Prints as users write it, with names in other scripts as on the wire (`xn--`).
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let below = if self.only_below { "*." } else { "" };
        write!(f, "{below}{}", self.name)
    }
}

/// The longest label of a host name, in bytes. Source: RFC 1035, section 2.3.4.
const LABEL_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> HostName {
        HostName::from_wire(text.as_bytes()).unwrap()
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
