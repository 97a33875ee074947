//! The bytes of a segment file.
//!
//! A file is its pages, 4 KiB each, then a footer. A page is 255 ids, little-endian and ascending,
//! and a CRC-32C; the last page is as short as its ids. Each checksum covers the segment's name
//! and the page's number too, so a page that was swapped for another is found out. The footer is
//! magic, format version, number of ids and a checksum.

use crate::dedup::filter::count;
use crate::dedup::store::{PAGE_IDS, SegmentError, SegmentName};

pub(super) const ID_BYTES: usize = size_of::<u128>();
pub(super) const CRC_BYTES: usize = size_of::<u32>();
pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const FOOTER_BYTES: usize =
    MAGIC.len() + size_of::<u32>() + size_of::<u64>() + CRC_BYTES;
pub(super) const MAGIC: [u8; 8] = *b"tallyids";
const VERSION: u32 = 1;

/// Bytes of the pages of a segment of `ids` ids.
pub(super) fn pages_bytes(ids: u64) -> u64 {
    let page_ids = count(PAGE_IDS);
    let (full, rest) = (ids / page_ids, ids % page_ids);
    let last = if rest == 0 { 0 } else { rest * count(ID_BYTES) + count(CRC_BYTES) };
    full * count(PAGE_BYTES) + last
}

pub(super) fn page_checksum(name: SegmentName, page: usize, ids: &[u8]) -> u32 {
    let seed = u32::from(name.shard.0) ^ name.generation.rotate_left(16);
    let crc = crc32c::crc32c_append(seed, &name.sequence.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, &count(page).to_le_bytes()), ids)
}

pub(super) fn footer(name: SegmentName, ids: u64) -> Vec<u8> {
    let mut footer = Vec::with_capacity(FOOTER_BYTES);
    footer.extend_from_slice(&MAGIC);
    footer.extend_from_slice(&VERSION.to_le_bytes());
    footer.extend_from_slice(&ids.to_le_bytes());
    let checksum = page_checksum(name, usize::MAX, &footer);
    footer.extend_from_slice(&checksum.to_le_bytes());
    footer
}

/// The number of ids that a footer states.
pub(super) fn parse_footer(
    name: SegmentName,
    bytes: &[u8; FOOTER_BYTES],
) -> Result<u64, SegmentError> {
    let (content, checksum) = bytes.split_at(FOOTER_BYTES - CRC_BYTES);
    let (magic, rest) = content.split_at(MAGIC.len());
    let (version, ids) = rest.split_at(size_of::<u32>());
    let version = version.try_into().map_or(0, u32::from_le_bytes);
    if magic == MAGIC && version > VERSION {
        return Err(SegmentError::Version { name, version });
    }
    if magic != MAGIC || checksum != page_checksum(name, usize::MAX, content).to_le_bytes() {
        return Err(SegmentError::Damaged { name, page: 0 });
    }
    Ok(ids.try_into().map_or(0, u64::from_le_bytes))
}
