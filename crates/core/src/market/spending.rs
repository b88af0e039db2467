//! A household's best response: what to spend in each following slot (MYOB eq. (5), level 1).
//!
//! Problem: maximise Σ Uₜ(floor + xₜ/priceₜ) over the spends xₜ ≥ 0, where the spends up to each slot
//! are at most the balance plus the receipts until then, and the balance stays below the cap, above
//! which credits go to others. Method: at the optimum a credit is worth the same in every slot of a
//! stretch that ends with an empty balance (its worth falls there) or a full one (it rises). So the
//! worth of a stretch is raised as far as its empty balance demands, and lowered as far as its full
//! balance demands; where both meet, the stretch ends at the earlier of the two: a taut string.
//! O(T²) evaluations and T root searches for T slots.
//!
//! If the peaks keep a household from spending enough, the balance exceeds the cap: this is not
//! infeasible, but gives credits away.

use super::root;
use super::utility::{RATE_MAX, RATE_MIN, Utility};

/// A future slot, as a household expects it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// The household's utility of rates.
    pub utility: Utility,
    /// Credits for each Mbit/s beyond the floor.
    pub price: f64,
    /// The rate that it has without spending, in Mbit/s.
    pub floor: f64,
    /// The highest rate that it can use, in Mbit/s.
    pub peak: f64,
    /// Credits that it receives at the end of the slot.
    pub receives: f64,
    /// The additional utility of each credit that it spends, up to the peak; not negative. Zero for a household that
    /// acts for itself alone.
    pub bonus: f64,
}

impl Slot {
    /// A slot under the paper's rule: the rate is the spend.
    pub fn plain(utility: Utility, receives: f64) -> Slot {
        Slot { utility, price: 1.0, floor: 0.0, peak: f64::INFINITY, receives, bonus: 0.0 }
    }
}

/// The best spends, in credits, of a household with this balance.
pub fn best_spends(balance: f64, cap: Option<f64>, slots: &[Slot]) -> Vec<f64> {
    plan_first(balance, cap, slots, slots.len())
}

/// The best spend of the first slot: the first value of [`best_spends`], at a lower cost.
pub fn next(balance: f64, cap: Option<f64>, slots: &[Slot]) -> f64 {
    plan_first(balance, cap, slots, 1).first().copied().unwrap_or(0.0)
}

/// The best spends of the first `count` slots, or of more.
fn plan_first(balance: f64, cap: Option<f64>, slots: &[Slot], count: usize) -> Vec<f64> {
    let mut spends = Vec::with_capacity(slots.len());
    // The most and the least that may be spent in total up to each slot.
    let mut most = Vec::with_capacity(slots.len());
    let mut least = Vec::with_capacity(slots.len());
    let mut all = balance;
    for slot in slots {
        most.push(all);
        all += slot.receives;
        let full = cap.map_or(f64::NEG_INFINITY, |cap| all - cap);
        least.push(full.min(most[most.len() - 1]));
    }
    let mut responses: Vec<Response> = slots.iter().map(Response::new).collect();
    let mut spent = 0.0;
    while spends.len() < count.min(slots.len()) {
        let start = spends.len();
        let stretch = stretch(&mut responses[start..], &most[start..], &least[start..], spent);
        for response in &mut responses[start..start + stretch.slots] {
            let (spend, _) = response.spend_at(stretch.worth);
            spends.push(spend);
            spent += spend;
        }
        // Rounding must not spend credits that do not exist.
        let end = spends.len() - 1;
        let over = spent - most[end];
        if over > 0.0 {
            let last = spends[end];
            spends[end] = (last - over).max(0.0);
            spent += spends[end] - last;
        }
    }
    spends
}

/// The spend in a slot as a function of a credit's worth. Worths and rates are in logarithms, in which the relation is
/// nearly linear, so a few of Newton's steps lead from the last query to the next one.
struct Response<'a> {
    slot: &'a Slot,
    log_price: f64,
    /// The floor, and the peak.
    rates: (f64, f64),
    /// Above the first worth nothing is spent; below the second, the cost of the peak.
    worths: (f64, f64),
    /// A known worth, its rate, and the derivative of the rate.
    known: (f64, f64, f64),
}

