//! Measures the embedded store: `cargo run --release -p tally-sinks --example store_speed [FOLDER]`.
//!
//! Figures depend on the disk: each put ends with an fsync. The file lies in a fresh folder inside
//! `FOLDER`, by default the present one.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "this program is a stopwatch: it prints what it measures on the real clock"
)]

use std::error::Error;
use std::time::{Duration, Instant};

use tally_model::bucket::{Bucket, DAY_MS, Granularity, MINUTE_MS, Period};
use tally_model::revision::{Generation, Revision};
use tally_model::vector::CountVector;
use tally_sinks::counts::{CountsStore, PutCondition, Row, RowSource, SmallRow, WriterId};
use tally_sinks::meta::{KeyValue, MetaStore};
use tally_sinks::redb::RedbStore;

type Outcome = Result<(), Box<dyn Error>>;

const DAYS: i64 = 60;
const BATCH: i64 = 500;

fn main() -> Outcome {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let folder = tempfile::tempdir_in(parent)?;
    let path = folder.path().join("store.redb");
    let store = RedbStore::open(&path)?;
    single_puts(&store.counts())?;
    batch(&store.counts(), 1_000)?;
    fill(&store.counts())?;
    reads(&store.counts())?;
    keys(&store.meta())?;
    println!("file: {} MB", std::fs::metadata(&path)?.len() >> 20);
    drop(store);
    reopen(&path, "open after a clean stop")?;
    let copy = folder.path().join("crashed.redb");
    let store = RedbStore::open(&path)?;
    store.meta().put_if("t", b"k", None, b"v")?;
    std::fs::copy(&path, &copy)?;
    reopen(&copy, "open after a crash")
}

fn reopen(path: &std::path::Path, what: &str) -> Outcome {
    let start = Watch::start();
    let store = RedbStore::open(path)?;
    start.report(what, 1);
    drop(store);
    Ok(())
}

/// Wall clock and processor time since it was started.
struct Watch {
    start: Instant,
    cpu: Option<Duration>,
}

impl Watch {
    fn start() -> Self {
        Self { start: Instant::now(), cpu: cpu_time() }
    }

    /// Prints the time of each of `times`.
    fn report(&self, what: &str, times: u32) {
        let each = self.start.elapsed() / times;
        let cpu = cpu_time().zip(self.cpu).map(|(now, then)| (now - then) / times);
        match cpu {
            Some(cpu) => println!("{what}: {each:.2?}, of which on the processor {cpu:.2?}"),
            None => println!("{what}: {each:.2?}"),
        }
    }
}

/// Time that this thread spent on a processor, where Linux tells it: on a busy machine the wall
/// clock says little.
fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

fn row(minute: i64, time_ms: i64, width: usize) -> Result<Row, Box<dyn Error>> {
    let generation = Generation::new(1).ok_or("no generation")?;
    let count = u64::try_from(minute)?;
    let small = SmallRow {
        bucket: Bucket::minute(minute * MINUTE_MS),
        revision: Revision::streaming(generation, time_ms)?,
        writer: WriterId(1),
        written_at_ms: time_ms,
        source: RowSource::Stream,
        digest: 0,
        width: u32::try_from(width)?,
    };
    Ok(Row { small, vector: CountVector::from_counts(vec![count; width]) })
}

fn put(store: &impl CountsStore, puts: &[(Row, PutCondition)]) -> Outcome {
    for outcome in store.put_many(puts) {
        outcome?;
    }
    Ok(())
}

fn single_puts(store: &impl CountsStore) -> Outcome {
    let rows = (0..200).map(|minute| row(minute, 1, 1_000)).collect::<Result<Vec<_>, _>>()?;
    let start = Watch::start();
    for row in rows {
        put(store, &[(row, PutCondition::Below)])?;
    }
    start.report("one put of an 8 kB row", 200);
    Ok(())
}

fn batch(store: &impl CountsStore, width: usize) -> Outcome {
    let rows = |round: i64| {
        (0..BATCH)
            .map(|minute| Ok((row(minute, 2 + round, width)?, PutCondition::Below)))
            .collect::<Result<Vec<_>, Box<dyn Error>>>()
    };
    let puts = (0..10).map(rows).collect::<Result<Vec<_>, _>>()?;
    let start = Watch::start();
    for puts in puts {
        put(store, &puts)?;
    }
    start.report("put_many of 500 rows of 8 kB", 10);
    Ok(())
}

fn fill(store: &impl CountsStore) -> Outcome {
    let minutes = DAYS * DAY_MS / MINUTE_MS;
    let start = Watch::start();
    for first in (0..minutes).step_by(usize::try_from(BATCH)?) {
        let puts = (first..minutes.min(first + BATCH))
            .map(|minute| Ok((row(minute, 100, 224)?, PutCondition::Below)))
            .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        put(store, &puts)?;
    }
    start.report("86,400 rows of 224 slots, put 500 at a time", 1);
    Ok(())
}

fn reads(store: &impl CountsStore) -> Outcome {
    let minutes = DAYS * DAY_MS / MINUTE_MS;
    let buckets: Vec<Bucket> =
        (0..minutes).map(|minute| Bucket::minute(minute * MINUTE_MS)).collect();
    for round in ["first", "second"] {
        let start = Watch::start();
        let rows = store.rows(&buckets)?;
        start.report(&format!("rows() of 86,400 minutes, {round} time"), 1);
        if rows.iter().any(Option::is_none) {
            return Err("a row is missing".into());
        }
    }
    let ragged: Vec<Bucket> = buckets.iter().copied().step_by(771).collect();
    let start = Watch::start();
    for _round in 0..100 {
        store.rows(&ragged)?;
    }
    start.report(&format!("rows() of {} minutes apart", ragged.len()), 100);
    let start = Watch::start();
    for day in 0..DAYS {
        let period = Period::containing(Granularity::Minute, day * DAY_MS);
        let small = store.small_rows(period, period.start_ms(), period.end_ms())?;
        if small.len() != 1_440 {
            return Err("a small row is missing".into());
        }
    }
    start.report("small_rows() of a day of minutes", u32::try_from(DAYS)?);
    Ok(())
}

fn keys(store: &impl MetaStore) -> Outcome {
    // Keys come in no order, as digests do.
    let mut state = 1_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.rotate_left(17).to_be_bytes().repeat(4)
    };
    let batches: Vec<Vec<KeyValue>> =
        (0..50).map(|_batch| (0..1_000).map(|_key| (next(), vec![7; 120])).collect()).collect();
    let start = Watch::start();
    for rows in &batches {
        store.insert_many("keys", rows)?;
    }
    start.report("insert_many of 1,000 keys", 50);
    let start = Watch::start();
    for number in 0..200_u32 {
        store.put_if("single", &number.to_be_bytes(), None, &[7; 120])?;
    }
    start.report("put_if of one key", 200);
    Ok(())
}
