use tally_model::bucket::Bucket;
use tally_model::clock::ManualClock;
use tally_model::range::Availability;
use tally_model::revision::Revision;
use tally_model::time::{format_rfc3339, parse_rfc3339};
use tally_model::vector::CountVector;
use tally_sinks::counts::failing::FailingCounts;
use tally_sinks::counts::memory::MemoryCounts;
use tally_sinks::counts::{PutCondition, Row, RowSource, SmallRow, WriterId};
use tally_sinks::faults::Fault;
use tally_sinks::meta::memory::MemoryMeta;

use super::*;

fn at(text: &str) -> i64 {
    parse_rfc3339(text).unwrap()
}

fn put(counts: &dyn CountsStore, granularity: Granularity, start: &str) -> Bucket {
    let bucket = Bucket::containing(granularity, at(start));
    let small = SmallRow {
        bucket,
        revision: Revision::recomputed(1).unwrap(),
        writer: WriterId(0),
        written_at_ms: 1,
        source: RowSource::Rollup,
        digest: 1,
        width: 1,
    };
    let row = Row { small, vector: CountVector::from_counts(vec![1]) };
    assert!(counts.put_many(&[(row, PutCondition::Below)])[0].is_ok());
    bucket
}

/// B88: the period goes whole, and a day or more after the last moment at which anything may have
/// written into it.
#[test]
fn a_period_is_deleted_a_day_after_its_last_bucket_stopped_being_kept() {
    for (granularity, days, inside) in [
        (Granularity::Minute, 60, "2026-03-10T23:59:00Z"),
        (Granularity::Hour, 730, "2026-02-28T23:00:00Z"),
    ] {
        let period = Period::containing(granularity, at(inside));
        let kept = |now_ms| {
            let available = Availability::at(now_ms, days, days);
            at(inside) >= available.minutes_from_ms
        };
        let first_ms = (0..)
            .map(|minute| period.end_ms() + minute * 60_000)
            .find(|now_ms| deletable(period, days, *now_ms))
            .unwrap();
        assert!(!kept(first_ms) && !kept(first_ms - DAY_MS), "{granularity}");
        assert!(kept(first_ms - DAY_MS - 1), "{granularity}: and not much later");
    }
}

#[test]
fn rows_past_their_days_go_by_whole_periods_and_days_stay() {
    let counts = Arc::new(MemoryCounts::default());
    let meta = Arc::new(MemoryMeta::default());
    let old = [
        put(&counts, Granularity::Minute, "2026-01-01T00:00:00Z"),
        put(&counts, Granularity::Minute, "2026-01-31T23:59:00Z"),
        put(&counts, Granularity::Hour, "2026-01-31T23:00:00Z"),
    ];
    let young = [
        put(&counts, Granularity::Minute, "2026-02-01T00:00:00Z"),
        put(&counts, Granularity::Hour, "2026-02-01T00:00:00Z"),
        put(&counts, Granularity::Day, "2026-01-31T00:00:00Z"),
    ];
    put(&counts, Granularity::Hour, "2026-01-01T00:00:00Z");
    put(&counts, Granularity::Day, "2026-01-01T00:00:00Z");
    marks::set_origin_if_absent(&*meta, at("2026-01-01T00:00:00Z")).unwrap();
    let clock = Arc::new(ManualClock::new(at("2026-02-12T00:00:00Z")));
    let retention = Retention {
        counts: Arc::<MemoryCounts>::clone(&counts),
        meta,
        clock,
        minutes_days: 10,
        hours_days: 10,
    };
    assert_eq!(retention.run(&|| true).unwrap(), Deleted { periods: 32, rows: 4, held: None });
    assert_eq!(retention.run(&|| true).unwrap(), Deleted::default(), "each period once");
    assert!(counts.rows(&old).unwrap().iter().all(Option::is_none));
    assert!(counts.rows(&young).unwrap().iter().all(Option::is_some));
}

#[test]
fn a_run_that_was_cut_short_is_taken_up() {
    let counts = Arc::new(FailingCounts::new(MemoryCounts::default()));
    let meta = Arc::new(MemoryMeta::default());
    let old = put(&counts, Granularity::Minute, "2026-01-20T00:00:00Z");
    put(&counts, Granularity::Hour, "2026-01-20T00:00:00Z");
    marks::set_origin_if_absent(&*meta, at("2026-01-01T00:00:00Z")).unwrap();
    let retention = Retention {
        counts: Arc::<FailingCounts<MemoryCounts>>::clone(&counts),
        meta,
        clock: Arc::new(ManualClock::new(at("2026-02-12T00:00:00Z"))),
        minutes_days: 10,
        hours_days: 10_000,
    };
    counts.script_writes((0..15).map(|_| None).chain([Some(Fault::Refused)]));
    assert!(retention.run(&|| true).is_err());
    assert!(counts.rows(&[old]).unwrap()[0].is_some());
    assert_eq!(retention.run(&|| true).unwrap(), Deleted { periods: 31, rows: 1, held: None });
    assert_eq!(retention.run(&|| true).unwrap(), Deleted::default());
}

/// A node that was away for longer than its minutes are kept: they wait for the rollup.
#[test]
fn what_the_rollup_has_yet_to_fold_is_not_deleted() {
    let counts = Arc::new(MemoryCounts::default());
    let meta = Arc::new(MemoryMeta::default());
    let hour = Bucket::containing(Granularity::Hour, at("2026-01-10T01:00:00Z"));
    for minute in hour.children() {
        put(&counts, Granularity::Minute, &format_rfc3339(minute.start_ms()));
    }
    // An hour that lacks minutes will never be folded: nothing waits for it.
    put(&counts, Granularity::Minute, "2026-01-10T02:00:00Z");
    marks::set_origin_if_absent(&*meta, at("2026-01-09T00:00:00Z")).unwrap();
    let retention = Retention {
        counts: Arc::<MemoryCounts>::clone(&counts),
        meta,
        clock: Arc::new(ManualClock::new(at("2026-02-12T00:00:00Z"))),
        minutes_days: 10,
        hours_days: 10_000,
    };
    let held = Some(Period::containing(Granularity::Minute, hour.start_ms()));
    assert_eq!(retention.run(&|| true).unwrap(), Deleted { periods: 1, rows: 0, held });
    assert_eq!(retention.run(&|| true).unwrap(), Deleted { periods: 0, rows: 0, held });
    put(&counts, Granularity::Hour, "2026-01-10T01:00:00Z");
    assert_eq!(retention.run(&|| true).unwrap(), Deleted { periods: 22, rows: 61, held: None });
}
