//! Keys bounded by the time since they were first seen.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use super::SeenStats;

/// A window or width that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("window {window_ms} ms is not a positive whole number of buckets of {width_ms} ms")]
pub struct TimeBucketsError {
    /// The window that was asked for.
    pub window_ms: i64,
    /// The width that was asked for.
    pub width_ms: i64,
}

/// The keys of a recent stretch of time, in buckets that are forgotten whole.
///
/// A key is a duplicate until the end of the bucket in which its window ends: for the whole window
/// and at most one width more, from when it was first seen. Neither asking for it nor seeing it
/// again prolongs that. The caller says what time it is; a clock that steps back makes no key
/// live longer or shorter, one that jumps ahead forgets what would be over by then.
///
/// ```
/// use tally_operators::seen::TimeBuckets;
///
/// let minute = 60_000;
/// let mut seen = TimeBuckets::new(5 * minute, minute)?;
/// assert!(seen.insert(7, 0));
/// assert!(!seen.insert(7, 5 * minute - 1));
/// assert!(seen.insert(7, 6 * minute));
/// # Ok::<(), tally_operators::seen::TimeBucketsError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TimeBuckets {
    width_ms: i64,
    /// Buckets after a key's own in which it is still a duplicate.
    span: i64,
    /// Keys by the bucket in which they were first seen.
    buckets: BTreeMap<i64, HashSet<u128, RandomState>>,
    keys_max: usize,
    size: usize,
    hits: u64,
    misses: u64,
    evictions: u64,
}

impl TimeBuckets {
    /// An empty set that recognises duplicates for `window_ms`, in buckets of `width_ms`.
    ///
    /// # Errors
    /// [`TimeBucketsError`] unless the window is a positive whole number of widths.
    pub fn new(window_ms: i64, width_ms: i64) -> Result<Self, TimeBucketsError> {
        if width_ms <= 0 || window_ms < width_ms || window_ms % width_ms != 0 {
            return Err(TimeBucketsError { window_ms, width_ms });
        }
        Ok(Self {
            width_ms,
            span: window_ms / width_ms,
            buckets: BTreeMap::new(),
            keys_max: usize::MAX,
            size: 0,
            hits: 0,
            misses: 0,
            evictions: 0,
        })
    }

    /// The same with a bound on the number of keys as well, for keys that come from outside: when
    /// it is reached, the oldest bucket goes before its time. At least one key is held.
    #[must_use]
    pub fn with_keys_max(self, keys_max: usize) -> Self {
        Self { keys_max: keys_max.max(1), ..self }
    }

    /// Notes that `key` was seen at `now_ms`. Returns whether it is new.
    pub fn insert(&mut self, key: u128, now_ms: i64) -> bool {
        if self.contains(key, now_ms) {
            return false;
        }
        while self.size >= self.keys_max {
            self.drop_oldest();
        }
        let bucket = self.buckets.entry(self.bucket(now_ms)).or_default();
        self.size += usize::from(bucket.insert(key));
        true
    }

    /// Whether `key` is a duplicate at `now_ms`.
    pub fn contains(&mut self, key: u128, now_ms: i64) -> bool {
        self.expire(now_ms);
        // Newest first: duplicates come soon.
        let found = self.buckets.values().rev().any(|bucket| bucket.contains(&key));
        if found {
            self.hits += 1;
        } else {
            self.misses += 1;
        }
        found
    }

    /// Forgets the buckets whose time is over at `now_ms`. The other calls do so too; this is for
    /// a timer, so that memory goes down when no key comes.
    pub fn expire(&mut self, now_ms: i64) {
        let oldest = self.bucket(now_ms) - self.span;
        while self.buckets.first_key_value().is_some_and(|(bucket, _)| *bucket < oldest) {
            self.drop_oldest();
        }
    }

