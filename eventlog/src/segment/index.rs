//! Where in a segment the blocks of a partition lie.

use super::format::{BlockHeader, seal, take_u32, take_u64, unseal};
use crate::convert::{to_index, to_u64};
use crate::{Offset, Partition};

const MAGIC: [u8; 4] = *b"TLYI";
/// A partition gets another entry when its next block is at least so far from its last entry. A
/// reader that starts in the middle passes at most this much of the file by block headers.
const ENTRY_EVERY_BYTES: u64 = 1 << 20;

/// The sparse index of one segment: 16 bytes for each partition and MiB at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentIndex {
    /// Good bytes of the segment file.
    pub(super) segment_bytes: u64,
    /// The earliest append time in the segment; `i64::MAX` if it is empty.
    pub(super) first_append_ms: i64,
    /// The latest append time in the segment; `i64::MIN` if it is empty.
    pub(super) last_append_ms: i64,
    /// The offset after the last record in or before the segment, by partition.
    pub(super) ends: Vec<Offset>,
    /// By partition: base offset and position of some of its blocks, both ascending.
    entries: Vec<Vec<(Offset, u64)>>,
}

impl SegmentIndex {
    /// The index of a segment that holds a header of `header_bytes` and no blocks.
    pub(super) fn new(header_bytes: u64, bases: &[Offset]) -> Self {
        Self {
            segment_bytes: header_bytes,
            first_append_ms: i64::MAX,
            last_append_ms: i64::MIN,
            ends: bases.to_vec(),
            entries: vec![Vec::new(); bases.len()],
        }
    }

    /// Notes the next block of the segment.
    pub(super) fn add(&mut self, header: &BlockHeader) {
        let partition = to_index(header.partition);
        let position = self.segment_bytes;
        let entries = &mut self.entries[partition];
        if entries.last().is_none_or(|(_, last)| position - last >= ENTRY_EVERY_BYTES) {
            entries.push((header.base_offset, position));
        }
        self.ends[partition] = header.end_offset();
        self.first_append_ms = self.first_append_ms.min(header.appended_at_ms);
        self.last_append_ms = self.last_append_ms.max(header.appended_at_ms);
        self.segment_bytes += to_u64(header.block_bytes());
    }

    /// A position at or before the block that holds `offset`, at the start of some block; `None` if
    /// the segment has no such block.
    pub(super) fn find(&self, partition: Partition, offset: Offset) -> Option<u64> {
        let entries = self.entries.get(to_index(partition))?;
        let after = entries.partition_point(|(base, _)| *base <= offset);
        Some(entries.get(after.checked_sub(1)?)?.1)
    }

    /// The bytes of the index file.
    pub(super) fn encode(&self, sequence: u64) -> Vec<u8> {
        let mut rest = Vec::new();
        rest.extend_from_slice(&sequence.to_le_bytes());
        rest.extend_from_slice(&self.segment_bytes.to_le_bytes());
        rest.extend_from_slice(&self.first_append_ms.to_le_bytes());
        rest.extend_from_slice(&self.last_append_ms.to_le_bytes());
        for (end, entries) in self.ends.iter().zip(&self.entries) {
            rest.extend_from_slice(&end.to_le_bytes());
            let count = u32::try_from(entries.len()).expect("one entry a MiB of a file");
            rest.extend_from_slice(&count.to_le_bytes());
            for (offset, position) in entries {
                rest.extend_from_slice(&offset.to_le_bytes());
                rest.extend_from_slice(&position.to_le_bytes());
            }
        }
        seal(MAGIC, &rest)
    }

    /// The index in an index file, if it is a good one of that segment.
    pub(super) fn decode(bytes: &[u8], sequence: u64, partitions: Partition) -> Option<Self> {
        let mut rest = unseal(MAGIC, bytes)?;
        if take_u64(&mut rest)? != sequence {
            return None;
        }
        let segment_bytes = take_u64(&mut rest)?;
        let first_append_ms = take_u64(&mut rest)?.cast_signed();
        let last_append_ms = take_u64(&mut rest)?.cast_signed();
        let (mut ends, mut entries) = (Vec::new(), Vec::new());
        for _ in 0..partitions {
            ends.push(take_u64(&mut rest)?);
            let count = take_u32(&mut rest)?;
            let places = (0..count).map(|_| Some((take_u64(&mut rest)?, take_u64(&mut rest)?)));
            entries.push(places.collect::<Option<Vec<_>>>()?);
        }
        rest.is_empty().then_some(Self {
            segment_bytes,
            first_append_ms,
            last_append_ms,
            ends,
            entries,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(partition: Partition, base_offset: Offset, body_bytes: u32) -> BlockHeader {
        BlockHeader {
            body_crc: 0,
            body_bytes,
            partition,
            record_count: 10,
            base_offset,
            appended_at_ms: 5,
            commit_start: 0,
        }
    }

    fn index() -> SegmentIndex {
        let mut index = SegmentIndex::new(40, &[100, 7]);
        for block_number in 0..10 {
            index.add(&block(0, 100 + 10 * block_number, 400_000));
        }
        index
    }

    #[test]
    fn finds_the_last_entry_at_or_before_an_offset() {
        let index = index();
        let block_bytes = 400_048;
        // (offset, block at which to start)
        for (offset, start) in
            [(100, 0), (129, 0), (130, 3), (159, 3), (160, 6), (199, 9), (200, 9)]
        {
            assert_eq!(index.find(0, offset), Some(40 + start * block_bytes), "offset {offset}");
        }
        assert_eq!(index.find(0, 99), None);
        assert_eq!(index.find(1, 7), None);
        assert_eq!(index.ends, [200, 7]);
        assert_eq!(index.segment_bytes, 40 + 10 * block_bytes);
    }

    #[test]
    fn index_file_reads_back_and_a_foreign_or_cut_one_does_not() {
        let index = index();
        let bytes = index.encode(3);
        assert_eq!(SegmentIndex::decode(&bytes, 3, 2), Some(index));
        assert_eq!(SegmentIndex::decode(&bytes, 4, 2), None);
        assert_eq!(SegmentIndex::decode(&bytes, 3, 1), None);
        for length in 0..bytes.len() {
            assert_eq!(SegmentIndex::decode(&bytes[..length], 3, 2), None, "length {length}");
        }
    }
}
