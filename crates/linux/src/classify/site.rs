//! Flows that are bound to groups one by one: what is heard of them, and their entries in the table
//! that classifier and window programs read (`bpf/site.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use fairweir_core::packet::Transport;
use fairweir_core::sites::{Command, Connection, Flow, Heard};
use fairweir_core::units::Time;
use libbpf_rs::{MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};

use crate::Error;
use crate::bpf::abi::{self, FlowKey, HeardHeader, Plain, RecentControl};
use crate::bpf::header::{
    HEARD_DATAGRAM, HEARD_DNS, HEARD_OPENING, HEARD_SENT, HEARD_STREAM, INITIALS_MAX, SENDS_MAX,
    USER_NONE,
};
use crate::bpf::{bpf_error, update};
use crate::clock::monotonic_now;
use crate::random::random;

/// The reader of the ring.
pub(crate) struct Ear {
    ring: RingBuffer<'static>,
    /// The records of the last read, in the ring's order.
    records: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Ear {
    /// Reads what is put into `ring`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn new(ring: &MapHandle) -> Result<Ear, Error> {
        let attempted = READ;
        let records = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let mut builder = RingBufferBuilder::new();
        let writer = Arc::clone(&records);
        let added = builder.add(ring, move |record: &[u8]| {
            writer.lock().unwrap_or_else(PoisonError::into_inner).push(record.to_vec());
            0
        });
        added.map_err(|e| bpf_error(attempted, &e))?;
        let ring = builder.build().map_err(|e| bpf_error(attempted, &e))?;
        Ok(Ear { ring, records })
    }

