//! `tally bench dedup`: the dedup state of all shards on one core, with a given number of ids held.

use std::sync::Arc;

use serde_json::json;
use tally_model::bucket::DAY_MS;
use tally_model::ids::{EventId, IdMixer, MixedId, Shards};
use tally_model::rules::{DedupRule, Timing};
use tally_operators::dedup::{
    DedupOptions, DedupState, DedupStats, DirectoryStore, SegmentStore, Verdict,
};

use super::{float, measure, print};
use crate::cli::BenchDedupArgs;
use crate::count::bar;
use crate::failure::Failure;

const BATCH: u64 = 65_536;
/// Every so many-th id repeats an earlier one.
const REPEAT_EVERY: u64 = 50;

pub(super) fn run(args: &BenchDedupArgs) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let mut table = Table::new(folder.path())?;
    // Evenly over the seven closed days and half of the open one.
    let held = args.held.max(1);
    let day = |number: u64| i64::try_from(number * 15 / 2 / held).unwrap_or(7).min(7);
    let fill = measure("fill", || table.take(0, held, |number| day(number) * DAY_MS))?;
    let last_ms = 7 * DAY_MS + DAY_MS / 2;
    let mut row = measure("dedup", || table.take(held, args.events, |_| last_ms))?;
    let stats = table.stats();
    for (name, bytes) in
        [("ram_bytes_per_id", stats.ram_bytes), ("disk_bytes_per_id", stats.disk_bytes)]
    {
        row.more.insert(name.to_owned(), json!(float(bytes) / float(stats.ids.max(1))));
    }
    row.more.insert("held".to_owned(), json!(stats.ids));
    row.more.insert("repeats".to_owned(), json!(stats.counters.repeats));
    row.more.insert("segments".to_owned(), json!(stats.segments));
    row.more.insert("filters_per_id".to_owned(), json!(stats.probes_per_record()));
    print("dedup", &[fill, row], args.output)
}

/// The states of all shards, fed as the dataflow does.
struct Table {
    shards: Shards,
    mixer: IdMixer,
    states: Vec<DedupState>,
    routed: Vec<Vec<(MixedId, i64)>>,
    verdicts: Vec<Verdict>,
}

impl Table {
    fn new(folder: &std::path::Path) -> Result<Self, Failure> {
        let shards = Shards::DEFAULT;
        let store: Arc<dyn SegmentStore> =
            Arc::new(DirectoryStore::new(folder, DirectoryStore::OPEN_FILES_MAX)?);
        let states = shards.all().map(|shard| {
            let options =
                DedupOptions { shard, store: Arc::clone(&store), ..DedupOptions::default() };
            DedupState::new(DedupRule::DEFAULT, Timing::DEFAULT, options)
        });
        Ok(Self {
            states: states.collect(),
            routed: vec![Vec::new(); usize::from(shards.count())],
            mixer: IdMixer::new([7; 16]),
            verdicts: Vec::new(),
            shards,
        })
    }

    /// Takes `count` ids from the `first`-th of a fixed sequence on.
    fn take(&mut self, first: u64, count: u64, at_ms: impl Fn(u64) -> i64) -> Result<u64, Failure> {
        let bar = bar(count, "deduplicating");
        let mut number = first;
        while number < first + count {
            let end = (number + BATCH).min(first + count);
            self.take_batch(number..end, &at_ms)?;
            bar.inc(end - number);
            number = end;
        }
        bar.finish_and_clear();
        Ok(count)
    }

    fn take_batch(
        &mut self,
        numbers: std::ops::Range<u64>,
        at_ms: impl Fn(u64) -> i64,
    ) -> Result<(), Failure> {
        let mut blocks: Vec<[u8; 16]> = numbers.clone().map(id).collect();
        self.mixer.mix_blocks(&mut blocks);
        for (number, block) in numbers.zip(blocks) {
            let mixed = MixedId(u128::from_le_bytes(block));
            let shard = usize::from(mixed.shard(self.shards).0);
            self.routed[shard].push((mixed, at_ms(number)));
        }
        for (state, records) in self.states.iter_mut().zip(&mut self.routed) {
            state.observe(records, &mut self.verdicts)?;
            records.clear();
        }
        Ok(())
    }

    fn stats(&self) -> DedupStats {
        let mut total = DedupStats::default();
        for state in &self.states {
            total += state.stats();
        }
        total
    }
}

/// The event id behind the `number`-th record: new, or now and then one from anywhere before.
fn id(number: u64) -> [u8; 16] {
    let chosen = if number % REPEAT_EVERY == REPEAT_EVERY - 1 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % number
    } else {
        number
    };
    EventId(u128::from(chosen).to_le_bytes()).0
}
