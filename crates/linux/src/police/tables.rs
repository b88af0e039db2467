//! The tables of one direction: which address leads where.

use std::os::fd::{AsFd, AsRawFd};

use ipnet::IpNet;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use super::abi::{self, Entry, Prefixes};
use super::maps::Maps;
use super::{PoliceSpec, is_whole};
use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::{KEY, bpf_error, update};

/// The tables of one direction.
pub(super) struct Tables {
    pub(super) maps: Maps,
    prefixes: Prefixes,
    spec: PoliceSpec,
}

impl Tables {
    /// Makes them; plans and slots are those of `other` if there is one.
    pub(super) fn make(spec: &PoliceSpec, other: Option<&Maps>) -> Result<Tables, Error> {
        let maps = Maps::make(spec, other)?;
        Ok(Tables { maps, prefixes: Prefixes::default(), spec: spec.clone() })
    }

    /// Lets an address that leads nowhere yet lead to `entry`.
    ///
    /// # Errors
    /// [`Error::AddressTaken`], [`Error::TooMany`].
    pub(super) fn insert(&mut self, net: &IpNet, entry: Entry) -> Result<(), Error> {
        let (map, key) = self.find(net);
        // SAFETY: the map is open, its keys and values are as long as these, and the call keeps
        // neither. The library's own call does not tell the kernel's error number.
        let answer = unsafe {
            libbpf_sys::bpf_map_update_elem(
                map.as_fd().as_raw_fd(),
                key.as_ptr().cast(),
                entry.as_bytes().as_ptr().cast(),
                MapFlags::NO_EXIST.bits(),
            )
        };
        if answer != 0 {
            return Err(self.refusal(net, -answer));
        }
        self.count(net, 1)
    }

    /// Lets an address lead to `entry` from now on.
    pub(super) fn replace(&mut self, net: &IpNet, entry: Entry) -> Result<(), Error> {
        let (map, key) = self.find(net);
        update(map, &key, entry.as_bytes())
    }

    /// Lets an address lead nowhere.
    pub(super) fn remove(&mut self, net: &IpNet) -> Result<(), Error> {
        let (map, key) = self.find(net);
        match map.delete(&key) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(bpf_error(format!("remove the address {net}"), &e)),
            Ok(()) => self.count(net, -1),
        }
    }

    /// Inserts all addresses, or none.
    pub(super) fn insert_all(&mut self, nets: &[IpNet], entry: Entry) -> Result<(), Error> {
        for (done, net) in nets.iter().enumerate() {
            if let Err(e) = self.insert(net, entry) {
                self.remove_all(&nets[..done])?;
                return Err(e);
            }
        }
        Ok(())
    }

    pub(super) fn remove_all(&mut self, nets: &[IpNet]) -> Result<(), Error> {
        nets.iter().try_for_each(|net| self.remove(net))
    }

    /// Counts from zero for the plan with this number.
    pub(super) fn reset_totals(&self, number: u32) -> Result<(), Error> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(|e| bpf_error("count the CPUs", &e))?;
        let zero = abi::Totals::default().as_bytes().to_vec();
        let map = self.maps.map("totals");
        map.update_percpu(&number.to_ne_bytes(), &vec![zero; cpus], MapFlags::ANY)
            .map_err(|e| bpf_error("reset the totals of a plan", &e))
    }

    /// The map and the key of an address.
    fn find(&self, net: &IpNet) -> (&MapHandle, Vec<u8>) {
        let address: Vec<u8> = match net {
            IpNet::V4(net) => net.network().octets().to_vec(),
            IpNet::V6(net) => net.network().octets().to_vec(),
        };
        let is_ip6 = matches!(net, IpNet::V6(_));
        if is_whole(net) {
            return (self.maps.map(if is_ip6 { "addresses6" } else { "addresses4" }), address);
        }
        let mut key = u32::from(net.prefix_len()).to_ne_bytes().to_vec();
        key.extend(address);
        (self.maps.map(if is_ip6 { "prefixes6" } else { "prefixes4" }), key)
    }

    /// Keeps count of the shorter prefixes.
    fn count(&mut self, net: &IpNet, by: i32) -> Result<(), Error> {
        if is_whole(net) {
            return Ok(());
        }
        let count = match net {
            IpNet::V4(_) => &mut self.prefixes.count4,
            IpNet::V6(_) => &mut self.prefixes.count6,
        };
        *count = count.saturating_add_signed(by);
        update(self.maps.map("prefixes"), &KEY, self.prefixes.as_bytes())
    }

    fn refusal(&self, net: &IpNet, errno: i32) -> Error {
        let (what, max) = match (is_whole(net), net) {
            (true, IpNet::V4(_)) => ("IPv4 addresses", self.spec.addresses4_max),
            (true, IpNet::V6(_)) => ("IPv6 addresses", self.spec.addresses6_max),
            (false, IpNet::V4(_)) => ("IPv4 prefixes", self.spec.prefixes_max),
            (false, IpNet::V6(_)) => ("IPv6 prefixes", self.spec.prefixes_max),
        };
        match errno {
            libc::EEXIST => Error::AddressTaken(*net),
            libc::E2BIG | libc::ENOSPC => Error::TooMany { what: what.to_owned(), max },
            _ => {
                let source = std::io::Error::from_raw_os_error(errno);
                Error::refused(format!("add the address {net}"), source)
            }
        }
    }
}
