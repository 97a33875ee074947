//! The state of one shard: the ids seen, the minutes being counted, and what became of its records.
//!
//! Plain data, the unit that a worker owns and that moves whole when the workers' number changes.
//!
//! Invariant C-2 of ARCHITECTURE.md.

use tally_model::bucket::Bucket;
use tally_model::rules::{DedupRule, Timing};
use tally_operators::dedup::{DedupOptions, DedupState, SegmentError, Verdict};
use tally_operators::windows::{Deltas, OpenWindows};

use crate::options::Stages;
use crate::progress::Totals;
use crate::reading::ShardBatch;

/// The state of one shard.
#[derive(Debug)]
pub(crate) struct ShardState {
    timing: Timing,
    stages: Stages,
    ids: DedupState,
    windows: OpenWindows,
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
            timing,
            stages,
            ids: DedupState::new(rule, timing, options),
            windows: OpenWindows::default(),
            totals: Totals::default(),
        }
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
                Verdict::PastWindow => taken.past_window += 1,
                Verdict::First if self.stages == Stages::Dedup => {}
                Verdict::First => {
                    if self.timing.is_late(Bucket::minute(*minute_ms), *received_at_ms) {
                        taken.late += 1;
                    } else if self.windows.add(*minute_ms, *slot) {
                        taken.counted += 1;
                    } else {
                        taken.straggler += 1;
                    }
                }
            }
        }
        self.totals.repeats += taken.repeats;
        self.totals.past_window += taken.past_window;
        self.totals.late += taken.late;
        self.totals.counted += taken.counted;
        self.totals.straggler += taken.straggler;
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
    }
}
