mod crashes;
mod model;

use std::sync::Arc;

use tally_model::bucket::{Bucket, DAY_MS, Granularity, HOUR_MS, MINUTE_MS};
use tally_model::clock::ManualClock;
use tally_model::revision::{Generation, Revision};
use tally_model::time::parse_rfc3339;
use tally_model::vector::CountVector;
use tally_sinks::counts::memory::MemoryCounts;
use tally_sinks::counts::{
    CountsStore, PutCondition, PutOutcome, Row, RowSource, SmallRow, WriterId,
};
use tally_sinks::leases::{self, Owner, Taken};
use tally_sinks::marks;
use tally_sinks::meta::memory::MemoryMeta;
use tally_sinks::suppressed::{self, SuppressedDay};

use super::*;

/// Start of the day that the tests fold.
const DAY: &str = "2026-03-10T00:00:00Z";

fn at(text: &str) -> i64 {
    parse_rfc3339(text).unwrap()
}

fn day() -> Bucket {
    Bucket::containing(Granularity::Day, at(DAY))
}

fn hour(number: i64) -> Bucket {
    Bucket::containing(Granularity::Hour, at(DAY) + number * HOUR_MS)
}

fn minute(number: i64) -> Bucket {
    Bucket::minute(at(DAY) + number * MINUTE_MS)
}

fn row(bucket: Bucket, revision: Revision, source: RowSource, counts: &[u64]) -> Row {
    let vector = CountVector::from_counts(counts.to_vec());
    let small = SmallRow {
        bucket,
        revision,
        writer: WriterId(9),
        written_at_ms: revision.time_ms(),
        source,
        digest: 0,
        width: u32::try_from(vector.width()).unwrap(),
    };
    Row { small, vector }
}

/// A deployment in memory and the stores of it.
#[derive(Debug)]
struct World {
    counts: Arc<MemoryCounts>,
    meta: Arc<MemoryMeta>,
    clock: Arc<ManualClock>,
}

impl World {
    /// A day after [`DAY`], which is retired; the origin is the day's start.
    fn new() -> Self {
        let world = Self {
            counts: Arc::default(),
            meta: Arc::default(),
            clock: Arc::new(ManualClock::new(at(DAY) + 2 * DAY_MS)),
        };
        marks::set_origin_if_absent(&*world.meta, at(DAY)).unwrap();
        world.retire(at(DAY) + DAY_MS);
        world
    }

    fn retire(&self, up_to_ms: i64) {
        let advance =
            marks::advance(&*self.meta, Generation::default(), Some(up_to_ms), Some(up_to_ms));
        assert!(matches!(advance, Ok(marks::Advance::Published(_))));
    }

    fn rollup(&self) -> Rollup {
        self.rollup_over(Arc::<MemoryCounts>::clone(&self.counts), 1, RollupOptions::default())
    }

    fn rollup_over(
        &self,
        counts: Arc<dyn CountsStore>,
        owner: u64,
        options: RollupOptions,
    ) -> Rollup {
        let parts = RollupParts {
            counts,
            meta: Arc::<MemoryMeta>::clone(&self.meta),
            clock: Arc::<ManualClock>::clone(&self.clock),
            owner: Owner(owner),
        };
        Rollup::new(parts, options)
    }

    fn run(&self) -> RollupReport {
        self.rollup().run(Sweep::All, &|| true).unwrap()
    }

    /// What streaming puts.
    fn stream(&self, bucket: Bucket, counts: &[u64]) {
        let revision = Revision::streaming(Generation::default(), bucket.end_ms()).unwrap();
        let put = (row(bucket, revision, RowSource::Stream, counts), PutCondition::Below);
        assert!(matches!(self.counts.put_many(&[put])[..], [Ok(PutOutcome::Stored)]));
    }

    /// Minute `number` of the day holds `number` of slot 1 and one of slot 2.
    fn stream_day(&self) {
        for number in 0..1_440 {
            self.stream(minute(number), &[0, number.cast_unsigned(), 1]);
        }
    }

