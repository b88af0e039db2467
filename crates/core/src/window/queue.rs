//! The target length of the queue at the access link.

use crate::units::{Bytes, Rate, Span};

/// How much should wait at the access link, in L2 bytes.
///
/// `delay` is what the user is willing to wait for, `loss` what the ISP holds without losing. With
/// an interactive connection the smaller one counts, else the queue may be as long as it can without
/// loss, which keeps the link busy through every pause of a sender. While `loss` is unknown `delay`
/// counts. Source: Spring et al. §IV-C.
pub fn queue_target(has_interactive: bool, delay: Bytes, loss: Option<Bytes>) -> Bytes {
    match loss {
        None => delay,
        Some(loss) if has_interactive => delay.min(loss),
        Some(loss) => loss,
    }
}

/// What the access link's buffer holds, learned from what arrives.
///
/// The problem: the receiver is not told. The method: packets are lost when the buffer is full, so
/// the longest queue at which some were lost is the buffer; losses elsewhere come with shorter
/// queues, and do not matter once one was seen here. A queue without loss says that the buffer is
/// at least as long. The paper sends trains of UDP to find it out, and proposes this instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferEstimate {
    /// The longest queue at which packets were lost.
    full: Option<Bytes>,
    /// The longest queue at all.
    longest: Bytes,
}

impl BufferEstimate {
    /// Takes in how long packets waited at most in an interval, and whether some were lost.
    pub fn handle_queue(&mut self, capacity: Rate, sojourn: Span, has_lost: bool) {
        let queue = capacity * sojourn;
        self.longest = self.longest.max(queue);
        if has_lost {
            self.full = self.full.max(Some(queue));
        }
    }

    /// What the buffer holds; `None` until something was lost.
    pub fn buffer(&self) -> Option<Bytes> {
        self.full.map(|full| full.max(self.longest))
    }

    /// How long the queue may be without loss: half of the buffer, which leaves the other half to
    /// bursts. Source: Spring et al. §IV-D.
    pub fn loss_target(&self) -> Option<Bytes> {
        self.buffer().map(|buffer| buffer / 2)
    }
}
