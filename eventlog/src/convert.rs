//! Conversions of sizes that lose nothing on the 64-bit machines this runs on.

use crate::Partition;

const _: () = assert!(usize::BITS == 64, "sizes and file positions are taken to have one width");

/// A size in memory as a position or length in a file.
pub(crate) fn to_u64(size: usize) -> u64 {
    u64::try_from(size).expect("a usize has 64 bits")
}

/// A position or length in a file as a size in memory.
pub(crate) fn to_usize(size: u64) -> usize {
    usize::try_from(size).expect("a usize has 64 bits")
}

/// A partition or a count of at most 32 bits as an index.
pub(crate) fn to_index(number: Partition) -> usize {
    usize::try_from(number).expect("a usize has 64 bits")
}
