//! Detects that STARTUP has filled the pipe.

/// Looks for the end of growth: three rounds in which the rate grew by less than a quarter
/// (draft-cardwell-iccrg-bbr-congestion-control-00 §4.3.2.2).
#[derive(Clone, Debug, Default)]
pub struct Pipe {
    /// The largest rate at the time it last grew.
    rate: f64,
    rounds_without_growth: u32,
    is_full: bool,
}

impl Pipe {
    /// Whether the pipe is full; once full, it stays so.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// A round that the application did not limit is over; `rate_max` is the largest recent rate.
    pub fn handle_round(&mut self, rate_max: f64) {
        if self.is_full {
            return;
        }
        if rate_max >= self.rate * GROWTH {
            self.rate = rate_max;
            self.rounds_without_growth = 0;
            return;
        }
        self.rounds_without_growth += 1;
        self.is_full = self.rounds_without_growth >= ROUNDS;
    }

    /// Forgets what the path holds: any rate then counts as growth.
    pub fn forget_rate(&mut self) {
        self.rate = 0.0;
    }
}

const GROWTH: f64 = 1.25;
const ROUNDS: u32 = 3;
