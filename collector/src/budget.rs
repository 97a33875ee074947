//! A bound on the memory of all requests together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Metrics;

/// Bytes are handed out in units of this size.
const UNIT_BYTES: usize = 1 << 10;

/// The bytes that requests in flight may hold.
#[derive(Debug)]
pub(crate) struct Budget {
    units: Arc<Semaphore>,
    units_max: usize,
    metrics: Arc<Metrics>,
}

/// A share of the budget; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    units: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

impl Budget {
    pub(crate) fn new(bytes: usize, metrics: Arc<Metrics>) -> Self {
        let units_max = (bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Self { units: Arc::new(Semaphore::new(units_max)), units_max, metrics }
    }

    /// A share of `bytes`, or the whole budget if that is less; `None` if too much is taken.
    pub(crate) fn take(&self, bytes: usize) -> Option<Share> {
        let units = bytes.div_ceil(UNIT_BYTES).min(self.units_max);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let units = Arc::clone(&self.units).try_acquire_many_owned(units).ok()?;
        self.metrics.reserved(units.num_permits() * UNIT_BYTES);
        Some(Share { units, metrics: Arc::clone(&self.metrics) })
    }
}

impl Share {
    /// Gives back what is over `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.units.num_permits().saturating_sub(bytes.div_ceil(UNIT_BYTES));
        if let Some(surplus) = self.units.split(surplus) {
            self.metrics.released(surplus.num_permits() * UNIT_BYTES);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.metrics.released(self.units.num_permits() * UNIT_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(bytes: usize) -> Budget {
        Budget::new(bytes, Arc::default())
    }

    #[test]
    fn what_is_taken_is_not_there_until_it_is_given_back() {
        let budget = budget(4 * UNIT_BYTES);
        let first = budget.take(3 * UNIT_BYTES);
        assert!(first.is_some());
        assert!(budget.take(UNIT_BYTES + 1).is_none());
        drop(first);
        assert!(budget.take(UNIT_BYTES + 1).is_some());
    }

    #[test]
    fn a_share_that_shrinks_makes_room() {
        let budget = budget(4 * UNIT_BYTES);
        let mut first = budget.take(4 * UNIT_BYTES).expect("all is free");
        first.shrink_to(1);
        let second = budget.take(3 * UNIT_BYTES);
        assert!(second.is_some());
        assert!(budget.take(1).is_none());
        first.shrink_to(usize::MAX);
        assert!(budget.take(1).is_none(), "shrinking never takes more");
    }

    #[test]
    fn one_request_over_the_whole_budget_waits_for_all_of_it() {
        let budget = budget(2 * UNIT_BYTES);
        let all = budget.take(100 * UNIT_BYTES);
        assert!(all.is_some());
        assert!(budget.take(1).is_none());
    }
}
