//! Everything that one worker counts: its shards, the global watermark, and what goes out at which
//! epoch.
//!
//! Plain state; the timely shell is [`crate::combine`]. Every worker is told the same reports epoch
//! by epoch, so all of them close, restate and retire a minute at the same epoch.

use std::ops::Range;

use tally_model::bucket::MINUTE_MS;
use tally_model::rules::Timing;
use tally_operators::dedup::{DedupStats, SegmentError, Verdict};
use tally_operators::watermark::{GlobalWatermark, WatermarkReport};
use tally_operators::windows::Deltas;

use crate::Epoch;
use crate::cuts::WorkerCut;
use crate::horizon::{Horizon, minute_end};
use crate::options::CountOptions;
use crate::reading::ShardBatch;
use crate::shard::ShardState;
use crate::totals::Totals;

#[cfg(test)]
mod tests;

/// What one worker counts.
#[derive(Debug)]
pub(crate) struct LocalCounts {
    worker: usize,
    workers: usize,
    timing: Timing,
    restate_every: Epoch,
    /// The shards that this worker owns: `worker`, `worker + workers`, …
    shards: Vec<ShardState>,
    global: GlobalWatermark,
    markers: Markers,
    caught_up: bool,
    /// Number of the restatement period that was last begun.
    restated: Epoch,
    verdicts: Vec<Verdict>,
}

/// What goes out for one epoch.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Counts to add, at the epoch.
    pub(crate) added: Deltas,
    /// Minutes that get a marker at the epoch, by start.
    pub(crate) marked: Vec<i64>,
    /// Counts to take back at a later epoch.
    pub(crate) taken_back: Deltas,
    /// Markers to take back at a later epoch.
    pub(crate) unmarked: Vec<i64>,
    /// What holds from the epoch on.
    pub(crate) horizon: Horizon,
    /// The global watermark.
    pub(crate) watermark_ms: Option<i64>,
}

/// Each closed minute carries one marker, so that a quiet one gets its row as well.
#[derive(Clone, Copy, Debug)]
struct Markers {
    /// Minutes from here on have no marker yet.
    marked_up_to_ms: i64,
    /// Markers before this were taken back.
    unmarked_up_to_ms: i64,
}

impl LocalCounts {
    /// A worker with the shards that it owns, in ascending order. Quiet minutes get rows from
    /// `first_minute_ms` on; the watermark never falls below `watermark_ms`.
    pub(crate) fn new(
        worker: usize,
        options: &CountOptions,
        shards: Vec<ShardState>,
        first_minute_ms: i64,
        watermark_ms: Option<i64>,
    ) -> Self {
        Self {
            worker,
            workers: options.workers,
            timing: options.timing,
            restate_every: Epoch::try_from(options.restate_every_ms).unwrap_or(0).max(1),
            shards,
            global: GlobalWatermark::restored(options.workers, watermark_ms),
            markers: Markers {
                marked_up_to_ms: first_minute_ms,
                unmarked_up_to_ms: first_minute_ms,
            },
            caught_up: false,
            restated: 0,
            verdicts: Vec::new(),
        }
    }

    /// Takes a batch of one of this worker's shards. Returns what became of its events.
    ///
    /// # Errors
    /// [`SegmentError`] from the ids.
    ///
    /// # Panics
    /// If the shard is not this worker's: batches are exchanged by owner.
    pub(crate) fn take(&mut self, batch: &ShardBatch) -> Result<Totals, SegmentError> {
        assert_eq!(batch.shard.owner(self.workers), self.worker, "a batch goes to its owner");
        let place = usize::from(batch.shard.0) / self.workers;
        self.shards[place].take(batch, &mut self.verdicts)
    }

    /// Forgets the retired minutes whose last rows are known to be stored.
    pub(crate) fn forget(&mut self, stored_up_to_ms: i64) {
        for shard in &mut self.shards {
            shard.forget(stored_up_to_ms);
        }
    }

