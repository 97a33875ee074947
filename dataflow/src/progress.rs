//! How far a run is, for metrics and health checks.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use tally_operators::dedup::DedupStats;

use crate::checkpoint_progress::CheckpointProgress;
use crate::freshness::Freshness;
use crate::totals::{INVALID_REASONS, Totals};

/// What became of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowTotals {
    /// Put, new or changed.
    pub put: u64,
    /// Found as they should be.
    pub unchanged: u64,
    /// Withheld, since they would have lowered a stored count.
    pub withheld: u64,
    /// Refused, since a recomputed row stands there.
    pub refused: u64,
    /// Not put, since minutes that old are not kept.
    pub past_retention: u64,
}

/// What is not yet in the store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitingRows {
    /// Rows that wait for the store.
    pub(crate) rows: usize,
    /// Rows held back until the replay has caught up.
    pub(crate) held: usize,
    /// Start of the oldest minute that waits for the store.
    pub(crate) oldest_ms: Option<i64>,
}

/// Shared by the threads of a run and whoever watches it.
#[derive(Debug, Default)]
pub struct CountProgress {
    records: AtomicU64,
    counted: AtomicU64,
    repeats: AtomicU64,
    late: AtomicU64,
    straggler: AtomicU64,
    past_window: AtomicU64,
    control: AtomicU64,
    invalid: [AtomicU64; INVALID_REASONS],
    counted_by_worker: OnceLock<Vec<AtomicU64>>,
    put: AtomicU64,
    unchanged: AtomicU64,
    withheld: AtomicU64,
    refused: AtomicU64,
    past_retention: AtomicU64,
    waiting: AtomicU64,
    held: AtomicU64,
    store_errors: AtomicU64,
    misread: AtomicU64,
    missing: AtomicU64,
    caught_up: AtomicBool,
    watermark: Mark,
    readable: Mark,
    retired: Mark,
    oldest_waiting: AtomicI64,
    /// By worker.
    dedup: Mutex<Vec<DedupStats>>,
    checkpoints: CheckpointProgress,
    freshness: Freshness,
}

