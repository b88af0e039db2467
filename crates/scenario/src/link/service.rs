//! Transmission times: from the capacity to the instant at which each packet's last bit is sent.
//!
//! Transmission is counted in nano-bits (rate in bit/s times nanoseconds), in which every rate and
//! instant is a whole number. A packet ends at the first whole nanosecond at which all of it is
//! sent; what the link sent beyond its last bit by then, less than a nanosecond's worth, belongs to
//! the next packet, so that over a busy period nothing is lost to rounding.

use fairweir_core::units::{Bytes, Rate, Span, Time};

use super::trace::Cursor;
use super::{Capacity, RateStep};

/// The link's sender: one packet after the other.
#[derive(Clone, Debug)]
pub(super) struct Service {
    steps: Vec<RateStep>,
    /// Index into `steps` of the present rate.
    step: usize,
    /// The present rate, or the mean of a trace.
    rate: Rate,
    kind: Kind,
    /// Time up to which everything is accounted for.
    since: Time,
    /// The part of the packet in transmission that was not sent at `since`, in nano-bits.
    left: u64,
    /// When the last bit of the packet in transmission is sent, or of the last one was.
    end: Time,
    /// What the link sent by `end` beyond the last bit, in nano-bits.
    over: u64,
    /// The last size that was divided by the rate, in nano-bits, with quotient and remainder:
    /// packets come in few sizes, and a division costs more than all the rest.
    divided: (u64, u64, u64),
}

#[derive(Clone, Debug)]
enum Kind {
    Plain,
    Shaped(Bucket),
    Trace(Cursor),
}

/// A token bucket, in nano-bits.
///
/// While it always has something to send, it has sent min(line · t, tokens + rate · t) after a time
/// t: at the rate of the line as long as there are tokens, then as tokens come in.
#[derive(Clone, Debug)]
struct Bucket {
    size: u128,
    line: Rate,
    tokens: u128,
}

/// The largest packet: its nano-bits have to fit into 64 bits.
pub(super) const PACKET_MAX: Bytes = Bytes::new(1 << 24);

const NANOBITS_PER_BYTE: u64 = 8_000_000_000;

impl Service {
    pub(super) fn new(capacity: &Capacity) -> Service {
        capacity.check();
        let kind = match capacity {
            Capacity::Steps(_) => Kind::Plain,
            Capacity::Shaped { burst, line_rate, .. } => {
                let size = u128::from(burst.as_u64()) * u128::from(NANOBITS_PER_BYTE);
                Kind::Shaped(Bucket { size, line: *line_rate, tokens: size })
            }
            Capacity::Trace(trace) => Kind::Trace(Cursor::new(trace.clone())),
        };
        Service {
            steps: capacity.steps().to_vec(),
            step: 0,
            rate: capacity.nominal(),
            kind,
            since: Time::ZERO,
            left: 0,
            end: Time::ZERO,
            over: 0,
            divided: (0, 0, 0),
        }
    }

    /// The present rate, without what a bucket adds; the mean of a trace.
    pub(super) fn rate(&self) -> Rate {
        self.rate
    }

    /// When the last bit of the packet in transmission is sent.
    pub(super) fn end(&self) -> Time {
        self.end
    }

    /// When the rate changes next.
    pub(super) fn step_next(&self) -> Option<Time> {
        self.steps.get(self.step + 1).map(|step| step.at)
    }

    /// Begins to send a packet at `now`, when the last one is out. Returns when its first bit goes.
    pub(super) fn begin(&mut self, now: Time, size: Bytes) -> Time {
        assert!(size <= PACKET_MAX, "a packet is not larger than {PACKET_MAX}");
        // After an idle time there is nothing to credit.
        let credit = if now == self.end { self.over } else { 0 };
        let whole = size.as_u64() * NANOBITS_PER_BYTE;
        match &mut self.kind {
            Kind::Plain => {
                self.left = whole.saturating_sub(credit);
                self.since = now;
                let (quotient, remainder) = self.divide(whole);
                let (ns, over) = if remainder > credit {
                    (quotient + 1, self.rate.as_bps() - (remainder - credit))
                } else {
                    (quotient, credit - remainder)
                };
                (self.end, self.over) = (now + Span::nanos(ns), over);
                now
            }
            Kind::Shaped(bucket) => {
                bucket.fill(self.rate, now.since(self.since));
                self.left = whole.saturating_sub(credit);
                self.since = now;
                self.find_end();
                now
            }
            Kind::Trace(cursor) => {
                let (first, last) = cursor.send(now, size);
                self.end = last;
                first
            }
        }
    }