    /// Everything as it is now, for a checkpoint.
    pub(crate) fn freeze(&mut self) -> WorkerCut {
        WorkerCut {
            watermark_ms: self.global.reached().watermark_ms,
            shards: self.shards.iter().map(ShardState::freeze).collect(),
        }
    }

    /// What the ids take.
    pub(crate) fn dedup_stats(&self) -> DedupStats {
        let mut sum = DedupStats::default();
        for shard in &self.shards {
            sum += shard.dedup_stats();
        }
        sum
    }

    /// Takes all workers' reports of `epoch` and says what goes out. Epochs come in ascending
    /// order, the same ones on every worker.
    pub(crate) fn settle(
        &mut self,
        epoch: Epoch,
        reports: impl IntoIterator<Item = WatermarkReport>,
    ) -> Settled {
        for report in reports {
            self.global.take(report);
        }
        let reached = self.global.reached();
        let mut settled = Settled {
            horizon: Horizon::at(&self.timing, reached.watermark_ms, reached.caught_up),
            watermark_ms: reached.watermark_ms,
            ..Settled::default()
        };
        let Some(watermark_ms) = reached.watermark_ms else {
            return settled;
        };
        let mut close_up_to_ms = watermark_ms - self.timing.watermark_delay_ms;
        let mut mark_up_to_ms = close_up_to_ms;
        if reached.all_read {
            close_up_to_ms = i64::MAX;
            mark_up_to_ms = minute_end(watermark_ms);
        }
        for shard in &mut self.shards {
            shard.close(close_up_to_ms, &mut settled.added);
        }
        if self.restatement_is_due(epoch, reached.caught_up) {
            for shard in &mut self.shards {
                shard.restate(&mut settled.added);
            }
        }
        // Only at the border of a minute does anything retire.
        let retired_up_to_ms = settled.horizon.retired_up_to_ms.unwrap_or(i64::MIN);
        for shard in &mut self.shards {
            shard.advance(
                watermark_ms,
                retired_up_to_ms,
                &mut settled.added,
                &mut settled.taken_back,
            );
        }
        let (marked, unmarked) =
            (self.markers.mark(mark_up_to_ms), self.markers.unmark(retired_up_to_ms));
        settled.marked = self.own(marked);
        settled.unmarked = self.own(unmarked);
        settled
    }

    /// Whether changed minutes go out at this epoch: once in every restatement period, and when
    /// the log has been read to where it ended at the start, since rows are held until then.
    fn restatement_is_due(&mut self, epoch: Epoch, caught_up: bool) -> bool {
        let period = epoch / self.restate_every;
        let due = period > self.restated || caught_up && !self.caught_up;
        self.restated = period;
        self.caught_up = caught_up;
        due
    }

    /// The minutes of a range whose markers are this worker's.
    fn own(&self, minutes: Range<i64>) -> Vec<i64> {
        let minutes = minutes.step_by(MINUTE_STEP);
        let is_own = |start_ms: &i64| {
            let number = start_ms.div_euclid(MINUTE_MS).unsigned_abs();
            usize::try_from(number).is_ok_and(|number| number % self.workers == self.worker)
        };
        minutes.filter(is_own).collect()
    }
}

/// [`MINUTE_MS`] as a step.
const MINUTE_STEP: usize = 60_000;

impl Markers {
    /// The minutes to mark so that every one that ends at or before `up_to_ms` is.
    fn mark(&mut self, up_to_ms: i64) -> Range<i64> {
        let from_ms = self.marked_up_to_ms;
        let to_ms = up_to_ms - up_to_ms.rem_euclid(MINUTE_MS);
        self.marked_up_to_ms = from_ms.max(to_ms);
        from_ms..self.marked_up_to_ms
    }

    /// The minutes whose markers are taken back because they retire at `up_to_ms`.
    fn unmark(&mut self, up_to_ms: i64) -> Range<i64> {
        let from_ms = self.unmarked_up_to_ms;
        self.unmarked_up_to_ms = from_ms.max(up_to_ms.min(self.marked_up_to_ms));
        from_ms..self.unmarked_up_to_ms
    }
}
