//! The marks of a deployment: where its counts begin, how far they are readable and retired, and
//! which start of it may say so.
//!
//! All marks stand in one row, so a reader sees them together and a write is fenced by one
//! compare-and-set.
//!
//! Invariant R-1 of ARCHITECTURE.md.

use serde::{Deserialize, Serialize};
use tally_model::revision::Generation;

use crate::error::StoreError;
use crate::meta::{CasOutcome, Change, MetaStore, Table, scan_all, update};

#[cfg(test)]
mod tests;

const MARKS: Table = "marks";
const MARKS_KEY: &[u8] = b"marks";
/// One row for each start: its number (u32 big-endian) and when it was claimed.
const GENERATIONS: Table = "generations";

/// What a deployment says about its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// First minute of the deployment, ms since the Unix epoch: buckets before it are zero.
    pub origin_ms: Option<i64>,
    /// End of the last minute such that it and all before it are retired and durably put.
    pub retired_up_to_ms: Option<i64>,
    /// End of the last minute such that it and all before it have been put once.
    pub readable_up_to_ms: Option<i64>,
    /// The start that published last.
    pub generation: Option<Generation>,
}

/// What became of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a fenced deployment has to stop"]
pub enum Advance {
    /// These marks are in force: none is lower than before, and none is lower than asked for.
    Published(Marks),
    /// A later start has published: stop.
    Fenced {
        /// That start.
        newer: Generation,
    },
}

/// Why no generation could be claimed.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// Every number is taken.
    #[error("all {} generations of this deployment are used up", Generation::MAX)]
    UsedUp,
    /// The store failed.
    #[error("no generation could be claimed")]
    Store(#[from] StoreError),
}

/// The marks now in force; all `None` in a new deployment.
///
/// # Errors
/// [`StoreError`].
pub fn read(store: &dyn MetaStore) -> Result<Marks, StoreError> {
    decode(store.get(MARKS, MARKS_KEY)?.as_deref())
}

/// Raises the marks to at least the ones given (`None` = leave), in the name of `generation`.
///
/// Monotone: a mark that stands higher stays. Once a greater generation has published, nothing
/// of a smaller one is taken any more, so a start that was thought dead moves no mark.
///
/// # Errors
/// [`StoreError`]; the same call may be repeated.
pub fn advance(
    store: &dyn MetaStore,
    generation: Generation,
    retired_up_to_ms: Option<i64>,
    readable_up_to_ms: Option<i64>,
) -> Result<Advance, StoreError> {
    update(store, MARKS, MARKS_KEY, |current| {
        let marks = decode(current)?;
        if let Some(newer) = marks.generation.filter(|published| *published > generation) {
            return Ok(Change::Keep(Advance::Fenced { newer }));
        }
        let raised = Marks {
            retired_up_to_ms: marks.retired_up_to_ms.max(retired_up_to_ms),
            readable_up_to_ms: marks.readable_up_to_ms.max(readable_up_to_ms),
            generation: Some(generation),
            ..marks
        };
        changed(marks, raised, Advance::Published(raised))
    })
}

/// Sets the origin unless there is one. Returns the marks in force.
///
/// # Errors
/// [`StoreError`]; the same call may be repeated.
pub fn set_origin_if_absent(store: &dyn MetaStore, origin_ms: i64) -> Result<Marks, StoreError> {
    change_origin(store, |origin| origin.unwrap_or(origin_ms))
}

/// Lowers the origin to `origin_ms` if it stands higher or is not set. Returns the marks in force.
///
/// Only for an import into an empty deployment: buckets that were answered with zero before
/// become buckets that must have a row.
///
/// # Errors
/// [`StoreError`]; the same call may be repeated.
pub fn lower_origin(store: &dyn MetaStore, origin_ms: i64) -> Result<Marks, StoreError> {
    change_origin(store, |origin| origin.map_or(origin_ms, |origin| origin.min(origin_ms)))
}

/// Takes back how far minutes were readable and retired. Only for an import of history into a
/// deployment that holds no record and no row: its minutes begin to count where the history does.
///
/// # Errors
/// [`StoreError`]; the same call may be repeated.
pub fn forget_progress(store: &dyn MetaStore) -> Result<(), StoreError> {
    update(store, MARKS, MARKS_KEY, |current| {
        let marks = decode(current)?;
        let reset = Marks { retired_up_to_ms: None, readable_up_to_ms: None, ..marks };
        changed(marks, reset, ())
    })
}

