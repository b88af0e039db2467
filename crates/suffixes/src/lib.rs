//! The registrable domain of a host name, by the public suffix list.
//!
//! The list in `psl` is a megabyte of code that is compiled into the crate that calls it. So only this crate calls
//! it, and debug builds do not optimise it: that would take several times as long, before all crates that use `core`.
#![forbid(unsafe_code)]

/// The registrable domain of `name`, which must be in lower case; `None` if `name` is a public suffix.
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
