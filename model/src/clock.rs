//! Time as a parameter: the one way in which any crate learns what time it is.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};

/// Where the time comes from. The binary passes the system's clock, tests pass [`ManualClock`].
pub trait Clock: Send + Sync + fmt::Debug {
    /// Wall-clock time in ms since the Unix epoch. May step, also backwards.
    fn now_ms(&self) -> i64;

    /// Milliseconds since some fixed moment of this process. Never steps back.
    fn monotonic_ms(&self) -> i64;
}

/// A clock that stands still until it is told to move.
#[derive(Debug)]
pub struct ManualClock {
    now_ms: AtomicI64,
    monotonic_ms: AtomicI64,
}

impl ManualClock {
    /// A clock that shows `now_ms`.
    #[must_use]
    pub const fn new(now_ms: i64) -> Self {
        Self { now_ms: AtomicI64::new(now_ms), monotonic_ms: AtomicI64::new(0) }
    }

    /// Moves both readings forward by `by_ms`.
    pub fn advance(&self, by_ms: i64) {
        self.now_ms.fetch_add(by_ms, Ordering::SeqCst);
        self.monotonic_ms.fetch_add(by_ms, Ordering::SeqCst);
    }

    /// Steps the wall clock to `now_ms`, in either direction; the monotonic reading stays.
    pub fn step_to(&self, now_ms: i64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    fn monotonic_ms(&self) -> i64 {
        self.monotonic_ms.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stepped_wall_clock_leaves_the_monotonic_one_alone() {
        let clock = ManualClock::new(5_000);
        clock.advance(30);
        assert_eq!((clock.now_ms(), clock.monotonic_ms()), (5_030, 30));
        clock.step_to(1_000);
        assert_eq!((clock.now_ms(), clock.monotonic_ms()), (1_000, 30));
        clock.advance(1);
        assert_eq!((clock.now_ms(), clock.monotonic_ms()), (1_001, 31));
    }
}
