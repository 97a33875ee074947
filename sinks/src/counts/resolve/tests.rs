//! Unknown outcomes, one by one and at random.

use proptest::prelude::*;
use tally_model::bucket::{MINUTE_MS, Period};

use super::*;
use crate::counts::SmallRow;
use crate::counts::contract::{revision, row};
use crate::counts::failing::FailingCounts;
use crate::counts::memory::MemoryCounts;
use crate::faults::Fault;

/// Puts rows one by one, as a store does that has no transaction over several: so the rows of one
/// call can have different faults.
#[derive(Debug)]
struct RowByRow<S>(S);

impl<S: CountsStore> CountsStore for RowByRow<S> {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        puts.iter().flat_map(|put| self.0.put_many(std::slice::from_ref(put))).collect()
    }

    fn small_rows(&self, period: Period, from: i64, to: i64) -> Result<Vec<SmallRow>, StoreError> {
        self.0.small_rows(period, from, to)
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.0.rows(buckets)
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        self.0.is_empty()
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        self.0.delete_period(period)
    }
}

fn failing() -> FailingCounts<MemoryCounts> {
    FailingCounts::new(MemoryCounts::default())
}

#[test]
fn an_applied_put_whose_answer_was_lost_is_done() {
    let store = failing();
    store.script_writes([Some(Fault::AppliedThenLost)]);
    let outcomes = put_resolved(&store, &[(row(0, 1, &[1]), PutCondition::Exactly(None))]);
    assert!(matches!(outcomes.as_slice(), [Ok(PutOutcome::AlreadyDone)]), "{outcomes:?}");
}

#[test]
fn a_put_that_did_not_happen_is_tried_again() {
    let store = failing();
    store.script_writes([Some(Fault::LostBeforeApplied), Some(Fault::LostBeforeApplied)]);
    let put = row(0, 1, &[1]);
    let outcomes = put_resolved(&store, &[(put.clone(), PutCondition::Below)]);
    assert!(matches!(outcomes.as_slice(), [Ok(PutOutcome::Stored)]), "{outcomes:?}");
    assert_eq!(store.rows(&[put.small.bucket]).unwrap(), [Some(put)]);
}

#[test]
fn a_lost_put_under_a_condition_that_no_longer_holds_is_refused() {
    let store = failing();
    let stored = row(0, 5, &[5]);
    store.put_many(&[(stored.clone(), PutCondition::Below)]);
    store.script_writes([Some(Fault::LostBeforeApplied)]);
    let stale = (row(0, 6, &[6]), PutCondition::Exactly(Some(revision(4))));
    let outcomes = put_resolved(&store, &[stale]);
    let want = PutOutcome::Refused { stored: Some(stored.small) };
    assert!(matches!(outcomes.as_slice(), [Ok(outcome)] if *outcome == want), "{outcomes:?}");
}

#[test]
fn a_store_that_cannot_be_read_back_leaves_the_outcome_unknown() {
    let store = failing();
    store.script_writes([Some(Fault::AppliedThenLost)]);
    store.script_reads([Some(Fault::Refused); 10]);
    let put = (row(0, 1, &[1]), PutCondition::Below);
    let outcomes = put_resolved(&store, std::slice::from_ref(&put));
    assert!(matches!(outcomes.as_slice(), [Err(StoreError::Unknown { .. })]), "{outcomes:?}");
    store.script_reads([None]);
    let again = put_resolved(&store, &[put]);
    assert!(matches!(again.as_slice(), [Ok(PutOutcome::AlreadyDone)]), "{again:?}");
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    prop_oneof![
        3 => Just(None),
        1 => Just(Some(Fault::Refused)),
        2 => Just(Some(Fault::AppliedThenLost)),
        2 => Just(Some(Fault::LostBeforeApplied)),
    ]
}

fn condition() -> impl Strategy<Value = PutCondition> {
    prop_oneof![
        Just(PutCondition::Below),
        Just(PutCondition::Exactly(None)),
        (1_i64..6).prop_map(|time_ms| PutCondition::Exactly(Some(revision(time_ms)))),
    ]
}

/// One call: a put for some of four minutes each.
fn call() -> impl Strategy<Value = Vec<(Row, PutCondition)>> {
    prop::collection::btree_map(0_i64..4, (1_i64..6, 0_u64..2, condition()), 1..4).prop_map(
        |puts| {
            puts.into_iter()
                .map(|(minute, (time_ms, count, condition))| {
                    (row(minute * MINUTE_MS, time_ms, &[count]), condition)
                })
                .collect()
        },
    )
}

proptest! {
    /// Whatever gets lost: an outcome that is told is the outcome of a store that loses nothing,
    /// and what is called unavailable did not happen.
    #[test]
    fn told_outcomes_are_those_of_a_store_without_faults(
        calls in prop::collection::vec(call(), 1..12),
        writes in prop::collection::vec(fault(), 0..40),
        reads in prop::collection::vec(prop::bool::weighted(0.2), 0..20),
    ) {
        let store = RowByRow(failing());
        store.0.script_writes(writes);
        store.0.script_reads(reads.into_iter().map(|fails| fails.then_some(Fault::Refused)));
        let model = MemoryCounts::default();
        for puts in calls {
            for (put, told) in puts.iter().zip(put_resolved(&store, &puts)) {
                let bucket = [put.0.small.bucket];
                match told {
                    Err(StoreError::Unavailable { .. }) => {}
                    // Only the store knows: the model follows it, to one of the two states possible.
                    Err(StoreError::Unknown { .. }) => {
                        if store.0.inner().rows(&bucket).unwrap() != model.rows(&bucket).unwrap() {
                            let outcome = model.put_many(std::slice::from_ref(put));
                            prop_assert!(matches!(outcome.as_slice(), [Ok(PutOutcome::Stored)]));
                        }
                    }
                    Err(other) => prop_assert!(false, "{other}"),
                    Ok(told) => {
                        let want = model.put_many(std::slice::from_ref(put)).remove(0).unwrap();
                        match (told, want) {
                            // After a lost answer, "stored" is found as "already done".
                            (PutOutcome::AlreadyDone, PutOutcome::Stored) => {}
                            (told, want) => prop_assert_eq!(told, want),
                        }
                    }
                }
                let (kept, want) = (store.0.inner().rows(&bucket), model.rows(&bucket));
                prop_assert_eq!(kept.unwrap(), want.unwrap());
            }
        }
    }
}
