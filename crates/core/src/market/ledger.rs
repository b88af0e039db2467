//! The ledger's arithmetic: whole micro-credits, conserved to the unit.
//!
//! Method: what a gateway spends is received by the others in equal parts (MYOB eq. (1)), rounded
//! down; the units left over by rounding go one each to the seats from `slot` on, so that no
//! seat has an advantage over time. A balance above the cap gives its excess to those below it, which
//! all grow by the same amount up to the cap: the paper's iteration in closed form.
//!
//! Properties, all tested: the sum of the balances after a close is the sum before, exactly; no
//! balance is negative or above the cap; a join adds exactly one share to the sum and a leave
//! removes exactly one. With balances up to [`Credits::MAX`] and [`GATEWAYS_MAX`] gateways no sum
//! overflows.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::share::{Claim, divide};
use crate::units::Rate;

/// An amount of credits, in whole micro-credits. One credit buys 1 Mbit/s for a slot in the paper's
/// rule, so one micro-credit is 1 bit/s. Text and serde form: a decimal string of micro-credits, at
/// most [`Credits::MAX`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Credits(u64);

/// The most gateways of a market.
pub const GATEWAYS_MAX: usize = 1 << 20;

impl Credits {
    /// No credits.
    pub const ZERO: Credits = Credits(0);
    /// The largest amount: a million credits.
    pub const MAX: Credits = Credits(1_000_000_000_000);

    /// `n` micro-credits, or [`Credits::MAX`] if that is less.
    pub const fn micro(n: u64) -> Credits {
        if n > Credits::MAX.0 { Credits::MAX } else { Credits(n) }
    }

    /// `n` whole credits, or [`Credits::MAX`] if that is less.
    pub const fn whole(n: u64) -> Credits {
        Credits::micro(n.saturating_mul(1_000_000))
    }

    /// The amount nearest to `credits`; zero for a negative number or NaN.
    pub fn nearest(credits: f64) -> Credits {
        Credits::micro((credits * 1e6).round() as u64)
    }

    /// The amount in micro-credits.
    pub const fn as_micro(self) -> u64 {
        self.0
    }

    /// The amount in credits, for planning and printing.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The rate that the amount buys by the paper's rule.
    pub const fn as_rate(self) -> Rate {
        Rate::bps(self.0)
    }

    /// `self - other`, or zero if that would be negative.
    pub const fn saturating_sub(self, other: Credits) -> Credits {
        Credits(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is not an amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("amount `{0}` is invalid (a whole number of micro-credits, 0 to {max})", max = Credits::MAX)]
pub struct AmountError(String);

impl FromStr for Credits {
    type Err = AmountError;
    fn from_str(text: &str) -> Result<Credits, AmountError> {
        let digits = (1..=DIGITS_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_digit());
        let amount = text.parse().ok().filter(|&n| digits && n <= Credits::MAX.0);
        let shown = || text.chars().take(SHOWN_MAX).collect();
        amount.map(Credits).ok_or_else(|| AmountError(shown()))
    }
}

impl TryFrom<String> for Credits {
    type Error = AmountError;
    fn try_from(text: String) -> Result<Credits, AmountError> {
        text.parse()
    }
}

impl From<Credits> for String {
    fn from(amount: Credits) -> String {
        amount.to_string()
    }
}

/// A slot's effect on one gateway: closing = opening − spent + received + moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// The balance before.
    pub opening: Credits,
    /// What it paid for the slot.
    pub spent: Credits,
    /// Its part of what the others paid.
    pub received: Credits,
    /// What the cap gave to it, or took from it if negative, in micro-credits.
    pub moved: i64,
    /// The balance after.
    pub closing: Credits,
}

/// Why amounts are not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// A spend above the balance.
    #[error("seat {seat} spends {spend}, more than its balance of {balance}")]
    Overspent {
        /// The seat.
        seat: usize,
        /// What it would spend.
        spend: Credits,
        /// Its balance.
        balance: Credits,
    },
    /// The number of spends is not that of the balances.
    #[error("{spends} spends for {gateways} gateways")]
    Count {
        /// The number of spends.
        spends: usize,
        /// The number of gateways.
        gateways: usize,
    },
    /// There are too many gateways.
    #[error("a market has at most {GATEWAYS_MAX} gateways")]
    TooMany,
    /// There is no such seat.
    #[error("there is no seat {0}")]
    NoSeat(usize),
    /// The caps cannot hold all credits.
    #[error("the cap of {0} is below the credits per gateway")]
    CapTooLow(Credits),
}

