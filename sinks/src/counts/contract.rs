//! What every [`CountsStore`] must do, as checks that take the implementation.
//!
//! Each check asks its maker for a fresh, empty store and panics where the contract is broken.

mod races;

use std::sync::Arc;

use tally_model::bucket::{Bucket, DAY_MS, Granularity, HOUR_MS, MINUTE_MS, Period};
use tally_model::revision::{Generation, Revision};
use tally_model::types::TypeId;
use tally_model::vector::CountVector;

use super::{CountsStore, PutCondition, PutOutcome, Row, RowSource, SmallRow, WriterId};
use crate::error::StoreError;

pub use self::races::{a_reader_never_sees_a_torn_row, of_two_racing_writers_exactly_one_wins};

/// Makes a fresh, empty store.
pub type Maker<'a> = &'a dyn Fn() -> Arc<dyn CountsStore>;

/// Every check of the contract.
///
/// # Panics
/// If the store breaks the contract.
pub fn all(make: Maker<'_>) {
    below_lets_only_greater_revisions_in(make);
    exactly_lets_only_what_was_read_be_replaced(make);
    a_repeated_put_is_done_already(make);
    rows_come_back_whole_and_in_the_order_asked(make);
    small_rows_are_half_open_and_ascending(make);
    buckets_before_1970_keep_their_order(make);
    one_call_may_mix_outcomes(make);
    later_puts_of_a_call_see_the_earlier(make);
    the_widest_vector_fits_and_a_wider_one_does_not(make);
    a_period_goes_whole_and_alone(make);
    of_two_racing_writers_exactly_one_wins(make);
    a_reader_never_sees_a_torn_row(make);
}

/// The streaming revision of generation 1 at `time_ms`.
///
/// # Panics
/// If no revision can hold `time_ms`.
#[must_use]
pub fn revision(time_ms: i64) -> Revision {
    Generation::new(1)
        .and_then(|generation| Revision::streaming(generation, time_ms).ok())
        .expect("a small number fits into a revision")
}

/// The row of the minute at `minute_ms`, by writer 1.
///
/// # Panics
/// If no revision can hold `time_ms`.
#[must_use]
pub fn row(minute_ms: i64, time_ms: i64, counts: &[u64]) -> Row {
    bucket_row(Bucket::minute(minute_ms), time_ms, counts)
}

fn bucket_row(bucket: Bucket, time_ms: i64, counts: &[u64]) -> Row {
    let small = SmallRow {
        bucket,
        revision: revision(time_ms),
        writer: WriterId(1),
        written_at_ms: 1_000 + time_ms,
        source: RowSource::Stream,
        digest: 7,
        width: u32::try_from(counts.len()).expect("short"),
    };
    Row { small, vector: CountVector::from_counts(counts.to_vec()) }
}

fn by(writer: u64, row: Row) -> Row {
    Row { small: SmallRow { writer: WriterId(writer), ..row.small }, ..row }
}

fn put(store: &dyn CountsStore, row: &Row, condition: PutCondition) -> PutOutcome {
    let mut outcomes = store.put_many(&[(row.clone(), condition)]);
    assert_eq!(outcomes.len(), 1, "one outcome for one put");
    outcomes.remove(0).expect("the store is up")
}

fn read(store: &dyn CountsStore, bucket: Bucket) -> Option<Row> {
    let mut rows = store.rows(&[bucket]).expect("the store is up");
    assert_eq!(rows.len(), 1, "one answer for one bucket");
    rows.remove(0)
}

fn refused_by(row: &Row) -> PutOutcome {
    PutOutcome::Refused { stored: Some(row.small) }
}

/// # Panics
/// If the store breaks the contract.
pub fn below_lets_only_greater_revisions_in(make: Maker<'_>) {
    let store = &*make();
    let (first, second) = (row(0, 10, &[1, 2]), row(0, 11, &[1, 3]));
    assert_eq!(put(store, &first, PutCondition::Below), PutOutcome::Stored);
    assert_eq!(put(store, &row(0, 9, &[9]), PutCondition::Below), refused_by(&first), "stale");
    let twin = by(2, row(0, 10, &[1, 2]));
    assert_eq!(put(store, &twin, PutCondition::Below), refused_by(&first), "equal, other writer");
    let changed = row(0, 10, &[1, 9]);
    assert_eq!(put(store, &changed, PutCondition::Below), refused_by(&first), "other vector");
    assert_eq!(read(store, first.small.bucket), Some(first.clone()), "refusals change nothing");
    assert_eq!(put(store, &second, PutCondition::Below), PutOutcome::Stored);
    assert_eq!(read(store, first.small.bucket), Some(second));
}

