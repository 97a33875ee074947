//! Rollups of several processes over one keyspace of a real Cassandra, at the address
//! `TALLY_TEST_CQL`. Each has a connection of its own and shares nothing else with the others.

#![expect(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::sync::Arc;

use tally_jobs::rollup::{Rollup, RollupOptions, RollupParts, RollupReport, Sweep};
use tally_model::bucket::{Bucket, DAY_MS, Granularity, HOUR_MS};
use tally_model::clock::ManualClock;
use tally_model::revision::{Generation, Revision};
use tally_model::vector::CountVector;
use tally_sinks::counts::{
    CountsStore as _, PutCondition, PutOutcome, Row, RowSource, SmallRow, WriterId,
};
use tally_sinks::cql::{CqlOptions, CqlStore};
use tally_sinks::leases::Owner;
use tally_sinks::marks::{self, Advance};
use tally_sinks::suppressed::{self, SuppressedDay};

/// 2026-03-10.
const DAY_START_MS: i64 = 1_773_100_800_000;
/// The deployment's first hours of that day have no rows.
const ORIGIN_MS: i64 = DAY_START_MS + 21 * HOUR_MS;

/// A keyspace of its own, which goes with it.
struct Keyspace(CqlOptions);

impl Keyspace {
    fn new(name: &str) -> Self {
        let address =
            std::env::var("TALLY_TEST_CQL").unwrap_or_else(|_unset| "127.0.0.1:19042".to_owned());
        let url = format!(
            "cql://{address}/rollup_{name}_{}?replication=1&timeout=10s",
            std::process::id()
        );
        Self(CqlOptions::parse(&url).unwrap())
    }

    fn open(&self) -> CqlStore {
        CqlStore::open(&self.0).expect("start the server with: scripts/services start cassandra")
    }

    /// A rollup as another process has it.
    fn rollup(&self, owner: u64, options: RollupOptions) -> Rollup {
        let store = self.open();
        let parts = RollupParts {
            counts: Arc::new(store.counts()),
            meta: Arc::new(store.meta()),
            clock: Arc::new(ManualClock::new(DAY_START_MS + 2 * DAY_MS)),
            owner: Owner(owner),
        };
        Rollup::new(parts, options)
    }
}

impl Drop for Keyspace {
    fn drop(&mut self) {
        // One that stays has a name of its own and is in nobody's way.
        drop(CqlStore::drop_keyspace(&self.0));
    }
}

fn minutes() -> impl Iterator<Item = Bucket> {
    (0..180).map(|minute| Bucket::minute(ORIGIN_MS + minute * 60_000))
}

fn put(
    store: &CqlStore,
    bucket: Bucket,
    revision: Revision,
    count: u64,
    read: PutCondition,
) -> Row {
    let vector = CountVector::from_counts(vec![0, count]);
    let small = SmallRow {
        bucket,
        revision,
        writer: WriterId(9),
        written_at_ms: revision.time_ms(),
        source: RowSource::Stream,
        digest: 0,
        width: 2,
    };
    let row = Row { small, vector };
    let outcomes = store.counts().put_many(&[(row.clone(), read)]);
    assert!(matches!(outcomes[..], [Ok(PutOutcome::Stored)]), "{outcomes:?}");
    row
}

/// Three hours of minutes with one event each, all retired.
fn fill(store: &CqlStore) {
    marks::set_origin_if_absent(&store.meta(), ORIGIN_MS).unwrap();
    for bucket in minutes() {
        let revision = Revision::streaming(Generation::default(), bucket.end_ms()).unwrap();
        put(store, bucket, revision, 1, PutCondition::Below);
    }
    let retired = Some(DAY_START_MS + DAY_MS);
    let advance = marks::advance(&store.meta(), Generation::default(), retired, retired).unwrap();
    assert!(matches!(advance, Advance::Published(_)));
}

fn count(store: &CqlStore, granularity: Granularity, start_ms: i64) -> u64 {
    let bucket = Bucket::containing(granularity, start_ms);
    store.counts().rows(&[bucket]).unwrap()[0].as_ref().unwrap().vector.counts()[1]
}

fn run_at_once(keyspace: &Keyspace, owners: u64, options: RollupOptions) -> Vec<RollupReport> {
    std::thread::scope(|scope| {
        let running: Vec<_> = (1..=owners)
            .map(|owner| {
                let rollup = keyspace.rollup(owner, options);
                scope.spawn(move || rollup.run(Sweep::All, &|| true).unwrap())
            })
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn of_two_processes_one_folds_the_day_and_the_other_leaves_it() {
    let keyspace = Keyspace::new("two");
    let store = keyspace.open();
    fill(&store);
    let reports = run_at_once(&keyspace, 2, RollupOptions::default());
    let folded: u64 = reports.iter().map(RollupReport::folded).sum();
    assert_eq!(folded, 4, "three hours and a day, each once: {reports:?}");
    assert!(reports.iter().all(|report| report.refused == 0), "{reports:?}");
    assert_eq!(count(&store, Granularity::Day, DAY_START_MS), 180);
    let day = Bucket::containing(Granularity::Day, DAY_START_MS);
    let digest = store.counts().rows(&[day]).unwrap()[0].as_ref().unwrap().small.digest;
    let asked = SuppressedDay { day, below: 10, digest };
    let shown = suppressed::read(&store.meta(), &[asked]).unwrap().remove(0);
    assert_eq!(shown, Some(CountVector::from_counts(vec![0, 180])));
}

/// B94 over Cassandra: leases expire at once, so all of them work on everything, while minutes are
/// restated.
#[test]
fn b94_processes_that_meet_leave_one_right_row_a_bucket() {
    let keyspace = Keyspace::new("many");
    let store = keyspace.open();
    fill(&store);
    let options = RollupOptions { lease_ms: 0, ..RollupOptions::default() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (number, bucket) in (0..).zip(minutes().step_by(25)) {
                let stored = store.counts().rows(&[bucket]).unwrap()[0].as_ref().unwrap().small;
                let revision = Revision::recomputed(DAY_START_MS + 2 * DAY_MS + number).unwrap();
                let read = PutCondition::Exactly(Some(stored.revision));
                put(&store, bucket, revision, 11, read);
            }
        });
        for _round in 0..3 {
            run_at_once(&keyspace, 3, options);
        }
    });
    let last = run_at_once(&keyspace, 1, options);
    assert_eq!((last[0].refused, last[0].lacking), (0, 0));
    // Every 25th of 180 minutes has 11 events instead of one.
    assert_eq!(count(&store, Granularity::Day, DAY_START_MS), 180 + 8 * 10);
    for hour in 0..3_i64 {
        let restated = (0..8).filter(|one| one * 25 / 60 == hour).count();
        let want = 60 + 10 * u64::try_from(restated).unwrap();
        assert_eq!(count(&store, Granularity::Hour, ORIGIN_MS + hour * HOUR_MS), want);
    }
    let period = Bucket::containing(Granularity::Hour, ORIGIN_MS).period();
    let rows = store.counts().small_rows(period, period.start_ms(), period.end_ms()).unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(run_at_once(&keyspace, 1, options)[0].folded(), 0);
}
