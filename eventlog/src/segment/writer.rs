//! The one thread that writes.
//!
//! Invariant L-1 of ARCHITECTURE.md.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tally_model::clock::Clock;

use super::SegmentOptions;
use super::encode::{CommitPlace, Encoder, RecordResult};
use super::files::{SegmentFile, Wrap, create_expendable, create_whole, index_path};
use super::format::{Place, SegmentHeader};
use super::journal::{Journal, Segment};
use crate::convert::{to_index, to_u64};
use crate::queue::{Job, Next, Queue};
use crate::stats::LogStats;
use crate::{AppendError, LogError, Offset};

/// About the most that one commit writes: bounds the writer's memory and how long the first callers
/// of a long queue wait. Sixteen MiB keep the cost of an fdatasync far below that of the bytes.
const COMMIT_BYTES: usize = 16 << 20;
/// How often retention is looked at.
const RETENTION_EVERY: Duration = Duration::from_secs(60);
/// A segment is closed at this part of the retention time, so that no record stays much longer.
const SEGMENTS_PER_RETENTION: i64 = 10;

/// What the writing thread owns.
pub(super) struct Writer {
    pub(super) journal: Arc<Journal>,
    pub(super) queue: Arc<Queue>,
    pub(super) stats: Arc<LogStats>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: SegmentOptions,
    pub(super) wrap: Wrap,
    pub(super) encoder: Encoder,
    pub(super) tail: Tail,
    /// Held as long as anything may be written.
    pub(super) _lock: Arc<File>,
}

/// The segment being written. Describes durable bytes only: a failed commit leaves it as it was.
pub(super) struct Tail {
    pub(super) file: Box<dyn SegmentFile>,
    /// Number of the segment and the position after its last durable block.
    pub(super) end: Place,
    /// When its first record was appended; `i64::MAX` if it has none.
    pub(super) first_append_ms: i64,
    /// The next offset, by partition.
    pub(super) next: Vec<Offset>,
}

/// Why a commit failed.
struct CommitFault {
    error: AppendError,
    /// Whether the log must not be written to any more.
    is_final: bool,
}

/// Refuses appends when the thread ends, however it ends.
struct StopAtEnd(Arc<Queue>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        let reason = "the writing thread has ended";
        for job in self.0.stop(reason) {
            job.fail(&AppendError::Unavailable { reason: reason.to_owned() });
        }
    }
}

impl Writer {
    /// Commits until the queue is closed and empty, or until the file cannot be trusted any more.
    pub(super) fn run(mut self) {
        let _stop_at_end = StopAtEnd(Arc::clone(&self.queue));
        let mut looked_at_ms = self.clock.monotonic_ms();
        let every_ms = i64::try_from(RETENTION_EVERY.as_millis()).unwrap_or(i64::MAX);
        loop {
            match self.queue.take(COMMIT_BYTES, RETENTION_EVERY) {
                Next::Commit(jobs) => {
                    if self.commit(jobs).is_err() {
                        return;
                    }
                }
                Next::Idle => {}
                Next::Close => return,
            }
            let now_ms = self.clock.monotonic_ms();
            if now_ms.saturating_sub(looked_at_ms) >= every_ms {
                looked_at_ms = now_ms;
                if let Err(error) = self.retire() {
                    tracing::warn!(error = &error as &dyn std::error::Error, "retention failed");
                }
            }
        }
    }

    fn retire(&self) -> Result<(), LogError> {
        let removed = self.journal.retire(self.clock.now_ms(), self.options.retention_ms)?;
        self.stats.segments_removed.fetch_add(removed, Ordering::Relaxed);
        Ok(())
    }

    /// Commits `jobs` and tells their callers.
    ///
    /// # Errors
    /// Nothing more may be written.
    fn commit(&mut self, jobs: Vec<Job>) -> Result<(), ()> {
        let outcome = self.try_commit(&jobs);
        self.queue.release(jobs.iter().map(|job| job.bytes).sum());
        match outcome {
            Ok(results) => {
                for (job, results) in jobs.into_iter().zip(results) {
                    job.finish(results);
                }
                Ok(())
            }
            Err(CommitFault { error, is_final }) => {
                if is_final {
                    tracing::error!(%error, dir = %self.journal.dir().display(), "the event log stops");
                }
                let reason = error.to_string();
                // Before anyone hears of it, so that a caller who tries again at once is refused.
                let waiting = if is_final { self.queue.stop(&reason) } else { Vec::new() };
                for job in jobs {
                    job.fail(&error);
                }
                for job in waiting {
                    job.fail(&AppendError::Unavailable { reason: reason.clone() });
                }
                if is_final { Err(()) } else { Ok(()) }
            }
        }
    }

