//! A film player: which quality to ask for, and when.
//!
//! Problem: a film comes in chunks of [`CHUNK`], each in several qualities (*rungs* of a *ladder*).
//! The player wants the best quality that the network carries, without running dry. Method: it asks
//! for one chunk after the other while they fit into its buffer, so a full buffer makes it switch
//! on and off. It asks for the higher of
//!
//! - the rung that 0.8 of the throughput carries; throughput is an average over chunks with
//!   exponential weights, or the newest chunk's if that is lower;
//! - the rung for which the buffer stands: the lowest up to [`RESERVOIR`], the highest from
//!   [`FULL`] on, linear in the rate between (BBA-0 of Huang, Johari, McKeown, Trunnell and Watson,
//!   SIGCOMM 2014, whose 90 s and 216 s of 240 s are scaled to 60 s), so that a filling buffer
//!   permits what the factor forbids;
//!
//! but it does not step up above what the throughput carries, which would only oscillate (as BOLA-O
//! of Spiteri, Urgaonkar and Sitaraman, INFOCOM 2016). Playback begins, and resumes after the
//! player ran dry (a *stall*), with the first chunk that arrives. The player waits for a chunk,
//! however long it takes; many players would give it up and ask for a lower quality.
//!
//! Properties, all tested: the buffer never exceeds [`BUFFER_MAX`]; one request is under way at a
//! time; until the film is over, all time is either played, stalled or before the first picture.
//!
//! It knows nothing of connections and can drive real ones as well.

use std::collections::VecDeque;

use fairweir_core::units::{Bytes, Rate, Span, Time};

use crate::report::VideoSamples;

/// How long a chunk plays.
pub const CHUNK: Span = Span::secs(4);
/// Largest buffer, as playing time.
pub const BUFFER_MAX: Span = Span::secs(60);
/// Up to this buffer, the buffer's rule selects the lowest rung.
pub const RESERVOIR: Span = Span::millis(22_500);
/// From this buffer on, the buffer's rule selects the highest rung.
pub const FULL: Span = Span::secs(54);
/// Part of the throughput that counts as safe.
const SAFE: f64 = 0.8;
/// Weight of the newest chunk in the average throughput: about the last half minute matters.
const NEWEST: f64 = 0.25;

/// A film player.
///
/// Invariants: what is buffered is at most [`BUFFER_MAX`]; everything before `clock` was played.
#[derive(Clone, Debug)]
pub struct Player {
    /// Part of the film that was not asked for yet.
    left: Span,
    state: State,
    clock: Time,
    /// Rung and playing time of each chunk in the buffer, the next one to play first.
    buffer: VecDeque<(usize, Span)>,
    request: Option<Request>,
    /// Rung of the last request.
    rung: Option<usize>,
    /// Average and newest throughput in bit/s.
    throughput: Option<(f64, f64)>,
    samples: VideoSamples,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the start.
    Idle,
    /// There has been nothing to play since then; `first` before the first picture.
    Waiting {
        since: Time,
        first: bool,
    },
    Playing,
    /// The film was played to its end, or was stopped.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    rung: usize,
    span: Span,
    volume: Bytes,
    at: Time,
}

impl Player {
    /// A player of a film of some length, `None` for without end. The ladder is in rising order.
    ///
    /// # Panics
    /// If the ladder is empty.
    pub fn new(group: usize, ladder: &[Rate], length: Option<Span>) -> Player {
        assert!(!ladder.is_empty(), "a film has a quality");
        let played = ladder.iter().map(|&rate| (rate, Span::ZERO)).collect();
        Player {
            left: length.unwrap_or(Span::MAX),
            state: State::Idle,
            clock: Time::ZERO,
            buffer: VecDeque::new(),
            request: None,
            rung: None,
            throughput: None,
            samples: VideoSamples { group, played, ..VideoSamples::default() },
        }
    }

    /// The film is started.
    pub fn handle_start(&mut self, now: Time) {
        self.clock = now;
        self.state = State::Waiting { since: now, first: true };
    }

