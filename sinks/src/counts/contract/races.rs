//! Checks with several threads.

use std::sync::Barrier;

use tally_model::bucket::{Bucket, MINUTE_MS};

use super::{Maker, by, put, read, revision, row};
use crate::counts::{PutCondition, PutOutcome, WriterId};

/// # Panics
/// If the store breaks the contract.
pub fn of_two_racing_writers_exactly_one_wins(make: Maker<'_>) {
    const ROUNDS: i64 = 25;
    let store = &*make();
    let start = Barrier::new(2);
    let run = |writer: u64| -> Vec<(PutOutcome, PutOutcome)> {
        let racer = |round: i64| {
            start.wait();
            let fresh = by(writer, row(round * MINUTE_MS, 1 + round, &[writer]));
            let read = (round > 0).then(|| revision(round));
            let shared = by(writer, row(-MINUTE_MS, 1 + round, &[writer]));
            (
                put(store, &fresh, PutCondition::Below),
                put(store, &shared, PutCondition::Exactly(read)),
            )
        };
        (0..ROUNDS).map(racer).collect()
    };
    let (ones, twos) = std::thread::scope(|scope| {
        let (one, two) = (scope.spawn(|| run(1)), scope.spawn(|| run(2)));
        (one.join().expect("no panic"), two.join().expect("no panic"))
    });
    for (round, (one, two)) in (0..).zip(ones.into_iter().zip(twos)) {
        for (which, one, two) in [("below", one.0, two.0), ("exactly", one.1, two.1)] {
            let (winner, loser) = if one == PutOutcome::Stored { (1, two) } else { (2, one) };
            let PutOutcome::Refused { stored: Some(stored) } = loser else {
                unreachable!("{which}, round {round}: {one:?} and {two:?}")
            };
            assert_eq!(stored.writer, WriterId(winner), "{which}, round {round}");
        }
        let kept = read(store, Bucket::minute(round * MINUTE_MS)).expect("a row");
        assert_eq!(kept.vector.counts(), [kept.small.writer.0], "the winner's row, whole");
    }
}

/// # Panics
/// If the store breaks the contract.
pub fn a_reader_never_sees_a_torn_row(make: Maker<'_>) {
    const ROUNDS: i64 = 40;
    let store = &*make();
    let bucket = Bucket::minute(0);
    let counts = |round: i64| vec![u64::try_from(round).expect("not negative"); 50];
    let last = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..=ROUNDS {
                put(store, &row(0, round, &counts(round)), PutCondition::Below);
            }
        });
        loop {
            let ended = writer.is_finished();
            if let Some(row) = read(store, bucket) {
                let round = row.small.revision.time_ms();
                assert_eq!(row.vector.counts(), counts(round), "the vector of its small row");
            }
            if ended {
                writer.join().expect("no panic");
                break read(store, bucket);
            }
        }
    });
    assert_eq!(last.map(|row| row.small.revision), Some(revision(ROUNDS)));
}
