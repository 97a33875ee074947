//! The embedded log: files in one folder, written by one process.
//!
//! All partitions share one journal, so that a commit costs one write and one fdatasync however
//! many partitions it touches. The journal is a row of segment files; the newest is written, the
//! others are closed and fall to retention as a whole, oldest first. What lies in them is described
//! in `segment/format.rs`.
//!
//! ```text
//! log.format                  what this folder is, and its number of partitions
//! log.lock                    locked while a log is open
//! 00000000000000000001.log    a segment
//! 00000000000000000001.index  where its partitions' blocks lie; made anew if it is missing
//! ```
//!
//! After a crash the last segment may end in a write that was never confirmed: opening cuts that
//! off. A bad place that was confirmed once, that is, one before a later commit or in a closed
//! segment, is reported as [`LogError::Damaged`] and never cut.

mod encode;
mod files;
mod format;
mod index;
mod journal;
mod open;
mod reader;
mod scan;
mod writer;

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use tally_model::clock::Clock;

use self::encode::Encoder;
use self::files::{Wrap, io_error};
use self::journal::Journal;
use self::open::Opened;
use self::reader::SegmentReader;
use self::writer::Writer;
use crate::queue::Queue;
use crate::{
    AppendDone, AppendError, EventLog, LogError, LogReader, LogStats, NewRecord, Offset, Partition,
};

/// The largest `record_bytes_max`: lengths of blocks have 32 bits.
const RECORD_BYTES_CEILING: usize = 1 << 30;

/// Settings of a [`SegmentLog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentOptions {
    /// Number of partitions. Fixed when the log is made; opening with another number is refused.
    pub partitions: Partition,
    /// A segment is closed before it grows over this size; a single commit may be larger.
    pub segment_bytes: u64,
    /// Largest key and payload together.
    pub record_bytes_max: usize,
    /// Most bytes that may wait for a commit, the one under way included.
    pub queue_bytes_max: usize,
    /// How long a record is kept after its append, in ms. It is deleted with its segment, so up to
    /// about a tenth later while the log is appended to.
    pub retention_ms: i64,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        Self {
            partitions: 8,
            segment_bytes: 64 << 20,
            record_bytes_max: 1 << 20,
            queue_bytes_max: 64 << 20,
            retention_ms: 10 * 24 * 60 * 60 * 1_000,
        }
    }
}

/// The embedded log.
///
/// Dropping it commits what is queued first. Readers may outlive it.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::{Arc, mpsc};
/// use tally_eventlog::segment::{SegmentLog, SegmentOptions};
/// use tally_eventlog::{EventLog, NewRecord, ReadLimits};
/// use tally_model::clock::ManualClock;
///
/// let folder = tempfile::tempdir()?;
/// let clock = Arc::new(ManualClock::new(1_700_000_000_000));
/// let log = SegmentLog::open(&folder.path().join("log"), SegmentOptions::default(), clock)?;
///
/// let (sender, receiver) = mpsc::channel();
/// let record = NewRecord { partition: 3, key: [7; 16], payload: b"hello".to_vec() };
/// log.append(vec![record], Box::new(move |results| sender.send(results).unwrap_or(())))?;
/// assert_eq!(receiver.recv()?, [Ok(0)]);
///
/// let mut reader = log.reader(&[(3, 0)])?;
/// let mut payloads = Vec::new();
/// reader.read(ReadLimits { records: 10, bytes: 1 << 20 }, &mut |record| {
///     payloads.push(record.payload.to_vec());
/// })?;
/// assert_eq!(payloads, [b"hello"]);
/// # Ok(()) }
/// ```
pub struct SegmentLog {
    journal: Arc<Journal>,
    queue: Arc<Queue>,
    stats: Arc<LogStats>,
    options: SegmentOptions,
    writer: Option<JoinHandle<()>>,
    /// The writer holds it too: the folder stays locked until both are gone.
    _lock: Arc<File>,
}