    /// Reads at most [`HEARD_MAX`] records.
    pub(crate) fn read(&self) -> Result<Vec<Vec<u8>>, Error> {
        let read = self.ring.consume_raw_n(HEARD_MAX);
        if read < 0 {
            let source = std::io::Error::from_raw_os_error(-read);
            return Err(Error::refused(READ, source));
        }
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *records))
    }

    /// Passes on what was heard of connections, with times and in order: at most [`HEARD_MAX`] pieces.
    pub(crate) fn read_heard(
        &self,
        each: &mut dyn FnMut(Connection, Heard<'_>, Time),
    ) -> Result<(), Error> {
        for record in self.read()? {
            if let Some((connection, heard, at)) = heard(&record) {
                each(connection, heard, at);
            }
        }
        Ok(())
    }

    /// A descriptor that becomes readable when something was heard.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor, and lives as long as the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}

impl RecentControl {
    /// A control with this many sets, and random keys.
    ///
    /// # Errors
    /// If the kernel has no random numbers.
    pub(crate) fn new(sets: u32) -> Result<RecentControl, Error> {
        let mut control = RecentControl { sets, ..RecentControl::default() };
        control.keys.iter_mut().try_for_each(|key| random().map(|bits| *key = bits))?;
        Ok(control)
    }

    /// After the control is written, the programs look up each flow again from its next packet on.
    pub(crate) fn forget(&mut self) {
        self.changes = self.changes.wrapping_add(1);
    }
}

/// Adds connections that were open before to the table. A connection whose ports are in use again
/// stays as it is. The programs may still remember that these connections were unknown.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn take_over(
    map: &MapHandle,
    connections: &mut dyn Iterator<Item = &Connection>,
) -> Result<(), Error> {
    for connection in connections {
        let wanted = wanted_of_decided(connection);
        let seen_ns = monotonic_now().as_nanos();
        let state =
            abi::Flow { seen_ns, opened: connection.opened, wanted, ..abi::Flow::default() };
        let key = key(&connection.flow);
        match map.update(key.as_bytes(), state.as_bytes(), MapFlags::NO_EXIST) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
                return Err(bpf_error("take over a flow", &e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Binds a connection in the table `map` of flows to the `rule` of a group, or forgets it. A connection whose
/// ports are in use again stays as it is. Returns whether the programs may remember the previous binding.
pub(crate) fn bind(
    map: &MapHandle,
    rule: impl Fn(usize) -> u32,
    command: &Command,
) -> Result<bool, Error> {
    let (connection, bound) = match *command {
        Command::Forget(connection) => (connection, None),
        Command::Bind { connection, group, number, is_final, is_watched } => {
            let rule = group.map_or(0, rule);
            (connection, Some((rule, number, is_final, is_watched)))
        }
    };
    let key = key(&connection.flow);
    let known = map.lookup(key.as_bytes(), MapFlags::ANY);
    let known = known.map_err(|e| bpf_error("look up a flow", &e))?;
    let known = known.and_then(|bytes| abi::Flow::from_bytes(&bytes));
    let Some(known) = known.filter(|known| known.opened == connection.opened) else {
        return Ok(false);
    };
    // Programs remember only flows that are bound.
    let was_bound = known.number > 0;
    let Some((rule, number, is_final, is_watched)) = bound else {
        return match map.delete(key.as_bytes()) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(bpf_error("forget a flow", &e))
            }
            _ => Ok(was_bound),
        };
    };
    let wanted = if is_final { wanted_of_decided(&connection) } else { known.wanted };
    let watched = if is_watched { SENDS_MAX } else { 0 };
    let state = abi::Flow { number, rule, wanted, watched, ..known };
    update(map, key.as_bytes(), state.as_bytes())?;
    Ok(was_bound && (rule != known.rule || watched > 0 && known.watched == 0))
}

/// How much more is to be heard of a connection whose group is decided.
fn wanted_of_decided(connection: &Connection) -> u32 {
    match connection.flow.transport {
        Transport::Tcp => 0,
        // A client may open several connections from one port.
        Transport::Udp => INITIALS_MAX,
    }
}

fn heard(record: &[u8]) -> Option<(Connection, Heard<'_>, Time)> {
    let (header, bytes) = record.split_at_checked(size_of::<HeardHeader>())?;
    let header = HeardHeader::from_bytes(header)?;
    // Records in the ring have padding.
    let bytes = bytes.get(..header.length as usize)?;
    let heard = match header.kind {
        HEARD_OPENING => {
            Heard::Opened { user: Some(header.user).filter(|user| *user != USER_NONE) }
        }
        HEARD_SENT => Heard::Sent,
        HEARD_STREAM => Heard::Stream { offset: header.offset, bytes },
        HEARD_DATAGRAM => Heard::Datagram(bytes),
        HEARD_DNS => Heard::Dns(bytes),
        _ => return None,
    };
    let flow = flow(&header.key)?;
    let connection = Connection { flow, opened: header.opened };
    Some((connection, heard, Time::from_nanos(header.at_ns)))
}

pub(crate) fn key(flow: &Flow) -> FlowKey {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(v4) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&v4.octets());
            octets
        }
        IpAddr::V6(v6) => v6.octets(),
    };
    let family = if flow.remote.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let transport = match flow.transport {
        Transport::Tcp => libc::IPPROTO_TCP,
        Transport::Udp => libc::IPPROTO_UDP,
    };
    FlowKey {
        remote: octets(flow.remote.ip()),
        local: octets(flow.local.ip()),
        port_remote: flow.remote.port().to_be_bytes(),
        port_local: flow.local.port().to_be_bytes(),
        family: family as u16,
        transport: transport as u16,
    }
}

fn flow(key: &FlowKey) -> Option<Flow> {
    let address = |octets: [u8; 16]| -> Option<IpAddr> {
        let [a, b, c, d, ..] = octets;
        match i32::from(key.family) {
            libc::AF_INET => Some(Ipv4Addr::new(a, b, c, d).into()),
            libc::AF_INET6 => Some(Ipv6Addr::from(octets).into()),
            _ => None,
        }
    };
    let end = |octets, port| Some(SocketAddr::new(address(octets)?, u16::from_be_bytes(port)));
    let transport = match i32::from(key.transport) {
        libc::IPPROTO_TCP => Transport::Tcp,
        libc::IPPROTO_UDP => Transport::Udp,
        _ => return None,
    };
    let (local, remote) = (end(key.local, key.port_local)?, end(key.remote, key.port_remote)?);
    Some(Flow { transport, local, remote })
}

const READ: &str = "read what the programs heard";
/// Records that are read at once; the others wait for the next call. A full ring has about 500 ClientHellos.
const HEARD_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_the_same_on_both_sides() {
        for (transport, local, remote) in [
            (Transport::Tcp, "192.0.2.1:5000", "198.51.100.7:443"),
            (Transport::Udp, "[2001:db8::1]:5000", "[2001:db8::7]:443"),
        ] {
            let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
            let expected = Flow { transport, local, remote };
            assert_eq!(flow(&key(&expected)), Some(expected));
        }
        let other = FlowKey { family: 1, ..FlowKey::default() };
        assert_eq!(flow(&other), None);
    }
}
