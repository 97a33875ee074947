//! Reading a segment file from front to back, in large pieces.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::files::io_error;
use super::format::{BLOCK_HEADER_BYTES, BLOCK_MAGIC, BlockHeader, Place, SegmentHeader};
use super::index::SegmentIndex;
use crate::convert::{to_index, to_u64, to_usize};
use crate::{LogError, Partition};

/// How much is read at once.
const READ_BYTES: usize = 1 << 20;

/// The part of a file that is in memory. Grows only for a block that is longer.
pub(super) struct Window {
    buffer: Vec<u8>,
    /// Position in the file of the first byte.
    start: u64,
    /// How many bytes of the buffer are the file's.
    filled: usize,
}

impl Window {
    pub(super) fn new() -> Self {
        Self { buffer: Vec::new(), start: 0, filled: 0 }
    }

    /// Forgets everything, for another file.
    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    /// The bytes in memory; see [`Window::load`].
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// Sees to it that `count` bytes from `position` on are in memory and says from which index on;
    /// `None` if they do not all lie before `bound`. Nothing behind `bound` is ever read.
    pub(super) fn load(
        &mut self,
        file: &File,
        position: u64,
        count: usize,
        bound: u64,
    ) -> io::Result<Option<usize>> {
        let Some(room) = bound.checked_sub(position).map(to_usize).filter(|room| *room >= count)
        else {
            return Ok(None);
        };
        let index = position.checked_sub(self.start).map(to_usize).filter(|i| *i <= self.filled);
        if let Some(index) = index.filter(|index| self.filled - index >= count) {
            return Ok(Some(index));
        }
        let kept = index.map_or(0, |index| {
            self.buffer.copy_within(index..self.filled, 0);
            self.filled - index
        });
        // Until the read has succeeded, only what was kept is the file's.
        (self.start, self.filled) = (position, kept);
        let wanted = READ_BYTES.max(count).min(room);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        file.read_exact_at(&mut self.buffer[kept..wanted], position + to_u64(kept))?;
        self.filled = wanted;
        Ok(Some(0))
    }
}

/// What a segment file holds.
#[derive(Debug)]
pub(super) struct Scanned {
    /// The index of its good blocks, up to the first bad place.
    pub(super) index: SegmentIndex,
    /// What does not fit after the last good block, if anything is there.
    pub(super) fault: Option<Fault>,
}

/// What does not fit in a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The file ends within a block.
    CutOff,
    /// No block header, or a damaged one.
    Header,
    /// The records of a block do not match their checksum.
    Body,
    /// A good block whose offsets do not follow from those before: no crash leaves that.
    Offsets,
    /// The records of a block that matches its checksum do not fill it.
    Record,
}

impl Fault {
    /// The fault in words.
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::CutOff => "the file ends within a block",
            Self::Header => "a block header does not match its checksum",
            Self::Body => "a block does not match its checksum",
            Self::Offsets => "a block does not continue the offsets before it",
            Self::Record => "a record does not fit its block",
        }
    }
}

/// Checks every block of a segment of `file_bytes` up to the first bad one.
pub(super) fn scan(
    file: &File,
    path: &Path,
    header: &SegmentHeader,
    file_bytes: u64,
) -> Result<Scanned, LogError> {
    let partitions = Partition::try_from(header.bases.len()).expect("partitions are 32 bits");
    let mut index = SegmentIndex::new(SegmentHeader::bytes(partitions), &header.bases);
    let mut window = Window::new();
    let fault = loop {
        let position = index.segment_bytes;
        if position == file_bytes {
            break None;
        }
        let place = Place { sequence: header.sequence, position };
        let checked = check_block(&mut window, file, place, file_bytes, &index)
            .map_err(io_error("read", path))?;
        match checked {
            Ok(block) => index.add(&block),
            Err(fault) => break Some(fault),
        }
    };
    Ok(Scanned { index, fault })
}

/// The header of the block at `place` if the block is good and continues `index`.
fn check_block(
    window: &mut Window,
    file: &File,
    place: Place,
    file_bytes: u64,
    index: &SegmentIndex,
) -> io::Result<Result<BlockHeader, Fault>> {
    let Some(at) = window.load(file, place.position, BLOCK_HEADER_BYTES, file_bytes)? else {
        return Ok(Err(Fault::CutOff));
    };
    let Some(header) = BlockHeader::decode(&window.bytes()[at..], place) else {
        return Ok(Err(Fault::Header));
    };
    if index.ends.get(to_index(header.partition)) != Some(&header.base_offset) {
        return Ok(Err(Fault::Offsets));
    }
    let Some(at) = window.load(file, place.position, header.block_bytes(), file_bytes)? else {
        return Ok(Err(Fault::CutOff));
    };
    let body = &window.bytes()[at + BLOCK_HEADER_BYTES..at + header.block_bytes()];
    Ok(if header.matches(body) { Ok(header) } else { Err(Fault::Body) })
}

/// Whether a commit begins after `bad`, the position of a bad block: then `bad` was durable once.
///
/// Blocks of the same commit as the bad one prove nothing, because the pages of one write reach the
/// disk in any order.
pub(super) fn later_commit_exists(
    file: &File,
    sequence: u64,
    bad: u64,
    file_bytes: u64,
) -> io::Result<bool> {
    let mut window = Window::new();
    let mut position = bad + 1;
    while let Some(at) = window.load(file, position, BLOCK_HEADER_BYTES, file_bytes)? {
        let bytes = &window.bytes()[at..];
        for start in 0..=bytes.len() - BLOCK_HEADER_BYTES {
            let header = &bytes[start..start + BLOCK_HEADER_BYTES];
            if header.starts_with(&BLOCK_MAGIC) {
                let place = Place { sequence, position: position + to_u64(start) };
                if BlockHeader::decode(header, place).is_some_and(|found| found.commit_start > bad)
                {
                    return Ok(true);
                }
            }
        }
        position += to_u64(bytes.len() - BLOCK_HEADER_BYTES + 1);
    }
    Ok(false)
}
