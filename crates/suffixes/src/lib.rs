//! The registrable domain of a host name, by the public suffix list.
//!
//! The list of `psl` is a megabyte of code that is compiled where it is called. So it is called here alone, and a
//! debug build does not optimise it, which takes several times as long, before all that depends on `core`.
#![forbid(unsafe_code)]

/// The registrable domain of `name`, which is in lower case; `None` of a public suffix.
#[inline(never)]
pub fn registrable(name: &str) -> Option<&str> {
    psl::domain_str(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_one_label_below_its_public_suffix() {
        assert_eq!(registrable("www.example.co.uk"), Some("example.co.uk"));
        assert_eq!(registrable("co.uk"), None);
    }
}
