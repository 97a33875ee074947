//! Columns of rows of counts.

use scylla::value::CqlValue;
use tally_model::bucket::{Bucket, Granularity, Period};
use tally_model::revision::Revision;
use tally_model::vector::CountVector;

use super::session::{Columns, Values};
use crate::counts::{Row, RowSource, SmallRow, WriterId};
use crate::error::StoreError;

/// Kind of a row without its counts.
pub(super) const SMALL: i8 = 0;
/// Kind of a row's counts.
pub(super) const VECTOR: i8 = 1;

const fn granularity_code(granularity: Granularity) -> i8 {
    match granularity {
        Granularity::Minute => 1,
        Granularity::Hour => 2,
        Granularity::Day => 3,
    }
}

const fn source_code(source: RowSource) -> i8 {
    match source {
        RowSource::Stream => 1,
        RowSource::Rollup => 2,
        RowSource::Log => 3,
        RowSource::Lake => 4,
    }
}

const fn source(code: i8) -> Option<RowSource> {
    Some(match code {
        1 => RowSource::Stream,
        2 => RowSource::Rollup,
        3 => RowSource::Log,
        4 => RowSource::Lake,
        _ => return None,
    })
}

/// The partition of a period.
pub(super) fn partition(period: Period) -> [CqlValue; 2] {
    [CqlValue::TinyInt(granularity_code(period.granularity())), CqlValue::BigInt(period.start_ms())]
}

/// Granularity, period and start: the key of both rows of a bucket, without the kind.
pub(super) fn key(bucket: Bucket) -> [CqlValue; 3] {
    let [granularity, period] = partition(bucket.period());
    [granularity, period, CqlValue::BigInt(bucket.start_ms())]
}

/// Revision, writer, written-at, source, digest, width.
pub(super) fn small_values(row: &SmallRow) -> Values {
    vec![
        CqlValue::BigInt(row.revision.raw()),
        writer_value(row.writer),
        CqlValue::BigInt(row.written_at_ms),
        CqlValue::TinyInt(source_code(row.source)),
        CqlValue::BigInt(row.digest.cast_signed()),
        CqlValue::Int(row.width.cast_signed()),
    ]
}

/// The same bits as a signed number, the only kind that CQL has.
pub(super) fn writer_value(writer: WriterId) -> CqlValue {
    CqlValue::BigInt(writer.0.cast_signed())
}

/// Revision, writer, vector.
pub(super) fn vector_values(row: &Row) -> Values {
    vec![
        CqlValue::BigInt(row.small.revision.raw()),
        writer_value(row.small.writer),
        CqlValue::Blob(row.vector.to_bytes()),
    ]
}

/// # Errors
/// [`StoreError::Corrupt`] naming the bucket.
pub(super) fn read_small(
    granularity: Granularity,
    columns: &Columns,
) -> Result<SmallRow, StoreError> {
    let start_ms = columns.long("start");
    small_row(granularity, columns).ok_or_else(|| {
        let start = start_ms.map_or("?".to_owned(), |start_ms| start_ms.to_string());
        StoreError::corrupt(format!("counts, {} at {start}", granularity.name()))
    })
}

fn small_row(granularity: Granularity, columns: &Columns) -> Option<SmallRow> {
    let start_ms = columns.long("start")?;
    let bucket = Bucket::containing(granularity, start_ms);
    if bucket.start_ms() != start_ms {
        return None;
    }
    Some(SmallRow {
        bucket,
        revision: Revision::from_raw(columns.long("revision")?).ok()?,
        writer: WriterId(columns.long("writer")?.cast_unsigned()),
        written_at_ms: columns.long("written_at")?,
        source: source(columns.tiny("source")?)?,
        digest: columns.long("digest")?.cast_unsigned(),
        width: columns.int("width")?.cast_unsigned(),
    })
}

/// A vector as it rests, with what tells whose it is.
#[derive(Clone, Debug)]
pub(super) struct StoredVector {
    pub(super) start_ms: i64,
    revision: i64,
    writer: i64,
    bytes: Vec<u8>,
}

impl StoredVector {
    /// # Errors
    /// [`StoreError::Corrupt`] if a column is missing.
    pub(super) fn read(granularity: Granularity, columns: &Columns) -> Result<Self, StoreError> {
        let read = || {
            Some(Self {
                start_ms: columns.long("start")?,
                revision: columns.long("revision")?,
                writer: columns.long("writer")?,
                bytes: columns.blob("vector")?.to_vec(),
            })
        };
        read().ok_or_else(|| {
            StoreError::corrupt(format!("counts, a vector of a {}", granularity.name()))
        })
    }

    /// Whether one write made this vector and `small`.
    pub(super) const fn belongs_to(&self, small: &SmallRow) -> bool {
        self.revision == small.revision.raw() && self.writer == small.writer.0.cast_signed()
    }

    /// # Errors
    /// [`StoreError::Corrupt`] if it has another width than its small row says.
    pub(super) fn join(&self, small: SmallRow) -> Result<Row, StoreError> {
        CountVector::from_bytes(&self.bytes)
            .ok()
            .filter(|vector| u32::try_from(vector.width()).is_ok_and(|width| width == small.width))
            .map(|vector| Row { small, vector })
            .ok_or_else(|| corrupt_vector(small.bucket))
    }
}

/// What a row without its vector, or with a damaged one, is.
pub(super) fn corrupt_vector(bucket: Bucket) -> StoreError {
    StoreError::corrupt(format!(
        "counts, the vector of the {} at {}",
        bucket.granularity().name(),
        bucket.start_ms()
    ))
}
