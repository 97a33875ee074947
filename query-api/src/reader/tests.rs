use std::collections::BTreeMap;

use proptest::prelude::*;
use tally_model::bucket::{HOUR_MS, MINUTE_MS};
use tally_model::clock::ManualClock;
use tally_model::range::{Availability, Run};
use tally_model::types::TypeId;
use tally_sinks::counts::{PutCondition, Row};
use tally_sinks::dirty::DirtyHour;

use super::*;
use crate::resolve::{Facts, resolve};
use crate::testing::{HookedCounts, World, at, row};

const NOW: &str = "2026-03-10T12:00:00Z";

fn reader(world: &World, cache_bytes: usize) -> Reader {
    Reader::new(
        Arc::<HookedCounts>::clone(&world.counts),
        Arc::clone(&world.meta),
        Arc::<ManualClock>::clone(&world.clock),
        cache_bytes,
    )
}

/// Resolves and sums one stretch of hours from a fresh snapshot or the current one.
fn sum(world: &World, reader: &Reader, hours: Run) -> Result<(CountVector, Visited), ReadError> {
    let snapshot = reader.snapshot()?;
    let facts = Facts {
        now_ms: world.clock.now_ms(),
        availability: Availability::ALL,
        origin_ms: snapshot.marks.origin_ms,
        retired_up_to_ms: snapshot.marks.retired_up_to_ms,
        readable_up_to_ms: snapshot.marks.readable_up_to_ms,
    };
    let resolved = resolve(&[hours], &facts, |period| reader.manifest(&snapshot, period))?;
    let mut sum = CountVector::new();
    let visited = reader
        .visit(&snapshot, &resolved.parts, |_, vector| sum.add(vector))
        .inspect_err(|_| reader.forget(&snapshot))?;
    Ok((sum, visited))
}

fn hours(start: &str, hours: i64) -> Run {
    let start_ms = at(start);
    Run { granularity: Granularity::Hour, start_ms, end_ms: start_ms + hours * HOUR_MS }
}

#[test]
fn a_second_query_takes_whole_hours_from_the_cache_and_reads_no_vector() {
    let world = World::at(NOW);
    world.minutes("2026-03-10T08:00:00Z", "2026-03-10T10:00:00Z", |_| vec![0, 1]);
    let reader = reader(&world, 1 << 20);
    let run = hours("2026-03-10T08:00:00Z", 2);
    let (first, cold) = sum(&world, &reader, run).unwrap();
    assert_eq!(cold, Visited { cache_hits: 0, cache_misses: 2, rows_read: 120 });
    world.clock.advance(1_000);
    let (second, cached) = sum(&world, &reader, run).unwrap();
    assert_eq!(cached, Visited { cache_hits: 2, cache_misses: 0, rows_read: 0 });
    assert_eq!(first, second);
}

#[test]
fn a_new_revision_is_seen_within_a_second_and_costs_only_its_own_hour() {
    let world = World::at(NOW);
    world.minutes("2026-03-10T08:00:00Z", "2026-03-10T10:00:00Z", |_| vec![0, 1]);
    let reader = reader(&world, 1 << 20);
    let run = hours("2026-03-10T08:00:00Z", 2);
    sum(&world, &reader, run).unwrap();
    let bucket = Bucket::minute(at("2026-03-10T09:30:00Z"));
    world.put(row(bucket, at(NOW), vec![0, 100]));
    world.clock.advance(1_000);
    let (changed, visited) = sum(&world, &reader, run).unwrap();
    assert_eq!(changed.counts(), [0, 219]);
    assert_eq!(visited, Visited { cache_hits: 1, cache_misses: 1, rows_read: 60 });
}

#[test]
fn a_row_that_changes_between_manifest_and_vector_is_never_paired_with_the_old_one() {
    let world = World::at(NOW);
    world.minutes("2026-03-10T08:00:00Z", "2026-03-10T09:00:00Z", |_| vec![0, 1]);
    let reader = reader(&world, 1 << 20);
    let run = hours("2026-03-10T08:00:00Z", 1);
    let bucket = Bucket::minute(at("2026-03-10T08:30:00Z"));
    world.counts.before_rows(move |counts| {
        let newer = row(bucket, at(NOW), vec![0, 100]);
        assert!(counts.put_many(&[(newer, PutCondition::Below)])[0].is_ok());
    });
    let moved = sum(&world, &reader, run).unwrap_err();
    assert!(matches!(moved, ReadError::Moved { bucket: changed } if changed == bucket), "{moved}");
    // The snapshot was forgotten, so that the next attempt is right although no time has passed.
    assert_eq!(sum(&world, &reader, run).unwrap().0.counts(), [0, 159]);
}

/// The stretches of dirty hours that a range of the tenth of March touches, in hours of that day.
fn dirty(reader: &Reader, start: &str, end: &str) -> Vec<(i64, i64)> {
    let at = |time: &str| at(&format!("2026-03-10T{time}:00Z"));
    let range = TimeRange::new(at(start), at(end)).unwrap();
    let snapshot = reader.snapshot().unwrap();
    let hour = |at_ms: i64| (at_ms - at("00:00")) / HOUR_MS;
    let touched = reader.dirty(&snapshot, range).unwrap();
    touched.spans().iter().map(|span| (hour(span.start_ms), hour(span.end_ms))).collect()
}

fn late() -> DirtyHour {
    DirtyHour { late: 1, ..DirtyHour::default() }
}