/// Closes a slot: every gateway pays its spend and receives an equal part of what the others paid.
///
/// O(n), and O(n log n) if a balance is above the cap. A lone gateway receives its own spend.
///
/// # Errors
/// If a spend is above its balance, or the caps cannot hold all credits; then nothing is computed.
pub fn close(
    balances: &[Credits],
    spends: &[Credits],
    cap: Option<Credits>,
    slot: u64,
) -> Result<Vec<Statement>, LedgerError> {
    let gateways = balances.len();
    if gateways > GATEWAYS_MAX {
        return Err(LedgerError::TooMany);
    }
    if spends.len() != gateways {
        return Err(LedgerError::Count { spends: spends.len(), gateways });
    }
    for (seat, (&spend, &balance)) in spends.iter().zip(balances).enumerate() {
        if spend > balance {
            return Err(LedgerError::Overspent { seat, spend, balance });
        }
    }
    let total: u64 = spends.iter().map(|spend| spend.0).sum();
    let others = gateways.saturating_sub(1).max(1) as u64;
    let part = |spend: &Credits| match gateways {
        1 => spend.0,
        _ => (total - spend.0) / others,
    };
    let mut received: Vec<u64> = spends.iter().map(part).collect();
    let left = total - received.iter().sum::<u64>();
    for j in 0..left {
        let seat = (slot.wrapping_add(j) % gateways as u64) as usize;
        received[seat] += 1;
    }
    let before: Vec<u64> =
        (0..gateways).map(|i| balances[i].0 - spends[i].0 + received[i]).collect();
    let after = capped(&before, cap, slot)?;
    let statement = |i: usize| Statement {
        opening: balances[i],
        spent: spends[i],
        received: Credits(received[i]),
        moved: after[i] as i64 - before[i] as i64,
        closing: Credits(after[i]),
    };
    Ok((0..gateways).map(statement).collect())
}

/// Adds a gateway as the last seat, and one share to the credits. The gateway gets the share, or its balance
/// when it left if that is less; the rest goes to the others.
///
/// # Errors
/// If there are too many gateways, or the caps cannot hold all credits.
pub fn join(
    balances: &[Credits],
    share: Credits,
    had: Option<Credits>,
    cap: Option<Credits>,
    slot: u64,
) -> Result<Vec<Credits>, LedgerError> {
    if balances.len() >= GATEWAYS_MAX {
        return Err(LedgerError::TooMany);
    }
    // A lone gateway has no others that could receive the rest.
    let own = match balances.is_empty() {
        true => share,
        false => had.map_or(share, |had| had.min(share)),
    };
    let mut amounts: Vec<u64> = balances.iter().map(|balance| balance.0).collect();
    give(&mut amounts, share.0 - own.0, slot);
    amounts.push(own.0);
    credits(capped(&amounts, cap, slot)?)
}

/// Removes a gateway, and one share from the credits. If its balance is above the share, the excess goes to
/// the others in equal parts; if it is below, the others pay the difference.
///
/// # Errors
/// If there is no such seat, or the caps cannot hold all credits.
pub fn leave(
    balances: &[Credits],
    seat: usize,
    share: Credits,
    cap: Option<Credits>,
    slot: u64,
) -> Result<Vec<Credits>, LedgerError> {
    let left = *balances.get(seat).ok_or(LedgerError::NoSeat(seat))?;
    let mut amounts: Vec<u64> = balances.iter().map(|balance| balance.0).collect();
    amounts.remove(seat);
    give(&mut amounts, left.0.saturating_sub(share.0), slot);
    let lacks = share.0.saturating_sub(left.0);
    let collected = fill(lacks, &amounts, slot);
    amounts.iter_mut().zip(collected).for_each(|(amount, part)| *amount -= part);
    credits(capped(&amounts, cap, slot)?)
}

fn credits(amounts: Vec<u64>) -> Result<Vec<Credits>, LedgerError> {
    Ok(amounts.into_iter().map(Credits).collect())
}

/// Adds `amount` in equal parts.
fn give(amounts: &mut [u64], amount: u64, slot: u64) {
    let parts = fill(amount, &vec![u64::MAX; amounts.len()], slot);
    amounts.iter_mut().zip(parts).for_each(|(amount, part)| *amount += part);
}

/// Moves credits above the cap to balances below it.
fn capped(amounts: &[u64], cap: Option<Credits>, slot: u64) -> Result<Vec<u64>, LedgerError> {
    let Some(cap) = cap else { return Ok(amounts.to_vec()) };
    let excess: u64 = amounts.iter().map(|amount| amount.saturating_sub(cap.0)).sum();
    if excess == 0 {
        return Ok(amounts.to_vec());
    }
    let rooms: Vec<u64> = amounts.iter().map(|amount| cap.0.saturating_sub(*amount)).collect();
    let parts = fill(excess, &rooms, slot);
    if parts.iter().sum::<u64>() < excess {
        return Err(LedgerError::CapTooLow(cap));
    }
    Ok(amounts.iter().zip(parts).map(|(amount, part)| (*amount).min(cap.0) + part).collect())
}