    /// What a recount puts.
    fn restate(&self, bucket: Bucket, counts: &[u64]) {
        let stored = self.row(bucket).map(|row| row.small.revision);
        let time_ms = stored.map_or(0, Revision::time_ms).max(self.clock.now_ms()) + 1;
        let new = row(bucket, Revision::recomputed(time_ms).unwrap(), RowSource::Lake, counts);
        let outcomes = self.counts.put_many(&[(new, PutCondition::Exactly(stored))]);
        assert!(matches!(outcomes[..], [Ok(PutOutcome::Stored)]), "{outcomes:?}");
    }

    fn row(&self, bucket: Bucket) -> Option<Row> {
        self.counts.rows(&[bucket]).unwrap().remove(0)
    }

    fn vector(&self, bucket: Bucket) -> Vec<u64> {
        self.row(bucket).unwrap_or_else(|| panic!("no row of {bucket:?}")).vector.counts().to_vec()
    }

    fn shown(&self) -> Option<Vec<u64>> {
        let digest = self.row(day())?.small.digest;
        let asked = SuppressedDay { day: day(), below: 10, digest };
        let found = suppressed::read(&*self.meta, &[asked]).unwrap().remove(0);
        found.map(|sum| sum.counts().to_vec())
    }
}

fn sum_of_minutes(from: u64, to: u64) -> Vec<u64> {
    vec![0, (from..to).sum(), to - from]
}

#[test]
fn a_day_of_minutes_becomes_24_hours_and_a_day() {
    let world = World::new();
    world.stream_day();
    let due = world.rollup().due(&Sweep::All).unwrap();
    let report = world.run();
    assert_eq!((report.hours_folded, report.days_folded, report.days_seen), (24, 1, 1));
    assert_eq!(due.len(), 25, "{due:?}");
    for number in 0..24 {
        let from = u64::try_from(number).unwrap() * 60;
        assert_eq!(world.vector(hour(number)), sum_of_minutes(from, from + 60));
    }
    assert_eq!(world.vector(day()), sum_of_minutes(0, 1_440));
    let small = world.row(day()).unwrap().small;
    assert_eq!((small.source, small.revision.time_ms()), (RowSource::Rollup, at(DAY) + 2 * DAY_MS));

    assert_eq!(world.run(), RollupReport { days_seen: 1, ..RollupReport::default() });
    assert_eq!(world.rollup().due(&Sweep::All).unwrap(), []);
    assert_eq!(world.row(day()).unwrap().small, small, "nothing is written twice");
}

/// B91: tiers are made from the tier below by overwriting, never by adding.
#[test]
fn b91_a_fold_that_is_repeated_adds_nothing() {
    let world = World::new();
    world.stream_day();
    world.run();
    for _again in 0..3 {
        world.clock.advance(1_000);
        let minute = minute(0);
        let counts = world.vector(minute);
        world.restate(minute, &counts);
        assert_eq!(world.run().folded(), 2, "another revision of the same counts");
        assert_eq!(world.vector(day()), sum_of_minutes(0, 1_440));
    }
}

/// B92: what lies above a restated minute changes with it, with higher revisions.
#[test]
fn b92_a_restated_minute_changes_its_hour_and_its_day() {
    let world = World::new();
    world.stream_day();
    world.run();
    let before = [hour(10), day()].map(|bucket| world.row(bucket).unwrap().small);
    let restated = minute(605);
    world.restate(restated, &[0, 606, 1]);
    let report = world.run();
    assert_eq!((report.hours_folded, report.days_folded), (1, 1));
    let [_, ten, _] = world.vector(hour(10))[..] else { panic!("three slots") };
    assert_eq!(ten, (600..660).sum::<u64>() + 1);
    assert_eq!(world.vector(day())[1], (0..1_440).sum::<u64>() + 1);
    for old in before {
        let new = world.row(old.bucket).unwrap().small;
        assert!(new.revision > old.revision && new.written_at_ms > old.written_at_ms, "{new:?}");
    }
}

#[test]
fn hours_are_folded_as_they_retire_and_the_day_when_the_last_has() {
    let world = World::new();
    world.stream_day();
    let world = World { meta: Arc::default(), ..world };
    marks::set_origin_if_absent(&*world.meta, at(DAY)).unwrap();
    for number in 0..24 {
        world.retire(hour(number).end_ms() - 1);
        assert_eq!(world.run().folded(), 0);
        world.retire(hour(number).end_ms());
        assert_eq!(world.run().folded(), if number == 23 { 2 } else { 1 });
    }
}