#[test]
fn dirty_hours_are_those_that_a_range_touches() {
    let world = World::at(NOW);
    for start in ["2026-03-10T08:00:00Z", "2026-03-10T09:00:00Z", "2026-03-10T11:00:00Z"] {
        world.dirty(start, late());
    }
    let reader = reader(&world, 0);
    // (start, end, stretches in hours)
    type Case = (&'static str, &'static str, &'static [(i64, i64)]);
    let cases: [Case; 6] = [
        ("08:00", "12:00", &[(8, 10), (11, 12)]),
        ("08:59", "09:00", &[(8, 9)]),
        ("08:59", "09:01", &[(8, 10)]),
        ("10:00", "11:00", &[]),
        ("10:00", "11:01", &[(11, 12)]),
        ("06:00", "08:00", &[]),
    ];
    for (start, end, want) in cases {
        assert_eq!(dirty(&reader, start, end), want, "{start} to {end}");
    }
}

#[test]
fn dirty_hours_of_any_month_are_found_in_a_long_range() {
    let world = World::at(NOW);
    for start in ["2024-02-29T23:00:00Z", "2025-12-31T23:00:00Z", "2026-01-01T00:00:00Z"] {
        world.dirty(start, late());
    }
    let reader = reader(&world, 0);
    let range = TimeRange::new(at("2010-01-01T00:00:00Z"), at(NOW)).unwrap();
    let touched = reader.dirty(&reader.snapshot().unwrap(), range).unwrap();
    assert_eq!(touched.spans().len(), 2, "two hours meet at the turn of the year");
    assert_eq!(touched.minutes(), 180);
}

#[test]
fn a_dirty_hour_is_seen_within_a_second_and_not_looked_for_more_often() {
    let world = World::at(NOW);
    let reader = reader(&world, 0);
    assert!(dirty(&reader, "09:00", "10:00").is_empty());
    world.dirty("2026-03-10T09:00:00Z", late());
    world.clock.advance(999);
    assert!(dirty(&reader, "09:00", "10:00").is_empty(), "what was read still stands");
    world.clock.advance(1);
    assert_eq!(dirty(&reader, "09:00", "10:00"), [(9, 10)]);
}

/// A recount puts rows and then says that the hour is clean. A reader that learned that must not
/// add the rows of before.
#[test]
fn dirty_hours_are_older_than_the_manifests_beside_them() {
    for granularity in Granularity::ALL {
        let world = World::at(NOW);
        let reader = reader(&world, 0);
        let snapshot = reader.snapshot().unwrap();
        reader.manifest(&snapshot, Period::containing(granularity, at(NOW))).unwrap();
        world.dirty("2026-03-10T09:00:00Z", late());
        assert!(dirty(&reader, "09:00", "10:00").is_empty(), "{granularity}: read before");
    }
}

/// One step of a random run.
#[derive(Clone, Debug)]
enum Step {
    /// The minute, or the hour that holds it, gets this count.
    Put { granularity: Granularity, minute: i64, count: u64 },
    /// These hours are asked for.
    Ask { hour: i64, hours: i64 },
}

fn step() -> impl Strategy<Value = Step> {
    let granularity = prop_oneof![9 => Just(Granularity::Minute), 1 => Just(Granularity::Hour)];
    prop_oneof![
        2 => (granularity, 0..600_i64, 0..100_u64)
            .prop_map(|(granularity, minute, count)| Step::Put { granularity, minute, count }),
        1 => (0..10_i64, 1..10_i64).prop_map(|(hour, hours)| Step::Ask { hour, hours }),
    ]
}

/// What the rows say without any cache: an hour's row, else its minutes.
fn naive(rows: &BTreeMap<Bucket, Row>, asked: Run) -> u64 {
    let count = |bucket: &Bucket| rows.get(bucket).map(|row| row.vector.get(TypeId(1)));
    asked
        .buckets()
        .map(|hour| {
            count(&hour)
                .unwrap_or_else(|| hour.children().filter_map(|minute| count(&minute)).sum())
        })
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// However rows change between queries and however small the cache is, an answer is that of the
    /// rows as they are.
    #[test]
    fn the_cache_is_never_seen_in_an_answer(
        steps in prop::collection::vec(step(), 1..60),
        cache_bytes in prop_oneof![Just(0_usize), Just(2_000), Just(1 << 20)],
    ) {
        let world = World::at(NOW);
        let base_ms = at("2026-03-10T00:00:00Z");
        let reader = reader(&world, cache_bytes);
        let mut rows = BTreeMap::new();
        for minute in 0..600 {
            let bucket = Bucket::minute(base_ms + minute * MINUTE_MS);
            rows.insert(bucket, row(bucket, 1, vec![0, 1]));
        }
        rows.values().for_each(|row| world.put(row.clone()));
        for (number, step) in (2..).zip(steps) {
            match step {
                Step::Put { granularity, minute, count } => {
                    let bucket = Bucket::containing(granularity, base_ms + minute * MINUTE_MS);
                    rows.insert(bucket, row(bucket, number, vec![0, count]));
                    world.put(rows[&bucket].clone());
                }
                Step::Ask { hour, hours } => {
                    world.clock.advance(1_000);
                    let start_ms = base_ms + hour * HOUR_MS;
                    let end_ms = start_ms + hours.min(10 - hour) * HOUR_MS;
                    let asked = Run { granularity: Granularity::Hour, start_ms, end_ms };
                    let (sum, _) = sum(&world, &reader, asked).unwrap();
                    let want = naive(&rows, asked);
                    prop_assert_eq!(sum.get(TypeId(1)), want);
                }
            }
        }
    }
}
