//! Files of leases, as DHCP servers write them: which device has which address.
//!
//! Two formats, distinguished by the first line. dnsmasq: a line per lease with the time of its end, the
//! MAC address, the address and a name; for IPv6 a number in place of the MAC address and a DUID at the
//! end of the line. Kea's memfile: comma-separated values with a header; of one address the last line
//! counts, and a lease may be a prefix.
//!
//! A device is known by its MAC address, which a DUID may contain (types 1 and 3, RFC 8415 §11). Lines
//! that are not understood or have no MAC address are counted and say nothing. Properties, tested: any
//! text is read without a panic, and a file with a line cut off loses that line alone.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::packet::Mac;
use crate::policy::host_label;

/// The most leases of a file.
pub const LEASES_MAX: usize = 1_000_000;

/// A lease that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLease {
    /// The device that has it.
    pub mac: Mac,
    /// A whole address, or a prefix that was delegated.
    pub address: IpNet,
    /// The device's name for itself, in lower case.
    pub name: Option<String>,
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseFile {
    /// By address.
    pub leases: Vec<FileLease>,
    /// Lines that say nothing: not understood, no MAC address, or beyond [`LEASES_MAX`].
    pub skipped: usize,
}

/// Reads a file's text at this Unix time.
pub fn read(text: &str, now_s: u64) -> LeaseFile {
    let mut by_address: BTreeMap<IpNet, Option<FileLease>> = BTreeMap::new();
    let mut skipped = 0;
    let first = text.lines().next().unwrap_or_default();
    let columns = first.starts_with("address,").then(|| Columns::of(first));
    for line in text.lines().skip(usize::from(columns.is_some())) {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') || line.starts_with("duid ") {
            continue;
        }
        let read = match &columns {
            Some(columns) => columns.read(line),
            None => dnsmasq(line),
        };
        let Some((until_s, is_active, lease)) = read else {
            skipped += 1;
            continue;
        };
        if by_address.len() == LEASES_MAX && !by_address.contains_key(&lease.address) {
            skipped += 1;
            continue;
        }
        let is_live = is_active && (until_s == 0 || until_s > now_s);
        by_address.insert(lease.address, is_live.then_some(lease));
    }
    LeaseFile { leases: by_address.into_values().flatten().collect(), skipped }
}

/// When a lease ends (0 is never), whether its state is that of a lease in use, and what it gives.
type Line = (u64, bool, FileLease);

fn dnsmasq(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split(' ').collect();
    let [until, mac, address, name, id] = words[..] else { return None };
    let address: IpAddr = address.parse().ok()?;
    let mac = match address {
        IpAddr::V4(_) => mac.parse().ok()?,
        IpAddr::V6(_) => mac_of_duid(id)?,
    };
    let lease = FileLease { mac, address: address.into(), name: host_label(name) };
    Some((until.parse().ok()?, true, lease))
}

/// Where the columns of Kea's file are.
struct Columns {
    address: usize,
    hwaddr: Option<usize>,
    duid: Option<usize>,
    expire: Option<usize>,
    state: Option<usize>,
    kind: Option<usize>,
    prefix_len: Option<usize>,
    hostname: Option<usize>,
}

impl Columns {
    fn of(header: &str) -> Columns {
        let at = |name: &str| header.trim_end().split(',').position(|column| column == name);
        Columns {
            address: 0,
            hwaddr: at("hwaddr"),
            duid: at("duid"),
            expire: at("expire"),
            state: at("state"),
            kind: at("lease_type"),
            prefix_len: at("prefix_len"),
            hostname: at("hostname"),
        }
    }

