//! The bytes on disk, version 1. All numbers are little-endian.
//!
//! A segment file is a header followed by blocks. A *commit*, the unit of durability, is a run of
//! blocks; a *block* holds records of one partition with consecutive offsets, so a reader of other
//! partitions passes it by its header alone.
//!
//! ```text
//! segment header: magic "TLYS", crc u32 of the rest, version u32, partitions u32, sequence u64,
//!                 base offset u64 by partition
//! block header:   magic "TLYB", crc u32 of the rest, body crc u32, body bytes u32, partition u32,
//!                 record count u32, base offset u64, appended at ms i64, commit start u64
//! block body:     by record: key length varint, payload length varint, key, payload
//! ```
//!
//! The header's crc is seeded with the segment's number and the block's position in it: a block is
//! good in its own place only, and bytes inside a payload that look like a block are not taken for
//! one. *Commit start* is the position of the commit's first block. A writer begins a commit only
//! after the one before is durable; so a block whose commit starts after a bad place proves that
//! the bad place was durable once, and is damage rather than the torn end of a write.

use crc32c::{crc32c, crc32c_append};

use crate::convert::{to_index, to_u64};
use crate::{Offset, Partition};

/// Version of everything in a log's folder.
pub(super) const VERSION: u32 = 1;
/// Length of a block header.
pub(super) const BLOCK_HEADER_BYTES: usize = 48;
/// Starts each block.
pub(super) const BLOCK_MAGIC: [u8; 4] = *b"TLYB";
const SEGMENT_MAGIC: [u8; 4] = *b"TLYS";

/// Place of a block: number of the segment and position in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) sequence: u64,
    pub(super) position: u64,
}

/// What stands before the records of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockHeader {
    pub(super) body_crc: u32,
    pub(super) body_bytes: u32,
    pub(super) partition: Partition,
    pub(super) record_count: u32,
    pub(super) base_offset: Offset,
    pub(super) appended_at_ms: i64,
    pub(super) commit_start: u64,
}

impl BlockHeader {
    /// Appends the header of a block at `place` to `out`.
    pub(super) fn put(&self, place: Place, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&BLOCK_MAGIC);
        out.extend_from_slice(&[0; 4]);
        for field in [self.body_crc, self.body_bytes, self.partition, self.record_count] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.base_offset.to_le_bytes());
        out.extend_from_slice(&self.appended_at_ms.to_le_bytes());
        out.extend_from_slice(&self.commit_start.to_le_bytes());
        let crc = crc32c_append(seed(place), &out[start + 8..]);
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The header at the start of `bytes` if it is a good one for `place`.
    pub(super) fn decode(mut bytes: &[u8], place: Place) -> Option<Self> {
        let fields = bytes.get(8..BLOCK_HEADER_BYTES)?;
        let magic: [u8; 4] = take(&mut bytes)?;
        if magic != BLOCK_MAGIC || take_u32(&mut bytes)? != crc32c_append(seed(place), fields) {
            return None;
        }
        Some(Self {
            body_crc: take_u32(&mut bytes)?,
            body_bytes: take_u32(&mut bytes)?,
            partition: take_u32(&mut bytes)?,
            record_count: take_u32(&mut bytes)?,
            base_offset: take_u64(&mut bytes)?,
            appended_at_ms: i64::from_le_bytes(take(&mut bytes)?),
            commit_start: take_u64(&mut bytes)?,
        })
    }

    /// Length of the block, header included.
    pub(super) fn block_bytes(&self) -> usize {
        BLOCK_HEADER_BYTES + to_index(self.body_bytes)
    }

    /// The offset after the block's last record.
    pub(super) fn end_offset(&self) -> Offset {
        self.base_offset.saturating_add(u64::from(self.record_count))
    }

    /// Whether `body` is what was written.
    pub(super) fn matches(&self, body: &[u8]) -> bool {
        crc32c(body) == self.body_crc
    }
}

fn seed(place: Place) -> u32 {
    crc32c_append(crc32c(&place.sequence.to_le_bytes()), &place.position.to_le_bytes())
}

/// What stands at the start of a segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) sequence: u64,
    /// The offset of the first record that the segment can hold, by partition.
    pub(super) bases: Vec<Offset>,
}

impl SegmentHeader {
    /// Length of the header in a log of so many partitions.
    pub(super) fn bytes(partitions: Partition) -> u64 {
        24 + 8 * u64::from(partitions)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        rest.extend_from_slice(&VERSION.to_le_bytes());
        let partitions = Partition::try_from(self.bases.len()).expect("partitions are 32 bits");
        rest.extend_from_slice(&partitions.to_le_bytes());
        rest.extend_from_slice(&self.sequence.to_le_bytes());
        for base in &self.bases {
            rest.extend_from_slice(&base.to_le_bytes());
        }
        seal(SEGMENT_MAGIC, &rest)
    }

    /// The header of a log of so many partitions, if `bytes` is a good one.
    pub(super) fn decode(bytes: &[u8], partitions: Partition) -> Option<Self> {
        let mut rest = unseal(SEGMENT_MAGIC, bytes)?;
        if take_u32(&mut rest)? != VERSION || take_u32(&mut rest)? != partitions {
            return None;
        }
        let sequence = take_u64(&mut rest)?;
        let bases =
            (0..partitions).map(|_| take_u64(&mut rest)).collect::<Option<Vec<Offset>>>()?;
        rest.is_empty().then_some(Self { sequence, bases })
    }
}

