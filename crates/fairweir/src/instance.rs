//! Instance names of daemons: interface names as arguments, also in the escaped form of systemd.
//!
//! In unit names systemd writes `-` as `\x2d`, so the interface `br-lan` belongs to the device unit
//! `sys-subsystem-net-devices-br\x2dlan.device` and to the instance `fairweir@br\x2dlan.service`.
//! People type `fairweir@br-lan`. The unit passes its instance name as it is (`%i`), and both
//! forms name the same interface. Source: systemd.unit(5), "String Escaping for Inclusion in Unit
//! Names".

use fairweir_config::value::parse_dev;

/// The instance of `fairweir proxy`. A router and the page ask it even if this binary is built without the proxy.
pub(crate) const PROXY: &str = "proxy";

/// The instance of the ISP's policer.
pub(crate) const ISP: &str = "isp";

/// The instance of the market's server.
pub(crate) const MARKET: &str = "market";

/// The instance of a household's market agent, which the page asks.
pub(crate) const MARKET_AGENT: &str = "market-agent";

/// An interface name, escaped or not.
///
/// # Errors
/// If it cannot be the name of an interface.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    parse_dev(&unescaped(text))
}

/// `text` with each `\xNN` replaced by its byte; unchanged if the result is not UTF-8.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        match escaped_byte(rest) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[ESCAPE_LEN..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// The byte for which an escape at the beginning of `text` stands.
fn escaped_byte(text: &[u8]) -> Option<u8> {
    let digits = text.get(..ESCAPE_LEN)?.strip_prefix(b"\\x")?;
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The length of `\xNN`.
const ESCAPE_LEN: usize = 4;

/// A new id for a run of a daemon; counters start at zero with each run.
pub(crate) fn new_run() -> String {
    let number = getrandom::u64().expect("invariant: Linux has getrandom(2)");
    format!("{number:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_its_systemd_escape_are_the_same_interface() {
        for (text, dev) in [
            ("eth0", "eth0"),
            ("br-lan", "br-lan"),
            (r"br\x2dlan", "br-lan"),
            (r"wl\x2d\x2da", "wl--a"),
            // The limit of 15 bytes applies to the name, not to the escaped form.
            (r"a\x2db\x2dc\x2dd\x2de\x2df\x2dg", "a-b-c-d-e-f-g"),
            (r"a\x2", r"a\x2"),
            (r"a\x+1", r"a\x+1"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(dev));
        }
        for bad in [r"br\x2flan", "br/lan", r"a\x20b", r"\x00", r"\xff\xff\xff\xff"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
