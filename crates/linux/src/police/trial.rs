//! The policer without a device, at times chosen by the caller: frames in, verdicts out, for tests.

use fairweir_core::phantom::Verdict;
use fairweir_core::units::{Span, Time};
use libbpf_rs::{MapHandle, Object, ProgramInput};

use super::abi::{self, STATE_AT, Settings};
use super::slots::Classes;
use super::{Direction, Hook, Police, SubscriberId};
use crate::Error;
use crate::bpf::abi::Plain;
use crate::bpf::{KEY, update};

/// The programs of a direction, for test runs.
pub struct Trial {
    object: Object,
    clock: MapHandle,
}

/// The whole program in a loop over subscribers, with the kernel's clock, for benchmarks.
pub struct Bench {
    object: Object,
    settings: MapHandle,
}

/// A frame as a hook sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame<'f> {
    /// The bytes from the device's first header on.
    pub bytes: &'f [u8],
    /// Number of packets on the wire that it stands for; 0 if it is one. Only at tcx.
    pub segments: u32,
    /// Payload bytes of each of these packets.
    pub segment_size: u32,
}

/// The result of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// `Mark` if the frame passed with a changed header.
    pub verdict: Verdict,
    /// The frame after the program.
    pub bytes: Vec<u8>,
    /// How long one run took.
    pub span: Span,
}

impl Police {
    /// Loads the programs of a direction for test runs on this policer's tables.
    ///
    /// # Errors
    /// As [`Police::attach`].
    pub fn trial(
        &mut self,
        direction: Direction,
        has_ethernet: bool,
        overhead: i32,
    ) -> Result<Trial, Error> {
        let settings = Settings {
            is_upload: u32::from(direction == Direction::Upload),
            has_ethernet: has_ethernet.into(),
            overhead,
            is_trial: 1,
            classes: Classes::ALL.bits(),
        };
        let maps = &self.tables_of(direction)?.maps;
        let object = maps.load(&["police_xdp", "police_skb"], settings)?;
        let clock = MapHandle::try_from(maps.map("trial_clock"))
            .map_err(|e| crate::bpf::bpf_error("open the clock of test runs", &e))?;
        Ok(Trial { object, clock })
    }

    /// Loads the program for benchmarks of downloads by Ethernet; without the code for clients unless `has_clients`.
    ///
    /// # Errors
    /// As [`Police::attach`].
    pub fn bench(&mut self, has_clients: bool) -> Result<Bench, Error> {
        let settings = Settings {
            is_upload: 0,
            has_ethernet: 1,
            overhead: 0,
            is_trial: 0,
            classes: if has_clients { Classes::ALL } else { Classes::SLOTS }.bits(),
        };
        let maps = &self.tables_of(Direction::Download)?.maps;
        let object = maps.load(&[BENCH], settings)?;
        let settings = MapHandle::try_from(maps.map("benches"))
            .map_err(|e| crate::bpf::bpf_error("open the settings of benchmarks", &e))?;
        Ok(Bench { object, settings })
    }

    /// A subscriber's state as the kernel stores it, `phantom::aggregate::Slot` of its size class.
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`], or if the kernel refuses.
    pub fn state(&self, id: SubscriberId, direction: Direction) -> Result<Vec<u8>, Error> {
        match self.subscriber(id)?.seats[direction.index()] {
            Some(seat) => Ok(self.slot_bytes(seat.slot)?.split_off(STATE_AT)),
            None => Ok(Vec::new()),
        }
    }
}

impl Trial {
    /// The result of a frame that arrives at `now`, `repeat` times.
    ///
    /// # Errors
    /// If the kernel refuses the frame, for example one shorter than an Ethernet header.
    pub fn run(
        &self,
        hook: Hook,
        frame: &Frame<'_>,
        now: Time,
        repeat: u32,
    ) -> Result<Outcome, Error> {
        update(&self.clock, &KEY, &now.as_nanos().to_ne_bytes())?;
        let name = hook.program();
        let program = self.object.progs_mut().find(|program| program.name() == name);
        let program = program.expect("invariant: loaded with both programs");
        let mut bytes = vec![0; frame.bytes.len() + ROOM_BYTES];
        let mut context = [0; CONTEXT_BYTES];
        context[GSO_SEGS..][..4].copy_from_slice(&frame.segments.to_ne_bytes());
        context[GSO_SIZE..][..4].copy_from_slice(&frame.segment_size.to_ne_bytes());
        let is_skb = name == "police_skb";
        let input = ProgramInput {
            context_in: is_skb.then_some(&mut context[..]),
            data_in: Some(frame.bytes),
            data_out: Some(&mut bytes),
            repeat,
            ..Default::default()
        };
        let output =
            program.test_run(input).map_err(|e| crate::bpf::bpf_error("run the policer", &e))?;
        let verdict = output.return_value as i32;
        let bytes = output.data.map(|data| data.to_vec()).unwrap_or_default();
        let span = Span::nanos(output.duration.as_nanos() as u64);
        let verdict = match (is_skb, verdict) {
            (true, TC_ACT_UNSPEC) | (false, XDP_PASS) if bytes == frame.bytes => Verdict::Pass,
            (true, TC_ACT_UNSPEC) | (false, XDP_PASS) => Verdict::Mark,
            (true, TC_ACT_SHOT) | (false, XDP_DROP) => Verdict::Drop,
            _ => panic!("the policer passes, marks or drops: {verdict}"),
        };
        Ok(Outcome { verdict, bytes, span })
    }
}

impl Bench {
    /// The time to police `turns` frames like `frame`, plain Ethernet with IPv4 and UDP. Each goes
    /// to a random one of `subscribers`, whose addresses begin with 10.0.0.0, and has a source port
    /// whose bits are random where `ports` has ones.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn run(
        &self,
        frame: &[u8],
        subscribers: u32,
        ports: u16,
        turns: u32,
        seed: u64,
    ) -> Result<Span, Error> {
        let bench = abi::Bench { turns, subscribers, ports: ports.into(), pad: 0, random: seed };
        update(&self.settings, &KEY, bench.as_bytes())?;
        let program = self.object.progs_mut().find(|program| program.name() == BENCH);
        let program = program.expect("invariant: loaded with this program");
        let input = ProgramInput { data_in: Some(frame), ..Default::default() };
        let output = program
            .test_run(input)
            .map_err(|e| crate::bpf::bpf_error("run the policer's benchmark", &e))?;
        Ok(Span::nanos(output.duration.as_nanos() as u64))
    }
}

const BENCH: &str = "police_bench";
/// Bytes by which a frame can grow, with room to spare.
const ROOM_BYTES: usize = 64;
/// `struct __sk_buff`, whose layout is part of the kernel's interface, and fields in it.
const CONTEXT_BYTES: usize = 192;
const GSO_SEGS: usize = 164;
const GSO_SIZE: usize = 176;
const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_SHOT: i32 = 2;
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;

#[cfg(test)]
impl Police {
    /// Number of size classes of slots.
    pub(crate) const SIZE_CLASSES: usize = abi::CLASSES;

    /// The object before it is loaded, with one program, for uploads by Ethernet, and for slots of
    /// one size class or of all.
    pub(crate) fn open_program(
        &mut self,
        name: &str,
        class: Option<usize>,
    ) -> Result<libbpf_rs::OpenObject, Error> {
        let classes = class.map_or(Classes::ALL, |class| Classes::default().with(class));
        let settings = Settings {
            is_upload: 1,
            has_ethernet: 1,
            overhead: 24,
            is_trial: 0,
            classes: classes.bits(),
        };
        self.tables_of(Direction::Upload)?.maps.open(&[name], settings)
    }
}
