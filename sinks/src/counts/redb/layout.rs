//! Bytes of keys and rows. Version 1 of the store's format; see the golden test.

use tally_model::bucket::{Bucket, Granularity, Period};
use tally_model::revision::Revision;
use tally_model::vector::CountVector;

use crate::counts::{Row, RowSource, SmallRow, WriterId};
use crate::error::StoreError;

/// Granularity, then the start in ms with its sign bit flipped, big-endian: ordered as bytes like
/// the buckets themselves, also before 1970.
pub(super) type Key = [u8; 9];

/// Revision, writer, written-at, source, digest, width: integers little-endian.
pub(super) type SmallBytes = [u8; 37];

pub(super) fn key(granularity: Granularity, start_ms: i64) -> Key {
    let [a, b, c, d, e, f, g, h] = (start_ms ^ i64::MIN).to_be_bytes();
    [granularity_code(granularity), a, b, c, d, e, f, g, h]
}

/// First key of a period and first key after it.
pub(super) fn period_keys(period: Period) -> [Key; 2] {
    [period.start_ms(), period.end_ms()].map(|at_ms| key(period.granularity(), at_ms))
}

const fn granularity_code(granularity: Granularity) -> u8 {
    match granularity {
        Granularity::Minute => 1,
        Granularity::Hour => 2,
        Granularity::Day => 3,
    }
}

const fn source_code(source: RowSource) -> u8 {
    match source {
        RowSource::Stream => 1,
        RowSource::Rollup => 2,
        RowSource::Log => 3,
        RowSource::Lake => 4,
    }
}

pub(super) fn small_bytes(row: &SmallRow) -> SmallBytes {
    let mut bytes = [0; 37];
    let fields = (row.revision.raw().to_le_bytes().into_iter())
        .chain(row.writer.0.to_le_bytes())
        .chain(row.written_at_ms.to_le_bytes())
        .chain([source_code(row.source)])
        .chain(row.digest.to_le_bytes())
        .chain(row.width.to_le_bytes());
    bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    bytes
}

/// # Errors
/// [`StoreError::Corrupt`] naming the key.
pub(super) fn read_small(key: &[u8], value: &[u8]) -> Result<SmallRow, StoreError> {
    small_row(key, value)
        .ok_or_else(|| StoreError::corrupt(format!("counts.small, key {key:02x?}")))
}

fn small_row(key: &[u8], value: &[u8]) -> Option<SmallRow> {
    let (revision, rest) = value.split_first_chunk()?;
    let (writer, rest) = rest.split_first_chunk()?;
    let (written_at_ms, rest) = rest.split_first_chunk()?;
    let (source, rest) = rest.split_first()?;
    let (digest, rest) = rest.split_first_chunk()?;
    let source = match source {
        1 => RowSource::Stream,
        2 => RowSource::Rollup,
        3 => RowSource::Log,
        4 => RowSource::Lake,
        _ => return None,
    };
    Some(SmallRow {
        bucket: bucket(key)?,
        revision: Revision::from_raw(i64::from_le_bytes(*revision)).ok()?,
        writer: WriterId(u64::from_le_bytes(*writer)),
        written_at_ms: i64::from_le_bytes(*written_at_ms),
        source,
        digest: u64::from_le_bytes(*digest),
        width: u32::from_le_bytes(rest.try_into().ok()?),
    })
}

fn bucket(key: &[u8]) -> Option<Bucket> {
    let (code, start) = key.split_first()?;
    let granularity = match code {
        1 => Granularity::Minute,
        2 => Granularity::Hour,
        3 => Granularity::Day,
        _ => return None,
    };
    let start_ms = i64::from_be_bytes(start.try_into().ok()?) ^ i64::MIN;
    let bucket = Bucket::containing(granularity, start_ms);
    (bucket.start_ms() == start_ms).then_some(bucket)
}

/// Joins a small row with the bytes of its vector.
///
/// # Errors
/// [`StoreError::Corrupt`] if there is no vector or it has another width.
pub(super) fn read_row(small: SmallRow, vector: Option<&[u8]>) -> Result<Row, StoreError> {
    vector
        .and_then(|bytes| CountVector::from_bytes(bytes).ok())
        .filter(|vector| u32::try_from(vector.width()).is_ok_and(|width| width == small.width))
        .map(|vector| Row { small, vector })
        .ok_or_else(|| {
            let bucket = small.bucket;
            let key = key(bucket.granularity(), bucket.start_ms());
            StoreError::corrupt(format!("counts.vectors, key {key:02x?}"))
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tally_model::revision::Generation;

    use super::*;

    #[test]
    fn version_1_of_a_small_row_is_these_bytes() {
        let row = SmallRow {
            bucket: Bucket::containing(Granularity::Hour, -1),
            revision: Revision::streaming(Generation::new(3).unwrap(), 5).unwrap(),
            writer: WriterId(0x0102),
            written_at_ms: -2,
            source: RowSource::Rollup,
            digest: 0xff00,
            width: 4_000,
        };
        let key = key(Granularity::Hour, row.bucket.start_ms());
        assert_eq!(key, [2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xc9, 0x11, 0x80]);
        let bytes = [
            [5, 0, 0, 0, 0, 12, 0, 0].as_slice(),
            &[2, 1, 0, 0, 0, 0, 0, 0],
            &[0xfe, 255, 255, 255, 255, 255, 255, 255],
            &[2],
            &[0, 0xff, 0, 0, 0, 0, 0, 0],
            &[0xa0, 0x0f, 0, 0],
        ]
        .concat();
        assert_eq!(small_bytes(&row).as_slice(), bytes);
        assert_eq!(read_small(&key, &bytes).unwrap(), row);
    }

    #[test]
    fn bytes_that_are_no_row_are_reported_with_their_key() {
        let good = [1_u8; 37];
        let minute = key(Granularity::Minute, 60_000);
        assert!(read_small(&minute, &good).is_ok());
        let unaligned = key(Granularity::Minute, 60_001);
        let mut bad_source = good;
        bad_source[24] = 9;
        let mut bad_revision = good;
        bad_revision[7] = 0x80;
        // (what the row shows, key, value)
        let cases: [(&str, &[u8], &[u8]); 7] = [
            ("no value", &minute, &[]),
            ("short value", &minute, &good[..36]),
            ("long value", &minute, &[1; 38]),
            ("unknown source", &minute, &bad_source),
            ("negative revision", &minute, &bad_revision),
            ("start inside a minute", &unaligned, &good),
            ("unknown granularity", &[9, 0, 0, 0, 0, 0, 0, 0, 0], &good),
        ];
        for (name, key, value) in cases {
            let error = read_small(key, value).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("{key:02x?}")), "{name}: {text}");
        }
    }

    #[test]
    fn a_vector_that_is_not_its_small_rows_is_reported() {
        let small = read_small(&key(Granularity::Minute, 0), &[1; 37]).unwrap();
        let small = SmallRow { width: 2, ..small };
        assert!(read_row(small, Some(&[0; 16])).is_ok());
        for bad in [None, Some(&[0; 15][..]), Some(&[0; 8]), Some(&[0; 24])] {
            assert!(matches!(read_row(small, bad), Err(StoreError::Corrupt { .. })), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn keys_are_ordered_like_starts(one in any::<i64>(), two in any::<i64>()) {
            let [a, b] = [one, two].map(|start_ms| key(Granularity::Day, start_ms));
            prop_assert_eq!(a.cmp(&b), one.cmp(&two));
        }
    }
}
