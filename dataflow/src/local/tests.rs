use proptest::prelude::*;
use tally_model::bucket::{Bucket, HOUR_MS};
use tally_model::ids::{MixedId, Shards};
use tally_model::types::TypeId;
use tally_operators::dedup::DedupOptions;
use tally_operators::watermark::Hold;

use super::*;

const START_MS: i64 = 1_000 * HOUR_MS;

fn options(workers: usize) -> CountOptions {
    let shards = Shards::new(8).unwrap();
    CountOptions { workers, shards, restate_every_ms: 1_000, ..CountOptions::default() }
}

fn locals(workers: usize) -> Vec<LocalCounts> {
    let local = |worker| {
        let options = options(workers);
        let owned = options.shards.all().filter(|shard| shard.owner(workers) == worker);
        let shard = |shard| {
            let ids = DedupOptions { shard, ..DedupOptions::default() };
            ShardState::new(ids, options.dedup, options.timing, options.stages)
        };
        LocalCounts::new(worker, &options, owned.map(shard).collect(), START_MS, None)
    };
    (0..workers).map(local).collect()
}

fn report(worker: usize, watermark_ms: i64) -> WatermarkReport {
    let hold = Hold::At(watermark_ms);
    WatermarkReport { worker, hold, greatest_ms: Some(watermark_ms), caught_up: false }
}

/// Takes one event of `minute` at the worker that owns it.
fn take(locals: &mut [LocalCounts], id: u128, minute: i64, slot: u16) -> Totals {
    let id = MixedId(id);
    let shard = id.shard(options(1).shards);
    let start_ms = START_MS + minute * MINUTE_MS;
    let batch =
        ShardBatch { shard, ids: vec![(id, start_ms)], cells: vec![(start_ms, TypeId(slot))] };
    let owner = shard.owner(locals.len());
    locals[owner].take(&batch).unwrap()
}

fn minutes(starts: &[i64]) -> Vec<i64> {
    starts.iter().map(|start_ms| (start_ms - START_MS) / MINUTE_MS).collect()
}

#[test]
fn each_minute_is_marked_once_by_one_worker_and_unmarked_by_the_same() {
    let mut locals = locals(3);
    let timing = options(3).timing;
    let (mut marked, mut unmarked) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
    let watermarks = [3, 3, 7, 30, 60].map(|minute| START_MS + minute * MINUTE_MS + 7);
    for (epoch, watermark_ms) in (10..).zip(watermarks) {
        for (worker, local) in locals.iter_mut().enumerate() {
            let settled = local.settle(epoch, (0..3).map(|worker| report(worker, watermark_ms)));
            marked[worker].extend(settled.marked);
            unmarked[worker].extend(settled.unmarked);
        }
    }
    let mut all: Vec<i64> = minutes(&marked.concat());
    all.sort_unstable();
    assert_eq!(all, (0..58).collect::<Vec<_>>());
    for (marked, unmarked) in marked.iter().zip(&unmarked) {
        let last_ms = START_MS + 60 * MINUTE_MS + 7;
        let retired = marked.iter().filter(|at| timing.is_retired(Bucket::minute(**at), last_ms));
        assert_eq!(unmarked, &retired.copied().collect::<Vec<_>>());
    }
}

#[test]
fn an_unknown_watermark_closes_nothing() {
    let mut locals = locals(2);
    take(&mut locals, 1, 0, 1);
    let settled = locals[0].settle(5, [report(0, START_MS + HOUR_MS)]);
    assert!(settled.added.is_empty() && settled.marked.is_empty());
    assert_eq!(settled.horizon, Horizon::default());
}

#[test]
fn a_changed_minute_goes_out_at_the_next_period_or_when_caught_up() {
    let mut locals = locals(1);
    let at_ms = START_MS + 4 * MINUTE_MS;
    let caught_up = WatermarkReport { caught_up: true, ..report(0, at_ms) };
    let local = |locals: &mut [LocalCounts], epoch, report| -> usize {
        locals[0].settle(epoch, [report]).added.iter().count()
    };
    take(&mut locals, 1, 0, 1);
    assert_eq!(local(&mut locals, 10_100, report(0, at_ms)), 1);
    take(&mut locals, 2, 0, 1);
    assert_eq!(local(&mut locals, 10_900, report(0, at_ms)), 0, "same period");
    assert_eq!(local(&mut locals, 11_000, report(0, at_ms)), 1, "next period");
    take(&mut locals, 3, 0, 1);
    assert_eq!(local(&mut locals, 11_100, caught_up), 1, "caught up");
    take(&mut locals, 4, 0, 1);
    assert_eq!(local(&mut locals, 11_200, caught_up), 0, "only once");
}

#[test]
fn the_end_of_a_bounded_run_closes_all_and_retires_by_the_stamps() {
    let mut locals = locals(1);
    for (id, minute) in (0..).zip([0, 30, 500]) {
        take(&mut locals, id, minute, 1);
    }
    let last_ms = START_MS + 30 * MINUTE_MS + 1;
    let done = WatermarkReport { hold: Hold::Nothing, caught_up: true, ..report(0, last_ms) };
    let settled = locals[0].settle(7, [done]);
    let added: Vec<i64> = settled.added.iter().map(|(start_ms, ..)| start_ms).collect();
    assert_eq!(minutes(&added), [0, 30, 500]);
    assert_eq!(minutes(&settled.marked), (0..=30).collect::<Vec<_>>());
    let taken_back: Vec<i64> = settled.taken_back.iter().map(|(start_ms, ..)| start_ms).collect();
    assert_eq!(minutes(&taken_back), [0]);
    assert_eq!(settled.horizon.closed_up_to_ms, Some(START_MS + 28 * MINUTE_MS));
    assert!(settled.horizon.caught_up);
}

proptest! {
    /// Told the same reports, all workers name the same horizon, and what they emit together is
    /// what one worker would have emitted alone.
    #[test]
    fn workers_together_emit_what_one_would(
        steps in prop::collection::vec((0_u128..300, 0_i64..40, 0_u16..3, 0_i64..3), 1..80),
        workers in 2_usize..4,
    ) {
        let (mut alone, mut together) = (locals(1), locals(workers));
        let mut watermark_ms = START_MS;
        for (epoch, (id, minute, slot, by_minutes)) in (1_u64..).map(|n| n * 400).zip(steps) {
            let one = take(&mut alone, id, minute, slot);
            let many = take(&mut together, id, minute, slot);
            prop_assert_eq!(one, many);
            watermark_ms += by_minutes * MINUTE_MS;
            let want = alone[0].settle(epoch, [report(0, watermark_ms)]);
            let mut sums = [Deltas::default(), Deltas::default()].map(|_| Vec::new());
            let mut marked = Vec::new();
            for local in &mut together {
                let reports = (0..workers).map(|worker| report(worker, watermark_ms));
                let got = local.settle(epoch, reports);
                prop_assert_eq!(got.horizon, want.horizon);
                sums[0].extend(got.added.iter());
                sums[1].extend(got.taken_back.iter());
                marked.extend(got.marked);
            }
            for (sum, want) in sums.into_iter().zip([&want.added, &want.taken_back]) {
                let mut total = std::collections::BTreeMap::new();
                for (start_ms, slot, by) in sum {
                    *total.entry((start_ms, slot)).or_insert(0) += by;
                }
                let total: Vec<_> =
                    total.into_iter().map(|((start_ms, slot), by)| (start_ms, slot, by)).collect();
                prop_assert_eq!(total, want.iter().collect::<Vec<_>>());
            }
            marked.sort_unstable();
            prop_assert_eq!(marked, want.marked);
        }
    }
}