/// `magic`, the crc of `rest`, and `rest`.
pub(super) fn seal(magic: [u8; 4], rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + rest.len());
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&crc32c(rest).to_le_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

/// What [`seal`] was given, if the bytes are unharmed.
pub(super) fn unseal(magic: [u8; 4], mut bytes: &[u8]) -> Option<&[u8]> {
    let found: [u8; 4] = take(&mut bytes)?;
    let crc = take_u32(&mut bytes)?;
    (found == magic && crc == crc32c(bytes)).then_some(bytes)
}

/// Appends a record to a block's body.
pub(super) fn put_record(body: &mut Vec<u8>, key: &[u8], payload: &[u8]) {
    put_varint(body, to_u64(key.len()));
    put_varint(body, to_u64(payload.len()));
    body.extend_from_slice(key);
    body.extend_from_slice(payload);
}

/// Takes key and payload of the next record off a body; `None` if the body holds no whole record.
pub(super) fn take_record<'a>(body: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let key_bytes = take_varint(body)?;
    let payload_bytes = take_varint(body)?;
    let (key, rest) = body.split_at_checked(key_bytes)?;
    let (payload, rest) = rest.split_at_checked(payload_bytes)?;
    *body = rest;
    Some((key, payload))
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Lengths are below 2^35: five groups of seven bits.
fn take_varint(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0_usize;
    for (index, byte) in bytes.iter().take(5).enumerate() {
        number |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            *bytes = bytes.get(index + 1..)?;
            return Some(number);
        }
    }
    None
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

pub(super) fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_le_bytes)
}

pub(super) fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: Place = Place { sequence: 7, position: 4_096 };

    fn header() -> BlockHeader {
        BlockHeader {
            body_crc: 1,
            body_bytes: 2,
            partition: 3,
            record_count: 4,
            base_offset: 5,
            appended_at_ms: -6,
            commit_start: 4_000,
        }
    }

    #[test]
    fn block_header_reads_back_in_its_own_place_only() {
        let mut bytes = Vec::new();
        header().put(PLACE, &mut bytes);
        assert_eq!(bytes.len(), BLOCK_HEADER_BYTES);
        assert_eq!(BlockHeader::decode(&bytes, PLACE), Some(header()));
        assert_eq!(BlockHeader::decode(&bytes, Place { position: 4_097, ..PLACE }), None);
        assert_eq!(BlockHeader::decode(&bytes, Place { sequence: 8, ..PLACE }), None);
        assert_eq!(BlockHeader::decode(&bytes[..BLOCK_HEADER_BYTES - 1], PLACE), None);
    }

    #[test]
    fn any_flipped_bit_spoils_a_header() {
        let mut block = Vec::new();
        header().put(PLACE, &mut block);
        let segment = SegmentHeader { sequence: 9, bases: vec![1, u64::MAX] }.encode();
        for bit in 0..block.len() * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BlockHeader::decode(&block, PLACE), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..segment.len() * 8 {
            let mut spoiled = segment.clone();
            spoiled[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&spoiled, 2), None, "bit {bit}");
        }
    }

    #[test]
    fn segment_header_reads_back_for_its_own_partitions_only() {
        let header = SegmentHeader { sequence: 9, bases: vec![1, u64::MAX] };
        let bytes = header.encode();
        assert_eq!(to_u64(bytes.len()), SegmentHeader::bytes(2));
        assert_eq!(SegmentHeader::decode(&bytes, 2), Some(header));
        assert_eq!(SegmentHeader::decode(&bytes, 3), None);
    }

    #[test]
    fn golden_bytes_of_version_1() {
        let mut block = Vec::new();
        header().put(PLACE, &mut block);
        put_record(&mut block, b"k", &[0xaa; 3]);
        let hex: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "544c5942",
                "8c29f337",
                "01000000",
                "02000000",
                "03000000",
                "04000000",
                "0500000000000000",
                "faffffffffffffff",
                "a00f000000000000",
                "01",
                "03",
                "6b",
                "aaaaaa",
            )
        );
    }

    proptest! {
        #[test]
        fn records_read_back_and_a_cut_body_gives_none(
            records in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), prop::collection::vec(any::<u8>(), 0..400)), 1..20),
            cut in 1_usize..40,
        ) {
            let mut body = Vec::new();
            for (key, payload) in &records {
                put_record(&mut body, key, payload);
            }
            let mut rest = body.as_slice();
            for (key, payload) in &records {
                prop_assert_eq!(take_record(&mut rest), Some((key.as_slice(), payload.as_slice())));
            }
            prop_assert_eq!(take_record(&mut rest), None);
            let (key, payload) = &records[records.len() - 1];
            let last = 1 + if payload.len() < 128 { 1 } else { 2 } + key.len() + payload.len();
            let mut cut_off = &body[body.len() - last..body.len() - cut.min(last)];
            prop_assert_eq!(take_record(&mut cut_off), None);
        }

        #[test]
        fn varints_read_back(number in 0_u64..1 << 35) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(take_varint(&mut rest).map(to_u64), Some(number));
            prop_assert!(rest.is_empty());
        }
    }
}
