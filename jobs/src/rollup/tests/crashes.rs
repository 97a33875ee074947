//! Stores that fail, processes that are killed, and rollups that run at once.

use std::sync::atomic::{AtomicBool, Ordering};

use tally_model::bucket::Period;
use tally_sinks::counts::failing::FailingCounts;
use tally_sinks::error::StoreError;
use tally_sinks::faults::Fault;
use tally_sinks::meta::failing::FailingMeta;

use super::*;

/// What a row says, apart from when and by whom it was put. (The day's digest is one of when.)
type Said = Option<(Vec<u64>, RowSource)>;

fn said(world: &World) -> Vec<Said> {
    assert_eq!(
        world.rollup().due(&Sweep::All).unwrap(),
        [],
        "every digest is that of the children"
    );
    let buckets: Vec<Bucket> = day().children().chain([day()]).collect();
    let rows = world.counts.rows(&buckets).unwrap();
    let says = |row: Row| (row.vector.counts().to_vec(), row.small.source);
    rows.into_iter().map(|row| row.map(says)).collect()
}

fn folded() -> World {
    let world = World::new();
    world.stream_day();
    world.run();
    world
}

/// So many calls that succeed, and then none any more.
fn dies_after(calls: usize, fault: Fault) -> impl Iterator<Item = Option<Fault>> + Clone {
    (0..calls).map(|_| None).chain((0..500).map(move |_| Some(fault)))
}

const FAULTS: [Fault; 3] = [Fault::Refused, Fault::AppliedThenLost, Fault::LostBeforeApplied];

/// The counts store is gone after its n-th write or read, for every n.
#[test]
fn a_rollup_killed_at_any_point_and_run_again_leaves_the_same_rows() {
    let whole = folded();
    let want = (said(&whole), whole.shown());
    let mut killed = 0;
    for fault in FAULTS {
        for calls in 0..100 {
            let world = World::new();
            world.stream_day();
            let failing = Arc::new(FailingCounts::new(Arc::clone(&world.counts)));
            failing.script_writes(dies_after(calls, fault));
            failing.script_reads(dies_after(calls, fault));
            let rollup = world.rollup_over(failing, 1, RollupOptions::default());
            let first = rollup.run(Sweep::All, &|| true);
            // The killed process gave nothing back: its lease has to expire.
            world.clock.advance(60_000);
            world.run();
            assert_eq!((said(&world), world.shown()), want, "{fault:?} after {calls} calls");
            killed += usize::from(first.is_err());
            if first.is_ok() {
                break;
            }
        }
    }
    assert!(killed > 30, "{killed}");
}

/// The same for marks, leases and suppressed days.
#[test]
fn a_rollup_that_loses_the_store_beside_the_counts_is_taken_up_again() {
    let whole = folded();
    let want = (said(&whole), whole.shown());
    for fault in FAULTS {
        for calls in 0..50 {
            let world = World::new();
            world.stream_day();
            let meta = Arc::new(FailingMeta::new(Arc::clone(&world.meta)));
            meta.script_writes(dies_after(calls, fault));
            meta.script_reads(dies_after(calls, fault));
            let parts = RollupParts { meta, ..world.rollup().parts };
            let first = Rollup::new(parts, RollupOptions::default()).run(Sweep::All, &|| true);
            world.clock.advance(60_000);
            world.run();
            assert_eq!((said(&world), world.shown()), want, "{fault:?} after {calls} calls");
            if first.is_ok() {
                break;
            }
        }
    }
}

/// B94: however many rollups run over one store, there is one row for each bucket, and it is the
/// sum of its children. Without leases, so that they really meet; one of them is killed.
#[test]
fn b94_rollups_and_restatements_at_once_leave_one_right_row_a_bucket() {
    for round in 0..5 {
        let world = World::new();
        world.stream_day();
        let options = RollupOptions { lease_ms: 0, ..RollupOptions::default() };
        std::thread::scope(|scope| {
            for owner in 1..=3 {
                let world = &world;
                scope.spawn(move || {
                    let failing = Arc::new(FailingCounts::new(Arc::clone(&world.counts)));
                    let calls = if owner == 3 { round } else { 500 };
                    failing.script_writes(dies_after(calls, Fault::Refused));
                    let rollup = world.rollup_over(failing, owner, options);
                    for _sweep in 0..5 {
                        // A killed one reports it; what it left is compared below.
                        drop(rollup.run(Sweep::All, &|| true));
                    }
                });
            }
            scope.spawn(|| {
                for again in 1..20 {
                    world.restate(minute(again * 70), &[0, 1_000, 1]);
                }
            });
        });
        world.run();
        let minutes: Vec<Bucket> = (0..1_440).map(minute).collect();
        let rows = world.counts.rows(&minutes).unwrap();
        let mut total = CountVector::new();
        for (number, rows) in (0..).zip(rows.chunks(60)) {
            let mut sum = CountVector::new();
            rows.iter().flatten().for_each(|row| sum.add(&row.vector).unwrap());
            assert_eq!(world.vector(hour(number)), sum.counts(), "hour {number}");
            total.add(&sum).unwrap();
        }
        assert_eq!(world.vector(day()), total.counts());
        let slices = [hour(0).period(), day().period()]
            .map(|period| world.counts.small_rows(period, period.start_ms(), period.end_ms()));
        let rows: Vec<usize> = slices.into_iter().map(|slice| slice.unwrap().len()).collect();
        assert_eq!(rows, [24, 1]);
    }
}

/// A put that was refused because the row was replaced after it had been read.
#[test]
fn a_fold_that_was_overtaken_reads_its_children_again() {
    let meddling = Arc::new(Meddling { world: World::new(), armed: AtomicBool::new(true) });
    let world = &meddling.world;
    world.stream_day();
    let counts: Arc<dyn CountsStore> = Arc::<Meddling>::clone(&meddling);
    let rollup = world.rollup_over(counts, 1, RollupOptions::default());
    let report = rollup.run(Sweep::All, &|| true).unwrap();
    assert_eq!(report.refused, 0);
    assert!(rollup.progress().figures().refused_puts >= 1);
    assert_eq!(world.vector(hour(0))[1], (1..60).sum::<u64>() + 500);
    assert_eq!(world.vector(day())[1], (1..1_440).sum::<u64>() + 500);
}

/// Restates minute 0 and folds everything just before the first put.
#[derive(Debug)]
struct Meddling {
    world: World,
    armed: AtomicBool,
}

impl CountsStore for Meddling {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.world.restate(minute(0), &[0, 500, 1]);
            let options = RollupOptions { lease_ms: 0, ..RollupOptions::default() };
            let counts = Arc::<MemoryCounts>::clone(&self.world.counts);
            // Under the lease's own name: the lease does not keep this one out.
            self.world.rollup_over(counts, 1, options).run(Sweep::All, &|| true).unwrap();
        }
        self.world.counts.put_many(puts)
    }

    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        self.world.counts.small_rows(period, from_ms, to_ms)
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.world.counts.rows(buckets)
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        self.world.counts.is_empty()
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        self.world.counts.delete_period(period)
    }
}
