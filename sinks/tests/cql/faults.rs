//! Answers that get lost, and rows that somebody else has written.

use std::sync::atomic::Ordering;

use tally_model::bucket::Bucket;
use tally_sinks::counts::{CountsStore, PutCondition, PutOutcome, put_resolved};
use tally_sinks::cql::CqlStore;
use tally_sinks::error::StoreError;

use crate::proxy::Proxy;
use crate::{Keyspace, address, row};

#[test]
fn a_put_whose_answer_got_lost_is_found_done_and_one_that_never_arrived_is_put_again_b80_b81() {
    let keyspace = Keyspace::new();
    let direct = keyspace.open().counts();
    let proxy = Proxy::start(address());
    let store =
        CqlStore::open(&keyspace.through(&proxy.address)).expect("through the proxy").counts();
    // (what the row shows, requests lost, answers lost, what it comes to)
    let cases = [
        ("nothing lost", 0, 0, PutOutcome::Stored),
        ("the answer", 0, 1, PutOutcome::AlreadyDone),
        ("the request", 1, 0, PutOutcome::Stored),
        ("the request, then the answer", 1, 1, PutOutcome::AlreadyDone),
    ];
    for (minute, (name, requests, answers, want)) in (0..).zip(cases) {
        let put = (row(minute, 5, 1, 50), PutCondition::Below);
        proxy.plan.lose_requests.store(requests, Ordering::SeqCst);
        proxy.plan.lose_answers.store(answers, Ordering::SeqCst);
        let before = proxy.plan.cut.load(Ordering::SeqCst);
        let outcome = crate::until("the store answers", || {
            put_resolved(&store, std::slice::from_ref(&put)).pop().and_then(Result::ok)
        });
        assert_eq!(outcome, want, "{name}");
        assert_eq!(proxy.plan.cut.load(Ordering::SeqCst) - before, requests + answers, "{name}");
        let stored = direct.rows(&[put.0.small.bucket]).expect("up");
        assert_eq!(
            stored,
            [Some(put.0)],
            "{name}: the value, the revision and the writer are ours"
        );
    }
}

#[test]
fn a_cut_connection_leaves_the_outcome_unknown_whether_or_not_it_was_applied_b82() {
    let keyspace = Keyspace::new();
    keyspace.open();
    let proxy = Proxy::start(address());
    let store =
        CqlStore::open(&keyspace.through(&proxy.address)).expect("through the proxy").counts();
    for (minute, lose) in (0..).zip([&proxy.plan.lose_requests, &proxy.plan.lose_answers]) {
        lose.store(1, Ordering::SeqCst);
        let put = (row(minute, 5, 1, 50), PutCondition::Below);
        let outcome = store.put_many(&[put]).pop().expect("one outcome");
        assert!(matches!(outcome, Err(StoreError::Unknown { .. })), "{outcome:?}");
        crate::until("the driver connects again", || store.is_empty().ok());
    }
}

#[test]
fn a_row_that_somebody_wrote_without_a_condition_is_seen_as_it_is_b83() {
    let keyspace = Keyspace::new();
    let store = keyspace.open().counts();
    let ours = (row(0, 5, 1, 3), PutCondition::Below);
    assert!(matches!(store.put_many(std::slice::from_ref(&ours))[..], [Ok(PutOutcome::Stored)]));
    // A repair script, an hour ahead: another writer and a greater revision.
    let theirs = row(0, 9, 77, 3);
    keyspace.plant(&theirs, true);
    let read = store.settled_rows(&[Bucket::minute(0)]).expect("up").pop().flatten();
    let read = read.expect("a row").small;
    assert_eq!((read.revision, read.writer), (theirs.small.revision, theirs.small.writer));
    let again = store.put_many(&[ours]).pop().expect("one outcome").expect("up");
    assert_eq!(
        again,
        PutOutcome::Refused { stored: Some(read) },
        "the fence stands on what is there"
    );
}

#[test]
fn a_small_row_without_its_vector_is_corrupt_and_never_zero_b88() {
    let keyspace = Keyspace::new();
    let store = keyspace.open().counts();
    keyspace.plant(&row(0, 5, 1, 3), false);
    for read in [store.rows(&[Bucket::minute(0)]), store.settled_rows(&[Bucket::minute(0)])] {
        assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
    }
}
