//! Decides which tests may use the machine at the same time. `make test` runs more tests than there
//! are cores, since tests often wait. At most as many tests as cores are judged or keep a core
//! busy; and a test that needs all cores, or that others would disturb, runs alone. Cores are idle
//! while the last of the others ends, so tests that run alone follow each other.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

static MACHINE: Mutex<Machine> =
    Mutex::new(Machine { shares: 0, alone: 0, is_taken: false, is_reserved: false });
static CHANGED: Condvar = Condvar::new();

/// Number of tests waiting to be alone at which no further share is given.
const ROW: usize = 2;

/// The use of the machine. While a test is alone there are no shares.
struct Machine {
    /// Number of shares; at most one for each core.
    shares: usize,
    /// Number of tests that wait to be alone.
    alone: usize,
    is_taken: bool,
    /// Set since [`ROW`] tests waited to be alone: no further share is given until none waits.
    is_reserved: bool,
}

thread_local! {
    static HELD: Cell<Held> = const { Cell::new(Held::Nothing) };
}

/// What the calling thread holds of the machine.
#[derive(Clone, Copy, PartialEq)]
enum Held {
    Nothing,
    Part,
    All,
}

/// A share of the machine, beside other tests, until it drops.
pub struct Share(());

/// Waits for a free core and until no test is [`alone`]; while the share is held, no test can be alone.
/// The judge takes one for each claim; other tests that keep a core busy take one themselves.
pub fn share() -> Share {
    if HELD.get() == Held::Nothing {
        wait_while(|m| m.is_taken || m.is_reserved || m.shares == cores()).shares += 1;
        HELD.set(Held::Part);
    }
    Share(())
}

impl Drop for Share {
    fn drop(&mut self) {
        leave(Held::Part);
    }
}

/// The whole machine, until it drops.
pub struct Alone(());

/// Waits until no other claim of this process is judged, and lets no other begin: for links faster than 30 Mbit/s,
/// which disturb others on two cores. Tests that are not judged go on. `None` if the caller is already alone.
pub fn alone() -> Option<Alone> {
    if HELD.get() == Held::All {
        return None;
    }
    leave(Held::Part);
    {
        let mut machine = machine();
        machine.alone += 1;
        machine.is_reserved |= machine.alone >= ROW;
    }
    let mut machine = wait_while(|m| m.is_taken || m.shares > 0);
    machine.alone -= 1;
    machine.is_taken = true;
    machine.is_reserved = machine.alone > 0;
    HELD.set(Held::All);
    Some(Alone(()))
}

impl Drop for Alone {
    fn drop(&mut self) {
        leave(Held::All);
    }
}

/// Does `job` [`alone`].
pub fn one_at_a_time<R>(job: impl FnOnce() -> R) -> R {
    let _alone = alone();
    job()
}

/// Gives back what the calling thread holds, if it equals `held`.
fn leave(held: Held) {
    if HELD.get() != held {
        return;
    }
    HELD.set(Held::Nothing);
    let mut machine = machine();
    match held {
        Held::Nothing => {}
        Held::Part => machine.shares -= 1,
        Held::All => machine.is_taken = false,
    }
    CHANGED.notify_all();
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn wait_while(is_so: impl FnMut(&mut Machine) -> bool) -> MutexGuard<'static, Machine> {
    CHANGED.wait_while(machine(), is_so).unwrap_or_else(PoisonError::into_inner)
}

fn machine() -> MutexGuard<'static, Machine> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_test_that_is_alone_has_no_other_beside_it() {
        let (sharing, most) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for n in 0..40 {
                let (sharing, most) = (&sharing, &most);
                scope.spawn(move || {
                    let _share = share();
                    if n % 4 == 0 {
                        let _alone = alone();
                        // A nested call returns at once: the thread is already alone.
                        let _again = alone();
                        let _share = share();
                        assert_eq!(sharing.load(Ordering::SeqCst), 0);
                        thread::sleep(Duration::from_millis(1));
                        assert_eq!(sharing.load(Ordering::SeqCst), 0);
                    } else {
                        most.fetch_max(
                            1 + sharing.fetch_add(1, Ordering::SeqCst),
                            Ordering::SeqCst,
                        );
                        thread::sleep(Duration::from_millis(2));
                        sharing.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        let most = most.load(Ordering::SeqCst) as usize;
        assert!((2.min(cores())..=cores()).contains(&most), "{most} share");
    }
}
