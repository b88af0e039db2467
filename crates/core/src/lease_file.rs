//! Files of leases, as DHCP servers write them: which device has which address.
//!
//! Two formats, distinguished by the first line. dnsmasq: a line per lease with the time of its end, the
//! MAC address, the address and a name; for IPv6 a number in place of the MAC address and a DUID at the
//! end of the line. Kea's memfile: comma-separated values with a header. The last line of an address
//! counts, a lifetime of 0 deletes the lease, and a lease may be a prefix. Kea may use several files.
//!
//! A device is known by its MAC address, which a DUID may contain (types 1 and 3, RFC 8415 §11). Lines
//! that are not understood or have no MAC address are counted and ignored. Properties, tested: any
//! text is read without a panic, and a file with one line cut off loses only that line.

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
    /// When the lease ends, in Unix time; 0 means never.
    pub until_s: u64,
}

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseFile {
    /// Leases, ordered by address.
    pub leases: Vec<FileLease>,
    /// The addresses of leases that have ended.
    pub ended: Vec<IpNet>,
    /// Lines that are ignored: not understood, no MAC address, or beyond [`LEASES_MAX`].
    pub skipped: usize,
}

/// Reads a file's text at this Unix time.
pub fn read(text: &str, now_s: u64) -> LeaseFile {
    read_all(&[text], now_s)
}

/// Reads the texts of files that continue one another, the oldest first.
pub fn read_all(texts: &[&str], now_s: u64) -> LeaseFile {
    let mut by_address: BTreeMap<IpNet, Option<FileLease>> = BTreeMap::new();
    let mut skipped = 0;
    for text in texts {
        let first = text.lines().next().unwrap_or_default();
        let columns = is_of_kea(text).then(|| Columns::of(first));
        for line in text.lines().skip(usize::from(columns.is_some())) {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') || line.starts_with("duid ") {
                continue;
            }
            let read = match &columns {
                Some(columns) => columns.read(line),
                None => dnsmasq(line),
            };
            let Some((is_active, lease)) = read else {
                skipped += 1;
                continue;
            };
            if by_address.len() == LEASES_MAX && !by_address.contains_key(&lease.address) {
                skipped += 1;
                continue;
            }
            let is_live = is_active && (lease.until_s == 0 || lease.until_s > now_s);
            by_address.insert(lease.address, is_live.then_some(lease));
        }
    }
    let mut file = LeaseFile { skipped, ..LeaseFile::default() };
    for (address, lease) in by_address {
        match lease {
            Some(lease) => file.leases.push(lease),
            None => file.ended.push(address),
        }
    }
    file
}

/// Whether a text has the header of Kea's file.
pub fn is_of_kea(text: &str) -> bool {
    text.starts_with("address,")
}

/// Whether the lease is in use by its state, and the lease.
type Line = (bool, FileLease);

fn dnsmasq(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split(' ').collect();
    let [until, mac, address, name, id] = words[..] else { return None };
    let address: IpAddr = address.parse().ok()?;
    let mac = match address {
        IpAddr::V4(_) => mac.parse().ok()?,
        IpAddr::V6(_) => mac_of_duid(id)?,
    };
    let (name, until_s) = (host_label(name), until.parse().ok()?);
    Some((true, FileLease { mac, address: address.into(), name, until_s }))
}

/// Where the columns of Kea's file are.
struct Columns {
    number: usize,
    lifetime: Option<usize>,
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
            number: header.split(',').count(),
            lifetime: at("valid_lifetime"),
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
        // Kea does not accept a shorter line either: it was cut off.
        if fields.len() < self.number {
            return None;
        }
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
        let is_active =
            field(self.state).is_none_or(|state| state == "0") && field(self.lifetime) != Some("0");
        let until_s = field(self.expire)?.parse().ok()?;
        Some((is_active, FileLease { mac, address, name, until_s }))
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
    fn files_that_continue_one_another_are_read_in_their_order_and_a_line_cut_off_is_not() {
        let header = "address,hwaddr,valid_lifetime,expire,state\n";
        let file = |lines: &str| [header, lines].concat();
        let first =
            file("192.0.2.1,02:00:00:00:00:01,60,90,0\n192.0.2.2,02:00:00:00:00:02,60,90,0\n");
        let second =
            file("192.0.2.1,02:00:00:00:00:03,60,95,0\n192.0.2.2,02:00:00:00:00:02,0,90,0\n");
        let third = file(
            "192.0.2.3,02:00:00:00:00:04,4294967295,4294967355,0\n192.0.2.1,02:00:00:00:00:05,60,9",
        );
        let read = read_all(&[&first, &second, &third], 50);
        let shown: Vec<_> = read.leases.iter().map(|l| (l.mac.to_string(), l.until_s)).collect();
        let wanted = [("02:00:00:00:00:03", 95), ("02:00:00:00:00:04", 4_294_967_355)];
        assert_eq!(shown, wanted.map(|(mac, until_s)| (mac.to_owned(), until_s)));
        assert_eq!(read.ended, ["192.0.2.2/32".parse::<IpNet>().unwrap()]);
        assert_eq!(read.skipped, 1, "the line that was cut off");
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
