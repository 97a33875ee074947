//! The dedup state as plain data, for checkpoints.

use tally_model::rules::{DedupBucket, DedupRule, Timing};

use super::id_set::IdSet;
use super::options::DedupOptions;
use super::segment::{Segment, SegmentHandle};
use super::stats::DedupCounters;
use super::store::SegmentError;
use super::{DedupState, TimeBucket};

/// One shard's dedup state at one moment. Heads are copied, segments are named: they are
/// immutable, and their handles keep their data for as long as the snapshot lives.
#[derive(Clone, Debug)]
pub struct DedupSnapshot {
    /// Buckets before this one have been dropped.
    pub kept_from: DedupBucket,
    /// What the next segment of the shard is numbered.
    pub next_sequence: u64,
    /// What has happened so far.
    pub counters: DedupCounters,
    /// In ascending order.
    pub buckets: Vec<BucketSnapshot>,
}

/// One time bucket of a [`DedupSnapshot`].
#[derive(Clone, Debug)]
pub struct BucketSnapshot {
    /// Its number.
    pub number: DedupBucket,
    /// Ids whose first copy is of this bucket.
    pub firsts: SetSnapshot,
    /// Ids with a copy of this bucket that was past the window.
    pub undecided: SetSnapshot,
}

/// A set of ids in a [`BucketSnapshot`].
#[derive(Clone, Debug, Default)]
pub struct SetSnapshot {
    /// Recent ids, ascending.
    pub head: Vec<u128>,
    /// All other ids, in the order of the segments' names.
    pub segments: Vec<SegmentHandle>,
}

impl SetSnapshot {
    fn of(set: &IdSet) -> Self {
        let mut head: Vec<u128> = set.head().iter().copied().collect();
        head.sort_unstable();
        let mut segments: Vec<_> =
            set.segments().iter().map(|segment: &Segment| segment.handle.clone()).collect();
        segments.sort_by_key(|handle| handle.name);
        Self { head, segments }
    }
}

impl DedupState {
    /// The state as it is. Costs a copy of the heads; merges under way are left out, their inputs
    /// are not.
    #[must_use]
    pub fn snapshot(&self) -> DedupSnapshot {
        let bucket = |bucket: &TimeBucket| BucketSnapshot {
            number: bucket.number,
            firsts: SetSnapshot::of(&bucket.firsts),
            undecided: SetSnapshot::of(&bucket.undecided),
        };
        DedupSnapshot {
            kept_from: self.kept_from,
            next_sequence: self.maker.next_sequence,
            counters: self.counters,
            buckets: self.buckets.iter().map(bucket).collect(),
        }
    }

    /// The state as it was when `snapshot` was taken. Every segment is read through, and every
    /// filter is built from the ids.
    ///
    /// # Errors
    /// [`SegmentError`] if a segment cannot be read or is not what was written.
    pub fn restore(
        rule: DedupRule,
        timing: Timing,
        options: DedupOptions,
        snapshot: &DedupSnapshot,
    ) -> Result<Self, SegmentError> {
        let bits_per_id = options.filter_bits_per_id;
        let mut state = Self::new(rule, timing, options);
        state.kept_from = snapshot.kept_from;
        state.maker.next_sequence = snapshot.next_sequence;
        state.counters = snapshot.counters;
        let set = |set: &SetSnapshot| IdSet::restore(&set.head, &set.segments, bits_per_id);
        for bucket in &snapshot.buckets {
            let bucket = TimeBucket {
                number: bucket.number,
                firsts: set(&bucket.firsts)?,
                undecided: set(&bucket.undecided)?,
            };
            state.held += bucket.len();
            state.buckets.push(bucket);
        }
        for set in state.buckets.iter_mut().flat_map(TimeBucket::sets_mut) {
            set.plan(state.policy, &mut state.maker)?;
        }
        Ok(state)
    }
}