    fn read(&self, line: &str) -> Option<Line> {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |at: Option<usize>| at.and_then(|at| fields.get(at)).copied();
        let address: IpAddr = field(Some(self.address))?.parse().ok()?;
        let own = field(self.hwaddr).and_then(|text| text.parse().ok());
        let mac = own.or_else(|| mac_of_duid(field(self.duid)?))?;
        // A lease of type 2 is a prefix.
        let address = match field(self.kind) {
            Some("2") => IpNet::new(address, field(self.prefix_len)?.parse().ok()?).ok()?.trunc(),
            _ => address.into(),
        };
        let name = field(self.hostname).and_then(|name| host_label(name.split('.').next()?));
        let is_active = field(self.state).is_none_or(|state| state == "0");
        let lease = FileLease { mac, address, name };
        Some((field(self.expire)?.parse().ok()?, is_active, lease))
    }
}

/// The MAC address in a DUID of type 1 (with a time) or 3.
fn mac_of_duid(duid: &str) -> Option<Mac> {
    let (kind, rest) = duid.split_at_checked("00:01:00:01:".len())?;
    match kind {
        "00:01:00:01:" => rest.split_at_checked("00:00:00:00:".len())?.1.parse().ok(),
        "00:03:00:01:" => rest.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str, now_s: u64) -> (Vec<String>, usize) {
        let file = read(text, now_s);
        let show = |l: FileLease| format!("{} {} {}", l.address, l.mac, l.name.unwrap_or_default());
        (file.leases.into_iter().map(show).collect(), file.skipped)
    }

    const DNSMASQ: &str = "1000 02:00:00:00:00:01 192.0.2.1 Phone 01:02:00:00:00:00:01
0 02:00:00:00:00:02 192.0.2.2 * *
999 02:00:00:00:00:03 192.0.2.3 gone *
duid 00:01:00:01:2c:aa:bb:cc:02:00:00:00:00:fe
1000 7 2001:db8::1 phone 00:03:00:01:02:00:00:00:00:01
1000 8 2001:db8::2 * 00:02:00:00:ab
1000 02:00:00:00:00:04 192.0.2";

    #[test]
    fn a_file_of_dnsmasq_says_which_device_has_which_address() {
        let (leases, skipped) = shown(DNSMASQ, 999);
        assert_eq!(
            leases,
            [
                "192.0.2.1/32 02:00:00:00:00:01 phone",
                "192.0.2.2/32 02:00:00:00:00:02 ",
                "2001:db8::1/128 02:00:00:00:00:01 phone",
            ]
        );
        assert_eq!(skipped, 2, "one without a MAC address, one cut off");
        assert_eq!(shown(DNSMASQ, 1_000).0, ["192.0.2.2/32 02:00:00:00:00:02 "]);
    }

    #[test]
    fn of_keas_file_the_last_line_of_an_address_counts() {
        let four = "address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,hostname,state,user_context,pool_id
192.0.2.1,02:00:00:00:00:01,,3600,1000,1,0,0,tv.home.arpa.,0,,0
192.0.2.2,02:00:00:00:00:02,,3600,1000,1,0,0,,0,,0
192.0.2.1,02:00:00:00:00:03,,3600,2000,1,0,0,,0,,0
192.0.2.2,02:00:00:00:00:02,,0,1000,1,0,0,,2,,0
192.0.2.3,,,3600,1000,1,0,0,,1,,0
";
        assert_eq!(shown(four, 0), (vec!["192.0.2.1/32 02:00:00:00:00:03 ".to_owned()], 1));
        let six = "address,duid,valid_lifetime,expire,subnet_id,pref_lifetime,lease_type,iaid,prefix_len,fqdn_fwd,fqdn_rev,hostname,hwaddr,state,user_context
2001:db8:1::,00:01:00:01:2c:aa:bb:cc:02:00:00:00:00:01,3600,1000,1,0,2,7,56,0,0,,,0,
2001:db8::7,00:02:00:00,3600,1000,1,0,0,7,128,0,0,tv,02:00:00:00:00:01,0,
";
        let wanted = ["2001:db8::7/128 02:00:00:00:00:01 tv", "2001:db8:1::/56 02:00:00:00:00:01 "];
        assert_eq!(shown(six, 0).0, wanted);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(address,)?[0-9a-f:., \n*#]{0,200}") {
            let file = read(&text, 5);
            prop_assert!(file.leases.len() + file.skipped <= text.lines().count());
        }
    }
}
