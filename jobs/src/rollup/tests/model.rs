//! Random restatements and rollups at random moments against a naive model.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tally_sinks::counts::failing::FailingCounts;
use tally_sinks::faults::Fault;

use super::*;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    /// A minute gets other counts, whatever it had.
    Restate { minute: i64, counts: Vec<u64> },
    /// Streaming retires up to the end of this minute.
    Retire { minute: i64 },
    /// A rollup runs, over a store that does this at its next writes.
    Rollup { faults: Vec<Option<Fault>> },
    /// Time passes.
    Wait { ms: i64 },
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(Fault::Refused)),
        1 => Just(Some(Fault::AppliedThenLost)),
        1 => Just(Some(Fault::LostBeforeApplied)),
    ]
}

/// Minutes of three days, most of them in the first hours of the first.
fn minute_number() -> impl Strategy<Value = i64> {
    prop_oneof![120_i64..300, 120_i64..3 * 1_440]
}

fn step() -> impl Strategy<Value = Step> {
    let counts = prop::collection::vec(0_u64..30, 0..4);
    prop_oneof![
        4 => (minute_number(), counts).prop_map(|(minute, counts)| Step::Restate { minute, counts }),
        1 => minute_number().prop_map(|minute| Step::Retire { minute }),
        3 => prop::collection::vec(fault(), 0..4).prop_map(|faults| Step::Rollup { faults }),
        1 => (0_i64..100_000).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// The naive model: what each minute holds now.
type Minutes = BTreeMap<i64, Vec<u64>>;

fn sum_in(minutes: &Minutes, bucket: Bucket) -> CountVector {
    let mut sum = CountVector::new();
    for (_, counts) in minutes.range(bucket.start_ms()..bucket.end_ms()) {
        sum.add(&CountVector::from_counts(counts.clone())).unwrap();
    }
    sum
}

fn shown_in(minutes: &Minutes, day: Bucket) -> CountVector {
    let mut sum = CountVector::new();
    for hour in day.children() {
        let cells = sum_in(minutes, hour);
        let large = cells.counts().iter().map(|count| if *count >= 10 { *count } else { 0 });
        sum.add(&CountVector::from_counts(large.collect())).unwrap();
    }
    sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn folded_rows_are_the_naive_sums_after_any_history(
        origin in 0_i64..120,
        steps in prop::collection::vec(step(), 0..24),
    ) {
        let world = World { meta: Arc::default(), ..World::new() };
        world.clock.step_to(at(DAY) + 10 * DAY_MS);
        marks::set_origin_if_absent(&*world.meta, minute(origin).start_ms()).unwrap();
        let mut model = Minutes::new();
        for number in origin..3 * 1_440 {
            let counts = vec![0, u64::from(number % 7 == 0)];
            world.stream(minute(number), &counts);
            model.insert(minute(number).start_ms(), counts);
        }
        let mut retired = origin;
        for step in steps {
            match step {
                Step::Restate { minute: number, counts } => {
                    world.restate(minute(number), &counts);
                    model.insert(minute(number).start_ms(), counts);
                }
                Step::Retire { minute: number } => {
                    retired = retired.max(number);
                    world.retire(minute(number).end_ms());
                }
                Step::Rollup { faults } => {
                    let store = Arc::new(FailingCounts::new(Arc::clone(&world.counts)));
                    store.script_writes(faults);
                    let options = RollupOptions { lease_ms: 0, ..RollupOptions::default() };
                    // Whether it comes to its end depends on the faults.
                    drop(world.rollup_over(store, 2, options).run(Sweep::All, &|| true));
                }
                Step::Wait { ms } => world.clock.advance(ms),
            }
        }
        // Whatever happened, one run more makes it right.
        world.retire(minute(retired).end_ms());
        let report = world.run();
        prop_assert_eq!((report.lacking, report.refused), (0, 0));
        prop_assert_eq!(world.rollup().due(&Sweep::All).unwrap(), vec![]);
        for number in 0..72 {
            let hour = hour(number);
            let needed = hour.end_ms() <= minute(retired).end_ms()
                && hour.end_ms() > minute(origin).start_ms();
            match world.row(hour) {
                Some(row) if needed => prop_assert_eq!(row.vector, sum_in(&model, hour)),
                row => prop_assert_eq!(row.is_some(), needed, "hour {}", number),
            }
        }
        for number in 0..3 {
            let day = Bucket::containing(Granularity::Day, at(DAY) + number * DAY_MS);
            let Some(row) = world.row(day) else {
                prop_assert!(day.end_ms() > minute(retired).end_ms());
                continue;
            };
            prop_assert_eq!(row.vector, sum_in(&model, day));
            let asked = SuppressedDay { day, below: 10, digest: row.small.digest };
            let shown = suppressed::read(&*world.meta, &[asked]).unwrap().remove(0);
            prop_assert_eq!(shown, Some(shown_in(&model, day)));
        }
    }
}
