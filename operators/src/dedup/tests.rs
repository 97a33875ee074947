use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tally_model::bucket::{DAY_MS, HOUR_MS, MINUTE_MS};
use tally_model::ids::{EventId, Shard, Shards};
use tally_model::truth::{LoggedEvent, Truth};
use tally_model::types::TypeId;
use tempfile::TempDir;

use super::testing::ids;
use super::*;

const TIMING: Timing = Timing { watermark_delay_ms: 100, lateness_ms: 200, append_grace_ms: 50 };

/// Three buckets of a minute each.
fn rule() -> DedupRule {
    DedupRule::new(3 * MINUTE_MS, MINUTE_MS).unwrap()
}

/// Every chunk with a new id is frozen, and segments are merged all the time.
fn restless(store: Arc<dyn SegmentStore>) -> DedupOptions {
    DedupOptions { head_ids_min: 7, head_ids_max: 7, merge_fan_in: 2, store, ..Default::default() }
}

fn restless_in_memory() -> DedupState {
    DedupState::new(rule(), TIMING, restless(Arc::new(MemoryStore)))
}

fn records(ids: &[u128], received_at_ms: i64) -> Vec<(MixedId, i64)> {
    ids.iter().map(|id| (MixedId(*id), received_at_ms)).collect()
}

fn observe(state: &mut DedupState, records: &[(MixedId, i64)]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    state.observe(records, &mut verdicts).unwrap();
    verdicts
}

fn restored(state: &DedupState) -> DedupState {
    DedupState::restore(state.rule, state.timing, state.options.clone(), &state.snapshot()).unwrap()
}

fn all(verdicts: &[Verdict], expected: Verdict) -> bool {
    verdicts.iter().all(|verdict| *verdict == expected)
}

/// A snapshot as a new process sees it: names of segments, looked up in the directory.
fn reopened(snapshot: &DedupSnapshot, store: &DirectoryStore) -> DedupSnapshot {
    let mut snapshot = snapshot.clone();
    for bucket in &mut snapshot.buckets {
        for set in [&mut bucket.firsts, &mut bucket.undecided] {
            for handle in &mut set.segments {
                *handle = store.open(handle.name).unwrap();
            }
        }
    }
    snapshot
}

#[test]
fn the_second_copy_is_a_repeat_up_to_the_window_and_new_beyond_it() {
    // (first copy at, second copy at, verdict of the second)
    let cases = [
        ("at once", 0, 0, Verdict::Repeat),
        ("across a bucket border", 59_999, 60_000, Verdict::Repeat),
        ("a whole window later", 0, 180_000, Verdict::Repeat),
        ("within a width after the window", 0, 239_999, Verdict::Repeat),
        ("in the next bucket", 0, 240_000, Verdict::First),
        ("soon after a window, from late in a bucket", 59_999, 240_000, Verdict::First),
        ("stamped by a slower clock", 300_000, 100, Verdict::Repeat),
        ("before 1970", -1, 179_999, Verdict::Repeat),
        ("from before 1970, after the window", -1, 180_000, Verdict::First),
    ];
    for (name, first, second, expected) in cases {
        let mut state = restless_in_memory();
        assert_eq!(state.observe_one(MixedId(9), first).unwrap(), Verdict::First);
        assert_eq!(state.observe_one(MixedId(9), second).unwrap(), expected, "{name}");
    }
}

#[test]
fn a_copy_of_the_next_day_counts_once() {
    let mut state = DedupState::new(DedupRule::DEFAULT, Timing::DEFAULT, DedupOptions::default());
    let received = [DAY_MS - 1_000, DAY_MS + 1_000, 3 * DAY_MS, 7 * DAY_MS + HOUR_MS];
    let verdicts = received.map(|at_ms| state.observe_one(MixedId(1), at_ms).unwrap());
    assert_eq!(verdicts[0], Verdict::First);
    assert!(all(&verdicts[1..], Verdict::Repeat));
    assert_eq!(state.observe_one(MixedId(1), 8 * DAY_MS).unwrap(), Verdict::First);
}

