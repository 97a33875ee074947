//! Folding one day of buckets, under its lease.

use tally_model::bucket::Bucket;
use tally_model::revision::{Revision, RevisionClass, RevisionError};
use tally_model::vector::CountVector;
use tally_sinks::counts::{
    CountsStore as _, PutCondition, PutOutcome, Row, RowSource, SmallRow, WriterId, put_resolved,
};
use tally_sinks::error::StoreError;
use tally_sinks::suppressed::{self, SuppressedDay};

use super::decide::{Standing, standing};
use super::{ATTEMPTS_MAX, Rollup, RollupReport, due_hours};
use crate::JobError;

/// What may be shown of a day, and which day row it belongs to.
struct ShownDay {
    of: SuppressedDay,
    shown: CountVector,
}

impl Rollup {
    /// Folds the hours that are due, then the day.
    pub(super) fn fold_day(&self, day: Bucket, report: &mut RollupReport) -> Result<(), JobError> {
        self.fold_hours(day, report)?;
        for _attempt in 0..ATTEMPTS_MAX {
            if self.fold_day_row(day, report)? {
                return Ok(());
            }
        }
        report.refused += 1;
        Ok(())
    }

    fn fold_hours(&self, day: Bucket, report: &mut RollupReport) -> Result<(), JobError> {
        for attempt in 1..=ATTEMPTS_MAX {
            let bounds = self.bounds()?;
            // The hours' rows are read first, their minutes after them: a put is refused if the
            // row was replaced since, so no sum of older minutes gets in.
            let look = self.look(day, &bounds)?;
            let mut lacking = RollupReport::default();
            let due = due_hours(day, &look, &bounds, &mut lacking);
            let mut puts = Vec::with_capacity(due.len());
            for hour in due {
                let stored = look.hours.iter().find(|row| row.bucket == hour);
                let children = self.children(hour)?;
                let small: Vec<SmallRow> = children.iter().map(|row| row.small).collect();
                if let Standing::Due { digest } = standing(hour, stored, &small, &bounds) {
                    let vector = sum(hour, children.iter().map(|row| &row.vector))?;
                    puts.push(self.put_of(hour, stored, digest, vector)?);
                }
            }
            if attempt == 1 {
                report.lacking += lacking.lacking;
                report.first_lacking = report.first_lacking.or(lacking.first_lacking);
            }
            let refused = self.put(&puts, &mut report.hours_folded)?;
            if refused == 0 {
                return Ok(());
            }
            if attempt == ATTEMPTS_MAX {
                report.refused += refused;
            }
        }
        Ok(())
    }

    /// Folds the day's own row. Returns false if it was replaced meanwhile.
    fn fold_day_row(&self, day: Bucket, report: &mut RollupReport) -> Result<bool, JobError> {
        let bounds = self.bounds()?;
        let period = day.period();
        let stored = self.parts.counts.small_rows(period, day.start_ms(), day.end_ms())?;
        let stored = stored.first();
        let children = self.children(day)?;
        let small: Vec<SmallRow> = children.iter().map(|row| row.small).collect();
        let digest = match standing(day, stored, &small, &bounds) {
            Standing::Due { digest } => digest,
            Standing::Current if self.lacks_suppressed(day, stored)? => {
                let sum = self.shown_day(day, &children, stored.map_or(0, |row| row.digest))?;
                self.keep_shown(&sum)?;
                report.days_suppressed += 1;
                return Ok(true);
            }
            Standing::Current
            | Standing::Lacking { .. }
            | Standing::Open
            | Standing::Kept
            | Standing::Zero => return Ok(true),
        };
        let vector = sum(day, children.iter().map(|row| &row.vector))?;
        let shown = self.shown_day(day, &children, digest)?;
        // The suppressed sum comes first: once the day row stands, its readers find it.
        suppressed::write(&*self.parts.meta, &shown.of, &shown.shown)?;
        let put = self.put_of(day, stored, digest, vector)?;
        if self.put(&[put], &mut report.days_folded)? > 0 {
            return Ok(false);
        }
        self.keep_shown(&shown)?;
        Ok(true)
    }

    /// The whole rows of the children of a bucket that are there, ascending.
    fn children(&self, parent: Bucket) -> Result<Vec<Row>, JobError> {
        let buckets: Vec<Bucket> = parent.children().collect();
        Ok(self.parts.counts.rows(&buckets)?.into_iter().flatten().collect())
    }

    fn shown_day(&self, day: Bucket, hours: &[Row], digest: u64) -> Result<ShownDay, JobError> {
        let below = self.options.suppress_below;
        let cells: Vec<CountVector> =
            hours.iter().map(|hour| suppressed::shown(&hour.vector, below)).collect();
        let shown = sum(day, cells.iter())?;
        Ok(ShownDay { of: SuppressedDay { day, below, digest }, shown })
    }

    fn keep_shown(&self, shown: &ShownDay) -> Result<(), JobError> {
        let meta = &*self.parts.meta;
        suppressed::write(meta, &shown.of, &shown.shown)?;
        Ok(suppressed::forget_others(meta, &shown.of)?)
    }

    fn put_of(
        &self,
        bucket: Bucket,
        stored: Option<&SmallRow>,
        digest: u64,
        vector: CountVector,
    ) -> Result<(Row, PutCondition), JobError> {
        let now_ms = self.parts.clock.now_ms();
        let small = SmallRow {
            bucket,
            revision: next_revision(stored.map(|row| row.revision), now_ms)?,
            writer: WriterId(self.parts.owner.0),
            written_at_ms: stored.map_or(now_ms, |row| now_ms.max(row.written_at_ms + 1)),
            source: RowSource::Rollup,
            digest,
            width: u32::try_from(vector.width()).unwrap_or(u32::MAX),
        };
        let read = PutCondition::Exactly(stored.map(|row| row.revision));
        Ok((Row { small, vector }, read))
    }

    /// Puts rows and counts those that are stored. Returns how many were refused.
    fn put(&self, puts: &[(Row, PutCondition)], stored: &mut u64) -> Result<u64, JobError> {
        if puts.is_empty() {
            return Ok(0);
        }
        let mut refused = 0;
        let mut failed: Option<StoreError> = None;
        for outcome in put_resolved(&*self.parts.counts, puts) {
            match outcome {
                Ok(PutOutcome::Stored | PutOutcome::AlreadyDone) => *stored += 1,
                Ok(PutOutcome::Refused { .. }) => refused += 1,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        self.progress.refused_puts(refused);
        failed.map_or(Ok(refused), |error| Err(error.into()))
    }
}

/// A recomputed revision above the one that was read.
fn next_revision(read: Option<Revision>, now_ms: i64) -> Result<Revision, RevisionError> {
    let least_ms = match read {
        Some(read) if read.class() == RevisionClass::Recomputed => read.time_ms() + 1,
        Some(_) | None => 0,
    };
    Revision::recomputed(now_ms.max(least_ms))
}

fn sum<'a>(
    bucket: Bucket,
    vectors: impl Iterator<Item = &'a CountVector>,
) -> Result<CountVector, JobError> {
    let mut sum = CountVector::new();
    for vector in vectors {
        sum.add(vector).map_err(|source| JobError::Overflow { bucket, source })?;
    }
    Ok(sum)
}
