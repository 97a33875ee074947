//! Several writers and readers of one row.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use tally_model::bucket::Bucket;
use tally_sinks::counts::{CountsStore, PutCondition, PutOutcome};

use crate::{Keyspace, revision, row};

/// As wide as a registry can be.
const SLOTS: usize = 4_000;

#[test]
fn of_two_writers_of_4_000_slots_exactly_one_wins_each_revision() {
    const ROUNDS: i64 = 20;
    let keyspace = Keyspace::new();
    let store = keyspace.open();
    let start = Barrier::new(2);
    let run = |writer: u64| {
        let counts = store.counts();
        let put = |round: i64| {
            start.wait();
            let condition = match round {
                0 => PutCondition::Exactly(None),
                _ => PutCondition::Exactly(Some(revision(round))),
            };
            let put = (row(0, round + 1, writer, SLOTS), condition);
            counts.put_many(&[put]).pop().expect("one outcome").expect("up")
        };
        (0..ROUNDS).map(put).collect::<Vec<PutOutcome>>()
    };
    let (ones, twos) = std::thread::scope(|scope| {
        let (one, two) = (scope.spawn(|| run(1)), scope.spawn(|| run(2)));
        (one.join().expect("no panic"), two.join().expect("no panic"))
    });
    for (round, pair) in (0..).zip(ones.iter().zip(&twos)) {
        let winners = [pair.0, pair.1].iter().filter(|won| ***won == PutOutcome::Stored).count();
        assert_eq!(winners, 1, "round {round}: {pair:?}");
    }
    let last = store.counts().rows(&[Bucket::minute(0)]).expect("up").pop().flatten();
    let last = last.expect("a row");
    let winner = if ones.last() == Some(&PutOutcome::Stored) { 1 } else { 2 };
    assert_eq!(last, row(0, ROUNDS, winner, SLOTS));
}

#[test]
fn a_reader_racing_with_restatements_never_pairs_a_vector_with_another_revision() {
    const ROUNDS: i64 = 100;
    let keyspace = Keyspace::new();
    let store = keyspace.open();
    let buckets: Vec<Bucket> = (0..5).map(|minute| Bucket::minute(minute * 60_000)).collect();
    let ended = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let counts = store.counts();
            let mut reads = 0_u32;
            while !ended.load(Ordering::SeqCst) {
                for found in counts.rows(&buckets).expect("up").into_iter().flatten() {
                    // Each revision has a vector of its own.
                    let (minute, round) =
                        (found.small.bucket.start_ms() / 60_000, found.small.revision);
                    let want = row(minute, round.time_ms(), 1, 200);
                    assert_eq!(found, want);
                    reads += 1;
                }
            }
            reads
        });
        let counts = store.counts();
        for round in 1..=ROUNDS {
            let puts: Vec<_> =
                (0..5).map(|minute| (row(minute, round, 1, 200), PutCondition::Below)).collect();
            for outcome in counts.put_many(&puts) {
                assert_eq!(outcome.expect("up"), PutOutcome::Stored);
            }
        }
        ended.store(true, Ordering::SeqCst);
        reader.join().expect("the reader never saw a mixed row")
    });
    assert!(reads > 100, "the reader really raced: {reads} rows");
}
