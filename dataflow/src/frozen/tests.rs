use tally_operators::dedup::{MemoryStore, SegmentStore};

use super::*;

fn segment(sequence: u64) -> SegmentHandle {
    let name = SegmentName { generation: 2, shard: Shard(3), sequence };
    MemoryStore.import(name, &7_u128.to_le_bytes()).unwrap()
}

fn frozen() -> FrozenShard {
    let firsts = SetSnapshot { head: vec![1, u128::MAX], segments: vec![segment(4), segment(5)] };
    let undecided = SetSnapshot { head: Vec::new(), segments: vec![segment(6)] };
    let counters = DedupCounters { records: 1, repeats: 2, merged_ids: 8, ..Default::default() };
    FrozenShard {
        shard: Shard(3),
        ids: DedupSnapshot {
            kept_from: DedupBucket(i64::MIN),
            next_sequence: 7,
            counters,
            buckets: vec![BucketSnapshot { number: DedupBucket(-1), firsts, undecided }],
        },
        windows: WindowsSnapshot {
            minutes: vec![(-60_000, vec![0, 9]), (0, Vec::new())],
            retired_up_to_ms: Some(-1),
        },
        late: [(0, LateCounts { late: 1, straggler: 2, past_window: 3 })].into(),
        totals: Totals { counted: 9, ..Totals::default() },
    }
}

fn find(name: SegmentName) -> Result<SegmentHandle, StateError> {
    Ok(segment(name.sequence))
}

#[test]
fn a_frozen_shard_is_the_same_after_it_was_written_and_read() {
    let frozen = frozen();
    let read = FrozenShard::decode(Shard(3), &frozen.encode(), frozen.totals, find).unwrap();
    let plain = |of: &FrozenShard| {
        let ids = of.ids.buckets.iter().map(|bucket| {
            let set = |set: &SetSnapshot| {
                let names = set.segments.iter().map(|segment| segment.name);
                (set.head.clone(), names.collect::<Vec<_>>())
            };
            (bucket.number, set(&bucket.firsts), set(&bucket.undecided))
        });
        let ids =
            (of.ids.kept_from, of.ids.next_sequence, of.ids.counters, ids.collect::<Vec<_>>());
        (of.shard, ids, of.windows.clone(), of.late.clone(), of.totals)
    };
    assert_eq!(plain(&read), plain(&frozen));
    assert_eq!(read.segments().count(), 3);
}

#[test]
fn what_is_no_state_is_refused_by_name() {
    let newer = StateMessage { version: 2, ..StateMessage::default() }.encode_to_vec();
    let set = |head: &[u8], name: &str| SetMessage {
        head: head.to_vec(),
        segments: vec![name.to_owned()],
    };
    let with_set = |firsts: SetMessage| {
        let bucket = BucketMessage { number: 0, firsts, undecided: SetMessage::default() };
        StateMessage { version: VERSION, buckets: vec![bucket], ..StateMessage::default() }
            .encode_to_vec()
    };
    // (what it is, the bytes, what is said)
    let cases = [
        ("a newer one", newer, "version 2"),
        ("no message", vec![0xff; 9], "cannot be decoded"),
        ("a head of a byte", with_set(set(&[1], "g0000002-s0003-0000000004")), "cut short"),
        ("a foreign segment", with_set(set(&[], "x")), "\"x\" is no segment"),
    ];
    for (what, bytes, said) in cases {
        let error = FrozenShard::decode(Shard(3), &bytes, Totals::default(), find).unwrap_err();
        assert!(error.to_string().contains(said), "{what}: {error}");
    }
}