#[test]
fn a_straggler_whose_bucket_is_gone_is_past_the_window_unless_it_is_known() {
    let mut state = restless_in_memory();
    let [known, unknown] = [MixedId(1), MixedId(2)];
    state.observe_one(known, 90_000).unwrap();
    assert_eq!(state.advance(240_350), Dropped::default(), "no bucket before 1 held ids");
    // Bucket 0 is droppable once the watermark is above 240,000 + 350.
    assert_eq!(state.observe_one(unknown, 239_999).unwrap(), Verdict::First);
    assert_eq!(state.advance(240_351), Dropped::default());
    assert_eq!(state.observe_one(MixedId(3), 239_999).unwrap(), Verdict::PastWindow);
    assert_eq!(state.observe_one(MixedId(3), 239_999).unwrap(), Verdict::Repeat);
    assert_eq!(state.observe_one(known, 239_999).unwrap(), Verdict::Repeat);
    assert_eq!(state.observe_one(MixedId(4), 240_000).unwrap(), Verdict::First);
    // Its own bucket is gone: nothing is kept.
    assert_eq!(state.observe_one(MixedId(5), 30_000).unwrap(), Verdict::PastWindow);
    assert_eq!(state.observe_one(MixedId(5), 30_000).unwrap(), Verdict::PastWindow);
    assert_eq!(state.stats().ids, 4);
    assert_eq!(state.advance(300_351), Dropped { buckets: 1, ids: 1 });
    assert_eq!(state.stats().counters.evicted_ids, 1);
}

#[test]
fn a_copy_after_one_past_the_window_is_undecided_too() {
    let mut state = restless_in_memory();
    state.observe_one(MixedId(1), 30_000).unwrap();
    state.advance(240_351);
    // It may or may not repeat a copy of bucket 0: it does, but that is forgotten.
    assert_eq!(state.observe_one(MixedId(1), 180_000).unwrap(), Verdict::PastWindow);
    // If it did, this one is new; if not, this is a repeat.
    assert_eq!(state.observe_one(MixedId(1), 300_000).unwrap(), Verdict::PastWindow);
    // A copy that is not later is a repeat either way.
    assert_eq!(state.observe_one(MixedId(1), 299_000).unwrap(), Verdict::Repeat);
    // Out of reach of all of them it is new again.
    assert_eq!(state.observe_one(MixedId(1), 540_000).unwrap(), Verdict::First);
    assert_eq!(state.observe_one(MixedId(1), 570_000).unwrap(), Verdict::Repeat);
}

#[test]
fn copies_within_one_chunk_are_repeats() {
    let mut state = restless_in_memory();
    let twice: Vec<u128> = ids(1, 20).into_iter().flat_map(|id| [id, id]).collect();
    let verdicts = observe(&mut state, &records(&twice, 0));
    assert!(all(&verdicts.iter().copied().step_by(2).collect::<Vec<_>>(), Verdict::First));
    assert!(all(&verdicts.iter().copied().skip(1).step_by(2).collect::<Vec<_>>(), Verdict::Repeat));
}

#[test]
fn verdicts_replace_those_of_the_batch_before() {
    let mut state = restless_in_memory();
    let mut verdicts = vec![Verdict::PastWindow; 3];
    state.observe(&records(&[1, 2], 0), &mut verdicts).unwrap();
    assert_eq!(verdicts, [Verdict::First; 2]);
    state.observe(&[], &mut verdicts).unwrap();
    assert!(verdicts.is_empty());
}

#[derive(Clone, Debug)]
struct Step {
    id: usize,
    /// How far the collectors' clocks go on, in ms.
    forward_ms: i64,
    /// How far behind them this record's stamp is.
    behind_ms: i64,
    then: Then,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    GoOn,
    EndBatch,
    /// A legal watermark: so far behind the highest stamp.
    Advance(i64),
    Restore,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let then = prop_oneof![
        6 => Just(Then::GoOn),
        4 => Just(Then::EndBatch),
        3 => (0_i64..90_000).prop_map(Then::Advance),
        1 => Just(Then::Restore),
    ];
    let behind = prop_oneof![6 => 0_i64..20_000, 3 => 0_i64..150_000, 1 => 0_i64..400_000];
    let forward = prop_oneof![8 => 0_i64..12_000, 2 => 0_i64..120_000];
    let step = (0_usize..10, forward, behind, then)
        .prop_map(|(id, forward_ms, behind_ms, then)| Step { id, forward_ms, behind_ms, then });
    prop::collection::vec(step, 1..150)
}