    /// The packet in transmission has ended.
    pub(super) fn finish(&mut self) {
        if let Kind::Shaped(bucket) = &mut self.kind {
            bucket.take(self.rate, self.end.since(self.since));
            self.since = self.end;
        }
    }

    /// Switches to the next rate; `busy` says whether a packet is in transmission.
    pub(super) fn step(&mut self, busy: bool) {
        let Some(&RateStep { at, rate }) = self.steps.get(self.step + 1) else { return };
        let span = at.since(self.since);
        match &mut self.kind {
            Kind::Plain if busy => {
                // The packet has not ended by now, so less than `left` was sent.
                let sent = nanobits(self.rate, span);
                self.left = self.left.saturating_sub(sent as u64);
            }
            Kind::Shaped(bucket) if busy => {
                let sent = bucket.take(self.rate, span);
                self.left = self.left.saturating_sub(sent as u64);
            }
            Kind::Shaped(bucket) => bucket.fill(self.rate, span),
            Kind::Plain | Kind::Trace(_) => {}
        }
        self.step += 1;
        self.since = at;
        self.rate = rate;
        self.divided = (0, 0, 0);
        if busy {
            self.find_end();
        }
    }

    /// Computes `end` from the bits that remain at `since`.
    fn find_end(&mut self) {
        let left = u128::from(self.left);
        let (ns, sent) = match &self.kind {
            Kind::Plain => {
                let ns = left.div_ceil(self.rate.as_bps().into());
                (ns, nanobits(self.rate, span_of(ns)))
            }
            Kind::Shaped(bucket) => {
                let ns = bucket.time_to_send(left, self.rate);
                (ns, bucket.sent(self.rate, span_of(ns)))
            }
            Kind::Trace(_) => unreachable!("a trace has no steps"),
        };
        self.end = self.since + span_of(ns);
        self.over = sent.saturating_sub(left) as u64;
    }

    fn divide(&mut self, whole: u64) -> (u64, u64) {
        if self.divided.0 != whole {
            let rate = self.rate.as_bps();
            self.divided = (whole, whole / rate, whole % rate);
        }
        (self.divided.1, self.divided.2)
    }
}

impl Bucket {
    /// Volume that passes in a span in which there is always something to send.
    fn sent(&self, rate: Rate, span: Span) -> u128 {
        nanobits(self.line, span).min(self.tokens + nanobits(rate, span))
    }

    /// The first whole nanosecond after which this volume has passed.
    fn time_to_send(&self, volume: u128, rate: Rate) -> u128 {
        let on_the_line = volume.div_ceil(self.line.as_bps().into());
        let with_tokens = volume.saturating_sub(self.tokens).div_ceil(rate.as_bps().into());
        on_the_line.max(with_tokens)
    }

    /// Takes the tokens for what passes in a span, and returns how much that is.
    fn take(&mut self, rate: Rate, span: Span) -> u128 {
        let sent = self.sent(rate, span);
        self.tokens = self.tokens + nanobits(rate, span) - sent;
        sent
    }

    /// Adds the tokens that come in while nothing is sent.
    fn fill(&mut self, rate: Rate, span: Span) {
        self.tokens = (self.tokens + nanobits(rate, span)).min(self.size);
    }
}

/// Volume that passes in a span, exactly.
fn nanobits(rate: Rate, span: Span) -> u128 {
    u128::from(rate.as_bps()) * u128::from(span.as_nanos())
}

fn span_of(ns: u128) -> Span {
    Span::nanos(ns.min(u64::MAX.into()) as u64)
}