    fn try_commit(&mut self, jobs: &[Job]) -> Result<Vec<Vec<RecordResult>>, CommitFault> {
        let appended_at_ms = self.clock.now_ms();
        if self.is_roll_due(jobs, appended_at_ms) {
            self.roll()?;
        }
        let place = CommitPlace { start: self.tail.end, appended_at_ms };
        let results = self.encoder.encode(jobs, &self.tail.next, place);
        if self.encoder.blocks.is_empty() {
            return Ok(results);
        }
        self.write()?;
        for block in &self.encoder.blocks {
            self.tail.next[to_index(block.partition)] = block.end_offset();
        }
        let bytes = to_u64(self.encoder.bytes.len());
        self.tail.end.position += bytes;
        self.tail.first_append_ms = self.tail.first_append_ms.min(appended_at_ms);
        self.journal.publish(&self.encoder.blocks);
        let records = self.encoder.blocks.iter().map(|block| u64::from(block.record_count)).sum();
        self.stats.committed(records, bytes);
        Ok(results)
    }

    /// Writes what the encoder holds and makes it durable.
    fn write(&self) -> Result<(), CommitFault> {
        let Tail { file, end, .. } = &self.tail;
        if let Err(error) = file.write_all_at(&self.encoder.bytes, end.position) {
            if !is_no_room(&error) {
                return Err(CommitFault::unknown(&error));
            }
            // No room: whatever part was written is taken back, and once that is durable it is
            // certain that nothing of the commit will ever be seen.
            return Err(match file.set_len(end.position).and_then(|()| file.sync_data()) {
                Ok(()) => CommitFault::refused(&error),
                Err(error) => CommitFault::unknown(&error),
            });
        }
        let started = now();
        // After a failed fdatasync the kernel may have dropped the pages and report success the next
        // time, so there is no next time.
        file.sync_data().map_err(|error| CommitFault::unknown(&error))?;
        self.stats.synced(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        Ok(())
    }

    fn is_roll_due(&self, jobs: &[Job], now_ms: i64) -> bool {
        let Tail { end, first_append_ms, .. } = &self.tail;
        if *first_append_ms == i64::MAX {
            return false;
        }
        let more: usize = jobs.iter().map(|job| job.bytes).sum();
        let is_full = end.position.saturating_add(to_u64(more)) > self.options.segment_bytes;
        let age_ms = now_ms.saturating_sub(*first_append_ms);
        is_full || age_ms >= self.options.retention_ms / SEGMENTS_PER_RETENTION
    }

    /// Starts the next segment and closes the one before.
    fn roll(&mut self) -> Result<(), CommitFault> {
        let dir = self.journal.dir();
        let closed = self.tail.end.sequence;
        let header = SegmentHeader { sequence: closed + 1, bases: self.tail.next.clone() };
        let bytes = header.encode();
        let end = Place { sequence: header.sequence, position: to_u64(bytes.len()) };
        let segment = Arc::new(Segment::new(dir, header, end.position));
        let file = create_whole(&segment.path, &bytes, &self.wrap).map_err(|error| {
            CommitFault { is_final: !is_no_room(&error), ..CommitFault::refused(&error) }
        })?;
        let index = self.journal.push(segment);
        let path = index_path(dir, closed);
        if let Some(Err(error)) = index.map(|bytes| create_expendable(&path, &bytes)) {
            tracing::warn!(path = %path.display(), %error, "cannot write an index; the next start makes it");
        }
        self.tail.file = file;
        self.tail.end = end;
        self.tail.first_append_ms = i64::MAX;
        Ok(())
    }
}

impl CommitFault {
    /// Nothing was written, and later there may be room.
    fn refused(error: &io::Error) -> Self {
        Self { error: AppendError::Unavailable { reason: error.to_string() }, is_final: false }
    }

    fn unknown(error: &io::Error) -> Self {
        Self { error: AppendError::Unknown { reason: error.to_string() }, is_final: true }
    }
}

/// Whether the fault may pass by itself: a full disk, or too many open files.
fn is_no_room(error: &io::Error) -> bool {
    /// "Too many open files", in the system and in the process.
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
        || matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
}

#[expect(clippy::disallowed_methods, reason = "only a metric depends on it, and ms are too coarse")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}
