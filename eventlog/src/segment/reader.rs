//! A reader of some partitions.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::files::io_error;
use super::format::{BLOCK_HEADER_BYTES, BlockHeader, Place, take_record};
use super::journal::{Journal, Start};
use super::scan::{Fault, Window};
use crate::convert::{to_index, to_u64};
use crate::{LogError, LogReader, LogRecord, Offset, Partition, ReadLimits, ReadProgress};

/// Reads with its own file handle and buffer; shares nothing with other readers but the list of
/// segments.
pub(super) struct SegmentReader {
    journal: Arc<Journal>,
    positions: Vec<(Partition, Offset)>,
    /// By partition, its place in `positions`; `None` if it is not read here.
    own: Vec<Option<usize>>,
    /// The segment being read and the position of the next block in it.
    at: Start,
    window: Window,
    block: Option<OpenBlock>,
}

/// A block that was checked and is not yet handed out whole.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    header: BlockHeader,
    /// Place of its partition in `positions`.
    own: usize,
    /// What is left of its body, as indices into the window.
    next: usize,
    end: usize,
    /// Records left.
    left: u32,
}

impl SegmentReader {
    pub(super) fn new(
        journal: Arc<Journal>,
        partitions: Partition,
        from: &[(Partition, Offset)],
    ) -> Result<Self, LogError> {
        let at = journal.start(from)?;
        let mut own = vec![None; to_index(partitions)];
        for (place, (partition, _)) in from.iter().enumerate() {
            let earlier = own[to_index(*partition)].replace(place);
            assert!(earlier.is_none(), "partition {partition} is named twice");
        }
        let positions = from.to_vec();
        Ok(Self { journal, positions, own, at, window: Window::new(), block: None })
    }

    fn damaged(&self, position: u64, fault: Fault) -> LogError {
        LogError::Damaged { path: self.at.segment.path.clone(), position, what: fault.what() }
    }

    /// Goes to the next block with a record to hand out. Returns whether there is one.
    fn next_block(&mut self) -> Result<bool, LogError> {
        loop {
            let position = self.at.position;
            let durable_bytes = self.at.segment.durable_bytes();
            if position == durable_bytes {
                let segment = &self.at.segment;
                let Some(next) = self.journal.next_segment(segment, position, &self.positions)?
                else {
                    return Ok(false);
                };
                self.at = next;
                self.window.clear();
                continue;
            }
            let at = self.load(BLOCK_HEADER_BYTES, durable_bytes)?;
            let place = Place { sequence: self.at.segment.header.sequence, position };
            let Some(header) = BlockHeader::decode(&self.window.bytes()[at..], place) else {
                return Err(self.damaged(position, Fault::Header));
            };
            let own = self.own.get(to_index(header.partition)).copied().flatten();
            if let Some(own) = own
                && self.positions[own].1 < header.end_offset()
            {
                self.block = Some(self.open_block(header, own, durable_bytes)?);
            }
            self.at.position += to_u64(header.block_bytes());
            if self.block.is_some() {
                return Ok(true);
            }
        }
    }

    /// Checks the block at the reader's position and passes what was read of it before.
    fn open_block(
        &mut self,
        header: BlockHeader,
        own: usize,
        durable_bytes: u64,
    ) -> Result<OpenBlock, LogError> {
        let position = self.at.position;
        let at = self.load(header.block_bytes(), durable_bytes)?;
        let (next, end) = (at + BLOCK_HEADER_BYTES, at + header.block_bytes());
        if !header.matches(&self.window.bytes()[next..end]) {
            return Err(self.damaged(position, Fault::Body));
        }
        let wanted = self.positions[own].1;
        if wanted < header.base_offset {
            return Err(self.damaged(position, Fault::Offsets));
        }
        let mut rest = &self.window.bytes()[next..end];
        for _ in header.base_offset..wanted {
            take_record(&mut rest).ok_or_else(|| self.damaged(position, Fault::Record))?;
        }
        let passed = u32::try_from(wanted - header.base_offset).expect("less than record_count");
        Ok(OpenBlock {
            header,
            own,
            next: end - rest.len(),
            end,
            left: header.record_count - passed,
        })
    }

    /// Loads bytes from the reader's position on, which must be there.
    fn load(&mut self, count: usize, durable_bytes: u64) -> Result<usize, LogError> {
        let position = self.at.position;
        match self.window.load(&self.at.file, position, count, durable_bytes) {
            Ok(Some(at)) => Ok(at),
            Ok(None) => Err(self.damaged(position, Fault::CutOff)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(position, Fault::CutOff))
            }
            Err(error) => Err(io_error("read", &self.at.segment.path)(error)),
        }
    }

    /// Hands out records of the open block until a limit or the block's end is reached.
    fn hand_out(
        &mut self,
        limits: ReadLimits,
        progress: &mut ReadProgress,
        each: &mut dyn FnMut(LogRecord<'_>),
    ) -> Result<(), LogError> {
        let Some(block) = &mut self.block else {
            return Ok(());
        };
        let (partition, offset) = &mut self.positions[block.own];
        let mut rest = &self.window.bytes()[block.next..block.end];
        while block.left > 0 && !is_reached(limits, *progress) {
            let Some((key, payload)) = take_record(&mut rest) else {
                let position = self.at.position - to_u64(block.header.block_bytes());
                return Err(self.damaged(position, Fault::Record));
            };
            let appended_at_ms = block.header.appended_at_ms;
            each(LogRecord {
                partition: *partition,
                offset: *offset,
                appended_at_ms,
                key,
                payload,
            });
            *offset += 1;
            block.left -= 1;
            block.next = block.end - rest.len();
            progress.records += 1;
            progress.bytes += payload.len();
        }
        if block.left == 0 {
            self.block = None;
        }
        Ok(())
    }
}

fn is_reached(limits: ReadLimits, progress: ReadProgress) -> bool {
    progress.records >= limits.records || progress.bytes >= limits.bytes
}

impl LogReader for SegmentReader {
    fn read(
        &mut self,
        limits: ReadLimits,
        each: &mut dyn FnMut(LogRecord<'_>),
    ) -> Result<ReadProgress, LogError> {
        let mut progress = ReadProgress::default();
        while !is_reached(limits, progress) {
            if self.block.is_none() && !self.next_block()? {
                break;
            }
            self.hand_out(limits, &mut progress, each)?;
        }
        Ok(progress)
    }

    fn positions(&self) -> Vec<(Partition, Offset)> {
        self.positions.clone()
    }
}

impl fmt::Debug for SegmentReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentReader")
            .field("positions", &self.positions)
            .field("segment", &self.at.segment.path)
            .field("position", &self.at.position)
            .finish_non_exhaustive()
    }
}
