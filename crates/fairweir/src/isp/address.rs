//! Addresses and prefixes as people write them.

use ipnet::IpNet;

/// Reads an address or a prefix.
///
/// # Errors
/// Says what would be right.
pub(super) fn parse_address(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let whole = text.parse::<std::net::IpAddr>().map(IpNet::from);
    let net = whole.or_else(|_| text.parse::<IpNet>()).map_err(|_| {
        format!(
            "`{text}` is neither an address (192.0.2.1, 2001:db8::1) nor a prefix (192.0.2.0/29)"
        )
    })?;
    check_address(net).map(|()| net)
}

/// A prefix with host bits is more often a slip than meant.
pub(super) fn check_address(net: IpNet) -> Result<(), String> {
    match net.trunc() {
        whole if whole == net => Ok(()),
        whole => Err(format!("{net} has bits behind its prefix; write {whole}, or {}", net.addr())),
    }
}

/// As people write it: whole addresses without a length.
pub(super) fn address_text(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

/// Addresses in JSON.
pub(super) mod as_texts {
    use ipnet::IpNet;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{address_text, parse_address};

    pub(in crate::isp) fn serialize<S: Serializer>(
        addresses: &[IpNet],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(addresses.iter().map(address_text))
    }

    pub(in crate::isp) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<IpNet>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| parse_address(text).map_err(D::Error::custom)).collect()
    }
}
