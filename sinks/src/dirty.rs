//! Dirty hours: what streaming did not count in an hour, and up to where in the log it stands.
//!
//! Events that come too late for their bucket are not counted by the pipeline; they are in the log.
//! Their hour is noted here with a count for each cause and the positions up to which they were
//! seen, so that answers can say that they are not the whole truth, and a recount knows how far it
//! has to read.
//!
//! One row for each hour that has something to note, ordered by time. Rows only rise: what one
//! deployment publishes twice, or a start that was thought dead publishes once more, changes
//! nothing.
//!
//! Invariant R-2 of ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tally_model::bucket::HOUR_MS;

use crate::error::StoreError;
use crate::meta::{CasOutcome, Change, KeyValue, MetaStore, Table, update};

#[cfg(test)]
mod tests;

const DIRTY: Table = "dirty_hours";

/// What is not in the counts of one hour, and up to where in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtyHour {
    /// Events received after the lateness of their bucket; repeats are not in it.
    pub late: u64,
    /// Events in time by their stamps, but read after their bucket was retired; repeats are not in
    /// it.
    pub straggler: u64,
    /// Copies of which nobody can tell whether they are repeats: their dedup bucket was dropped.
    pub past_window: u64,
    /// Records of the hour may be missing: retention removed them, or a put was withheld since it
    /// would have lowered a count.
    pub hole: bool,
    /// A streaming put was refused because a recomputed row stood there.
    pub superseded: bool,
    /// Next offset after the last such record, by partition; it may lie further on, never before.
    pub positions: BTreeMap<u32, u64>,
}

impl DirtyHour {
    /// Makes this the greater of both, field by field.
    pub fn raise(&mut self, other: &Self) {
        self.late = self.late.max(other.late);
        self.straggler = self.straggler.max(other.straggler);
        self.past_window = self.past_window.max(other.past_window);
        self.raise_unsummed(other);
    }

    /// Adds what another shard noted for the same hour: counts are summed, the rest is the greater
    /// of both.
    ///
    /// # Panics
    /// If a count passes `u64::MAX`.
    pub fn add(&mut self, other: &Self) {
        self.late += other.late;
        self.straggler += other.straggler;
        self.past_window += other.past_window;
        self.raise_unsummed(other);
    }

    /// Whether nothing is noted.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }

    fn raise_unsummed(&mut self, other: &Self) {
        self.hole |= other.hole;
        self.superseded |= other.superseded;
        for (partition, offset) in &other.positions {
            let ours = self.positions.entry(*partition).or_insert(*offset);
            *ours = (*ours).max(*offset);
        }
    }
}

/// Raises the stored hours to at least the given ones; keys are starts of hours.
///
/// Monotone: no field ever falls, so a repeat or a zombie's write does no harm. Hours in which
/// nothing is noted, and rows that stand high enough, are not written. Hours that have no row yet
/// come in one commit, each of the others in one of its own.
///
/// # Units
/// Keys in ms since the Unix epoch.
///
/// # Errors
/// [`StoreError`]; some hours may be raised then, and the same call may be repeated.
pub fn raise(store: &dyn MetaStore, hours: &BTreeMap<i64, DirtyHour>) -> Result<(), StoreError> {
    let mut given = Vec::new();
    for (start_ms, hour) in hours.iter().filter(|(_, hour)| !hour.is_clean()) {
        given.push((key_of(*start_ms)?, hour));
    }
    if given.is_empty() {
        return Ok(());
    }
    let keys: Vec<Vec<u8>> = given.iter().map(|(key, _)| key.to_vec()).collect();
    let stored = store.get_many(DIRTY, &keys)?;
    let (mut fresh, mut present) = (Vec::new(), Vec::new());
    for (one, row) in given.into_iter().zip(stored) {
        if row.is_some() { &mut present } else { &mut fresh }.push(one);
    }
    present.extend(insert(store, fresh)?);
    for (key, hour) in present {
        raise_row(store, key, hour)?;
    }
    Ok(())
}

