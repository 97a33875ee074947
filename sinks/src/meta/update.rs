//! Read, decide, compare and set: the loop behind every changing row.

use super::{CasOutcome, MetaStore, Table};
use crate::error::StoreError;

/// How often a row may change under our hands before we call the store unavailable. Each time
/// somebody else got their change in, so this many in a row means that something is wrong.
const ATTEMPTS_MAX: u32 = 100;

/// What to do with a row that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// Leave it: the answer stands already.
    Keep(T),
    /// Store this value; then the answer is the other part.
    Put(Vec<u8>, T),
}

#[derive(Debug, thiserror::Error)]
#[error("the row changed {ATTEMPTS_MAX} times in a row")]
struct Contended;

/// Changes the row at `key` as `change` says, given its present value, until the store takes it.
///
/// `change` sees its own result again if the outcome of a write got lost, so it must come to rest:
/// given what it put, it has to answer [`Change::Keep`] (or put once more something that may be
/// put twice).
///
/// # Errors
/// What `change` returns, or [`StoreError`]. The same call may be repeated.
pub fn update<T, E: From<StoreError>>(
    store: &dyn MetaStore,
    table: Table,
    key: &[u8],
    mut change: impl FnMut(Option<&[u8]>) -> Result<Change<T>, E>,
) -> Result<T, E> {
    let mut current = store.get(table, key)?;
    for _attempt in 0..ATTEMPTS_MAX {
        let (value, answer) = match change(current.as_deref())? {
            Change::Keep(answer) => return Ok(answer),
            Change::Put(value, answer) => (value, answer),
        };
        match store.put_if(table, key, current.as_deref(), &value) {
            Ok(CasOutcome::Applied) => return Ok(answer),
            Ok(CasOutcome::Refused { current: now }) => current = now,
            Err(lost @ StoreError::Unknown { .. }) => match store.get_settled(table, key) {
                Ok(now) => current = now,
                // Not even that can be told: the outcome stays unknown.
                Err(_unread) => return Err(lost.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::unavailable("change a row", Contended).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Fault;
    use crate::meta::failing::FailingMeta;
    use crate::meta::memory::MemoryMeta;

    /// Raises a number to at least `floor`.
    fn raise(store: &dyn MetaStore, floor: u8) -> Result<u8, StoreError> {
        update(store, "t", b"k", |current| {
            let stored = current.and_then(|bytes| bytes.first().copied()).unwrap_or(0);
            let raised = stored.max(floor);
            Ok(if raised == stored {
                Change::Keep(stored)
            } else {
                Change::Put(vec![raised], raised)
            })
        })
    }

    #[test]
    fn lost_answers_are_settled_by_reading_again() {
        let store = FailingMeta::new(MemoryMeta::default());
        store.script_writes([Some(Fault::LostBeforeApplied), Some(Fault::AppliedThenLost)]);
        assert_eq!(raise(&store, 5).unwrap(), 5);
        assert_eq!(store.get("t", b"k").unwrap(), Some(vec![5]));
        assert_eq!(raise(&store, 3).unwrap(), 5, "kept");
    }

    #[test]
    fn an_unavailable_store_is_reported_at_once_and_nothing_is_changed() {
        let store = FailingMeta::new(MemoryMeta::default());
        store.script_writes([Some(Fault::Refused)]);
        assert!(matches!(raise(&store, 5), Err(StoreError::Unavailable { .. })));
        assert_eq!(store.get("t", b"k").unwrap(), None);
    }

    #[test]
    fn what_cannot_be_read_back_stays_unknown() {
        let store = FailingMeta::new(MemoryMeta::default());
        store.script_writes([Some(Fault::AppliedThenLost)]);
        store.script_reads([None, Some(Fault::Refused)]);
        assert!(matches!(raise(&store, 5), Err(StoreError::Unknown { .. })));
        assert_eq!(raise(&store, 5).unwrap(), 5, "repeating it settles it");
    }

    #[test]
    fn a_store_that_always_loses_the_answer_is_given_up_on() {
        let store = FailingMeta::new(MemoryMeta::default());
        store.script_writes([Some(Fault::LostBeforeApplied); 1_000]);
        assert!(matches!(raise(&store, 5), Err(StoreError::Unavailable { .. })));
    }

    #[test]
    fn racing_changes_are_all_applied() {
        let store = MemoryMeta::default();
        std::thread::scope(|scope| {
            for _thread in 0..4 {
                scope.spawn(|| {
                    for _round in 0..25 {
                        update(&store, "t", b"k", |current| {
                            let sum = current.map_or(0, |bytes| bytes[0]) + 1;
                            Ok::<_, StoreError>(Change::Put(vec![sum], ()))
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(store.get("t", b"k").unwrap(), Some(vec![100]));
    }
}
