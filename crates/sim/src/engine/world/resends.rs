//! Handshakes and requests that were lost and are sent again.
//!
//! A sender knows when an answer is due, and the simulator knows what was lost. So a packet is sent
//! again only if it was lost, even if queues delay the answer.

use std::collections::BTreeMap;

use fairweir_core::units::{Span, Time};

use super::super::packet::{Up, UpKind};
use super::{RESEND, World};

/// A packet that was lost.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lost {
    /// The SYN-ACK of this connection.
    SynAck(u32),
    /// A packet of a client.
    Up(Up),
}

/// Packets to send again, and when; of those due at one instant, the one lost first comes first.
#[derive(Debug, Default)]
pub(super) struct Resends {
    waiting: BTreeMap<(Time, u64), Lost>,
    /// Number of losses so far.
    lost: u64,
}

/// Time after which a SYN or SYN-ACK is sent again. Source: RFC 6298 §2.1; Linux does so for a SYN
/// without doubling, four times.
const HANDSHAKE_TIMEOUT: Span = Span::secs(1);

impl World<'_> {
    pub(super) fn resend_later(&mut self, now: Time, lost: Lost) {
        let at = match lost {
            Lost::SynAck(index) => self.connections[index].syn_ack_at + HANDSHAKE_TIMEOUT,
            Lost::Up(Up { from, kind: UpKind::Request { .. } }) => {
                now + self.connections[from].request_timeout()
            }
            // The server sends its SYN-ACK again if the answer to it was lost, and the client
            // answers at once.
            Lost::Up(_) => now + HANDSHAKE_TIMEOUT,
        };
        let Resends { waiting, lost: serial } = &mut self.resends;
        waiting.insert((at.max(now), *serial), lost);
        *serial += 1;
        self.wake_resends();
    }

    pub(super) fn resend(&mut self, now: Time) {
        while let Some(first) = self.resends.waiting.first_entry().filter(|e| e.key().0 <= now) {
            let lost = first.remove();
            let (Lost::SynAck(index) | Lost::Up(Up { from: index, .. })) = lost;
            let connection = &mut self.connections[index];
            connection.under_way -= 1;
            if connection.closed {
                self.connections.bury(index);
                continue;
            }
            match lost {
                Lost::SynAck(_) => self.send_syn_ack(now, index),
                Lost::Up(Up { kind, .. }) => self.send_from_client(now, index, kind),
            }
        }
        self.wake_resends();
    }

    fn wake_resends(&mut self) {
        let next = self.resends.waiting.first_key_value().map(|((at, _), _)| *at);
        self.deadlines.set(RESEND, next);
    }
}