/// All dirty hours that start in the range, by their starts.
///
/// # Units
/// The range and the keys in ms since the Unix epoch.
///
/// # Errors
/// [`StoreError`].
pub fn list(
    store: &dyn MetaStore,
    hours: Range<i64>,
) -> Result<BTreeMap<i64, DirtyHour>, StoreError> {
    let mut found = BTreeMap::new();
    // Keys between two hours do not exist, so the range may begin at any instant.
    let mut after = hours.start.checked_sub(1);
    let mut last_ms = hours.start;
    while last_ms < hours.end {
        let limit = rows_between(last_ms, hours.end);
        let after_key = after.map(ordered);
        let rows = store.scan(DIRTY, after_key.as_ref().map(<[u8; 8]>::as_slice), limit)?;
        let whole_page = rows.len() == limit;
        for (key, row) in rows {
            last_ms = start_of(&key)?;
            if last_ms >= hours.end {
                return Ok(found);
            }
            found.insert(last_ms, decode(last_ms, &row)?);
        }
        if !whole_page {
            return Ok(found);
        }
        after = Some(last_ms);
    }
    Ok(found)
}

/// A key and the hour to store under it.
type Given<'a> = ([u8; 8], &'a DirtyHour);

/// Inserts hours that had no row. Returns those that somebody else may have inserted meanwhile.
fn insert<'a>(store: &dyn MetaStore, fresh: Vec<Given<'a>>) -> Result<Vec<Given<'a>>, StoreError> {
    if fresh.is_empty() {
        return Ok(fresh);
    }
    let mut rows: Vec<KeyValue> = Vec::with_capacity(fresh.len());
    for (key, hour) in &fresh {
        rows.push((key.to_vec(), encode(hour)?));
    }
    match store.insert_many(DIRTY, &rows) {
        Ok(outcomes) => {
            let left = fresh.into_iter().zip(outcomes);
            Ok(left.filter(|(_, done)| *done != CasOutcome::Applied).map(|(one, _)| one).collect())
        }
        Err(StoreError::Unknown { .. }) => Ok(fresh),
        Err(error) => Err(error),
    }
}

fn raise_row(store: &dyn MetaStore, key: [u8; 8], hour: &DirtyHour) -> Result<(), StoreError> {
    let start_ms = start_of(&key)?;
    update(store, DIRTY, &key, |current| {
        let stored = match current {
            Some(row) => decode(start_ms, row)?,
            None => DirtyHour::default(),
        };
        let mut raised = stored.clone();
        raised.raise(hour);
        if raised == stored { Ok(Change::Keep(())) } else { Ok(Change::Put(encode(&raised)?, ())) }
    })
}

/// Most rows that one read returns.
const PAGE_ROWS: usize = 1_000;

/// How many hours can start in `[from_ms, to_ms)`, at most a page of them, and never none.
fn rows_between(from_ms: i64, to_ms: i64) -> usize {
    let hours = to_ms.saturating_sub(from_ms) / HOUR_MS + 1;
    usize::try_from(hours).map_or(PAGE_ROWS, |hours| hours.min(PAGE_ROWS))
}

/// Big-endian with the sign bit flipped: ordered as bytes like the instants.
const fn ordered(at_ms: i64) -> [u8; 8] {
    (at_ms ^ i64::MIN).to_be_bytes()
}

fn key_of(start_ms: i64) -> Result<[u8; 8], StoreError> {
    if start_ms.rem_euclid(HOUR_MS) != 0 {
        return Err(StoreError::Unstorable { what: format!("hour that starts at {start_ms} ms") });
    }
    Ok(ordered(start_ms))
}

fn start_of(key: &[u8]) -> Result<i64, StoreError> {
    let start_ms = key.try_into().ok().map(|bytes| i64::from_be_bytes(bytes) ^ i64::MIN);
    start_ms
        .filter(|start_ms| start_ms.rem_euclid(HOUR_MS) == 0)
        .ok_or_else(|| StoreError::corrupt(format!("table {DIRTY}, key {key:02x?}")))
}

/// The row as it is stored. A recount will add up to where it has counted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Stored {
    late: u64,
    straggler: u64,
    past_window: u64,
    hole: bool,
    superseded: bool,
    positions: BTreeMap<u32, u64>,
}

fn encode(hour: &DirtyHour) -> Result<Vec<u8>, StoreError> {
    let DirtyHour { late, straggler, past_window, hole, superseded, positions } = hour.clone();
    let stored = Stored { late, straggler, past_window, hole, superseded, positions };
    serde_json::to_vec(&stored).map_err(|why| StoreError::Unstorable { what: why.to_string() })
}

fn decode(start_ms: i64, row: &[u8]) -> Result<DirtyHour, StoreError> {
    let Stored { late, straggler, past_window, hole, superseded, positions } =
        serde_json::from_slice(row).map_err(|why| {
            StoreError::corrupt(format!("table {DIRTY}, hour {start_ms} ms ({why})"))
        })?;
    Ok(DirtyHour { late, straggler, past_window, hole, superseded, positions })
}