    /// How many keys it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.size
    }

    /// Whether it holds no key.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Size, hits, misses, evictions.
    #[must_use]
    pub fn stats(&self) -> SeenStats {
        SeenStats {
            size: u64::try_from(self.size).unwrap_or(u64::MAX),
            hits: self.hits,
            misses: self.misses,
            evictions: self.evictions,
        }
    }

    const fn bucket(&self, at_ms: i64) -> i64 {
        at_ms.div_euclid(self.width_ms)
    }

    fn drop_oldest(&mut self) {
        if let Some((_, keys)) = self.buckets.pop_first() {
            self.size -= keys.len();
            self.evictions += u64::try_from(keys.len()).unwrap_or(u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = 1_000;
    const MINUTE: i64 = 60 * SECOND;

    /// B131: without any other traffic.
    #[test]
    fn a_key_is_a_duplicate_to_the_end_of_the_bucket_in_which_its_window_ends() {
        // (first seen at, asked at, duplicate)
        let cases = [
            (0, 4 * MINUTE + 59 * SECOND, true),
            (0, 5 * MINUTE, true),
            (0, 5 * MINUTE + SECOND, true),
            (0, 6 * MINUTE - 1, true),
            (0, 6 * MINUTE, false),
            (59 * SECOND, 5 * MINUTE + 59 * SECOND, true),
            (59 * SECOND, 6 * MINUTE - 1, true),
            (59 * SECOND, 6 * MINUTE, false),
            (-MINUTE, 5 * MINUTE - 1, true),
            (-MINUTE, 5 * MINUTE, false),
        ];
        for (seen_at, asked_at, duplicate) in cases {
            let mut seen = TimeBuckets::new(5 * MINUTE, MINUTE).unwrap();
            assert!(seen.insert(1, seen_at));
            assert_eq!(seen.contains(1, asked_at), duplicate, "{seen_at} then {asked_at}");
        }
    }

    /// B131: a clock that goes backwards.
    #[test]
    fn a_clock_that_steps_back_does_no_harm() {
        let mut seen = TimeBuckets::new(5 * MINUTE, MINUTE).unwrap();
        assert!(seen.insert(1, 10 * MINUTE));
        assert!(seen.contains(1, 9 * MINUTE), "seen in what is now the future");
        assert!(seen.insert(2, 9 * MINUTE));
        assert!(seen.contains(2, 10 * MINUTE));
        assert!(seen.contains(2, 15 * MINUTE - 1));
        assert!(!seen.contains(2, 15 * MINUTE), "expires by its own stamp");
        assert!(seen.contains(1, 16 * MINUTE - 1));
        assert!(!seen.contains(1, 16 * MINUTE));
        assert_eq!(seen.stats(), SeenStats { size: 0, hits: 4, misses: 4, evictions: 2 });
    }

    /// B132: by time.
    #[test]
    fn being_asked_for_or_seen_again_prolongs_nothing() {
        let mut seen = TimeBuckets::new(4 * MINUTE, MINUTE).unwrap();
        assert!(seen.insert(1, 0));
        // Every half window for ten windows: new at 0, 6, 12, ... minutes, when the last bucket in
        // which it was a duplicate is over.
        for at in (2..40).step_by(2) {
            assert_eq!(seen.insert(1, at * MINUTE), at % 6 == 0, "minute {at}");
        }
    }

    #[test]
    fn a_bound_on_the_keys_drops_the_oldest_bucket_before_its_time() {
        let mut seen = TimeBuckets::new(5 * MINUTE, MINUTE).unwrap().with_keys_max(4);
        for key in 0..6 {
            assert!(seen.insert(key, i64::try_from(key).unwrap() / 2 * MINUTE));
            assert!(seen.len() <= 4);
        }
        assert_eq!(
            [0, 1, 2, 5].map(|key| seen.contains(key, 3 * MINUTE)),
            [false, false, true, true]
        );
        assert_eq!(seen.stats().evictions, 2);
    }

    #[test]
    fn a_window_that_is_no_whole_number_of_buckets_is_refused() {
        for (window_ms, width_ms) in [(0, 1), (1, 0), (5, -5), (1, 2), (3, 2), (-4, 2)] {
            let refused = TimeBuckets::new(window_ms, width_ms).err();
            assert_eq!(refused, Some(TimeBucketsError { window_ms, width_ms }));
        }
    }

    proptest! {
        /// With a clock that only goes forward: a duplicate iff the key was first seen, or seen
        /// after it had expired, at most `span` buckets ago.
        #[test]
        fn the_set_agrees_with_a_plain_map(
            span in 1_i64..4,
            steps in prop::collection::vec((0_i64..8, 0_u128..6, any::<bool>()), 0..150),
        ) {
            let mut seen = TimeBuckets::new(span * 3, 3).unwrap();
            let mut first_seen: HashMap<u128, i64> = HashMap::new();
            let mut now = -20;
            for (step, key, insert) in steps {
                now += step;
                let bucket = now.div_euclid(3);
                first_seen.retain(|_, first| bucket - *first <= span);
                let known = first_seen.contains_key(&key);
                if insert {
                    prop_assert_eq!(seen.insert(key, now), !known);
                    first_seen.entry(key).or_insert(bucket);
                } else {
                    prop_assert_eq!(seen.contains(key, now), known);
                }
                prop_assert_eq!(seen.len(), first_seen.len());
            }
        }
    }
}