/// Splits an amount into equal parts that do not exceed `rooms`; single units go to the seats from
/// `slot` on.
fn fill(amount: u64, rooms: &[u64], slot: u64) -> Vec<u64> {
    if rooms.is_empty() {
        return Vec::new();
    }
    let first = (slot % rooms.len() as u64) as usize;
    let turned: Vec<Room> =
        (0..rooms.len()).map(|j| Room(rooms[(first + j) % rooms.len()])).collect();
    let mut parts = divide(amount, &turned);
    parts.rotate_right(first);
    parts
}

/// How much more an account can hold, or give.
struct Room(u64);

impl Claim for Room {
    fn weight(&self) -> u64 {
        1
    }

    fn demand(&self) -> Option<u64> {
        Some(self.0)
    }
}

/// Longer texts are not amounts.
const DIGITS_MAX: usize = 13;

/// Longest part of an invalid amount that an error repeats.
const SHOWN_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(balances: &[Credits]) -> u64 {
        balances.iter().map(|balance| balance.0).sum()
    }

    #[test]
    fn amounts_are_whole_bounded_and_read_as_they_are_written() {
        for text in
            ["", "-1", "+1", "1.5", "1e3", " 1", "NaN", "1000000000001", "9223372036854775808"]
        {
            assert!(text.parse::<Credits>().is_err(), "{text}");
        }
        let most = Credits::MAX.to_string();
        assert_eq!(most.parse(), Ok(Credits::MAX));
        assert_eq!(serde_json::to_string(&Credits::whole(2)).unwrap(), "\"2000000\"");
        assert!(serde_json::from_str::<Credits>("5").is_err());
        assert_eq!(Credits::nearest(f64::NAN), Credits::ZERO);
        assert_eq!(Credits::nearest(-3.0), Credits::ZERO);
        assert_eq!(Credits::nearest(f64::INFINITY), Credits::MAX);
    }

    #[test]
    fn a_million_rich_gateways_do_not_overflow() {
        let rich = vec![Credits::MAX; GATEWAYS_MAX];
        let statements = close(&rich, &rich, Some(Credits::MAX), u64::MAX).unwrap();
        assert!(statements.iter().all(|s| s.closing == Credits::MAX));
        assert_eq!(join(&rich, Credits::MAX, None, None, 0), Err(LedgerError::TooMany));
    }

    #[test]
    fn what_is_not_possible_is_refused() {
        let two = [Credits(5), Credits(5)];
        let over = LedgerError::Overspent { seat: 1, spend: Credits(6), balance: Credits(5) };
        assert_eq!(close(&two, &[Credits(5), Credits(6)], None, 0), Err(over));
        let count = LedgerError::Count { spends: 1, gateways: 2 };
        assert_eq!(close(&two, &[Credits(5)], None, 0), Err(count));
        let low = LedgerError::CapTooLow(Credits(4));
        assert_eq!(close(&two, &two, Some(Credits(4)), 0), Err(low));
        assert_eq!(leave(&two, 2, Credits(1), None, 0), Err(LedgerError::NoSeat(2)));
        assert_eq!(close(&[], &[], None, 0), Ok(vec![]));
    }

    #[test]
    fn a_lone_gateway_keeps_its_credits() {
        let statements = close(&[Credits(9)], &[Credits(4)], None, 3).unwrap();
        assert_eq!((statements[0].received, statements[0].closing), (Credits(4), Credits(9)));
    }

    #[test]
    fn proposition_2_bounds_the_hoarder() {
        // n = 16, B = 160, it spends 2 in each slot: its balance goes to 130, the bound is 132.
        let mut balances = vec![Credits::whole(10); 16];
        for slot in 0..2_000 {
            let mut spends = balances.clone();
            spends[0] = Credits::whole(2);
            let statements = close(&balances, &spends, None, slot).unwrap();
            balances = statements.iter().map(|s| s.closing).collect();
        }
        assert!((balances[0].as_f64() - 130.0).abs() < 1e-3, "{}", balances[0]);
    }

    #[test]
    fn proposition_3_holds_with_the_factor_m_that_the_paper_lacks() {
        // n, m, slots, initial balance, gain of the idle gateways: corrected bound, which is tight.
        for (n, m, slots, balance, gain, printed) in
            [(4, 2, 1, 1, 4.0 / 3.0, 2.0 / 3.0), (16, 4, 6, 10, 101.337, 40.676)]
        {
            let mut balances = vec![Credits::whole(balance); n];
            for slot in 0..slots {
                let mut spends = balances.clone();
                spends[..m].fill(Credits::ZERO);
                let statements = close(&balances, &spends, None, slot).unwrap();
                balances = statements.iter().map(|s| s.closing).collect();
            }
            let had = (m as u64 * balance) as f64;
            let gained = sum(&balances[..m]) as f64 / 1e6 - had;
            let rest = (n as u64 * balance) as f64 - had;
            let others = (n - 1) as f64;
            let idle = |m: f64| (1.0 - ((others - m) / others).powi(slots as i32)) * rest;
            assert!((gained - gain).abs() < 1e-3 && (gained - idle(m as f64)).abs() < 1e-4);
            let bound = (1.0 - ((others - 1.0) / others).powi(slots as i32)) * rest;
            assert!((bound - printed).abs() < 1e-3, "{bound}");
        }
    }

    /// Balances with spends that they allow.
    fn accounts() -> impl Strategy<Value = Vec<(Credits, Credits)>> {
        let one = (0..=40_000_000_u64, 0..=1_000_u64)
            .prop_map(|(balance, part)| (Credits(balance), Credits(balance * part / 1_000)));
        prop::collection::vec(one, 1..40)
    }

    proptest! {
        #[test]
        fn credits_are_conserved_to_the_unit(
            accounts in accounts(), slot in any::<u64>(), room in 0..10_000_000_u64,
        ) {
            let (balances, spends): (Vec<_>, Vec<_>) = accounts.into_iter().unzip();
            // The smallest cap that holds all credits, plus some room.
            let cap = Credits(sum(&balances).div_ceil(balances.len() as u64) + room);
            for cap in [None, Some(cap)] {
                let statements = close(&balances, &spends, cap, slot).unwrap();
                let closing: Vec<Credits> = statements.iter().map(|s| s.closing).collect();
                prop_assert_eq!(sum(&closing), sum(&balances));
                prop_assert_eq!(statements.iter().map(|s| s.moved).sum::<i64>(), 0);
                let (spent, received): (u64, u64) = (
                    statements.iter().map(|s| s.spent.0).sum(),
                    statements.iter().map(|s| s.received.0).sum(),
                );
                prop_assert_eq!(spent, received);
                for s in &statements {
                    prop_assert!(cap.is_none_or(|cap| s.closing <= cap));
                    let exact = s.opening.0 as i64 - s.spent.0 as i64 + s.received.0 as i64 + s.moved;
                    prop_assert_eq!(s.closing.0 as i64, exact);
                }
            }
        }

        #[test]
        fn a_join_adds_one_share_and_a_leave_removes_one(
            spends in prop::collection::vec(0..=1_000_u64, 2..20),
            slot in any::<u64>(), who in any::<prop::sample::Index>(), had in 0..20_000_000_u64,
        ) {
            let share = Credits::whole(10);
            let cap = Some(Credits::whole(32));
            let even = vec![share; spends.len()];
            let spends: Vec<Credits> = spends.iter().map(|part| Credits(part * 10_000)).collect();
            let statements = close(&even, &spends, cap, slot).unwrap();
            let balances: Vec<Credits> = statements.iter().map(|s| s.closing).collect();
            let seat = who.index(balances.len());
            let after = leave(&balances, seat, share, cap, slot).unwrap();
            prop_assert_eq!(sum(&after), sum(&balances) - share.0);
            let again = join(&after, share, Some(Credits(had)), cap, slot).unwrap();
            prop_assert_eq!(sum(&again), sum(&balances));
            prop_assert!(again.last().unwrap().0 <= had.min(share.0));
            // A gateway that leaves and returns has no more than before.
            let back = join(&after, share, Some(balances[seat]), cap, slot).unwrap();
            prop_assert!(back.last().unwrap() <= &balances[seat]);
        }

        /// X_i − X_j = (n−1)/n · (b_j − b_i) with equal initial balances: the exact form of
        /// Proposition 1. Rounding adds at most one micro-credit a slot, and a cap what it moved.
        #[test]
        fn whoever_spent_more_has_less_by_proposition_1(
            parts in prop::collection::vec(prop::collection::vec(0..=1_000_u64, 5), 1..60),
            cap in prop::option::of(12..40_u64),
        ) {
            let cap = cap.map(Credits::whole);
            let mut balances = vec![Credits::whole(10); 5];
            let (mut spent, mut moved) = ([0.0; 5], [0.0; 5]);
            for (slot, parts) in parts.iter().enumerate() {
                let spends: Vec<Credits> =
                    balances.iter().zip(parts).map(|(b, p)| Credits(b.0 * p / 1_000)).collect();
                let statements = close(&balances, &spends, cap, slot as u64).unwrap();
                for (i, s) in statements.iter().enumerate() {
                    spent[i] += s.spent.0 as f64;
                    moved[i] += s.moved as f64;
                }
                balances = statements.iter().map(|s| s.closing).collect();
            }
            for j in 1..5 {
                let right = 0.8 * (balances[j].0 as f64 - balances[0].0 as f64)
                    + 0.8 * (moved[0] - moved[j]);
                prop_assert!((spent[0] - spent[j] - right).abs() <= parts.len() as f64);
            }
        }
    }
}