#[test]
fn children_before_the_origin_are_zero_and_later_ones_are_needed() {
    let world = World { meta: Arc::default(), ..World::new() };
    marks::set_origin_if_absent(&*world.meta, minute(150).start_ms()).unwrap();
    world.retire(day().end_ms());
    for number in (150..1_440).filter(|number| *number != 700) {
        world.stream(minute(number), &[1]);
    }
    let report = world.run();
    assert_eq!((report.hours_folded, report.days_folded), (21, 0));
    assert_eq!((report.lacking, report.first_lacking), (1, Some(minute(700))));
    assert_eq!(world.rollup().progress().figures().lacking, 0, "another rollup's");
    assert_eq!(world.vector(hour(2)), [30], "the part behind the origin");
    assert_eq!(world.row(hour(1)), None, "no row is needed before it");

    world.stream(minute(700), &[5]);
    let rollup = world.rollup();
    let report = rollup.run(Sweep::All, &|| true).unwrap();
    assert_eq!((report.hours_folded, report.days_folded, report.lacking), (1, 1, 0));
    assert_eq!(world.vector(day()), [1_289 + 5]);
    assert_eq!(rollup.progress().figures().hours_folded, 1);
}

/// What is left of a period whose retention runs is no source.
#[test]
fn a_row_whose_children_are_past_retention_is_never_folded_again() {
    let world = World::new();
    world.stream_day();
    world.run();
    let before = [hour(3), day()].map(|bucket| world.row(bucket));
    world.restate(minute(185), &[0, 9_999]);
    world.clock.step_to(at(DAY) + 61 * DAY_MS);
    assert_eq!(world.run().folded(), 0);
    assert_eq!([hour(3), day()].map(|bucket| world.row(bucket)), before);

    // A recount of the hour itself is folded into the day, and stays as it is.
    world.restate(hour(3), &[7, 7, 7]);
    let report = world.run();
    assert_eq!((report.hours_folded, report.days_folded), (0, 1));
    assert_eq!(world.vector(hour(3)), [7, 7, 7]);
    let rest = (0..1_440).filter(|minute| !(180..240).contains(minute)).sum::<u64>();
    assert_eq!(world.vector(day()), [7, rest + 7, 1_380 + 7]);

    world.restate(hour(4), &[]);
    world.clock.step_to(at(DAY) + 731 * DAY_MS);
    assert_eq!(world.run().folded(), 0, "the hours are past retention too");
}

#[test]
fn what_may_be_shown_of_a_day_is_the_sum_of_its_hours_larger_cells() {
    let world = World::new();
    for number in 0..1_440 {
        // Slot 1: 9 in the first hour, 10 in the second; slot 2: 3 in every hour.
        let first = u64::from(number < 9 || (60..70).contains(&number));
        world.stream(minute(number), &[0, first, u64::from(number % 20 == 0)]);
    }
    world.run();
    assert_eq!(world.vector(day()), [0, 19, 72]);
    assert_eq!(world.shown(), Some(vec![0, 10, 0]));

    world.restate(minute(9), &[0, 1, 0]);
    world.run();
    assert_eq!(world.vector(day()), [0, 20, 72]);
    assert_eq!(world.shown(), Some(vec![0, 20, 0]));
}

#[test]
fn a_sweep_of_a_range_touches_no_other_day() {
    let world = World::new();
    world.stream_day();
    let run = |range| world.rollup().run(Sweep::Within(range), &|| true).unwrap();
    let start_ms = day().start_ms();
    assert_eq!(run(start_ms - DAY_MS..start_ms).folded(), 0);
    assert_eq!(run(day().end_ms()..day().end_ms() + DAY_MS).folded(), 0);
    assert_eq!(run(start_ms + HOUR_MS..start_ms + HOUR_MS + 1).folded(), 25);
}

