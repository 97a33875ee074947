//! What readers may know of the log: its segments and the offsets that are durable.
//!
//! Invariant L-2 of ARCHITECTURE.md.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::files::{index_path, io_error, segment_path, sync_dir};
use super::format::{BlockHeader, SegmentHeader};
use super::index::SegmentIndex;
use crate::convert::to_index;
use crate::{LogError, Offset, Partition};

/// A segment file.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    pub(super) header: SegmentHeader,
    /// Length up to which everything is durable. Readers read no further.
    durable_bytes: AtomicU64,
}

impl Segment {
    pub(super) fn new(dir: &Path, header: SegmentHeader, durable_bytes: u64) -> Self {
        let path = segment_path(dir, header.sequence);
        Self { path, header, durable_bytes: AtomicU64::new(durable_bytes) }
    }

    pub(super) fn durable_bytes(&self) -> u64 {
        self.durable_bytes.load(Ordering::Acquire)
    }
}

/// A segment that can be found.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) segment: Arc<Segment>,
    pub(super) index: SegmentIndex,
}

/// Where reading goes on.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) segment: Arc<Segment>,
    pub(super) file: File,
    pub(super) position: u64,
}

#[derive(Debug)]
struct State {
    /// Oldest first, never empty; the last one is being written.
    segments: VecDeque<Listed>,
    /// The offset after the last durable record, by partition.
    ends: Vec<Offset>,
}

/// The shared state of a log, its writer and its readers.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    state: RwLock<State>,
}

impl Journal {
    /// A journal of these segments, oldest first, at least one.
    pub(super) fn new(dir: &Path, segments: VecDeque<Listed>) -> Self {
        let ends = segments.back().map(|last| last.index.ends.clone()).unwrap_or_default();
        Self { dir: dir.to_owned(), state: RwLock::new(State { segments, ends }) }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn ends(&self) -> Vec<Offset> {
        self.read().ends.clone()
    }

    pub(super) fn lows(&self) -> Vec<Offset> {
        self.read().lows().to_vec()
    }

    /// Makes blocks visible that are durable now: those that follow in the last segment.
    pub(super) fn publish(&self, blocks: &[BlockHeader]) {
        let mut state = self.write();
        let State { segments, ends } = &mut *state;
        if let Some(last) = segments.back_mut() {
            for block in blocks {
                last.index.add(block);
            }
            ends.clone_from(&last.index.ends);
            last.segment.durable_bytes.store(last.index.segment_bytes, Ordering::Release);
        }
    }

    /// Closes the last segment by listing its successor. Returns the bytes of the closed one's
    /// index file.
    pub(super) fn push(&self, segment: Arc<Segment>) -> Option<Vec<u8>> {
        let mut state = self.write();
        let index = SegmentIndex::new(segment.durable_bytes(), &segment.header.bases);
        let closed = state.segments.back().map(|last| last.index.encode(last.sequence()));
        state.segments.push_back(Listed { segment, index });
        closed
    }

    /// The first place that can hold a record at or after the given offsets.
    pub(super) fn start(&self, from: &[(Partition, Offset)]) -> Result<Start, LogError> {
        let state = self.read();
        let mut start: Option<(usize, u64)> = None;
        for &(partition, offset) in from {
            let place = state.find(partition, offset)?;
            start = Some(start.map_or(place, |least| least.min(place)));
        }
        let (number, position) = start.unwrap_or_else(|| state.end());
        state.open_at(number, position)
    }

    /// The segment after `current`, for a reader that has read that one up to `position` and stands
    /// at these offsets; `None` if it is the last or holds more.
    pub(super) fn next_segment(
        &self,
        current: &Segment,
        position: u64,
        positions: &[(Partition, Offset)],
    ) -> Result<Option<Start>, LogError> {
        let state = self.read();
        // Since the reader looked, the segment may have grown and then been closed. Under the lock
        // neither happens.
        if current.durable_bytes() > position {
            return Ok(None);
        }
        let sequence = current.header.sequence;
        let number = state.segments.partition_point(|listed| listed.sequence() <= sequence);
        let Some(next) = state.segments.get(number) else {
            return Ok(None);
        };
        let header = &next.segment.header;
        // Retention may have taken segments in between: fine if none of them held a record for us.
        for &(partition, offset) in positions {
            if header.bases.get(to_index(partition)).is_none_or(|base| offset < *base) {
                return Err(state.out_of_range(partition, offset));
            }
        }
        let first_block = SegmentHeader::bytes(state.partitions());
        state.open_at(number, first_block).map(Some)
    }

    /// Deletes closed segments whose last append is `retention_ms` or more before `now_ms`, oldest
    /// first. Returns how many.
    ///
    /// The list stays locked meanwhile, so that nobody opens a file that is going away. Each name is
    /// gone durably before the next goes: a crash leaves no hole.
    pub(super) fn retire(&self, now_ms: i64, retention_ms: i64) -> Result<u64, LogError> {
        let mut removed = 0;
        let mut state = self.write();
        while state.segments.len() > 1
            && let Some(oldest) = state.segments.front()
            && oldest.index.last_append_ms.saturating_add(retention_ms) <= now_ms
        {
            let path = &oldest.segment.path;
            fs::remove_file(path).map_err(io_error("delete", path))?;
            sync_dir(&self.dir).map_err(io_error("sync", &self.dir))?;
            let index = index_path(&self.dir, oldest.sequence());
            state.segments.pop_front();
            removed += 1;
            if let Err(error) = fs::remove_file(&index) {
                // It may never have been written, and the next start removes it if it is there.
                tracing::debug!(path = %index.display(), %error, "cannot delete an index file");
            }
        }
        Ok(removed)
    }
}

impl Listed {
    pub(super) fn sequence(&self) -> u64 {
        self.segment.header.sequence
    }
}

impl State {
    fn partitions(&self) -> Partition {
        Partition::try_from(self.ends.len()).expect("partitions are 32 bits")
    }