/// # Panics
/// If the store breaks the contract.
pub fn exactly_lets_only_what_was_read_be_replaced(make: Maker<'_>) {
    let store = &*make();
    let (first, second, third) = (row(0, 10, &[1]), row(0, 20, &[2]), row(0, 30, &[3]));
    let absent = PutOutcome::Refused { stored: None };
    let read_first = PutCondition::Exactly(Some(revision(10)));
    assert_eq!(put(store, &second, read_first), absent, "no row is not revision 10");
    assert_eq!(put(store, &first, PutCondition::Exactly(None)), PutOutcome::Stored);
    assert_eq!(
        put(store, &second, PutCondition::Exactly(None)),
        refused_by(&first),
        "a row is there"
    );
    for other in [9, 11] {
        let condition = PutCondition::Exactly(Some(revision(other)));
        assert_eq!(put(store, &second, condition), refused_by(&first), "read {other}, is 10");
    }
    assert_eq!(put(store, &second, read_first), PutOutcome::Stored);
    assert_eq!(put(store, &third, read_first), refused_by(&second), "replaced since it was read");
    let lower = PutCondition::Exactly(Some(revision(20)));
    assert_eq!(
        put(store, &row(0, 15, &[4]), lower),
        refused_by(&second),
        "no put lowers a revision"
    );
    let same = by(2, row(0, 20, &[4]));
    assert_eq!(put(store, &same, lower), refused_by(&second), "nor keeps it");
    assert_eq!(read(store, first.small.bucket), Some(second));
}

/// # Panics
/// If the store breaks the contract.
pub fn a_repeated_put_is_done_already(make: Maker<'_>) {
    let store = &*make();
    let first = row(0, 10, &[1, 2]);
    let padded = row(0, 10, &[1, 2, 0, 0]);
    let conditions = [
        PutCondition::Below,
        PutCondition::Exactly(None),
        PutCondition::Exactly(Some(revision(10))),
        PutCondition::Exactly(Some(revision(5))),
    ];
    assert_eq!(put(store, &first, PutCondition::Below), PutOutcome::Stored);
    for condition in conditions {
        assert_eq!(put(store, &first, condition), PutOutcome::AlreadyDone, "{condition:?}");
        assert_eq!(put(store, &padded, condition), PutOutcome::AlreadyDone, "zero-padded");
    }
    assert_eq!(read(store, first.small.bucket), Some(first), "a repeat writes nothing");
}

/// # Panics
/// If the store breaks the contract.
pub fn rows_come_back_whole_and_in_the_order_asked(make: Maker<'_>) {
    let store = &*make();
    assert!(store.is_empty().expect("up"));
    let mut all = vec![
        row(0, 1, &[]),
        row(MINUTE_MS, 2, &[0, u64::MAX]),
        row(3 * MINUTE_MS, 3, &[3]),
        bucket_row(Bucket::containing(Granularity::Hour, 0), 4, &[4, 0, 4]),
        bucket_row(Bucket::containing(Granularity::Day, 0), 5, &[5]),
    ];
    let sources = [RowSource::Stream, RowSource::Rollup, RowSource::Log, RowSource::Lake];
    for (row, source) in all.iter_mut().zip(sources) {
        row.small.source = source;
        row.small.writer = WriterId(u64::MAX - row.small.writer.0);
        row.small.digest = u64::MAX;
        row.small.written_at_ms = -5;
    }
    for row in &all {
        assert_eq!(put(store, row, PutCondition::Below), PutOutcome::Stored);
    }
    assert!(!store.is_empty().expect("up"));
    assert_eq!(store.rows(&[]).expect("up"), Vec::new());
    let absent = Bucket::minute(2 * MINUTE_MS);
    let asked: Vec<(Bucket, Option<Row>)> = [4, 0, 1, 0, 3, 2]
        .iter()
        .filter_map(|index| all.get(*index))
        .map(|row| (row.small.bucket, Some(row.clone())))
        .chain([(absent, None)])
        .collect();
    let buckets: Vec<Bucket> = asked.iter().map(|(bucket, _)| *bucket).collect();
    let want: Vec<Option<Row>> = asked.into_iter().map(|(_, row)| row).collect();
    assert_eq!(store.rows(&buckets).expect("up"), want);
    // Buckets that follow each other, with a gap, as a range query asks for them.
    let ascending: Vec<Bucket> = (0..5).map(|minute| Bucket::minute(minute * MINUTE_MS)).collect();
    let found = store.rows(&ascending).expect("up");
    let present: Vec<bool> = found.iter().map(Option::is_some).collect();
    assert_eq!(present, [true, true, false, true, false]);
    assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), all.get(..3).expect("three"));
}