#[test]
fn the_recent_days_are_those_that_the_passing_time_makes_due() {
    let world = World::new();
    world.stream_day();
    for (days_later, folded) in [(2, 0), (1, 25)] {
        let end_ms = day().end_ms() + days_later * DAY_MS;
        let world = World { meta: Arc::default(), ..World::new() };
        world.stream_day();
        marks::set_origin_if_absent(&*world.meta, at(DAY)).unwrap();
        world.retire(end_ms);
        world.clock.step_to(end_ms);
        let report = world.rollup().run(Sweep::Recent, &|| true).unwrap();
        assert_eq!(report.folded(), folded, "{days_later}");
    }
}

#[test]
fn a_day_that_somebody_else_works_on_is_left_to_them() {
    let world = World::new();
    world.stream_day();
    let now_ms = world.clock.now_ms();
    let taken = leases::take(&*world.meta, at(DAY), Owner(2), now_ms, 5_000).unwrap();
    assert!(matches!(taken, Taken::Ours { .. }));
    let report = world.run();
    assert_eq!((report.days_busy, report.folded()), (1, 0));
    world.clock.advance(5_000);
    assert_eq!(world.run().folded(), 25, "the lease has expired");
    let again = leases::take(&*world.meta, at(DAY), Owner(2), now_ms, 5_000).unwrap();
    assert!(matches!(again, Taken::Ours { .. }), "ours was given back");
}

#[test]
fn a_run_stops_between_two_days_when_it_is_told_to() {
    let world = World::new();
    world.stream_day();
    let report = world.rollup().run(Sweep::All, &|| false).unwrap();
    assert!(report.stopped && report.folded() == 0);
}

#[test]
fn counts_that_do_not_fit_are_reported_with_their_bucket() {
    let world = World::new();
    world.stream_day();
    world.restate(minute(0), &[0, u64::MAX]);
    let error = world.rollup().run(Sweep::All, &|| true).unwrap_err();
    assert!(matches!(error, JobError::Overflow { bucket, .. } if bucket == hour(0)), "{error:?}");
    assert_eq!(error.to_string(), "the counts of the hour of 2026-03-10T00:00:00Z do not fit");
    let taken = leases::take(&*world.meta, at(DAY), Owner(2), world.clock.now_ms(), 1).unwrap();
    assert!(matches!(taken, Taken::Ours { .. }), "the lease was given back");
}

/// B97: days are UTC days, so a change of the clocks somewhere skips none and repeats none, and a
/// day whose fold was missed is caught up.
#[test]
fn b97_each_utc_day_around_a_change_of_clocks_is_folded_once() {
    for first in ["2026-03-07T00:00:00Z", "2026-10-31T00:00:00Z"] {
        let world = World { meta: Arc::default(), ..World::new() };
        let first_ms = at(first);
        marks::set_origin_if_absent(&*world.meta, first_ms).unwrap();
        let mut days = Vec::new();
        for number in 0..72_i64 {
            let hour = Bucket::containing(Granularity::Hour, first_ms + number * HOUR_MS);
            hour.children().for_each(|minute| world.stream(minute, &[1]));
            world.retire(hour.end_ms());
            world.clock.step_to(hour.end_ms() + 20 * MINUTE_MS);
            // The process is away around the second midnight.
            if !(46..50).contains(&number) {
                let report = world.run();
                assert_eq!(report.hours_folded, if number == 50 { 5 } else { 1 }, "{number}");
                days.push(report.days_folded);
            }
        }
        assert_eq!(days.iter().sum::<u64>(), 3);
        for number in 0..3 {
            let day = Bucket::containing(Granularity::Day, first_ms + number * DAY_MS);
            assert_eq!(world.vector(day), [1_440]);
        }
    }
}

/// A node that was away for longer than its minutes are kept folds them first.
#[test]
fn minutes_that_are_past_retention_but_all_there_are_folded_once() {
    let world = World::new();
    world.stream_day();
    world.clock.step_to(at(DAY) + 100 * DAY_MS);
    assert_eq!(world.run().folded(), 25);
    assert_eq!(world.vector(day()), sum_of_minutes(0, 1_440));
    world.restate(minute(7), &[0, 9_999]);
    assert_eq!(world.run().folded(), 0);
}
