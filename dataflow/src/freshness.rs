//! How long after its beginning a minute becomes readable.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of the histogram's buckets, in ms. Fine around the usual delays: a minute, the
/// watermark delay of two, and what the pipeline adds.
pub const FRESHNESS_BOUNDS_MS: [i64; 16] = [
    61_000, 62_000, 63_000, 65_000, 70_000, 120_000, 180_250, 180_500, 181_000, 181_500, 182_000,
    183_000, 185_000, 190_000, 240_000, 600_000,
];

/// A histogram over the first puts of minutes: time of the put minus start of the minute.
#[derive(Debug, Default)]
pub struct Freshness {
    /// By bucket; the last one has no upper bound.
    counts: [AtomicU64; FRESHNESS_BOUNDS_MS.len() + 1],
    sum_ms: AtomicU64,
}

impl Freshness {
    /// How many minutes took longer than the bound before and at most this one, in the order of
    /// [`FRESHNESS_BOUNDS_MS`]; then those that took longer than all.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// The sum of all times, in ms.
    #[must_use]
    pub fn sum_ms(&self) -> u64 {
        self.sum_ms.load(Ordering::Relaxed)
    }

    /// Notes a minute that became readable `after_ms` after its beginning.
    pub(crate) fn note(&self, after_ms: i64) {
        let place = FRESHNESS_BOUNDS_MS.partition_point(|bound| *bound < after_ms);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum_ms.fetch_add(after_ms.max(0).unsigned_abs(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_at_the_first_bound_that_it_does_not_pass() {
        let freshness = Freshness::default();
        for after_ms in [-5, 61_000, 61_001, 180_600, 9_000_000] {
            freshness.note(after_ms);
        }
        let mut want = vec![0; FRESHNESS_BOUNDS_MS.len() + 1];
        want[0] = 2;
        want[1] = 1;
        want[8] = 1;
        want[16] = 1;
        assert_eq!(freshness.counts(), want);
        assert_eq!(freshness.sum_ms(), 61_000 + 61_001 + 180_600 + 9_000_000);
    }
}
