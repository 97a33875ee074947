//! What became of a run's checkpoints, for metrics and health checks.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// What became of a run's checkpoints.
#[derive(Debug, Default)]
pub struct CheckpointProgress {
    written: AtomicU64,
    failed: AtomicU64,
    failed_in_a_row: AtomicU64,
    last_at_ms: AtomicI64,
    last_bytes: AtomicU64,
    last_took_ms: AtomicI64,
    bytes: AtomicU64,
}

/// One checkpoint that was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    pub(crate) at_ms: i64,
    pub(crate) bytes: u64,
    pub(crate) took_ms: i64,
}

impl CheckpointProgress {
    /// Checkpoints written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Checkpoints that could not be written; the next one covers what they would have.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// How many have failed since the last one that was written. An alarm.
    #[must_use]
    pub fn failed_in_a_row(&self) -> u64 {
        self.failed_in_a_row.load(Ordering::Relaxed)
    }

    /// When the last one was written, in ms since the Unix epoch; `None` before the first.
    #[must_use]
    pub fn last_at_ms(&self) -> Option<i64> {
        let at_ms = self.last_at_ms.load(Ordering::Relaxed);
        (at_ms != 0).then_some(at_ms)
    }

    /// Bytes uploaded for the last one.
    #[must_use]
    pub fn last_bytes(&self) -> u64 {
        self.last_bytes.load(Ordering::Relaxed)
    }

    /// How long the upload of the last one took, in ms.
    #[must_use]
    pub fn last_took_ms(&self) -> i64 {
        self.last_took_ms.load(Ordering::Relaxed)
    }

    /// Bytes uploaded in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn wrote(&self, written: Written) {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.failed_in_a_row.store(0, Ordering::Relaxed);
        self.last_at_ms.store(written.at_ms, Ordering::Relaxed);
        self.last_bytes.store(written.bytes, Ordering::Relaxed);
        self.last_took_ms.store(written.took_ms, Ordering::Relaxed);
        self.bytes.fetch_add(written.bytes, Ordering::Relaxed);
    }

    pub(crate) fn fail(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.failed_in_a_row.fetch_add(1, Ordering::Relaxed);
    }
}