impl CountProgress {
    /// What became of the records read so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            records: get(&self.records),
            counted: get(&self.counted),
            repeats: get(&self.repeats),
            late: get(&self.late),
            straggler: get(&self.straggler),
            past_window: get(&self.past_window),
            control: get(&self.control),
            invalid: self.invalid.each_ref().map(get),
        }
    }

    /// What became of the rows so far.
    #[must_use]
    pub fn rows(&self) -> RowTotals {
        RowTotals {
            put: get(&self.put),
            unchanged: get(&self.unchanged),
            withheld: get(&self.withheld),
            refused: get(&self.refused),
            past_retention: get(&self.past_retention),
        }
    }

    /// Events counted by each worker; empty before the run has started.
    #[must_use]
    pub fn counted_by_worker(&self) -> Vec<u64> {
        self.counted_by_worker.get().into_iter().flatten().map(get).collect()
    }

    /// Rows that wait for the store.
    #[must_use]
    pub fn waiting_rows(&self) -> u64 {
        get(&self.waiting)
    }

    /// Rows held back until the log has been read to where it ended at the start.
    #[must_use]
    pub fn held_rows(&self) -> u64 {
        get(&self.held)
    }

    /// Calls of the store that failed; all are tried again.
    #[must_use]
    pub fn store_errors(&self) -> u64 {
        get(&self.store_errors)
    }

    /// Rows that were acknowledged and not found when they were read back. An alarm.
    #[must_use]
    pub fn misread_rows(&self) -> u64 {
        get(&self.misread)
    }

    /// Records that retention removed before this run could count them, so far as it has met such
    /// holes. An alarm.
    #[must_use]
    pub fn missing_records(&self) -> u64 {
        get(&self.missing)
    }

    /// Whether everything that the log held when the run started has been counted.
    #[must_use]
    pub fn caught_up(&self) -> bool {
        self.caught_up.load(Ordering::Relaxed)
    }

    /// The global watermark, in ms since the Unix epoch.
    #[must_use]
    pub fn watermark_ms(&self) -> Option<i64> {
        self.watermark.get()
    }

    /// End of the last minute such that it and all before are closed and stored, in ms since the
    /// Unix epoch.
    #[must_use]
    pub fn readable_up_to_ms(&self) -> Option<i64> {
        self.readable.get()
    }

    /// End of the last minute such that it and all before are retired and stored, in ms since the
    /// Unix epoch.
    #[must_use]
    pub fn retired_up_to_ms(&self) -> Option<i64> {
        self.retired.get()
    }

    /// What the dedup state of all shards has done and takes, about a second ago.
    #[must_use]
    pub fn dedup(&self) -> DedupStats {
        let mut sum = DedupStats::default();
        for stats in &*self.dedup.lock().unwrap_or_else(PoisonError::into_inner) {
            sum += *stats;
        }
        sum
    }

    /// What became of the checkpoints.
    #[must_use]
    pub const fn checkpoints(&self) -> &CheckpointProgress {
        &self.checkpoints
    }

    /// How long after their beginning minutes became readable.
    #[must_use]
    pub const fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    /// Start of the oldest minute that waits for the store, in ms since the Unix epoch.
    #[must_use]
    pub fn oldest_waiting_ms(&self) -> Option<i64> {
        let start_ms = self.oldest_waiting.load(Ordering::Relaxed);
        (start_ms != 0).then_some(start_ms)
    }

    /// Whether a run has begun: it is decided from where counting goes on.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.counted_by_worker.get().is_some()
    }

    /// Makes room for `workers` workers and goes on from the totals of a checkpoint, also if an
    /// earlier run was shown here.
    pub(crate) fn start(&self, workers: usize, restored: &Totals) {
        self.counted_by_worker.get_or_init(|| (0..workers).map(|_| AtomicU64::new(0)).collect());
        *self.dedup.lock().unwrap_or_else(PoisonError::into_inner) =
            vec![DedupStats::default(); workers];
        self.caught_up.store(false, Ordering::Relaxed);
        self.set_totals(restored);
    }

    /// Shows what the ids of a worker's shards take.
    pub(crate) fn show_dedup(&self, worker: usize, stats: DedupStats) {
        let mut dedup = self.dedup.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = dedup.get_mut(worker) {
            *shown = stats;
        }
    }

    /// Adds what `worker` did since it last said so.
    pub(crate) fn add(&self, worker: usize, more: &Totals) {
        self.add_totals(more);
        if let Some(counted) = self.counted_by_worker.get().and_then(|all| all.get(worker)) {
            counted.fetch_add(more.counted, Ordering::Relaxed);
        }
    }

    fn add_totals(&self, more: &Totals) {
        self.each_total(more, |total, by| {
            if by > 0 {
                total.fetch_add(by, Ordering::Relaxed);
            }
        });
    }

    fn set_totals(&self, totals: &Totals) {
        self.each_total(totals, |total, to| total.store(to, Ordering::Relaxed));
    }

    fn each_total(&self, totals: &Totals, change: impl Fn(&AtomicU64, u64)) {
        for (total, by) in [
            (&self.records, totals.records),
            (&self.counted, totals.counted),
            (&self.repeats, totals.repeats),
            (&self.late, totals.late),
            (&self.straggler, totals.straggler),
            (&self.past_window, totals.past_window),
            (&self.control, totals.control),
        ]
        .into_iter()
        .chain(self.invalid.iter().zip(totals.invalid))
        {
            change(total, by);
        }
    }

    /// Shows the writer's totals, and the oldest minute that waits.
    pub(crate) fn show_rows(&self, rows: &RowTotals, waiting: &WaitingRows) {
        self.oldest_waiting.store(waiting.oldest_ms.unwrap_or(0), Ordering::Relaxed);
        for (shown, total) in [
            (&self.put, rows.put),
            (&self.unchanged, rows.unchanged),
            (&self.withheld, rows.withheld),
            (&self.refused, rows.refused),
            (&self.past_retention, rows.past_retention),
            (&self.waiting, wide(waiting.rows)),
            (&self.held, wide(waiting.held)),
        ] {
            shown.store(total, Ordering::Relaxed);
        }
    }

    pub(crate) fn store_failed(&self) {
        self.store_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn row_misread(&self) {
        self.misread.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn miss(&self, records: u64) {
        self.missing.fetch_add(records, Ordering::Relaxed);
    }

    pub(crate) fn show_caught_up(&self) {
        self.caught_up.store(true, Ordering::Relaxed);
    }

    pub(crate) fn show_watermark(&self, watermark_ms: Option<i64>) {
        self.watermark.raise(watermark_ms);
    }

    pub(crate) fn show_marks(&self, readable_ms: Option<i64>, retired_ms: Option<i64>) {
        self.readable.raise(readable_ms);
        self.retired.raise(retired_ms);
    }
}

fn get(total: &AtomicU64) -> u64 {
    total.load(Ordering::Relaxed)
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// A time that only grows and starts as none.
#[derive(Debug)]
struct Mark(AtomicI64);

impl Default for Mark {
    fn default() -> Self {
        Self(AtomicI64::new(i64::MIN))
    }
}

impl Mark {
    fn get(&self) -> Option<i64> {
        let at_ms = self.0.load(Ordering::Relaxed);
        (at_ms != i64::MIN).then_some(at_ms)
    }

    fn raise(&self, to_ms: Option<i64>) {
        if let Some(to_ms) = to_ms {
            self.0.fetch_max(to_ms, Ordering::Relaxed);
        }
    }
}
