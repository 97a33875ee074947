//! What a folded row says about the rows that it was folded from.

use sha2::{Digest, Sha256};

use super::SmallRow;

/// Digest of the rows that a coarse row is folded from: their starts and revisions, in the order
/// given, which is that of time. Never zero, which stands for rows that were not folded.
///
/// A coarse row whose [`SmallRow::digest`] is not that of its children as they stand now is out of
/// date. So whoever changes a minute has nobody to tell: the rollup and every reader find out by
/// comparing.
#[must_use]
pub fn source_digest<'a>(children: impl IntoIterator<Item = &'a SmallRow>) -> u64 {
    let mut digest = Sha256::new();
    for child in children {
        digest.update(child.bucket.start_ms().to_le_bytes());
        digest.update(child.revision.raw().to_le_bytes());
    }
    let whole: [u8; 32] = digest.finalize().into();
    let first = whole.first_chunk().copied().map_or(0, u64::from_le_bytes);
    first.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::contract::row;

    #[test]
    fn the_digest_changes_with_every_start_and_revision_and_with_nothing_else() {
        let minute = |start_ms, revision| row(start_ms, revision, &[1]).small;
        let digest = source_digest(&[minute(0, 1), minute(60_000, 2)]);
        assert_eq!(digest, source_digest(&[row(0, 1, &[9]).small, minute(60_000, 2)]));
        for other in [
            vec![minute(0, 1)],
            vec![minute(0, 1), minute(60_000, 3)],
            vec![minute(0, 1), minute(120_000, 2)],
            vec![minute(60_000, 2), minute(0, 1)],
        ] {
            assert_ne!(digest, source_digest(&other), "{other:?}");
        }
        assert_ne!(source_digest(&[]), 0);
    }
}
