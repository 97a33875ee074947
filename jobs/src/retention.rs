//! Retention: whole periods of rows that are past their days are deleted.
//!
//! What is *kept* is decided by the calendar: rows of the UTC day `today - days` and later. Nothing
//! reads or writes rows that are not kept. A period is deleted a day after the last moment at which
//! anything may have written into it, so that a writer with a slow clock, or one that was held up
//! in the middle of its work, never writes into what is gone.
//!
//! Nothing is deleted that the rollup has yet to fold: such a period stays, and so do those after
//! it, until the rollup has been there.
//!
//! How far was deleted is noted, so that each period is deleted once.
//!
//! Invariant U-2 of ARCHITECTURE.md.

use std::sync::Arc;

use tally_model::bucket::{Bucket, DAY_MS, Granularity, Period};
use tally_model::clock::Clock;
use tally_sinks::counts::{CountsStore, SmallRow};
use tally_sinks::error::StoreError;
use tally_sinks::marks;
use tally_sinks::meta::{Change, MetaStore, Table, update};

use crate::JobError;

#[cfg(test)]
mod tests;

const RETENTION: Table = "retention";

/// The retention of one deployment. Its calls block.
#[derive(Clone, Debug)]
pub struct Retention {
    /// The rows.
    pub counts: Arc<dyn CountsStore>,
    /// Where the origin stands, and how far was deleted.
    pub meta: Arc<dyn MetaStore>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// How many days minute rows are kept.
    pub minutes_days: i64,
    /// How many days hour rows are kept.
    pub hours_days: i64,
}

/// What one run deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Periods that were deleted, those that held no row too.
    pub periods: u64,
    /// Rows that went with them.
    pub rows: u64,
    /// A period that is past its time and stays, because the rollup has yet to fold it.
    pub held: Option<Period>,
}

impl Retention {
    /// Deletes what is past its time, oldest first, as long as `go_on` says so.
    ///
    /// # Errors
    /// [`JobError`]. The run may be repeated.
    pub fn run(&self, go_on: &dyn Fn() -> bool) -> Result<Deleted, JobError> {
        let mut deleted = Deleted::default();
        let Some(origin_ms) = marks::read(&*self.meta)?.origin_ms else {
            return Ok(deleted);
        };
        for (granularity, days) in
            [(Granularity::Minute, self.minutes_days), (Granularity::Hour, self.hours_days)]
        {
            let from_ms = deleted_up_to(&*self.meta, granularity)?.unwrap_or(origin_ms);
            let mut period = Period::containing(granularity, from_ms);
            let first = period;
            while deletable(period, days, self.clock.now_ms()) && go_on() {
                if !self.is_folded(period, origin_ms)? {
                    deleted.held = deleted.held.or(Some(period));
                    break;
                }
                deleted.rows += self.counts.delete_period(period)?;
                deleted.periods += 1;
                period = period.next();
            }
            // Once for all: a run that is cut short before it deletes some of them twice.
            if period != first {
                note(&*self.meta, granularity, period.start_ms())?;
            }
        }
        Ok(deleted)
    }

    /// Whether the rollup has nothing more to do with a period: each coarser bucket has a row, or
    /// lacks a child and so will never have one.
    fn is_folded(&self, period: Period, origin_ms: i64) -> Result<bool, JobError> {
        let (from_ms, to_ms) = (period.start_ms(), period.end_ms());
        let coarser = match period.granularity() {
            Granularity::Minute => Granularity::Hour,
            Granularity::Hour | Granularity::Day => Granularity::Day,
        };
        let rows = self.counts.small_rows(period, from_ms, to_ms)?;
        // A day lies in one month, a month in one year.
        let parents = Period::containing(coarser, from_ms);
        let parents = self.counts.small_rows(parents, from_ms, to_ms)?;
        let parent_of = |row: &SmallRow| Bucket::containing(coarser, row.bucket.start_ms());
        let mut families = rows.chunk_by(|one, next| parent_of(one) == parent_of(next));
        Ok(families.all(|children| {
            children.first().map(parent_of).is_none_or(|parent| {
                let needed = parent.children().filter(|child| child.end_ms() > origin_ms).count();
                children.len() < needed
                    || parents.binary_search_by_key(&parent, |row| row.bucket).is_ok()
            })
        }))
    }
}

/// Whether a period may go: its last day stopped being kept more than a day ago.
///
/// # Units
/// `now_ms` in ms since the Unix epoch; `days` of retention.
#[must_use]
pub const fn deletable(period: Period, days: i64, now_ms: i64) -> bool {
    // The last bucket starts on the day before the end, and is kept until that day + days is over.
    let written_until_ms = period.end_ms() + days * DAY_MS;
    now_ms >= written_until_ms + DAY_MS
}

fn deleted_up_to(
    store: &dyn MetaStore,
    granularity: Granularity,
) -> Result<Option<i64>, StoreError> {
    let row = store.get(RETENTION, granularity.name().as_bytes())?;
    row.as_deref().map(|bytes| decode(granularity, bytes)).transpose()
}

/// Raises how far was deleted.
fn note(store: &dyn MetaStore, granularity: Granularity, up_to_ms: i64) -> Result<(), StoreError> {
    update(store, RETENTION, granularity.name().as_bytes(), |current| {
        let stored = current.map(|bytes| decode(granularity, bytes)).transpose()?;
        if stored.is_some_and(|stored| stored >= up_to_ms) {
            return Ok(Change::Keep(()));
        }
        Ok(Change::Put(up_to_ms.to_string().into_bytes(), ()))
    })
}

fn decode(granularity: Granularity, bytes: &[u8]) -> Result<i64, StoreError> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| StoreError::Corrupt {
        what: format!("table {RETENTION}, key {granularity}"),
    })
}
