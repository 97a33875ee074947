//! Folding 60 minutes into an hour and 24 hours into a day.
//!
//! What is due is found by comparing, not by messages: a coarse row carries the digest of the rows
//! that it was folded from, and is folded again when they have another one ([`decide`]). Nothing is
//! ever added to a stored row: a fold reads all its children and puts the whole sum.
//!
//! A day of buckets is the unit of work. It is worked on under its lease, in this order: read the
//! coarse row, read the children, put under the condition that the coarse row is still the same.
//! A refused put starts over with that reading.
//!
//! Invariant U-1 of ARCHITECTURE.md.

pub mod decide;
mod fold;
mod progress;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use tally_model::bucket::{Bucket, DAY_MS, Granularity};
use tally_model::clock::Clock;
use tally_model::range::Availability;
use tally_sinks::counts::{CountsStore, SmallRow};
use tally_sinks::leases::{self, Owner, Taken};
use tally_sinks::marks;
use tally_sinks::meta::MetaStore;
use tally_sinks::suppressed::{self, SuppressedDay};

use self::decide::{Bounds, Standing, standing};
use crate::JobError;

pub use self::progress::{RollupFigures, RollupProgress};

/// How many days back, beside the youngest, [`Sweep::Recent`] looks.
const RECENT_DAYS: i64 = 2;

/// How many days past the retention of hours there can be hours: a month and the day before its
/// deletion.
const LEFT_DAYS: i64 = 33;

/// How often a fold starts over because its row was replaced meanwhile.
const ATTEMPTS_MAX: u32 = 5;

/// What a rollup works on.
#[derive(Clone, Debug)]
pub struct RollupParts {
    /// The rows.
    pub counts: Arc<dyn CountsStore>,
    /// Marks, leases and suppressed days.
    pub meta: Arc<dyn MetaStore>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Who takes the leases and writes the rows.
    pub owner: Owner,
}

/// How a rollup works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollupOptions {
    /// How many days minute rows are kept.
    pub minutes_days: i64,
    /// How many days hour rows are kept.
    pub hours_days: i64,
    /// Counts of an hour below this are left out of suppressed days.
    pub suppress_below: u64,
    /// How long a day is ours without a sign of life, ms.
    pub lease_ms: i64,
}

impl Default for RollupOptions {
    fn default() -> Self {
        Self { minutes_days: 60, hours_days: 730, suppress_below: 10, lease_ms: 60_000 }
    }
}

/// Which days are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Every day that has rows to fold.
    All,
    /// The youngest days only: what the passing time makes due.
    Recent,
    /// The days that a range touches, ms since the Unix epoch.
    Within(Range<i64>),
}

/// What one run found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollupReport {
    /// Days that were looked at.
    pub days_seen: u64,
    /// Hour rows that were put.
    pub hours_folded: u64,
    /// Day rows that were put.
    pub days_folded: u64,
    /// Suppressed days that were put although the day row was current.
    pub days_suppressed: u64,
    /// Days that somebody else works on.
    pub days_busy: u64,
    /// Coarse rows that were replaced each time they were about to be put.
    pub refused: u64,
    /// Buckets that are due but lack a child although it is retired; the first such minute or hour
    /// is named.
    pub lacking: u64,
    /// The first child that is lacking.
    pub first_lacking: Option<Bucket>,
    /// Whether the run was stopped before it had seen everything.
    pub stopped: bool,
}

impl RollupReport {
    /// Rows that were put.
    #[must_use]
    pub const fn folded(&self) -> u64 {
        self.hours_folded + self.days_folded
    }

    fn lacks(&mut self, child: Bucket) {
        self.lacking += 1;
        self.first_lacking.get_or_insert(child);
    }
}

/// The rollup of one deployment. Its calls block.
#[derive(Clone, Debug)]
pub struct Rollup {
    parts: RollupParts,
    options: RollupOptions,
    progress: Arc<RollupProgress>,
}

/// The small rows of a day of buckets.
struct Look {
    /// The day's own row.
    row: Option<SmallRow>,
    hours: Vec<SmallRow>,
    minutes: Vec<SmallRow>,
}

impl Rollup {
    /// A rollup that has not run yet.
    #[must_use]
    pub fn new(parts: RollupParts, options: RollupOptions) -> Self {
        Self { parts, options, progress: Arc::default() }
    }

    /// What it has done so far, for metrics.
    #[must_use]
    pub fn progress(&self) -> Arc<RollupProgress> {
        Arc::clone(&self.progress)
    }

    /// Folds what is due in the days of `sweep`, oldest first, as long as `go_on` says so.
    ///
    /// # Errors
    /// [`JobError`]. The run may be repeated.
    pub fn run(&self, sweep: Sweep, go_on: &dyn Fn() -> bool) -> Result<RollupReport, JobError> {
        let whole = sweep == Sweep::All;
        let mut report = RollupReport::default();
        for day in self.days(&sweep)? {
            if !go_on() {
                report.stopped = true;
                break;
            }
            report.days_seen += 1;
            self.day(day, &mut report)?;
        }
        self.progress.ran(&report, whole, self.parts.clock.now_ms());
        Ok(report)
    }

