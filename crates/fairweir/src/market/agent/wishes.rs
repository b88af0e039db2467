//! Temporary wishes of the household, in addition to its file.

use fairweir_config::agent::{self, KINDS};
use fairweir_config::host::set::{Changes, Setting};
use fairweir_core::market::utility::Kind;
use fairweir_core::units::Time;
use fairweir_daemon::StateDir;

use super::Agent;
use crate::host::stored::put;
use crate::host::wire::Changed;
use crate::market::cli::{BOOST_MINUTES_MAX, HOLIDAY_DAYS_MAX};

/// The keys `boost.KIND` and `holiday`: temporary wishes, which are not part of the configuration.
#[derive(Clone, Copy)]
enum Wish {
    Boost(Kind),
    Holiday,
}

impl Wish {
    fn of(key: &str) -> Option<Wish> {
        let kind = |kind| KINDS.iter().position(|known| *known == kind).map(|i| Kind::ALL[i]);
        match key.strip_prefix(BOOST) {
            Some(name) => kind(name).map(Wish::Boost),
            None => (key == HOLIDAY).then_some(Wish::Holiday),
        }
    }

    /// The length of the wish's unit in seconds, and the most units.
    fn unit(self) -> (u64, u32) {
        match self {
            Wish::Boost(_) => (60, BOOST_MINUTES_MAX as u32),
            Wish::Holiday => (86_400, HOLIDAY_DAYS_MAX as u32),
        }
    }
}

impl Agent {
    /// Changes the household's preferences and wishes: all changes or, on an error, no change.
    pub(super) fn set(&mut self, changes: &Changes, now: Time) -> Result<Changed, String> {
        let is_wish = |key: &String| key == HOLIDAY || key.starts_with(BOOST);
        let mut wishes = Vec::new();
        for (key, value) in changes.iter().filter(|(key, _)| is_wish(key)) {
            let wish = Wish::of(key).ok_or_else(|| {
                let kind = key.strip_prefix(BOOST).unwrap_or(key);
                fairweir_config::not_one_of(kind, &KINDS)
            })?;
            let most = wish.unit().1;
            let number = match value {
                None => 0,
                Some(Setting::Number(number)) if (1..=most).contains(number) => *number,
                _ => return Err(format!("{key}: expected 1 to {most}, or nothing to end it")),
            };
            wishes.push((key, wish, number));
        }
        let mut stored = changes.clone();
        stored.retain(|key, _| !is_wish(key));
        let names: Vec<&String> =
            self.household.preferences().times.iter().map(|t| &t.name).collect();
        for (key, value) in &stored {
            // A value for a time of the week that no longer exists can still be removed.
            if let (Some(["time", name, _]), Some(_)) = (agent::path_of(key).as_deref(), value)
                && !names.iter().any(|known| known == name)
            {
                return Err(format!("no time `{name}`"));
            }
        }
        let mut changed = match stored.is_empty() {
            true => Changed { message: String::new(), undo: Changes::new() },
            false => {
                let dir = agent::set_dir(&self.config.path);
                let made = std::fs::create_dir_all(&dir);
                made.map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
                let dir = StateDir::new(&dir);
                put(&dir, &stored, agent::path_of, || self.load(false).map(drop))?
            }
        };
        let market_s = self.market_s(now);
        for (key, wish, number) in wishes {
            let (unit_s, most) = wish.unit();
            let until_s = match number {
                0 => 0,
                number => market_s.saturating_add(u64::from(number) * unit_s),
            };
            let before_s = match wish {
                Wish::Boost(kind) => self.household.boost(kind, until_s),
                Wish::Holiday => self.household.set_holiday(until_s),
            };
            let left = before_s.saturating_sub(market_s).div_ceil(unit_s).min(most.into());
            let left = u32::try_from(left).ok().filter(|left| *left > 0);
            changed.undo.insert(key.clone(), left.map(Setting::Number));
            let text = wish_in_words(wish, number.into());
            changed.message = match changed.message.is_empty() {
                true => text,
                false => format!("{}, {text}", changed.message),
            };
        }
        self.store();
        self.tick_at = now;
        Ok(changed)
    }
}

/// The reply to a wish.
fn wish_in_words(wish: Wish, number: u64) -> String {
    let kind = |kind: Kind| KINDS[kind as usize];
    match (wish, number) {
        (Wish::Boost(of), 0) => format!("{} is as in the configuration", kind(of)),
        (Wish::Boost(of), minutes) => {
            format!("{} is above all else from the next slot on, for {minutes} minutes", kind(of))
        }
        (Wish::Holiday, 0) => "the holiday is over".to_owned(),
        (Wish::Holiday, days) => format!("nothing is spent for {days} days"),
    }
}

pub(super) const BOOST: &str = "boost.";
pub(super) const HOLIDAY: &str = "holiday";
