//! The counts store: one row per bucket, put whole and under a condition.
//!
//! Invariant F-1 of ARCHITECTURE.md.

pub mod contract;
pub mod failing;
pub mod memory;
pub mod redb;
mod resolve;
mod source;

use std::fmt;
use std::sync::Arc;

use tally_model::bucket::{Bucket, Period};
use tally_model::revision::Revision;
use tally_model::types::TypeId;
use tally_model::vector::CountVector;

use crate::error::StoreError;

pub use self::resolve::put_resolved;
pub use self::source::source_digest;

/// Number of a writer, drawn at random at its start; tells two writers of one revision apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriterId(pub u64);

/// What a row was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSource {
    /// Counted by the streaming path.
    Stream,
    /// Folded from the rows one tier down.
    Rollup,
    /// Recounted from the log.
    Log,
    /// Recounted from the lake.
    Lake,
}

/// A row without its vector: what a reader needs to know whether its cache is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallRow {
    /// The bucket.
    pub bucket: Bucket,
    /// Order of the writes of this row.
    pub revision: Revision,
    /// Who put it.
    pub writer: WriterId,
    /// When its content last changed, ms since the Unix epoch; grows with every change of the row.
    pub written_at_ms: i64,
    /// What it was made from.
    pub source: RowSource,
    /// Digest of the rows it was folded from; zero for rows that were not folded.
    pub digest: u64,
    /// Number of slots of the vector.
    pub width: u32,
}

/// A whole row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Everything but the counts. `small.width` is the vector's width; stores take it from the
    /// vector.
    pub small: SmallRow,
    /// The counts by slot.
    pub vector: CountVector,
}

/// When a put may replace what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutCondition {
    /// The stored revision is below ours, or there is no row. For the streaming path.
    Below,
    /// The stored revision is exactly the one that was read before, and ours is above it; `None` =
    /// there was no row. For jobs, which list their source after that read.
    Exactly(Option<Revision>),
}

impl PutCondition {
    /// Whether a row of revision `ours` may replace one of revision `stored` (`None` = no row).
    ///
    /// No put keeps or lowers a revision, whatever the condition: readers cache vectors by revision.
    #[must_use]
    pub fn admits(self, ours: Revision, stored: Option<Revision>) -> bool {
        let raises = stored.is_none_or(|stored| stored < ours);
        match self {
            Self::Below => raises,
            Self::Exactly(read) => raises && stored == read,
        }
    }
}

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// Our row is stored and durable.
    Stored,
    /// Our row was there already: same writer, revision and vector.
    AlreadyDone,
    /// The condition does not hold; nothing changed.
    Refused {
        /// What is stored instead; `None` = no row.
        stored: Option<SmallRow>,
    },
}

/// The counts of a deployment.
///
/// Contract, checked for every implementation by `contract`: a row is stored whole or not at
/// all, small row and vector in one atomic step; a put whose condition does not hold changes
/// nothing; of two racing puts with one condition exactly one wins; a repeated put (same writer,
/// revision and vector) is `AlreadyDone`; no call pairs a vector with another revision's small row.
/// Calls block; async callers go through a blocking pool.
pub trait CountsStore: Send + Sync + fmt::Debug {
    /// Puts rows, each under its own condition, durable on return. Results in the order given.
    ///
    /// # Errors
    /// Per row, [`StoreError`]. After [`StoreError::Unknown`] use [`put_resolved`].
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>>;

    /// The small rows of the buckets of `period` that start in `[from_ms, to_ms)`, ascending. This
    /// reads no vector.
    ///
    /// # Errors
    /// [`StoreError`].
    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError>;

    /// The rows of `buckets`, in the order given; `None` where there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError>;

    /// Like [`rows`](Self::rows), and no put of them whose outcome got lost is under way afterwards:
    /// what is found is what it came to.
    ///
    /// # Errors
    /// [`StoreError`].
    fn settled_rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.rows(buckets)
    }

    /// Whether there is no row at all, of any granularity.
    ///
    /// # Errors
    /// [`StoreError`].
    fn is_empty(&self) -> Result<bool, StoreError>;

    /// Deletes every row of a period: the only delete there is. Returns how many rows went.
    ///
    /// # Errors
    /// [`StoreError`].
    fn delete_period(&self, period: Period) -> Result<u64, StoreError>;
}

impl<S: CountsStore + ?Sized> CountsStore for Arc<S> {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        (**self).put_many(puts)
    }

    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        (**self).small_rows(period, from_ms, to_ms)
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        (**self).rows(buckets)
    }

    fn settled_rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        (**self).settled_rows(buckets)
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        (**self).is_empty()
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        (**self).delete_period(period)
    }
}

/// What a put does, judged without the stored vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its condition holds.
    Store,
    /// Writer and revision are the stored ones: done already if the vectors agree, else refused.
    Compare(SmallRow),
    /// Its condition does not hold.
    Refuse(Option<SmallRow>),
}

pub(crate) fn judge(ours: &SmallRow, condition: PutCondition, stored: Option<SmallRow>) -> Verdict {
    match stored {
        Some(stored) if stored.writer == ours.writer && stored.revision == ours.revision => {
            Verdict::Compare(stored)
        }
        _ if condition.admits(ours.revision, stored.map(|stored| stored.revision)) => {
            Verdict::Store
        }
        stored => Verdict::Refuse(stored),
    }
}

/// The small row to store beside `vector`.
///
/// # Errors
/// [`StoreError::Unstorable`] for a vector wider than any registry.
pub(crate) fn small_to_store(row: &Row) -> Result<SmallRow, StoreError> {
    match u16::try_from(row.vector.width()) {
        Ok(width) if width <= TypeId::CAP => Ok(SmallRow { width: width.into(), ..row.small }),
        Ok(_) | Err(_) => {
            let what = format!("vector of {} slots", row.vector.width());
            Err(StoreError::Unstorable { what })
        }
    }
}