/// Runs `steps` on a state and on the naive model. Every first and every repeat must be the
/// model's; a record may only be past the window if a bucket that decides it is droppable, or if
/// an earlier copy was.
fn agrees_with_truth(
    steps: &[Step],
    mut state: DedupState,
    restore: impl Fn(&DedupState) -> DedupState,
) -> Result<(), TestCaseError> {
    // Half of the ids are as uneven as ids can be.
    let pool: Vec<u128> = ids(7, 5).into_iter().chain(0..5).collect();
    let mut truth = Truth::new(rule(), TIMING);
    let mut clock_ms = 100 * MINUTE_MS;
    let mut watermark_ms = i64::MIN;
    let mut undecided: BTreeMap<u128, BTreeSet<i64>> = BTreeMap::new();
    let mut batch: Vec<(MixedId, i64)> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        clock_ms += step.forward_ms;
        batch.push((MixedId(pool[step.id]), clock_ms - step.behind_ms));
        if matches!(step.then, Then::GoOn) && i + 1 < steps.len() {
            continue;
        }
        let verdicts = observe(&mut state, &batch);
        prop_assert_eq!(verdicts.len(), batch.len());
        for ((id, received_at_ms), verdict) in batch.drain(..).zip(verdicts) {
            let is_first = truth.append(&LoggedEvent {
                id: EventId(id.0.to_le_bytes()),
                slot: TypeId(1),
                event_time_ms: received_at_ms,
                received_at_ms,
            });
            let copy = rule().bucket(received_at_ms);
            let oldest = rule().oldest_deciding(copy);
            let copies = undecided.entry(id.0).or_default();
            match verdict {
                Verdict::First => prop_assert!(is_first, "a repeat of {id:?} passed for new"),
                Verdict::Repeat => prop_assert!(!is_first, "a first copy of {id:?} was lost"),
                Verdict::PastWindow => {
                    let gone = rule().is_droppable(oldest, watermark_ms, &TIMING);
                    let doubtful = copies.range(oldest.0..copy.0).next().is_some();
                    prop_assert!(gone || doubtful, "{id:?} was on time");
                    copies.insert(copy.0);
                }
            }
        }
        match step.then {
            Then::GoOn | Then::EndBatch => {}
            Then::Advance(behind_ms) => {
                watermark_ms = watermark_ms.max(clock_ms - behind_ms);
                state.advance(watermark_ms);
            }
            Then::Restore => state = restore(&state),
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_state_in_memory_agrees_with_the_truth(steps in steps()) {
        agrees_with_truth(&steps, restless_in_memory(), restored)?;
    }

    #[test]
    fn a_state_that_never_freezes_agrees_with_the_truth(steps in steps()) {
        let state = DedupState::new(rule(), TIMING, DedupOptions::default());
        agrees_with_truth(&steps, state, restored)?;
    }

    #[test]
    fn what_is_dropped_is_what_the_rule_lets_go(
        width_ms in 1_000_i64..200_000,
        span in 1_i64..5,
        watermark_ms in -1_000_000_i64..1_000_000,
    ) {
        let rule = DedupRule::new(width_ms * span, width_ms).unwrap();
        let kept = first_kept(rule, &TIMING, watermark_ms);
        prop_assert!(!rule.is_droppable(kept, watermark_ms, &TIMING));
        prop_assert!(rule.is_droppable(DedupBucket(kept.0 - 1), watermark_ms, &TIMING));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn the_state_in_files_agrees_with_the_truth(steps in steps()) {
        let dir = TempDir::new().unwrap();
        let store = Arc::new(DirectoryStore::new(dir.path(), 4).unwrap());
        let state = DedupState::new(rule(), TIMING, restless(Arc::<DirectoryStore>::clone(&store)));
        let restore = |state: &DedupState| {
            let snapshot = reopened(&state.snapshot(), &store);
            DedupState::restore(rule(), TIMING, state.options.clone(), &snapshot).unwrap()
        };
        agrees_with_truth(&steps, state, restore)?;
    }

    /// Many ids, so that segments have several pages and merges take several steps.
    #[test]
    fn verdicts_do_not_depend_on_batches_sizes_stores_or_restores(
        cuts in prop::collection::vec(1_usize..3_000, 1..8),
        fan_in in 2_usize..6,
        head_ids in 7_u64..2_000,
    ) {
        let dir = TempDir::new().unwrap();
        let store = Arc::new(DirectoryStore::new(dir.path(), 8).unwrap());
        let options = DedupOptions {
            head_ids_min: head_ids,
            head_ids_max: head_ids,
            merge_fan_in: fan_in,
            ..restless(Arc::<DirectoryStore>::clone(&store))
        };
        // A third of the records repeat one of the last 5,000.
        let pool = ids(11, 20_000);
        let log: Vec<_> = (0..20_000_usize)
            .map(|i| {
                let id = if i % 3 == 2 { i - (i * 7_919) % i.min(5_000) } else { i };
                (MixedId(pool[id]), i64::try_from(i).unwrap() * 15)
            })
            .collect();
        let mut plain = DedupState::new(rule(), TIMING, DedupOptions::default());
        let expected = observe(&mut plain, &log);

        let mut state = DedupState::new(rule(), TIMING, options.clone());
        let mut verdicts = Vec::new();
        let mut rest = &log[..];
        for cut in cuts {
            let (batch, after) = rest.split_at(cut.min(rest.len()));
            verdicts.extend(observe(&mut state, batch));
            rest = after;
            let snapshot = reopened(&state.snapshot(), &store);
            state = DedupState::restore(rule(), TIMING, options.clone(), &snapshot).unwrap();
        }
        verdicts.extend(observe(&mut state, rest));
        prop_assert!(verdicts == expected);
        prop_assert_eq!(state.stats().ids, plain.stats().ids);
        prop_assert_eq!(state.stats().counters.repeats, plain.stats().counters.repeats);
    }
}

/// B137: filters are no part of what is saved, so no release can misread them.
#[test]
fn a_restored_state_knows_every_id_and_has_filters_built_anew() {
    let dir = TempDir::new().unwrap();
    let directory = Arc::new(DirectoryStore::new(dir.path(), 64).unwrap());
    let store: Arc<dyn SegmentStore> = Arc::<DirectoryStore>::clone(&directory);
    // Without merges, which would remove what the next restore is to find.
    let options = DedupOptions { merge_fan_in: 1_000, store, ..Default::default() };
    let mut state = DedupState::new(rule(), TIMING, options.clone());
    let held = ids(1, 100_000);
    assert!(all(&observe(&mut state, &records(&held, 0)), Verdict::First));
    let snapshot = state.snapshot();
    drop(state);
    // As a release with other filters would.
    for (generation, filter_bits_per_id) in [(1, 12), (2, 6), (3, 20)] {
        let options = DedupOptions { generation, filter_bits_per_id, ..options.clone() };
        let snapshot = reopened(&snapshot, &directory);
        let mut state = DedupState::restore(rule(), TIMING, options, &snapshot).unwrap();
        assert_eq!(state.stats().ids, 100_000);
        assert!(all(&observe(&mut state, &records(&held, 500)), Verdict::Repeat));
        assert!(all(&observe(&mut state, &records(&ids(2, 1_000), 500)), Verdict::First));
    }
}

#[test]
fn a_damaged_segment_refuses_the_restore_and_stops_a_running_state() {
    let dir = TempDir::new().unwrap();
    let store = Arc::new(DirectoryStore::new(dir.path(), 64).unwrap());
    let options = restless(Arc::<DirectoryStore>::clone(&store));
    let mut state = DedupState::new(rule(), TIMING, options.clone());
    let held = ids(1, 60);
    observe(&mut state, &records(&held, 0));
    let snapshot = reopened(&state.snapshot(), &store);
    let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let refused = DedupState::restore(rule(), TIMING, options, &snapshot);
    assert!(matches!(refused, Err(SegmentError::Damaged { page: 0, .. })));
    let stopped = state.observe_one(MixedId(held[0]), 0);
    assert!(matches!(stopped, Err(SegmentError::Damaged { page: 0, .. })));
}

#[test]
fn files_of_merged_and_dropped_segments_do_not_pile_up() {
    let dir = TempDir::new().unwrap();
    let store = Arc::new(DirectoryStore::new(dir.path(), 8).unwrap());
    let files = || u64::try_from(std::fs::read_dir(dir.path()).unwrap().count()).unwrap();
    let largest = || {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().len()).max().unwrap_or(0)
    };
    // What the store keeps for use under another name: so many, of so many bytes each.
    let (spare, spare_bytes) = (256, 256 * 1024);
    let mut state = DedupState::new(rule(), TIMING, restless(store));
    observe(&mut state, &records(&ids(1, 40_000), 0));
    let stats = state.stats();
    assert!(files() <= stats.segments + stats.merges + spare, "{} files, {stats:?}", files());
    assert!(largest() > spare_bytes);
    assert_eq!(state.advance(240_351), Dropped { buckets: 1, ids: 40_000 });
    assert!(files() <= spare && largest() <= spare_bytes, "{} files", files());
}

/// A store with room for a few segments only.
#[derive(Debug)]
struct FullStore {
    room: AtomicU64,
}

impl SegmentStore for FullStore {
    fn create(&self, name: SegmentName, ids: u64) -> Result<Box<dyn SegmentWriter>, SegmentError> {
        if self.room.fetch_sub(1, Ordering::SeqCst) == 0 {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(SegmentError::Io { name, act: "write", source });
        }
        MemoryStore.create(name, ids)
    }

    fn import(&self, name: SegmentName, content: &[u8]) -> Result<SegmentHandle, SegmentError> {
        MemoryStore.import(name, content)
    }

    fn adopt(
        &self,
        name: SegmentName,
        is_it: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<SegmentHandle>, SegmentError> {
        MemoryStore.adopt(name, is_it)
    }

    fn keep_only(&self, names: &BTreeSet<SegmentName>) -> Result<u64, SegmentError> {
        MemoryStore.keep_only(names)
    }
}

#[test]
fn a_segment_can_be_carried_from_one_store_to_another_of_its_kind() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directory = |of: &TempDir| DirectoryStore::new(of.path(), 4).unwrap();
    let stores: [[Box<dyn SegmentStore>; 2]; 2] = [
        [Box::new(MemoryStore), Box::new(MemoryStore)],
        [Box::new(directory(&here)), Box::new(directory(&there))],
    ];
    let name = SegmentName { generation: 3, shard: Shard(1), sequence: 9 };
    let ids: Vec<u128> = (0..700).map(|id| id * 5).collect();
    for [from, to] in stores {
        let mut writer = from.create(name, 700).unwrap();
        writer.append(&ids).unwrap();
        let made = writer.finish().unwrap();
        // A segment that was merged away meanwhile can still be uploaded.
        made.retire();
        let content = made.export().unwrap();
        let carried = to.import(name, &content).unwrap();
        let mut found = Vec::new();
        for page in 0..carried.pages() {
            carried.data.read_page(page, &mut found).unwrap();
        }
        assert_eq!(found, ids);
        assert!(to.import(name, &content[..content.len() - 1]).is_err());
    }
}

#[test]
fn only_a_segment_with_the_expected_content_is_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let store = DirectoryStore::new(folder.path(), 4).unwrap();
    let name = SegmentName { generation: 3, shard: Shard(1), sequence: 9 };
    assert!(store.adopt(name, &|_| true).unwrap().is_none(), "nothing is there");
    let mut writer = store.create(name, 1).unwrap();
    writer.append(&[7]).unwrap();
    let content = writer.finish().unwrap().export().unwrap();
    assert!(store.adopt(name, &|found| found == content).unwrap().is_some());
    assert!(store.adopt(name, &|found| found != content).unwrap().is_none());
}

