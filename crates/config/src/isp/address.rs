//! Addresses and prefixes as text.

use fairweir_core::policy;
use ipnet::IpNet;

/// Reads an address or a prefix.
///
/// # Errors
/// Says what is expected.
pub fn parse_address(text: &str) -> Result<IpNet, String> {
    policy::parse_prefix(text.trim()).map_err(|e| e.to_string())
}

/// Refuses a prefix with host bits.
///
/// # Errors
/// Says what is expected.
pub fn check_address(net: IpNet) -> Result<(), String> {
    policy::check_prefix(net).map(drop).map_err(|e| e.to_string())
}

/// The text of an address or prefix; single addresses have no length.
pub fn address_text(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

/// Serialises addresses as texts in JSON.
pub mod as_texts {
    use ipnet::IpNet;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{address_text, parse_address};

    /// Writes addresses as texts.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn serialize<S: Serializer>(addresses: &[IpNet], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(addresses.iter().map(address_text))
    }

    /// Reads what [`serialize`] writes.
    ///
    /// # Errors
    /// If an entry is neither an address nor a prefix.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| parse_address(text).map_err(D::Error::custom)).collect()
    }
}