    /// The buckets that [`Self::run`] would fold, oldest first; days also if only their hours are
    /// due. Nothing is written.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn due(&self, sweep: &Sweep) -> Result<Vec<Bucket>, JobError> {
        let mut due = Vec::new();
        for day in self.days(sweep)? {
            let bounds = self.bounds()?;
            let look = self.look(day, &bounds)?;
            let hours = due_hours(day, &look, &bounds, &mut RollupReport::default());
            let whole = bounds.is_retired(day) && !hours.is_empty();
            let own = standing(day, look.row.as_ref(), &look.hours, &bounds);
            due.extend(hours);
            if whole || matches!(own, Standing::Due { .. }) {
                due.push(day);
            }
        }
        Ok(due)
    }

    /// The days of a sweep that can have something to fold, oldest first.
    fn days(&self, sweep: &Sweep) -> Result<impl Iterator<Item = Bucket> + use<>, JobError> {
        let bounds = self.bounds()?;
        let (mut from_ms, mut to_ms) = match (bounds.origin_ms, bounds.retired_up_to_ms) {
            (Some(origin_ms), Some(retired_ms)) => {
                // Hours are deleted by months: older days may still be there, never folded.
                let oldest_ms = bounds.kept.hours_from_ms.saturating_sub(LEFT_DAYS * DAY_MS);
                (origin_ms.max(oldest_ms), retired_ms)
            }
            _ => (0, 0),
        };
        match sweep {
            Sweep::All => {}
            Sweep::Recent => {
                from_ms = from_ms.max(Granularity::Day.floor(to_ms) - RECENT_DAYS * DAY_MS);
            }
            Sweep::Within(range) => {
                from_ms = from_ms.max(Granularity::Day.floor(range.start));
                to_ms = to_ms.min(Granularity::Day.ceil(range.end));
            }
        }
        let mut next = Bucket::containing(Granularity::Day, from_ms);
        Ok(std::iter::from_fn(move || {
            let day = (next.start_ms() < to_ms).then_some(next)?;
            next = Bucket::containing(Granularity::Day, day.end_ms());
            Some(day)
        }))
    }

    fn bounds(&self) -> Result<Bounds, JobError> {
        let marks = marks::read(&*self.parts.meta)?;
        let RollupOptions { minutes_days, hours_days, .. } = self.options;
        Ok(Bounds {
            kept: Availability::at(self.parts.clock.now_ms(), minutes_days, hours_days),
            origin_ms: marks.origin_ms,
            retired_up_to_ms: marks.retired_up_to_ms,
        })
    }

    /// Looks at a day without its lease, and folds under the lease if there is something to fold.
    fn day(&self, day: Bucket, report: &mut RollupReport) -> Result<(), JobError> {
        let bounds = self.bounds()?;
        let look = self.look(day, &bounds)?;
        let mut seen = RollupReport::default();
        let hours = due_hours(day, &look, &bounds, &mut seen);
        let own = standing(day, look.row.as_ref(), &look.hours, &bounds);
        let due = match own {
            Standing::Due { .. } => true,
            Standing::Current => self.lacks_suppressed(day, look.row.as_ref())?,
            Standing::Lacking { .. } | Standing::Open | Standing::Kept | Standing::Zero => false,
        };
        if hours.is_empty() && !due {
            // Without its hours a day lacks them; the hours say better what is missing.
            if let (Standing::Lacking { child }, 0) = (own, seen.lacking) {
                seen.lacks(child);
            }
            report.lacking += seen.lacking;
            report.first_lacking = report.first_lacking.or(seen.first_lacking);
            return Ok(());
        }
        let RollupParts { meta, clock, owner, .. } = &self.parts;
        let now_ms = clock.now_ms();
        match leases::take(&**meta, day.start_ms(), *owner, now_ms, self.options.lease_ms)? {
            Taken::Busy { .. } => {
                report.days_busy += 1;
                return Ok(());
            }
            Taken::Ours { .. } => {}
        }
        let done = self.fold_day(day, report);
        leases::release(&**meta, day.start_ms(), *owner)?;
        done
    }

    fn look(&self, day: Bucket, bounds: &Bounds) -> Result<Look, JobError> {
        let counts = &self.parts.counts;
        let (from_ms, to_ms) = (day.start_ms(), day.end_ms());
        let slice = |bucket: Bucket| counts.small_rows(bucket.period(), from_ms, to_ms);
        // Coarse rows before their children: what is compared is never older than its source.
        let row = slice(day)?.into_iter().next();
        let hours = slice(Bucket::containing(Granularity::Hour, from_ms))?;
        // Minutes past their retention matter only where an hour was never folded.
        let minutes = if from_ms >= bounds.kept.minutes_from_ms || hours.len() < 24 {
            slice(Bucket::minute(from_ms))?
        } else {
            Vec::new()
        };
        Ok(Look { row, hours, minutes })
    }

    /// Whether a day whose row is current lacks its suppressed sum: a rollup that was killed in
    /// between, or another threshold since.
    fn lacks_suppressed(&self, day: Bucket, row: Option<&SmallRow>) -> Result<bool, JobError> {
        let Some(row) = row else {
            return Ok(false);
        };
        let (below, digest) = (self.options.suppress_below, row.digest);
        let found = suppressed::read(&*self.parts.meta, &[SuppressedDay { day, below, digest }])?;
        Ok(found.iter().all(Option::is_none))
    }
}

/// The hours of `day` that are due by the rows of `look`; what they lack goes to `report`.
fn due_hours(day: Bucket, look: &Look, bounds: &Bounds, report: &mut RollupReport) -> Vec<Bucket> {
    let mut due = Vec::new();
    for hour in day.children() {
        let row = look.hours.iter().find(|row| row.bucket == hour);
        match standing(hour, row, inside(&look.minutes, hour), bounds) {
            Standing::Due { .. } => due.push(hour),
            Standing::Lacking { child } => report.lacks(child),
            Standing::Current | Standing::Open | Standing::Kept | Standing::Zero => {}
        }
    }
    due
}

/// The rows, ascending by start, of the buckets that lie in `parent`.
fn inside(rows: &[SmallRow], parent: Bucket) -> &[SmallRow] {
    let before = |bound: i64| rows.partition_point(|row| row.bucket.start_ms() < bound);
    rows.get(before(parent.start_ms())..before(parent.end_ms())).unwrap_or(&[])
}