#[test]
fn the_file_of_a_segment_that_came_back_is_no_spare_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = DirectoryStore::new(folder.path(), 4).unwrap();
    let name = |sequence| SegmentName { generation: 3, shard: Shard(1), sequence };
    let make = |sequence, id| {
        let mut writer = store.create(name(sequence), 1).unwrap();
        writer.append(&[id]).unwrap();
        writer.finish().unwrap()
    };
    let made = make(1, 7);
    let content = made.export().unwrap();
    made.retire();
    drop(made);
    let back = store.import(name(1), &content).unwrap();
    make(2, 8);
    assert_eq!(back.data.export().unwrap(), content);
    assert!(store.adopt(name(1), &|found| found == content).unwrap().is_some());
}

#[test]
fn a_full_store_stops_the_batch_with_an_error() {
    let options = restless(Arc::new(FullStore { room: AtomicU64::new(2) }));
    let mut state = DedupState::new(rule(), TIMING, options);
    let stopped = (0..10).map(|id| state.observe_one(MixedId(id), 0)).find_map(Result::err);
    let error = stopped.unwrap();
    assert_eq!(error.to_string(), "could not write segment g0000000-s0000-0000000002");
}

/// B138: its own bucket has it when the one that answered by chance is gone.
#[test]
fn an_id_that_a_filter_takes_for_known_is_inserted_all_the_same() {
    // With one bit an id nearly every answer is maybe.
    let options = DedupOptions { filter_bits_per_id: 1, ..restless(Arc::new(MemoryStore)) };
    let mut state = DedupState::new(rule(), TIMING, options);
    assert!(all(&observe(&mut state, &records(&ids(1, 5_000), 0)), Verdict::First));
    let later = ids(2, 5_000);
    assert!(all(&observe(&mut state, &records(&later, 180_000)), Verdict::First));
    assert!(state.stats().counters.vain_searches > 5_000, "many a maybe was by chance");
    assert_eq!(state.advance(240_351), Dropped { buckets: 1, ids: 5_000 });
    assert!(all(&observe(&mut state, &records(&later, 200_000)), Verdict::Repeat));
}

