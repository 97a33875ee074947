//! How many ids a second one core dedups, with a given number held.
//!
//! `cargo run --release -p tally-operators --example dedup_speed -- [HELD] [DIRECTORY]`
//!
//! Fills the seven closed buckets and most of the open one of 64 shards with HELD ids (default
//! five million), then times four million more with 2 % repeats, in batches of 65,536 that are
//! handed to the shards as the dataflow does. With a DIRECTORY, segments are files there; else
//! they are in memory.
#![expect(clippy::print_stdout, reason = "this program's purpose is what it prints")]
#![expect(clippy::disallowed_methods, reason = "it measures time, and nothing else depends on it")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tally_model::bucket::DAY_MS;
use tally_model::ids::{MixedId, Shards};
use tally_model::rules::{DedupRule, Timing};
use tally_operators::dedup::{
    DedupOptions, DedupState, DedupStats, DirectoryStore, MemoryStore, SegmentError, SegmentStore,
    Verdict,
};

const BATCH: usize = 65_536;
const TIMED: u64 = 4_000_000;

/// The shards' states, with room for the records of a batch.
struct Table {
    shards: Shards,
    states: Vec<DedupState>,
    routed: Vec<Vec<(MixedId, i64)>>,
    verdicts: Vec<Verdict>,
}

impl Table {
    fn new(store: &Arc<dyn SegmentStore>) -> Self {
        let shards = Shards::DEFAULT;
        let state = |shard| {
            let options = DedupOptions { shard, store: Arc::clone(store), ..Default::default() };
            DedupState::new(DedupRule::DEFAULT, Timing::DEFAULT, options)
        };
        Self {
            shards,
            states: shards.all().map(state).collect(),
            routed: vec![Vec::with_capacity(BATCH / 16); usize::from(shards.count())],
            verdicts: Vec::with_capacity(BATCH),
        }
    }

    /// Returns how many records of the batch were first copies.
    fn observe(&mut self, batch: &[(MixedId, i64)]) -> Result<u64, SegmentError> {
        for record in batch {
            self.routed[usize::from(record.0.shard(self.shards).0)].push(*record);
        }
        let mut firsts = 0;
        for (state, records) in self.states.iter_mut().zip(&mut self.routed) {
            state.observe(records, &mut self.verdicts)?;
            firsts += self.verdicts.iter().map(|v| u64::from(*v == Verdict::First)).sum::<u64>();
            records.clear();
        }
        Ok(firsts)
    }

    fn stats(&self) -> DedupStats {
        let mut total = DedupStats::default();
        self.states.iter().for_each(|state| total += state.stats());
        total
    }
}

/// The `n`th of a sequence of uniform ids that never repeat.
fn id(n: u64) -> MixedId {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let high = mix(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    MixedId((u128::from(high) << 64) | u128::from(mix(high ^ 0x5851_F42D_4C95_7F2D)))
}

/// Takes ids `from..to` of the sequence; each fiftieth is a copy of an id from anywhere before.
fn run(
    table: &mut Table,
    range: std::ops::Range<u64>,
    at_ms: impl Fn(u64) -> i64,
) -> Result<(Duration, u64), SegmentError> {
    let mut spent = Duration::ZERO;
    let mut firsts = 0;
    let mut batch = Vec::with_capacity(BATCH);
    for n in range.clone() {
        let copied = n % 50 == 49;
        let chosen = if copied { n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % n } else { n };
        batch.push((id(chosen), at_ms(n)));
        if batch.len() == BATCH || n + 1 == range.end {
            let start = Instant::now();
            firsts += table.observe(&batch)?;
            spent += start.elapsed();
            batch.clear();
        }
    }
    Ok((spent, firsts))
}

fn report(what: &str, records: u64, spent: Duration) {
    let rate = records as f64 / spent.as_secs_f64() / 1e6;
    let each = spent.as_secs_f64() * 1e9 / records as f64;
    println!("{what}: {rate:.2} million ids/s ({each:.0} ns each)");
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let held: u64 = arguments.next().map_or(Ok(5_000_000), |text| text.parse())?;
    let store: Arc<dyn SegmentStore> = match arguments.next() {
        Some(path) => Arc::new(DirectoryStore::new(path, 4_096)?),
        None => Arc::new(MemoryStore),
    };
    let mut table = Table::new(&store);
    // Seven days and a half, evenly.
    let day = |n: u64| i64::try_from(n * 15 / 2 / held.max(1)).unwrap_or(i64::MAX).min(7);
    let (spent, _) = run(&mut table, 0..held, |n| day(n) * DAY_MS)?;
    report("filling", held, spent);

    let before = table.stats().counters;
    let (spent, firsts) = run(&mut table, held..held + TIMED, |_| 7 * DAY_MS + DAY_MS / 2)?;
    report("with all held", TIMED, spent);

    let stats = table.stats();
    let each = |bytes: u64| bytes as f64 / stats.ids as f64;
    let repeats = stats.counters.repeats - before.repeats;
    let probes = stats.counters.filter_probes - before.filter_probes;
    let vain = stats.counters.vain_searches - before.vain_searches;
    println!("firsts {firsts}, repeats {repeats}");
    println!(
        "probes {:.1} an id, vain {:.3} an id",
        probes as f64 / TIMED as f64,
        vain as f64 / TIMED as f64
    );
    println!("ids {}, in heads {}, segments {}", stats.ids, stats.head_ids, stats.segments);
    println!(
        "merged {:.2} ids an id",
        stats.counters.merged_ids as f64 / stats.counters.records as f64
    );
    println!(
        "RAM {:.2} bytes an id, disk {:.2} bytes an id",
        each(stats.ram_bytes),
        each(stats.disk_bytes)
    );
    println!("filters {:.0} % full", stats.filter_fill() * 100.0);
    Ok(())
}
