//! Which tests may use the machine at the same time. The harness plays as many as there are cores; a test that
//! needs both of them, or that others would disturb, is alone.

use std::cell::RefCell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

thread_local! {
    static HELD: RefCell<Held> = const { RefCell::new(Held::Nothing) };
}

/// What the calling thread holds of the machine.
enum Held {
    Nothing,
    Part(#[expect(dead_code, reason = "it is held")] RwLockReadGuard<'static, ()>),
    /// The guard is in [`Alone`].
    All,
}

/// Uses the machine beside others until it drops.
pub struct Share(());

/// Waits while a test is [`alone`], and keeps all from being so. The judge does that for each claim; tests that keep
/// a core busy do it themselves.
pub fn share() -> Share {
    HELD.with_borrow_mut(|held| {
        if let Held::Nothing = held {
            *held = Held::Part(MACHINE.read().unwrap_or_else(PoisonError::into_inner));
        }
    });
    Share(())
}

impl Drop for Share {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            if let Held::Part(_) = held {
                *held = Held::Nothing;
            }
        });
    }
}

/// Has the machine for itself until it drops.
pub struct Alone(Option<RwLockWriteGuard<'static, ()>>);

/// Waits until no other claim of this process is judged, and lets no other begin: for links faster than 30 Mbit/s,
/// which disturb others on two cores. Tests that are not judged go on.
pub fn alone() -> Alone {
    let before = HELD.replace(Held::All);
    if let Held::All = before {
        return Alone(None);
    }
    drop(before);
    Alone(Some(MACHINE.write().unwrap_or_else(PoisonError::into_inner)))
}

/// Does `job` [`alone`].
pub fn one_at_a_time<R>(job: impl FnOnce() -> R) -> R {
    let _alone = alone();
    job()
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            HELD.set(Held::Nothing);
            drop(guard);
        }
    }
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
                        // Within itself it is alone already.
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
        assert!(most.load(Ordering::SeqCst) > 1, "the others share");
    }
}