/// B139: ten times as many ids, no unique one dropped.
#[test]
fn filters_grow_with_the_ids_so_that_vain_searches_stay_rare() {
    let mut state = DedupState::new(rule(), TIMING, DedupOptions::default());
    for (round, fill) in [(1, 20_000), (2, 200_000)] {
        assert!(all(&observe(&mut state, &records(&ids(round, fill), 0)), Verdict::First));
        let before = state.stats().counters;
        assert!(all(&observe(&mut state, &records(&ids(9 + round, 10_000), 0)), Verdict::First));
        let after = state.stats().counters;
        let (probes, vain) = (
            after.filter_probes - before.filter_probes,
            after.vain_searches - before.vain_searches,
        );
        assert!(vain * 100 < probes, "{vain} vain searches for {probes} probes");
    }
    let stats = state.stats();
    assert!((0.3..0.5).contains(&stats.filter_fill()), "{}", stats.filter_fill());
    assert!(stats.vain_rate() < 0.01 && stats.probes_per_record() < 20.0);
}

#[test]
fn segments_are_few_and_an_id_is_rewritten_seldom() {
    let mut state = DedupState::new(rule(), TIMING, DedupOptions::default());
    let mut verdicts = Vec::new();
    let mut merged = 0;
    for batch in ids(1, 400_000).chunks(64) {
        state.observe(&records(batch, 0), &mut verdicts).unwrap();
        let stats = state.stats();
        assert!(stats.segments < 25, "{} segments for {} ids", stats.segments, stats.ids);
        let step = stats.counters.merged_ids - merged;
        assert!(step < 64 * MERGED_PER_ID + 4 * 255, "{step} ids merged in one call");
        merged = stats.counters.merged_ids;
    }
    assert!(merged < 4 * 400_000, "{merged} ids rewritten for 400,000");
    // The next bucket closes this one: it becomes one segment.
    observe(&mut state, &records(&ids(2, 60_000), MINUTE_MS));
    assert_eq!(state.buckets[0].firsts.segments().len(), 1);
    assert!(state.buckets[0].firsts.head().is_empty());
    assert_eq!(state.buckets[0].len(), 400_000);
}

