//! What a log counts about its own work.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters and gauges of a log since it was opened, to be read at any time.
///
/// Each is exact by itself; two that are read one after another may belong to different commits.
#[derive(Debug, Default)]
pub struct LogStats {
    /// Commits that became durable, each with one fdatasync; in Kafka, calls of `append` of which
    /// something was acknowledged.
    pub commits: AtomicU64,
    /// Records in them; with `commits`, how many records share a commit.
    pub records: AtomicU64,
    /// Bytes written for them, block headers included; in Kafka, their payloads.
    pub bytes: AtomicU64,
    /// Most records in one commit.
    pub commit_records_max: AtomicU64,
    /// Time spent in fdatasync of commits, ns; in Kafka, from the handing over of a call to its last
    /// acknowledgement.
    pub sync_ns_total: AtomicU64,
    /// The longest of them, ns.
    pub sync_ns_max: AtomicU64,
    /// Bytes queued or being committed now.
    pub queued_bytes: AtomicU64,
    /// Errors of readers that pass by themselves: a broker that is away.
    pub read_errors: AtomicU64,
    /// Segments that retention has deleted.
    pub segments_removed: AtomicU64,
}

impl LogStats {
    pub(crate) fn committed(&self, records: u64, bytes: u64) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.commit_records_max.fetch_max(records, Ordering::Relaxed);
    }

    pub(crate) fn synced(&self, ns: u64) {
        self.sync_ns_total.fetch_add(ns, Ordering::Relaxed);
        self.sync_ns_max.fetch_max(ns, Ordering::Relaxed);
    }
}
