//! Puts whose outcome got lost.

use tally_model::bucket::Bucket;

use super::{CountsStore, PutCondition, PutOutcome, Row, Verdict, judge};
use crate::error::StoreError;

#[cfg(test)]
mod tests;

/// How often rows are read back before their outcome is left unknown. Without pauses in between:
/// a store that is down for longer is the caller's to wait for.
const READ_BACKS_MAX: u32 = 4;

/// Like [`CountsStore::put_many`], but an unknown outcome is settled by reading back.
///
/// What is found in the store decides: our own row is [`PutOutcome::AlreadyDone`]; a row (or none)
/// that still satisfies the condition means that the put did not happen, so it is tried again; any
/// other row means that the put did not happen or was replaced since, which is
/// [`PutOutcome::Refused`] either way. Trying again is safe even if the first try is still on its
/// way: whichever arrives second finds its own row.
///
/// # Errors
/// Per row, [`StoreError`]; [`StoreError::Unknown`] is left only where the store failed several
/// times in a row. The same call may then be repeated.
pub fn put_resolved(
    store: &dyn CountsStore,
    puts: &[(Row, PutCondition)],
) -> Vec<Result<PutOutcome, StoreError>> {
    let mut outcomes = store.put_many(puts);
    for _read_back in 0..READ_BACKS_MAX {
        let unknown: Vec<usize> = outcomes
            .iter()
            .enumerate()
            .filter(|(_, outcome)| matches!(outcome, Err(StoreError::Unknown { .. })))
            .map(|(index, _)| index)
            .collect();
        if unknown.is_empty() {
            break;
        }
        settle(store, puts, &unknown, &mut outcomes);
    }
    outcomes
}

/// One round: reads back the rows at `unknown`, and puts again what certainly is not there.
fn settle(
    store: &dyn CountsStore,
    puts: &[(Row, PutCondition)],
    unknown: &[usize],
    outcomes: &mut [Result<PutOutcome, StoreError>],
) {
    let lost: Vec<(usize, &(Row, PutCondition))> =
        unknown.iter().filter_map(|index| puts.get(*index).map(|put| (*index, put))).collect();
    let buckets: Vec<Bucket> = lost.iter().map(|(_, (row, _))| row.small.bucket).collect();
    // A read that fails leaves the outcomes as unknown as they were.
    let Ok(found) = store.settled_rows(&buckets) else {
        return;
    };
    let (mut again_at, mut again) = (Vec::new(), Vec::new());
    for ((index, put), stored) in lost.into_iter().zip(found) {
        match outcome_of(put, stored) {
            Some(outcome) => replace(outcomes, index, Ok(outcome)),
            None => {
                again_at.push(index);
                again.push(put.clone());
            }
        }
    }
    if again.is_empty() {
        return;
    }
    for (index, outcome) in again_at.into_iter().zip(store.put_many(&again)) {
        replace(outcomes, index, outcome);
    }
}

/// What the stored row says about a put; `None` = it did not happen and may be tried again.
fn outcome_of((row, condition): &(Row, PutCondition), stored: Option<Row>) -> Option<PutOutcome> {
    match judge(&row.small, *condition, stored.as_ref().map(|stored| stored.small)) {
        Verdict::Store => None,
        Verdict::Compare(_) if stored.is_some_and(|stored| stored.vector == row.vector) => {
            Some(PutOutcome::AlreadyDone)
        }
        Verdict::Compare(stored) => Some(PutOutcome::Refused { stored: Some(stored) }),
        Verdict::Refuse(stored) => Some(PutOutcome::Refused { stored }),
    }
}

fn replace(
    outcomes: &mut [Result<PutOutcome, StoreError>],
    index: usize,
    outcome: Result<PutOutcome, StoreError>,
) {
    if let Some(slot) = outcomes.get_mut(index) {
        *slot = outcome;
    }
}