/// B136: nine days and more, a minute each, at 1,000 ids a second; one bucket at most is dropped at
/// a time.
#[test]
fn memory_is_flat_once_the_window_is_full() {
    let rule = DedupRule::new(7 * MINUTE_MS, MINUTE_MS).unwrap();
    let mut state = DedupState::new(rule, TIMING, DedupOptions::default());
    let mut ids = ids(5, 14 * 60_000).into_iter();
    let mut verdicts = Vec::new();
    let mut most = [(0, 0); 14];
    for second in 0..14 * 60 {
        let batch: Vec<u128> = ids.by_ref().take(1_000).collect();
        let now_ms = i64::from(second) * 1_000;
        state.observe(&records(&batch, now_ms), &mut verdicts).unwrap();
        assert!(all(&verdicts, Verdict::First));
        let dropped = state.advance(now_ms);
        assert!(dropped.buckets <= 1);
        let stats = state.stats();
        let day = &mut most[usize::try_from(second / 60).unwrap()];
        *day = (day.0.max(stats.ids), day.1.max(stats.ram_bytes));
    }
    for day in 9..14 {
        assert!(most[day].0 <= 9 * 60_000, "{most:?}");
        assert!(most[day].1 * 20 <= most[8].1 * 21, "{most:?}");
    }
    assert_eq!(state.stats().counters.evicted_ids + state.stats().ids, 14 * 60_000);
}