    fn lows(&self) -> &[Offset] {
        self.segments.front().map_or(&self.ends, |oldest| &oldest.segment.header.bases)
    }

    /// Number in the list and position of the end of the log.
    fn end(&self) -> (usize, u64) {
        let durable = self.segments.back().map_or(0, |last| last.segment.durable_bytes());
        (self.segments.len() - 1, durable)
    }

    /// Number in the list of a segment and a position in it from which on `offset` will be met.
    fn find(&self, partition: Partition, offset: Offset) -> Result<(usize, u64), LogError> {
        let at = to_index(partition);
        let (Some(low), Some(end)) = (self.lows().get(at), self.ends.get(at)) else {
            return Err(self.out_of_range(partition, offset));
        };
        if offset < *low || offset > *end {
            return Err(self.out_of_range(partition, offset));
        }
        if offset == *end {
            return Ok(self.end());
        }
        let base = |listed: &Listed| listed.segment.header.bases[at];
        let number = self.segments.partition_point(|listed| base(listed) <= offset) - 1;
        let position = self.segments[number].index.find(partition, offset);
        Ok((number, position.unwrap_or_else(|| SegmentHeader::bytes(self.partitions()))))
    }

    fn open_at(&self, number: usize, position: u64) -> Result<Start, LogError> {
        let segment = Arc::clone(&self.segments[number].segment);
        let file = File::open(&segment.path).map_err(io_error("open", &segment.path))?;
        Ok(Start { segment, file, position })
    }

    fn out_of_range(&self, partition: Partition, offset: Offset) -> LogError {
        let at = to_index(partition);
        let low = self.lows().get(at).copied().unwrap_or(0);
        let end = self.ends.get(at).copied().unwrap_or(0);
        LogError::OutOfRange { partition, offset, low, end }
    }
}
