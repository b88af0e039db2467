//! Segments and their members. The kernel updates gates and guarantees with each packet; the caller
//! divides the capacity now and then and sets the paces. See `fairweir_core::phantom::segment`.

use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering;

use fairweir_core::phantom::plan::Pace;
use fairweir_core::phantom::segment::Schedule;
use fairweir_core::units::{Bytes, Rate, Time};

use super::abi::{MEMBERS, Member, SEGMENTS, Segment};
use super::maps::{Maps, Shared};
use super::subscribers::Seat;
use super::{Direction, Police, SubscriberId, plan};
use crate::Error;
use crate::bpf::abi::Plain;

/// The caller's number of a segment in one direction, below [`SEGMENTS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u16);

/// The most segments.
pub const SEGMENTS_MAX: u16 = SEGMENTS as u16;

/// What a member has used since it joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes that passed.
    pub passed: Bytes,
    /// Packets that found the segment's gate full.
    pub refused_packets: u64,
}

/// Maps the segments and the members into this process.
pub(super) fn map(maps: &Maps) -> Result<(Shared, Shared), Error> {
    Ok((
        Shared::of(maps.map("segments"), "segments", SEGMENTS as usize * SEGMENT_WORDS)?,
        Shared::of(maps.map("members"), "members", MEMBERS as usize * MEMBER_WORDS)?,
    ))
}

impl Police {
    /// Sets the capacity of a segment.
    ///
    /// # Panics
    /// If the number is not below [`SEGMENTS_MAX`].
    pub fn set_segment(&self, id: SegmentId, capacity: Rate) {
        let Schedule { cost, slack } = Schedule::new(capacity);
        self.write_segment(id, SEGMENT_COST, cost);
        self.write_segment(id, SEGMENT_SLACK, slack);
    }

    /// Keeps the paces of a segment's members in force until this time.
    pub fn extend(&self, id: SegmentId, until: Time) {
        self.write_segment(id, SEGMENT_UNTIL, until.as_nanos());
    }

    /// Makes a subscriber a member of a segment in a direction, without a guarantee; does nothing
    /// if the subscriber has no plan for that direction.
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`], [`Error::TooMany`], or if the kernel refuses.
    pub fn join(
        &mut self,
        id: SubscriberId,
        direction: Direction,
        segment: SegmentId,
        pace: &Pace,
    ) -> Result<(), Error> {
        let Some(seat) = self.subscriber(id)?.seats[direction.index()] else { return Ok(()) };
        if seat.member != 0 {
            self.write_pace(seat.member, pace);
            self.write(seat.member, MEMBER_SEGMENT, segment.0.into());
            return Ok(());
        }
        let too_many = Error::TooMany { what: "members of segments".to_owned(), max: MEMBERS - 1 };
        let member = super::lend_patiently(&mut self.member_numbers).ok_or(too_many)?.number;
        (MEMBER_SEGMENT..MEMBER_WORDS).for_each(|word| self.write(member, word, 0));
        self.write_pace(member, pace);
        self.write(member, MEMBER_SEGMENT, segment.0.into());
        let seated = self.seat_member(id, direction, Seat { member, ..seat });
        seated.inspect_err(|_| self.member_numbers.give_back(member))
    }

    /// Ends a subscriber's membership.
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`], or if the kernel refuses.
    pub fn part(&mut self, id: SubscriberId, direction: Direction) -> Result<(), Error> {
        let seat = self.subscriber(id)?.seats[direction.index()];
        let Some(seat) = seat.filter(|seat| seat.member != 0) else { return Ok(()) };
        self.seat_member(id, direction, Seat { member: 0, ..seat })?;
        self.member_numbers.give_back(seat.member);
        Ok(())
    }

    /// Sets a member's pace.
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`].
    pub fn set_pace(
        &self,
        id: SubscriberId,
        direction: Direction,
        pace: &Pace,
    ) -> Result<(), Error> {
        if let Some(member) = self.member(id, direction)? {
            self.write_pace(member, pace);
        }
        Ok(())
    }

    /// Guarantees a member a rate.
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`].
    pub fn set_guarantee(
        &self,
        id: SubscriberId,
        direction: Direction,
        rate: Rate,
    ) -> Result<(), Error> {
        if let Some(member) = self.member(id, direction)? {
            let Schedule { cost, slack } = Schedule::new(rate);
            self.write(member, MEMBER_SLACK, slack);
            self.write(member, MEMBER_COST, cost);
        }
        Ok(())
    }

    /// What a member has used; `None` if the subscriber is in no segment.
    ///
    /// # Errors
    /// [`Error::UnknownSubscriber`].
    pub fn used(&self, id: SubscriberId, direction: Direction) -> Result<Option<Used>, Error> {
        let used = |member| {
            let read = |word| self.members.word(index(member, word)).load(Ordering::Relaxed);
            let passed = Bytes::new(read(MEMBER_PASSED));
            Used { passed, refused_packets: read(MEMBER_REFUSED) }
        };
        Ok(self.member(id, direction)?.map(used))
    }

    fn member(&self, id: SubscriberId, direction: Direction) -> Result<Option<u32>, Error> {
        let seat = self.subscriber(id)?.seats[direction.index()];
        Ok(seat.map(|seat| seat.member).filter(|&member| member != 0))
    }

    /// Writes word by word: for one packet a program may see parts of both paces, each of which is allowed.
    fn write_pace(&self, member: u32, pace: &Pace) {
        let pace = plan::pace(pace);
        for (word, bytes) in pace.as_bytes().chunks_exact(8).enumerate() {
            let bytes = bytes.try_into().expect("invariant: chunks of eight");
            self.write(member, word, u64::from_ne_bytes(bytes));
        }
    }

    fn write(&self, member: u32, word: usize, value: u64) {
        self.members.word(index(member, word)).store(value, Ordering::Relaxed);
    }

    fn write_segment(&self, id: SegmentId, word: usize, value: u64) {
        let index = usize::from(id.0) * SEGMENT_WORDS + word;
        self.segments.word(index).store(value, Ordering::Relaxed);
    }
}

fn index(member: u32, word: usize) -> usize {
    member as usize * MEMBER_WORDS + word
}

/// Number of words of a member and of a segment, and the indices of these fields.
const MEMBER_WORDS: usize = size_of::<Member>() / 8;
const MEMBER_SEGMENT: usize = offset_of!(Member, segment) / 8;
const MEMBER_COST: usize = offset_of!(Member, cost) / 8;
const MEMBER_SLACK: usize = offset_of!(Member, slack) / 8;
const MEMBER_PASSED: usize = offset_of!(Member, passed) / 8;
const MEMBER_REFUSED: usize = offset_of!(Member, refused) / 8;
const SEGMENT_WORDS: usize = size_of::<Segment>() / 8;
const SEGMENT_COST: usize = offset_of!(Segment, cost) / 8;
const SEGMENT_SLACK: usize = offset_of!(Segment, slack) / 8;
const SEGMENT_UNTIL: usize = offset_of!(Segment, until) / 8;