impl SegmentLog {
    /// Opens the log in `dir`, or makes one if the folder is empty or missing.
    ///
    /// # Errors
    /// [`LogError::Foreign`] if the folder is in use, holds something else or a log with another
    /// number of partitions; [`LogError::Damaged`] if confirmed records are damaged;
    /// [`LogError::Options`] for options that no log can have; [`LogError::Io`].
    pub fn open(
        dir: &Path,
        options: SegmentOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, LogError> {
        Self::open_with(dir, options, clock, Box::new(|file| Box::new(file)))
    }

    fn open_with(
        dir: &Path,
        options: SegmentOptions,
        clock: Arc<dyn Clock>,
        wrap: Wrap,
    ) -> Result<Self, LogError> {
        options.check()?;
        let Opened { journal, tail, lock } = open::open(dir, options.partitions, &wrap)?;
        let journal = Arc::new(journal);
        let stats = Arc::new(LogStats::default());
        let queue = Arc::new(Queue::new(options.queue_bytes_max, Arc::clone(&stats)));
        let writer = Writer {
            journal: Arc::clone(&journal),
            queue: Arc::clone(&queue),
            stats: Arc::clone(&stats),
            clock,
            options,
            wrap,
            encoder: Encoder::new(options.partitions, options.record_bytes_max),
            tail,
            _lock: Arc::clone(&lock),
        };
        let writer = thread::Builder::new()
            .name("eventlog-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(io_error("start the writing thread of", dir))?;
        Ok(Self { journal, queue, stats, options, writer: Some(writer), _lock: lock })
    }

    /// Deletes the closed segments whose last record was appended `retention_ms` or more before
    /// `now_ms` (ms since the Unix epoch). Returns how many. The log does this by itself about once
    /// a minute.
    ///
    /// # Errors
    /// [`LogError::Io`]; what could not be deleted stays readable and is tried again next time.
    pub fn apply_retention(&self, now_ms: i64) -> Result<u64, LogError> {
        let removed = self.journal.retire(now_ms, self.options.retention_ms)?;
        self.stats.segments_removed.fetch_add(removed, Ordering::Relaxed);
        Ok(removed)
    }
}

impl SegmentOptions {
    fn check(&self) -> Result<(), LogError> {
        let what = if self.partitions == 0 {
            "a log has at least one partition"
        } else if self.record_bytes_max > RECORD_BYTES_CEILING {
            "a record can have at most 1 GiB"
        } else if self.retention_ms < 0 {
            "the retention time cannot be negative"
        } else {
            return Ok(());
        };
        Err(LogError::Options { what })
    }
}

impl EventLog for SegmentLog {
    fn partitions(&self) -> Partition {
        self.options.partitions
    }

    fn append(&self, records: Vec<NewRecord>, done: AppendDone) -> Result<(), AppendError> {
        self.queue.push(records, done)
    }

    fn end_offsets(&self) -> Result<Vec<Offset>, LogError> {
        Ok(self.journal.ends())
    }

    fn low_offsets(&self) -> Result<Vec<Offset>, LogError> {
        Ok(self.journal.lows())
    }

    fn reader(&self, from: &[(Partition, Offset)]) -> Result<Box<dyn LogReader>, LogError> {
        let journal = Arc::clone(&self.journal);
        Ok(Box::new(SegmentReader::new(journal, self.options.partitions, from)?))
    }

    fn stats(&self) -> Arc<LogStats> {
        Arc::clone(&self.stats)
    }
}

impl Drop for SegmentLog {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(writer) = self.writer.take()
            // The last owner may have been a completion, which runs on that thread.
            && writer.thread().id() != thread::current().id()
            && writer.join().is_err()
        {
            tracing::error!("the writing thread of the event log panicked");
        }
    }
}

impl fmt::Debug for SegmentLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentLog")
            .field("dir", &self.journal.dir())
            .field("options", &self.options)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
