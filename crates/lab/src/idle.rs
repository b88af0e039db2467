//! Waits until other programs leave the CPU idle: a play during a build runs late and is void.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;

/// Waits until the machine is idle for a second, or `longest` has passed. If it has to wait at all, `report` is
/// called once, with the busy part of the CPU in percent.
///
/// # Errors
/// [`Error::Io`] if the kernel does not report the CPU's use, [`Error::Interrupted`] if cancelled.
pub fn wait_until_idle(
    longest: Duration,
    cancel: &AtomicBool,
    report: impl FnOnce(u64),
) -> Result<(), Error> {
    let (end, mut report) = (Instant::now() + longest, Some(report));
    let (mut before, mut idle) = (Ticks::read()?, 0);
    while idle < IDLE_LOOKS && Instant::now() < end {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        thread::sleep(LOOK);
        let now = Ticks::read()?;
        let busy = now.busy_percent_since(before);
        before = now;
        idle = if busy <= BUSY_MAX { idle + 1 } else { 0 };
        if busy > BUSY_MAX
            && let Some(report) = report.take()
        {
            report(busy);
        }
    }
    Ok(())
}

/// Duration of one measurement of the CPU's use.
const LOOK: Duration = Duration::from_millis(250);
/// Number of consecutive idle measurements that are required: a second.
const IDLE_LOOKS: u32 = 4;
/// Maximum CPU use by other programs on a machine that counts as idle, in percent.
const BUSY_MAX: u64 = 15;

/// The CPUs' busy and total time since the machine started, in ticks, summed over all CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    fn read() -> Result<Ticks, Error> {
        let read = |source| Error::io("read /proc/stat", source);
        let text = fs::read_to_string("/proc/stat").map_err(read)?;
        Ticks::parse(&text).ok_or_else(|| read(std::io::ErrorKind::InvalidData.into()))
    }

    /// Parses the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(text: &str) -> Option<Ticks> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).flat_map(str::parse).collect();
        Some(Ticks { idle: ticks.get(3)? + ticks.get(4)?, all: ticks.iter().sum() })
    }

    fn busy_percent_since(self, before: Ticks) -> u64 {
        let all = self.all.saturating_sub(before.all).max(1);
        100 - (100 * self.idle.saturating_sub(before.idle) / all).min(100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_part_is_what_is_neither_idle_nor_waiting_for_a_disk() {
        let before = Ticks::parse("cpu  10 0 10 100 20 0 0 0 0 0\ncpu0 1").unwrap();
        assert_eq!(before, Ticks { idle: 120, all: 140 });
        let now = Ticks::parse("cpu  20 0 15 150 45 0 5 5 0 0\n").unwrap();
        assert_eq!(now.busy_percent_since(before), 25);
        assert_eq!(now.busy_percent_since(now), 100);
        assert_eq!(Ticks::parse("cpu  1 2 3"), None);
    }

    #[test]
    fn a_cancelled_wait_ends() {
        let cancelled = wait_until_idle(Duration::from_secs(60), &AtomicBool::new(true), |_| ());
        assert!(matches!(cancelled, Err(Error::Interrupted)));
    }
}
