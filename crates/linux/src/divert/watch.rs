//! Notices when another program has changed what the diversion needs, or when packets do not arrive.
//!
//! The kernel reports changed policy rules and changed nftables. It reports routes too, but on a
//! router with many of them that would wake the daemon all the time. So routes are read with the
//! rest every [`super::LOOK_PERIOD`]. Two counters find the remaining faults ([`Leak`]).

use std::os::fd::{AsRawFd, BorrowedFd};

use fairweir_core::units::{Span, Time};
use netlink_sys::Socket;

use crate::Error;
use crate::net::netlink::Netlink;

/// The kernel's notices.
#[derive(Debug)]
pub(super) struct Notices([Socket; 2]);

impl Notices {
    /// Subscribes to the notices.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn open() -> Result<Notices, Error> {
        let listen = |netlink: Netlink, groups: &[u32]| {
            let socket = netlink.into_socket();
            let join = || {
                groups.iter().try_for_each(|&group| socket.add_membership(group))?;
                socket.set_non_blocking(true)
            };
            join().map_err(|e| Error::refused("listen for changes of the network", e))?;
            Ok(socket)
        };
        Ok(Notices([
            listen(Netlink::open()?, &[libc::RTNLGRP_IPV4_RULE, libc::RTNLGRP_IPV6_RULE])?,
            listen(Netlink::open_netfilter()?, &[libc::NFNLGRP_NFTABLES as u32])?,
        ]))
    }

    /// Readable when there is a notice.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        // SAFETY: the descriptors are open as long as the sockets that are borrowed with them.
        self.0.each_ref().map(|socket| unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) })
    }

    /// Whether there was a notice since the last call.
    pub(super) fn take(&self) -> bool {
        let mut datagram = Vec::with_capacity(DATAGRAM_BYTES);
        let mut found = false;
        for socket in &self.0 {
            for _ in 0..TURN_MAX {
                datagram.clear();
                match socket.recv(&mut datagram, libc::MSG_DONTWAIT) {
                    Ok(_) => found = true,
                    // Notices were lost.
                    Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => found = true,
                    Err(_) => break,
                }
            }
        }
        found
    }
}

/// Two counters of the same packets, at two places on their way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leak {
    sent: u64,
    arrived: u64,
    lost: u64,
    since: Option<Time>,
}

impl Leak {
    /// Takes in both counters; returns whether for [`LOST_FOR`] nothing has arrived of at least
    /// [`LOST_MIN`] packets. Packets between the counters at the time of reading are not lost; a
    /// packet that a firewall refuses now and then does not count.
    pub(super) fn handle(&mut self, sent: u64, arrived: u64, now: Time) -> bool {
        let more = sent.saturating_sub(self.sent);
        let is_old = self.since.is_some_and(|since| now.since(since) > LOST_SPAN);
        if arrived > self.arrived || is_old {
            (self.lost, self.since) = (0, None);
        } else if more > 0 {
            self.lost += more;
            self.since.get_or_insert(now);
        }
        (self.sent, self.arrived) = (sent, arrived);
        self.lost >= LOST_MIN && self.since.is_some_and(|since| now.since(since) >= LOST_FOR)
    }
}

/// Notices that are read before other work has its turn.
const TURN_MAX: usize = 64;
/// A truncated notice counts as a notice.
const DATAGRAM_BYTES: usize = 8_192;
/// A SYN and two repetitions.
const LOST_MIN: u64 = 3;
/// TCP sends a SYN again after a second.
const LOST_FOR: Span = Span::secs(1);
/// A SYN is sent again after 1 and 3 s.
const LOST_SPAN: Span = Span::secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leak_is_what_loses_all_for_a_second() {
        let at = |ms| Time::ZERO + Span::millis(ms);
        let mut leak = Leak::default();
        // One packet is on its way.
        assert!(!leak.handle(5, 4, at(0)));
        assert!(!leak.handle(5, 5, at(2_000)));
        assert!(!leak.handle(6, 5, at(3_000)));
        assert!(!leak.handle(7, 5, at(4_500)), "two packets");
        assert!(leak.handle(8, 5, at(4_600)));
        assert!(!leak.handle(9, 6, at(4_700)), "one has arrived");
        for n in 0..10 {
            assert!(!leak.handle(10 + n, 6, at(6_000 + 3_000 * n)), "now and then one is lost");
        }
        // A table made anew counts from zero.
        assert!(!Leak::default().handle(3, 0, at(0)));
    }
}