/// B140: 64 shards by 8 days with the default sizes.
#[test]
fn many_almost_empty_states_take_little() {
    let mut total = DedupStats::default();
    for shard in 0..64 {
        let options = DedupOptions { shard: Shard(shard), ..Default::default() };
        let mut state = DedupState::new(DedupRule::DEFAULT, Timing::DEFAULT, options);
        for (day, id) in (0..8).zip(ids(u64::from(shard), 8)) {
            state.observe_one(MixedId(id), day * DAY_MS).unwrap();
        }
        total += state.stats();
    }
    assert_eq!((total.ids, total.buckets), (512, 512));
    assert!(total.ram_bytes < 512 * 1_024, "{total:?}");
}

/// B140: what was reckoned is what is taken, and more is refused.
#[test]
fn a_state_takes_no_more_ram_than_was_reckoned() {
    let dir = TempDir::new().unwrap();
    let on_disk: Arc<dyn SegmentStore> = Arc::new(DirectoryStore::new(dir.path(), 64).unwrap());
    let in_memory: Arc<dyn SegmentStore> = Arc::new(MemoryStore);
    for (store, per_id) in
        [(on_disk, DirectoryStore::RAM_BYTES_PER_ID), (in_memory, MemoryStore::RAM_BYTES_PER_ID)]
    {
        let options = DedupOptions { store, ..Default::default() };
        let one_shard = Shards::new(1).unwrap();
        let reckoned = options.ram_bytes(rule(), one_shard, 400_000, per_id);
        let check = |budget| options.check_budget(rule(), one_shard, 400_000, per_id, budget);
        assert_eq!(check(reckoned), Ok(reckoned));
        assert_eq!(check(reckoned - 1).unwrap_err().needed_bytes, reckoned);

        let mut state = DedupState::new(rule(), TIMING, options);
        for (stream, minute) in (20..24).zip(0..) {
            observe(&mut state, &records(&ids(stream, 100_000), minute * MINUTE_MS));
        }
        let taken = state.stats().ram_bytes;
        assert!(taken <= reckoned, "{taken} bytes taken, {reckoned} reckoned");
        assert!(taken * 2 > reckoned, "{taken} bytes taken, {reckoned} reckoned");
    }
}

#[test]
fn the_budget_of_a_large_window_keeps_to_two_bytes_an_id() {
    let options = DedupOptions::default();
    let per_id = DirectoryStore::RAM_BYTES_PER_ID;
    for ids in [20_000_000, 50_000_000, 1_000_000_000] {
        let bytes = options.ram_bytes(DedupRule::DEFAULT, Shards::DEFAULT, ids, per_id);
        assert!(bytes <= 2 * ids, "{bytes} bytes for {ids} ids");
    }
}
