//! Edits names of devices in the text of a router's file; the rest stays as a person wrote it.

use fairweir_core::packet::Mac;
use toml::de::{DeTable, DeValue};

/// The text with a new name for the device `old`; `None` if it has no such device, or is not TOML.
pub fn renamed(text: &str, old: &str, new: &str) -> Option<String> {
    let document = DeTable::parse(text).ok()?;
    let DeValue::Array(devices) = document.get_ref().get("device")?.get_ref() else { return None };
    let name = devices.iter().find_map(|device| {
        let DeValue::Table(device) = device.get_ref() else { return None };
        let name = device.get("name")?;
        matches!(name.get_ref(), DeValue::String(text) if text == old).then(|| name.span())
    })?;
    let new = toml::Value::from(new).to_string();
    Some(format!("{}{new}{}", &text[..name.start], &text[name.end..]))
}

/// The text with a device of weight 1 added.
pub fn with_device(text: &str, name: &str, mac: Mac) -> String {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let name = toml::Value::from(name);
    format!("{text}{end}\n[[device]]\nname = {name}\nweight = 1\nmatch = [\"mac:{mac}\"]\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Ours.\nversion = 1\n[router]\nlan = \"a\" # the bridge\nwan = \"b\"\n\n\
        [[device]]\nname   =  'tv' # in the hall, \"tv\"\nweight = 4\nmatch = [\"mac:00:00:5e:00:53:01\"]\n\
        [[device.group]]\nname = \"tv2\"\nweight = 1\nmatch = [\"port:443\"]";

    #[test]
    fn nothing_changes_but_the_name() {
        let new = renamed(TEXT, "tv", "tele").unwrap();
        assert_eq!(new, TEXT.replace("'tv' #", "\"tele\" #"));
        for absent in ["tv2", "desk", ""] {
            assert_eq!(renamed(TEXT, absent, "x"), None, "{absent}");
        }
        for other in ["", "device = 1", "device = [1]", "[[device]]\nname = 1\n", "[["] {
            assert_eq!(renamed(other, "tv", "x"), None, "{other}");
        }
    }

    #[test]
    fn a_device_is_added_behind_everything() {
        let mac = "02:00:5e:00:53:09".parse().unwrap();
        let new = with_device(TEXT, "phone", mac);
        assert!(new.starts_with(TEXT));
        let document: toml::Table = new.parse().unwrap();
        let devices = document["device"].as_array().unwrap();
        assert_eq!(devices.len(), 2);
        assert_eq!(devices[1]["name"].as_str(), Some("phone"));
        assert_eq!(devices[1]["match"][0].as_str(), Some("mac:02:00:5e:00:53:09"));
    }
}