/// # Panics
/// If the store breaks the contract.
pub fn small_rows_are_half_open_and_ascending(make: Maker<'_>) {
    let store = &*make();
    let minutes = [DAY_MS, 5 * MINUTE_MS, 0, DAY_MS - MINUTE_MS, 4 * MINUTE_MS];
    for (time_ms, minute_ms) in (1..).zip(minutes) {
        put(store, &row(minute_ms, time_ms, &[1]), PutCondition::Below);
    }
    let hour = bucket_row(Bucket::containing(Granularity::Hour, 0), 9, &[1]);
    put(store, &hour, PutCondition::Below);
    let day = Period::containing(Granularity::Minute, 0);
    // (what the row shows, from, to, starts expected)
    let cases: [(&str, i64, i64, &[i64]); 8] = [
        (
            "the whole day, and no minute of the next",
            0,
            DAY_MS,
            &[0, 4 * MINUTE_MS, 5 * MINUTE_MS, DAY_MS - MINUTE_MS],
        ),
        ("the start is inside", 4 * MINUTE_MS, 5 * MINUTE_MS, &[4 * MINUTE_MS]),
        ("one past the start is outside", 4 * MINUTE_MS + 1, 5 * MINUTE_MS, &[]),
        ("one before the end lets it in", 5 * MINUTE_MS, 5 * MINUTE_MS + 1, &[5 * MINUTE_MS]),
        ("nothing in an empty range", 0, 0, &[]),
        ("nothing in a backward range", DAY_MS, 0, &[]),
        ("bounds outside the period add nothing", i64::MIN, MINUTE_MS, &[0]),
        ("nor at its end", DAY_MS - MINUTE_MS, i64::MAX, &[DAY_MS - MINUTE_MS]),
    ];
    for (name, from_ms, to_ms, want) in cases {
        let small = store.small_rows(day, from_ms, to_ms).expect("up");
        let starts: Vec<i64> = small.iter().map(|row| row.bucket.start_ms()).collect();
        assert_eq!(starts, want, "{name}");
        for row in small {
            assert_eq!(read(store, row.bucket).map(|whole| whole.small), Some(row), "{name}");
        }
    }
    let month = Period::containing(Granularity::Hour, 0);
    assert_eq!(store.small_rows(month, 0, HOUR_MS).expect("up"), [hour.small]);
    assert_eq!(store.small_rows(day.next().next(), 0, i64::MAX).expect("up"), []);
}

/// # Panics
/// If the store breaks the contract.
pub fn buckets_before_1970_keep_their_order(make: Maker<'_>) {
    let store = &*make();
    let period = Period::containing(Granularity::Day, -1);
    let starts = [-1, -300, -2].map(|day| day * DAY_MS);
    for start_ms in starts {
        let bucket = Bucket::containing(Granularity::Day, start_ms);
        put(store, &bucket_row(bucket, 1, &[1]), PutCondition::Below);
    }
    put(store, &bucket_row(Bucket::containing(Granularity::Day, 0), 1, &[1]), PutCondition::Below);
    let small = store.small_rows(period, period.start_ms(), period.end_ms()).expect("up");
    let found: Vec<i64> = small.iter().map(|row| row.bucket.start_ms() / DAY_MS).collect();
    assert_eq!(found, [-300, -2, -1]);
    assert_eq!(store.delete_period(period).expect("up"), 3);
    assert!(!store.is_empty().expect("up"), "the first day of 1970 stays");
}