/// Claims the next generation: greater than every one claimed before, by whomever.
///
/// A claim is a row that can only be made once, so two starts never get the same number. A number
/// whose claim got lost on the way is skipped: generations have to grow, not to be dense.
///
/// # Units
/// `now_ms` in ms since the Unix epoch; kept for people who look at the table.
///
/// # Errors
/// [`GenerationError`].
pub fn claim_generation(store: &dyn MetaStore, now_ms: i64) -> Result<Generation, GenerationError> {
    // Rows below the published generation need not be read: it was claimed itself.
    let published = read(store)?.generation.map_or(0, Generation::number);
    let claimed = scan_all(store, GENERATIONS, Some(&published.to_be_bytes()))?;
    let mut last = match claimed.last() {
        Some((key, _)) => number_of(key)?,
        None => published,
    };
    let mut lost = 0;
    loop {
        let next = last.checked_add(1).and_then(Generation::new).ok_or(GenerationError::UsedUp)?;
        let key = next.number().to_be_bytes();
        match store.put_if(GENERATIONS, &key, None, &now_ms.to_be_bytes()) {
            Ok(CasOutcome::Applied) => return Ok(next),
            Ok(CasOutcome::Refused { .. }) => last = next.number(),
            Err(StoreError::Unknown { .. }) if lost < LOST_CLAIMS_MAX => {
                lost += 1;
                last = next.number();
            }
            // A store that loses every answer, a full disk say, must not use the numbers up.
            Err(error) => return Err(error.into()),
        }
    }
}

/// Claims whose answer may get lost in one call.
const LOST_CLAIMS_MAX: u32 = 3;

fn number_of(key: &[u8]) -> Result<u32, StoreError> {
    let bytes = key.try_into();
    bytes.map(u32::from_be_bytes).map_err(|_not_four_bytes| {
        StoreError::corrupt(format!("table {GENERATIONS}, key {key:02x?}"))
    })
}

fn change_origin(
    store: &dyn MetaStore,
    origin_of: impl Fn(Option<i64>) -> i64,
) -> Result<Marks, StoreError> {
    update(store, MARKS, MARKS_KEY, |current| {
        let marks = decode(current)?;
        let moved = Marks { origin_ms: Some(origin_of(marks.origin_ms)), ..marks };
        changed(marks, moved, moved)
    })
}

fn changed<T>(before: Marks, after: Marks, answer: T) -> Result<Change<T>, StoreError> {
    if before == after {
        Ok(Change::Keep(answer))
    } else {
        Ok(Change::Put(encode(&after)?, answer))
    }
}

/// The row as it is stored.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Stored {
    origin_ms: Option<i64>,
    retired_up_to_ms: Option<i64>,
    readable_up_to_ms: Option<i64>,
    generation: Option<u32>,
}

fn encode(marks: &Marks) -> Result<Vec<u8>, StoreError> {
    let stored = Stored {
        origin_ms: marks.origin_ms,
        retired_up_to_ms: marks.retired_up_to_ms,
        readable_up_to_ms: marks.readable_up_to_ms,
        generation: marks.generation.map(Generation::number),
    };
    serde_json::to_vec(&stored).map_err(|why| StoreError::Unstorable { what: why.to_string() })
}

fn decode(row: Option<&[u8]>) -> Result<Marks, StoreError> {
    let Some(bytes) = row else {
        return Ok(Marks::default());
    };
    let corrupt = |why: String| StoreError::corrupt(format!("table {MARKS} ({why})"));
    let stored: Stored = serde_json::from_slice(bytes).map_err(|why| corrupt(why.to_string()))?;
    let generation = match stored.generation {
        Some(number) => {
            Some(Generation::new(number).ok_or_else(|| corrupt(format!("generation {number}")))?)
        }
        None => None,
    };
    Ok(Marks {
        origin_ms: stored.origin_ms,
        retired_up_to_ms: stored.retired_up_to_ms,
        readable_up_to_ms: stored.readable_up_to_ms,
        generation,
    })
}