impl Response<'_> {
    fn new(slot: &Slot) -> Response<'_> {
        let log_price = slot.price.ln();
        let floor = slot.floor.max(RATE_MIN).ln();
        let peak = slot.peak.min(RATE_MAX).ln().max(floor);
        let worth = |rate: f64| slot.utility.log_slope(rate).0 - log_price;
        let worths = (worth(floor), worth(peak));
        let known = (worths.0, floor, (peak - floor) / (worths.1 - worths.0));
        Response { slot, log_price, rates: (floor, peak), worths, known }
    }

    /// The spend at which one more credit is worth `worth`, and its derivative.
    fn spend_at(&mut self, worth: f64) -> (f64, f64) {
        // The worth that a credit must have here besides the bonus, and its derivative.
        let (worth, part) = match self.slot.bonus {
            bonus if bonus > 0.0 => {
                let own = (worth.exp() - bonus).max(0.0);
                (own.ln(), worth.exp() / own)
            }
            _ => (worth, 1.0),
        };
        if worth >= self.worths.0 {
            return (0.0, 0.0);
        }
        let Slot { utility, price, floor, .. } = *self.slot;
        if worth <= self.worths.1 {
            return (price * (self.rates.1.exp() - floor).max(0.0), 0.0);
        }
        let (known, rate, bend) = self.known;
        let mut bend_now = bend;
        let found =
            root::falling(self.rates, rate + bend * (worth - known), RATE_EPSILON, |rate| {
                let (slope, bend) = utility.log_slope(rate);
                bend_now = bend.recip();
                (slope - self.log_price - worth, bend)
            });
        self.known = (worth, found, bend_now);
        let rate = found.exp();
        (price * (rate - floor).max(0.0), price * rate * bend_now * part)
    }

    /// The worth of a credit at this spend.
    fn worth_of(&self, spend: f64) -> f64 {
        let rate = (self.slot.floor + spend / self.slot.price).ln();
        let own =
            self.slot.utility.log_slope(rate.clamp(self.rates.0, self.rates.1)).0 - self.log_price;
        if self.slot.bonus > 0.0 { (own.exp() + self.slot.bonus).ln() } else { own }
    }
}

/// Slots in which a credit is worth the same.
struct Stretch {
    slots: usize,
    /// The logarithm of that worth.
    worth: f64,
}

/// The first stretch of some slots; `spent` was spent before them.
fn stretch(slots: &mut [Response], most: &[f64], least: &[f64], spent: f64) -> Stretch {
    // A credit is worth at least `low`, else the balance at `empty` would be negative; and at most
    // `high`, else the one after `full` would be above the cap.
    let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
    let (mut empty, mut full) = (None::<usize>, None::<usize>);
    let (mut at_low, mut at_high) = (0.0, 0.0);
    for t in 0..slots.len() {
        at_low += slots[t].spend_at(low).0;
        at_high += slots[t].spend_at(high).0;
        let (upper, lower) = (most[t] - spent, least[t] - spent);
        if at_low > upper {
            let worth = worth_of(&mut slots[..=t], upper, low);
            if worth > high {
                return Stretch { slots: full.unwrap_or(t) + 1, worth: high };
            }
            (low, empty, at_low) = (worth, Some(t), upper.max(0.0));
        }
        if at_high < lower {
            let worth = worth_of(&mut slots[..=t], lower, high);
            if worth < low {
                return Stretch { slots: empty.unwrap_or(t) + 1, worth: low };
            }
            (high, full) = (worth, Some(t));
            at_high = slots[..=t].iter_mut().map(|slot| slot.spend_at(worth).0).sum();
        }
    }
    Stretch { slots: empty.map_or(slots.len(), |empty| empty + 1), worth: low }
}

/// The worth of a credit if these slots spend `total`, searched from `known` on if that is finite. Negative infinity,
/// the logarithm of 0, if they cannot spend that much.
fn worth_of(slots: &mut [Response], total: f64, known: f64) -> f64 {
    if total <= CREDITS_MIN {
        return f64::INFINITY;
    }
    let room: f64 = slots.iter_mut().map(|slot| slot.spend_at(f64::NEG_INFINITY).0).sum();
    if room <= total {
        return f64::NEG_INFINITY;
    }
    let equal = total / slots.len() as f64;
    let start = match known.is_finite() {
        true => known,
        false => slots[slots.len() - 1].worth_of(equal),
    };
    let log = total.ln();
    root::falling(LOG_WORTHS, start, WORTH_EPSILON, |worth| {
        let (spent, bend) = slots.iter_mut().fold((0.0, 0.0), |(spent, bend), slot| {
            let (spend, more) = slot.spend_at(worth);
            (spent + spend, bend + more)
        });
        let spent = spent.max(f64::MIN_POSITIVE);
        (spent.ln() - log, bend / spent)
    })
}

