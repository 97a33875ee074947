//! What a rollup has done since its process began, for metrics.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::RollupReport;

/// Counters and the state of the last run; read at any time.
#[derive(Debug, Default)]
pub struct RollupProgress {
    runs: AtomicU64,
    failed_runs: AtomicU64,
    hours_folded: AtomicU64,
    days_folded: AtomicU64,
    refused_puts: AtomicU64,
    lacking: AtomicU64,
    busy_days: AtomicU64,
    last_run_ms: AtomicI64,
}

/// A [`RollupProgress`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RollupFigures {
    /// Runs that came to their end.
    pub runs: u64,
    /// Runs that an error ended.
    pub failed_runs: u64,
    /// Hour rows put.
    pub hours_folded: u64,
    /// Day rows put.
    pub days_folded: u64,
    /// Conditional puts that were refused: somebody else had replaced the row.
    pub refused_puts: u64,
    /// Buckets that are retired but cannot be folded because a child has no row, as the last run
    /// found: the rollup is stuck there.
    pub lacking: u64,
    /// Days that the last run left to somebody else.
    pub busy_days: u64,
    /// When the last run came to its end, ms since the Unix epoch; 0 = never.
    pub last_run_ms: i64,
}

impl RollupProgress {
    /// The figures now.
    #[must_use]
    pub fn figures(&self) -> RollupFigures {
        RollupFigures {
            runs: self.runs.load(Ordering::Relaxed),
            failed_runs: self.failed_runs.load(Ordering::Relaxed),
            hours_folded: self.hours_folded.load(Ordering::Relaxed),
            days_folded: self.days_folded.load(Ordering::Relaxed),
            refused_puts: self.refused_puts.load(Ordering::Relaxed),
            lacking: self.lacking.load(Ordering::Relaxed),
            busy_days: self.busy_days.load(Ordering::Relaxed),
            last_run_ms: self.last_run_ms.load(Ordering::Relaxed),
        }
    }

    /// Notes a run that an error ended.
    pub fn failed(&self) {
        self.failed_runs.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused_puts(&self, refused: u64) {
        self.refused_puts.fetch_add(refused, Ordering::Relaxed);
    }

    /// Notes a run. One that looked at part of the days can find more that is stuck, not less.
    pub(super) fn ran(&self, report: &RollupReport, whole: bool, now_ms: i64) {
        self.hours_folded.fetch_add(report.hours_folded, Ordering::Relaxed);
        self.days_folded.fetch_add(report.days_folded, Ordering::Relaxed);
        if report.stopped {
            return;
        }
        self.runs.fetch_add(1, Ordering::Relaxed);
        if whole {
            self.lacking.store(report.lacking, Ordering::Relaxed);
        } else {
            self.lacking.fetch_max(report.lacking, Ordering::Relaxed);
        }
        self.busy_days.store(report.days_busy, Ordering::Relaxed);
        self.last_run_ms.store(now_ms, Ordering::Relaxed);
    }
}
