//! The state of one shard: the ids seen, the minutes being counted, and what became of its records.
//!
//! Plain data, the unit that a worker owns and that moves whole when the workers' number changes.
//!
//! Invariant C-2 of ARCHITECTURE.md.

use std::collections::BTreeMap;

use tally_model::bucket::{Bucket, DAY_MS, Granularity};
use tally_model::ids::Shard;
use tally_model::rules::{DedupRule, Timing};
use tally_operators::dedup::{DedupOptions, DedupState, DedupStats, SegmentError, Verdict};
use tally_operators::windows::{Deltas, OpenWindows};

use crate::frozen::FrozenShard;
use crate::options::Stages;
use crate::reading::ShardBatch;
use crate::totals::Totals;

/// So far back late events are told by hour: no event that old is accepted any more.
const LATE_KEPT_MS: i64 = 92 * DAY_MS;

/// First copies of one hour that are in no window, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LateCounts {
    /// Late by their stamps.
    pub(crate) late: u64,
    /// In time by their stamps, but read after their minute was retired.
    pub(crate) straggler: u64,
    /// Read after the dedup bucket that decides about them was dropped.
    pub(crate) past_window: u64,
}

/// The state of one shard.
#[derive(Debug)]
pub(crate) struct ShardState {
    shard: Shard,
    timing: Timing,
    stages: Stages,
    ids: DedupState,
    windows: OpenWindows,
    /// By start of the hour, in ms.
    late: BTreeMap<i64, LateCounts>,
    totals: Totals,
}

impl ShardState {
    /// A shard that has seen nothing.
    pub(crate) fn new(
        options: DedupOptions,
        rule: DedupRule,
        timing: Timing,
        stages: Stages,
    ) -> Self {
        Self {
            shard: options.shard,
            timing,
            stages,
            ids: DedupState::new(rule, timing, options),
            windows: OpenWindows::default(),
            late: BTreeMap::new(),
            totals: Totals::default(),
        }
    }

    /// The shard as it was frozen.
    ///
    /// # Errors
    /// [`SegmentError`] if a segment of ids cannot be read or is damaged.
    pub(crate) fn restore(
        options: DedupOptions,
        rule: DedupRule,
        timing: Timing,
        frozen: FrozenShard,
    ) -> Result<Self, SegmentError> {
        Ok(Self {
            shard: frozen.shard,
            timing,
            stages: Stages::All,
            ids: DedupState::restore(rule, timing, options, &frozen.ids)?,
            windows: OpenWindows::restore(frozen.windows),
            late: frozen.late,
            totals: frozen.totals,
        })
    }

    /// The shard as it is: everything in one step.
    pub(crate) fn freeze(&self) -> FrozenShard {
        FrozenShard {
            shard: self.shard,
            ids: self.ids.snapshot(),
            windows: self.windows.snapshot(),
            late: self.late.clone(),
            totals: self.totals,
        }
    }

    /// What the ids take.
    pub(crate) fn dedup_stats(&self) -> DedupStats {
        self.ids.stats()
    }

    /// Decides every event of a batch, in order, and counts those that count. `verdicts` is room to
    /// work in. Returns what became of the events.
    ///
    /// # Errors
    /// [`SegmentError`] from the ids; the state is then unusable.
    pub(crate) fn take(
        &mut self,
        batch: &ShardBatch,
        verdicts: &mut Vec<Verdict>,
    ) -> Result<Totals, SegmentError> {
        self.ids.observe(&batch.ids, verdicts)?;
        let mut taken = Totals::default();
        let records = verdicts.iter().zip(&batch.ids).zip(&batch.cells);
        for ((verdict, (_, received_at_ms)), (minute_ms, slot)) in records {
            match verdict {
                Verdict::Repeat => taken.repeats += 1,
                Verdict::PastWindow => {
                    taken.past_window += 1;
                    late_counts(&mut self.late, *minute_ms).past_window += 1;
                }
                Verdict::First if self.stages == Stages::Dedup => {}
                Verdict::First => {
                    if self.timing.is_late(Bucket::minute(*minute_ms), *received_at_ms) {
                        taken.late += 1;
                        late_counts(&mut self.late, *minute_ms).late += 1;
                    } else if self.windows.add(*minute_ms, *slot) {
                        taken.counted += 1;
                    } else {
                        taken.straggler += 1;
                        late_counts(&mut self.late, *minute_ms).straggler += 1;
                    }
                }
            }
        }
        self.totals += taken;
        Ok(taken)
    }

    /// See [`OpenWindows::close`].
    pub(crate) fn close(&mut self, up_to_ms: i64, out: &mut Deltas) {
        self.windows.close(up_to_ms, out);
    }

    /// See [`OpenWindows::restate`].
    pub(crate) fn restate(&mut self, out: &mut Deltas) {
        self.windows.restate(out);
    }

    /// Forgets the retired minutes whose last rows are known to be stored.
    pub(crate) fn forget(&mut self, stored_up_to_ms: i64) {
        self.windows.forget(stored_up_to_ms);
    }

    /// Retires the minutes up to `retired_up_to_ms` and drops the ids that `watermark_ms` lets go.
    pub(crate) fn advance(
        &mut self,
        watermark_ms: i64,
        retired_up_to_ms: i64,
        out: &mut Deltas,
        taken_back: &mut Deltas,
    ) {
        self.windows.retire(retired_up_to_ms, out, taken_back);
        self.ids.advance(watermark_ms);
        let oldest_ms = watermark_ms.saturating_sub(LATE_KEPT_MS);
        while self.late.first_key_value().is_some_and(|(hour_ms, _)| *hour_ms < oldest_ms) {
            self.late.pop_first();
        }
    }
}

/// The counts of the hour that holds a minute.
fn late_counts(late: &mut BTreeMap<i64, LateCounts>, minute_ms: i64) -> &mut LateCounts {
    late.entry(Granularity::Hour.floor(minute_ms)).or_default()
}