    /// The chunk that was asked for has arrived.
    pub fn handle_chunk(&mut self, now: Time) {
        self.advance(now);
        let Some(request) = self.request.take() else { return };
        if self.state == State::Over {
            return;
        }
        let span = now.since(request.at).as_secs_f64().max(1e-9);
        let measured = request.volume.as_u64() as f64 * 8.0 / span;
        let average = self.throughput.map_or(measured, |(a, _)| a + NEWEST * (measured - a));
        self.throughput = Some((average, measured));
        self.buffer.push_back((request.rung, request.span));
        assert!(self.buffered() <= BUFFER_MAX, "the player asks only for what fits");
        if let State::Waiting { since, first } = self.state {
            if first {
                self.samples.startup = Some(now.since(since));
            } else {
                self.samples.stalled += now.since(since);
            }
            self.state = State::Playing;
        }
    }

    /// The film is closed.
    pub fn handle_stop(&mut self, now: Time) {
        self.advance(now);
        if let State::Waiting { since, first: false } = self.state {
            self.samples.stalled += now.since(since);
        }
        self.state = State::Over;
    }

    /// The chunk to ask for now, as its volume; once it has arrived, [`Player::handle_chunk`] has
    /// to be called.
    pub fn poll_request(&mut self, now: Time) -> Option<Bytes> {
        self.advance(now);
        let may = matches!(self.state, State::Waiting { .. } | State::Playing);
        let span = CHUNK.min(self.left);
        let fits = self.buffered() + span <= BUFFER_MAX;
        if !may || !fits || span == Span::ZERO || self.request.is_some() {
            return None;
        }
        let rung = self.choose();
        self.samples.switches += u64::from(self.rung.is_some_and(|last| last != rung));
        self.rung = Some(rung);
        if self.left < Span::MAX {
            self.left = Span::nanos(self.left.as_nanos() - span.as_nanos());
        }
        let volume = (self.rate(rung) * span).max(Bytes::new(1));
        self.request = Some(Request { rung, span, volume, at: now });
        Some(volume)
    }

    /// When there is room for the next chunk; `None` if nothing happens by itself.
    pub fn next_timeout(&self) -> Option<Time> {
        let span = CHUNK.min(self.left);
        let waits = self.state == State::Playing && self.request.is_none() && span > Span::ZERO;
        let room = BUFFER_MAX.as_nanos() - span.as_nanos();
        waits.then(|| self.clock + Span::nanos(self.buffered().as_nanos().saturating_sub(room)))
    }

    /// Playing time of the chunks in the buffer.
    pub fn buffered(&self) -> Span {
        self.buffer.iter().map(|(_, span)| *span).sum()
    }

    /// Quality as watched, after the stop.
    pub fn samples(self) -> VideoSamples {
        self.samples
    }

    fn rate(&self, rung: usize) -> Rate {
        self.samples.played[rung].0
    }

    /// The highest rung that does not exceed a rate, or the lowest.
    fn highest_within(&self, bps: f64) -> usize {
        let above = self.samples.played.partition_point(|(rate, _)| rate.as_bps() as f64 <= bps);
        above.saturating_sub(1)
    }

    fn choose(&self) -> usize {
        let Some((average, newest)) = self.throughput else { return 0 };
        let throughput = average.min(newest);
        let wanted = self.highest_within(SAFE * throughput).max(self.rung_of_buffer());
        let sustained = self.highest_within(throughput);
        wanted.min(sustained.max(self.rung.unwrap_or(0)))
    }

    fn rung_of_buffer(&self) -> usize {
        let last = self.samples.played.len() - 1;
        let (low, high) = (self.rate(0).as_bps() as f64, self.rate(last).as_bps() as f64);
        let above = self.buffered().as_secs_f64() - RESERVOIR.as_secs_f64();
        let part = above / (FULL.as_secs_f64() - RESERVOIR.as_secs_f64());
        self.highest_within(low + (high - low) * part.clamp(0.0, 1.0))
    }

    /// Plays the buffered chunks until `now`.
    fn advance(&mut self, now: Time) {
        let mut passed = now.since(self.clock);
        while self.state == State::Playing && passed > Span::ZERO {
            let Some((rung, span)) = self.buffer.front_mut() else {
                let is_over = self.left == Span::ZERO && self.request.is_none();
                let dry = State::Waiting { since: now - passed, first: false };
                self.state = if is_over { State::Over } else { dry };
                self.samples.stalls += u64::from(!is_over);
                break;
            };
            let played = passed.min(*span);
            self.samples.played[*rung].1 += played;
            *span = Span::nanos(span.as_nanos() - played.as_nanos());
            passed = Span::nanos(passed.as_nanos() - played.as_nanos());
            if *span == Span::ZERO {
                self.buffer.pop_front();
            }
        }
        self.clock = self.clock.max(now);
    }
}