/// # Panics
/// If the store breaks the contract.
pub fn one_call_may_mix_outcomes(make: Maker<'_>) {
    let store = &*make();
    let (old, done) = (row(0, 10, &[1]), row(MINUTE_MS, 10, &[2]));
    put(store, &old, PutCondition::Below);
    put(store, &done, PutCondition::Below);
    let fresh = row(2 * MINUTE_MS, 1, &[3]);
    let puts = [
        (row(0, 9, &[8]), PutCondition::Below),
        (fresh.clone(), PutCondition::Exactly(None)),
        (done.clone(), PutCondition::Below),
        (row(3 * MINUTE_MS, 5, &[4]), PutCondition::Exactly(Some(revision(4)))),
    ];
    let outcomes: Vec<PutOutcome> =
        store.put_many(&puts).into_iter().map(|outcome| outcome.expect("up")).collect();
    let want = [
        refused_by(&old),
        PutOutcome::Stored,
        PutOutcome::AlreadyDone,
        PutOutcome::Refused { stored: None },
    ];
    assert_eq!(outcomes, want);
    let buckets: Vec<Bucket> = puts.iter().map(|(row, _)| row.small.bucket).collect();
    assert_eq!(store.rows(&buckets).expect("up"), [Some(old), Some(fresh), Some(done), None]);
    assert!(store.put_many(&[]).is_empty());
}

/// # Panics
/// If the store breaks the contract.
pub fn later_puts_of_a_call_see_the_earlier(make: Maker<'_>) {
    let store = &*make();
    let (first, second) = (row(0, 10, &[1]), row(0, 20, &[2]));
    let puts = [
        (first.clone(), PutCondition::Exactly(None)),
        (second.clone(), PutCondition::Exactly(Some(revision(10)))),
        (first, PutCondition::Below),
        (second.clone(), PutCondition::Below),
    ];
    let outcomes: Vec<PutOutcome> =
        store.put_many(&puts).into_iter().map(|outcome| outcome.expect("up")).collect();
    let want =
        [PutOutcome::Stored, PutOutcome::Stored, refused_by(&second), PutOutcome::AlreadyDone];
    assert_eq!(outcomes, want);
    assert_eq!(read(store, second.small.bucket), Some(second));
}

/// # Panics
/// If the store breaks the contract.
pub fn the_widest_vector_fits_and_a_wider_one_does_not(make: Maker<'_>) {
    let store = &*make();
    let cap = u64::from(TypeId::CAP);
    let counts: Vec<u64> = (0..cap).map(|slot| slot << 40).collect();
    let widest = row(0, 1, &counts);
    assert_eq!(put(store, &widest, PutCondition::Below), PutOutcome::Stored);
    assert_eq!(read(store, widest.small.bucket), Some(widest.clone()));
    let wider = row(0, 2, &vec![0; counts.len() + 1]);
    let outcomes = store.put_many(&[(wider, PutCondition::Below)]);
    assert!(matches!(outcomes.as_slice(), [Err(StoreError::Unstorable { .. })]), "{outcomes:?}");
    assert_eq!(read(store, widest.small.bucket), Some(widest));
}

/// # Panics
/// If the store breaks the contract.
pub fn a_period_goes_whole_and_alone(make: Maker<'_>) {
    let store = &*make();
    let day = Period::containing(Granularity::Minute, 0);
    let inside = [0, MINUTE_MS, DAY_MS - MINUTE_MS];
    let outside = [-MINUTE_MS, DAY_MS];
    for minute_ms in inside.into_iter().chain(outside) {
        put(store, &row(minute_ms, 1, &[1]), PutCondition::Below);
    }
    let hour = bucket_row(Bucket::containing(Granularity::Hour, 0), 1, &[1]);
    put(store, &hour, PutCondition::Below);
    assert_eq!(store.delete_period(day).expect("up"), 3);
    assert_eq!(store.delete_period(day).expect("up"), 0);
    assert_eq!(store.small_rows(day, 0, DAY_MS).expect("up"), []);
    for (starts, kept) in [(&inside[..], false), (&outside[..], true)] {
        for minute_ms in starts {
            let found = read(store, Bucket::minute(*minute_ms));
            assert_eq!(found.is_some(), kept, "minute at {minute_ms}");
        }
    }
    assert_eq!(read(store, hour.small.bucket), Some(hour));
    let again = row(0, 1, &[2]);
    assert_eq!(put(store, &again, PutCondition::Exactly(None)), PutOutcome::Stored);
}
