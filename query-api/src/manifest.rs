//! The manifest: which rows a period has, and at which revisions, without their vectors.

use sha2::{Digest, Sha256};
use tally_model::bucket::{Bucket, Granularity, Period};
use tally_model::revision::Revision;
use tally_sinks::counts::{SmallRow, source_digest};

/// First half of a SHA-256: long enough that nobody meets two inputs with one digest.
pub type ShortDigest = [u8; 16];

/// The small rows of one period.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    rows: Vec<SmallRow>,
    folds: Vec<Fold>,
    /// What a row folded from the children that are here would name as its source, by parent.
    sources: Vec<(Bucket, u64)>,
}

/// A coarser bucket all of whose children have rows: 60 minutes of an hour, 24 hours of a day.
///
/// Its sum can stand in for the children's vectors, because the digest names their revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fold {
    /// The coarser bucket.
    pub bucket: Bucket,
    /// Digest of the children's starts and revisions.
    pub digest: ShortDigest,
    /// How many children there are.
    pub rows: u32,
    /// When the youngest content among them was written, ms since the Unix epoch.
    pub written_at_ms: i64,
    /// Width of the widest vector among them.
    pub width: u32,
}

impl Manifest {
    /// The manifest of `period` from its small rows, ascending by start.
    #[must_use]
    pub fn new(period: Period, rows: Vec<SmallRow>) -> Self {
        let (mut folds, mut sources) = (Vec::new(), Vec::new());
        if let Some(parents) = coarser(period.granularity()) {
            let parent = |row: &SmallRow| Bucket::containing(parents, row.bucket.start_ms());
            for children in rows.chunk_by(|one, next| parent(one) == parent(next)) {
                let Some(parent) = children.first().map(parent) else { continue };
                folds.extend(fold(parent, children));
                sources.push((parent, source_digest(children)));
            }
        }
        Self { rows, folds, sources }
    }

    /// The small row of a bucket.
    #[must_use]
    pub fn row(&self, bucket: Bucket) -> Option<&SmallRow> {
        let index = self.rows.binary_search_by_key(&bucket, |row| row.bucket).ok()?;
        self.rows.get(index)
    }

    /// The coarser bucket, if every one of its children has a row here.
    #[must_use]
    pub fn fold(&self, bucket: Bucket) -> Option<&Fold> {
        let index = self.folds.binary_search_by_key(&bucket, |fold| fold.bucket).ok()?;
        self.folds.get(index)
    }

    /// Digest of the children of a coarser bucket as they stand here, for comparison with that of
    /// its row; `None` if there are none.
    #[must_use]
    pub fn source(&self, bucket: Bucket) -> Option<u64> {
        let index = self.sources.binary_search_by_key(&bucket, |(parent, _)| *parent).ok()?;
        self.sources.get(index).map(|(_, digest)| *digest)
    }

    /// The small rows of the buckets that start inside `bucket`, ascending.
    #[must_use]
    pub fn inside(&self, bucket: Bucket) -> &[SmallRow] {
        let before = |bound: i64| self.rows.partition_point(|row| row.bucket.start_ms() < bound);
        self.rows.get(before(bucket.start_ms())..before(bucket.end_ms())).unwrap_or(&[])
    }
}

const fn coarser(granularity: Granularity) -> Option<Granularity> {
    match granularity {
        Granularity::Minute => Some(Granularity::Hour),
        Granularity::Hour => Some(Granularity::Day),
        Granularity::Day => None,
    }
}

fn fold(bucket: Bucket, children: &[SmallRow]) -> Option<Fold> {
    if children.len() != bucket.children().count() {
        return None;
    }
    let mut digest = Sha256::new();
    for child in children {
        digest_row(&mut digest, child.bucket, child.revision);
    }
    Some(Fold {
        bucket,
        digest: short(digest),
        rows: u32::try_from(children.len()).ok()?,
        written_at_ms: children.iter().map(|child| child.written_at_ms).max()?,
        width: children.iter().map(|child| child.width).max()?,
    })
}

/// Adds a row's identity to a digest. The start stands for the bucket: within one digest input
/// the granularity is known from what comes before.
pub(crate) fn digest_row(digest: &mut Sha256, bucket: Bucket, revision: Revision) {
    digest.update(bucket.start_ms().to_le_bytes());
    digest.update(revision.raw().to_le_bytes());
}

pub(crate) fn short(digest: Sha256) -> ShortDigest {
    let whole: [u8; 32] = digest.finalize().into();
    let (half, _) = whole.split_first_chunk().expect("16 of 32 bytes");
    *half
}