/// A thousandth of a micro-credit counts as zero.
const CREDITS_MIN: f64 = 1e-9;

/// Tolerance of the logarithm of a slope.
const RATE_EPSILON: f64 = 1e-7;

/// Tolerance of the logarithm of a sum of spends.
const WORTH_EPSILON: f64 = 1e-9;

/// Logarithms of the worths between which the search takes place.
const LOG_WORTHS: (f64, f64) = (-40.0, 40.0);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The value of a plan.
    fn value(slots: &[Slot], spends: &[f64]) -> f64 {
        let rate = |s: &Slot, x: f64| (s.floor + x / s.price).min(s.peak);
        let counted = |s: &Slot, x: f64| s.bonus * x.min(s.price * (s.peak - s.floor));
        slots.iter().zip(spends).map(|(s, &x)| s.utility.value(rate(s, x)) + counted(s, x)).sum()
    }

    /// Whether all balances are possible; the cap is not applied to the last one.
    fn is_feasible(balance: f64, cap: Option<f64>, slots: &[Slot], spends: &[f64]) -> bool {
        let mut balance = balance;
        slots.iter().zip(spends).all(|(slot, &x)| {
            let is_possible = x >= 0.0 && x <= balance + 1e-9;
            balance += slot.receives - x;
            is_possible && cap.is_none_or(|cap| balance <= cap + 1e-9)
        })
    }

    fn slots() -> impl Strategy<Value = Vec<Slot>> {
        let bonus = prop_oneof![Just(0.0), 0.0..40.0_f64];
        let slot =
            (prop::array::uniform4(0.0..4.0_f64), 0.2..2.0_f64, 0.0..2.0_f64, 0.0..12.0_f64, bonus)
                .prop_map(|(mut weights, price, floor, receives, bonus)| {
                    weights[1] += 0.1;
                    Slot { utility: Utility { weights }, price, floor, peak: 60.0, receives, bonus }
                });
        prop::collection::vec(slot, 1..14)
    }

    proptest! {
        /// The problem is concave, so a plan that no small move between two slots improves is the best.
        #[test]
        fn no_move_of_credits_is_better(
            slots in slots(), balance in 0.0..32.0_f64, cap in prop::option::of(Just(32.0)),
            moves in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 20),
        ) {
            let best = best_spends(balance, cap, &slots);
            prop_assert_eq!(best.len(), slots.len());
            prop_assert!(is_feasible(balance, None, &slots, &best), "{:?}", best);
            if !is_feasible(balance, cap, &slots, &best) {
                // Only the peaks can be the reason for an infeasible balance.
                prop_assert!(slots.iter().zip(&best).any(|(s, x)| s.floor + x / s.price >= s.peak - 1e-6));
                return Ok(());
            }
            let worth = value(&slots, &best);
            for (from, to) in moves {
                let (from, to) = (from.index(slots.len()), to.index(slots.len()));
                for part in [0.3, 0.01] {
                    let mut other = best.clone();
                    let moved = part * other[from];
                    other[from] -= moved;
                    other[to] += moved;
                    let possible = is_feasible(balance, cap, &slots, &other);
                    prop_assert!(!possible || value(&slots, &other) <= worth * (1.0 + 1e-9),
                        "from {} to {}", from, to);
                }
            }
        }
    }

    #[test]
    fn without_credits_or_uses_nothing_is_spent() {
        let slot = Slot::plain(Utility::default(), 3.0);
        assert_eq!(best_spends(5.0, Some(32.0), &[slot; 3]), [0.0; 3]);
        let slot = Slot::plain(Utility::only(crate::market::utility::Kind::Social, 1.0), 0.0);
        assert_eq!(best_spends(0.0, None, &[slot; 3]), [0.0; 3]);
        assert!(best_spends(1.0, None, &[]).is_empty());
    }
}
