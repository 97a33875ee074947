//! The writer thread: the only place of a run that talks to the counts store.
//!
//! It takes the newest vectors out of the outbox, compares them with what is stored, puts what must
//! be put under its condition, reads retired rows back once, and publishes the marks. A store that
//! does not answer is asked again, ever more slowly, while counting goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tally_model::bucket::{Bucket, DAY_MS, Granularity};
use tally_model::revision::{Generation, Revision, RevisionClass};
use tally_model::vector::CountVector;
use tally_sinks::counts::{PutCondition, PutOutcome, Row, RowSource, SmallRow, put_resolved};
use tally_sinks::error::StoreError;
use tally_sinks::marks::{self, Advance};

use crate::decide::{Decision, Standing, decide};
use crate::error::CountError;
use crate::horizon::Horizon;
use crate::outbox::{Finish, Taken};
use crate::progress::RowTotals;
use crate::shared::Shared;

use self::minutes::{MinuteState, Minutes};

mod minutes;
#[cfg(test)]
mod tests;

/// Rows compared and put in one go.
const BATCH_ROWS: usize = 500;
/// How often the marks are published, at most.
const MARKS_EVERY_MS: i64 = 1_000;
/// How long the writer sleeps when there is nothing to do.
const IDLE_WAIT: Duration = Duration::from_millis(500);
/// The first pause after a failure; it doubles with each one that follows.
const RETRY_WAIT: Duration = Duration::from_millis(20);
/// The longest pause between two attempts.
const RETRY_WAIT_MAX: Duration = Duration::from_secs(5);
/// At the end of a bounded run, so many failures in a row end it: about half a minute.
pub(crate) const LAST_ATTEMPTS: u32 = 14;

/// Why a round ended early.
enum Stumble {
    /// Try again later.
    Store(StoreError),
    /// End the run.
    Fatal(CountError),
}

impl From<StoreError> for Stumble {
    fn from(error: StoreError) -> Self {
        match error {
            again @ (StoreError::Unavailable { .. } | StoreError::Unknown { .. }) => {
                Self::Store(again)
            }
            hopeless => Self::Fatal(CountError::Store(hopeless)),
        }
    }
}

/// The writer. Runs on its own thread.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    minutes: Minutes,
    horizon: Horizon,
    rows: RowTotals,
    failures: u32,
    last_attempts: u32,
    marks: Marks,
}

#[derive(Debug, Default)]
struct Marks {
    readable_up_to_ms: Option<i64>,
    retired_up_to_ms: Option<i64>,
    published_at_ms: Option<i64>,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, last_attempts: u32) -> Self {
        Self {
            shared,
            minutes: Minutes::default(),
            horizon: Horizon::default(),
            rows: RowTotals::default(),
            failures: 0,
            last_attempts,
            marks: Marks::default(),
        }
    }

    /// Writes until the outbox is finished and everything is put.
    ///
    /// # Errors
    /// [`CountError`] if another start of the deployment has taken over, the store holds something
    /// unreadable, or it fails for too long at the end of a bounded run.
    pub(crate) fn run(mut self) -> Result<(), CountError> {
        loop {
            let taken = self.shared.outbox.take(self.pause());
            let finish = taken.finish;
            self.absorb(taken);
            if finish == Some(Finish::Abandon) {
                return Ok(());
            }
            match self.round(finish.is_some()) {
                Ok(()) => self.failures = 0,
                Err(Stumble::Fatal(error)) => return Err(error),
                Err(Stumble::Store(error)) => {
                    self.failures += 1;
                    self.shared.parts.progress.store_failed();
                    tracing::warn!(%error, attempt = self.failures, "the counts store failed");
                    match finish {
                        Some(Finish::PutOnce) => return Ok(()),
                        Some(Finish::PutAll) if self.failures >= self.last_attempts => {
                            return Err(CountError::Store(error));
                        }
                        Some(Finish::PutAll | Finish::Abandon) | None => {}
                    }
                }
            }
            self.show();
            if finish.is_some() && self.failures == 0 && self.minutes.waiting() == 0 {
                return Ok(());
            }
        }
    }

    /// How long to wait for the outbox before the next round.
    fn pause(&self) -> Duration {
        if self.failures > 0 {
            return RETRY_WAIT.saturating_mul(1 << self.failures.min(10)).min(RETRY_WAIT_MAX);
        }
        if self.minutes.waiting() == 0 { IDLE_WAIT } else { Duration::ZERO }
    }

    fn absorb(&mut self, taken: Taken) {
        for (start_ms, vector) in taken.rows {
            self.minutes.insert(start_ms, vector);
        }
        let caught_up = taken.horizon.caught_up && !self.horizon.caught_up;
        self.horizon = taken.horizon;
        if caught_up {
            self.minutes.release_held();
        }
    }

    /// One pass over everything that there is to do.
    fn round(&mut self, last: bool) -> Result<(), Stumble> {
        while self.put_batch()? && last {}
        if self.horizon.caught_up && self.minutes.waiting() == 0 {
            self.shared.parts.progress.show_caught_up();
        }
        self.retire()?;
        self.publish(last && self.minutes.waiting() == 0)
    }

    /// Compares and puts the oldest minutes that wait; returns whether there were any.
    fn put_batch(&mut self) -> Result<bool, Stumble> {
        let standing = self.standing();
        let oldest = self.minutes.oldest_waiting(BATCH_ROWS);
        let (kept, past): (Vec<i64>, Vec<i64>) =
            oldest.iter().partition(|start_ms| **start_ms >= standing.kept_from_ms);
        for start_ms in past {
            self.rows.past_retention += 1;
            self.settle(start_ms, None);
        }
        let buckets: Vec<Bucket> = kept.iter().copied().map(Bucket::minute).collect();
        if !buckets.is_empty() {
            let stored = self.shared.parts.counts.rows(&buckets)?;
            let mut puts = Vec::new();
            for (bucket, stored) in buckets.into_iter().zip(&stored) {
                puts.extend(self.judge(&standing, bucket, stored.as_ref())?);
            }
            self.put(&puts)?;
        }
        Ok(!oldest.is_empty())
    }

    /// Carries out the decision about one minute; returns what has to be put for it.
    fn judge(
        &mut self,
        standing: &Standing,
        bucket: Bucket,
        stored: Option<&Row>,
    ) -> Result<Option<(Row, PutCondition)>, Stumble> {
        let start_ms = bucket.start_ms();
        let Some(vector) = self.minutes.vector(start_ms) else {
            return Ok(None);
        };
        let stored_revision = stored.map(|row| row.small.revision);
        match decide(standing, bucket, vector, stored) {
            Decision::Put { revision_ms, written_at_ms } => {
                let revision = Revision::streaming(standing.generation, revision_ms)
                    .map_err(|error| Stumble::Fatal(CountError::Clock(error)))?;
                let row = self.row(bucket, revision, written_at_ms, vector.clone());
                return Ok(Some((row, PutCondition::Below)));
            }
            Decision::Unchanged => {
                self.rows.unchanged += 1;
                self.settle(start_ms, stored_revision);
            }
            Decision::Hold => self.minutes.set(start_ms, MinuteState::Held),
            Decision::Withhold => {
                self.rows.withheld += 1;
                tracing::error!(
                    minute = start_ms,
                    "a count would fall, so records are missing: the stored row stays"
                );
                self.settle(start_ms, stored_revision);
            }
            Decision::Refused => {
                self.rows.refused += 1;
                self.settle(start_ms, stored_revision);
            }
            Decision::PastRetention => {
                self.rows.past_retention += 1;
                self.settle(start_ms, None);
            }
            Decision::Fenced(theirs) => return Err(self.fenced(theirs)),
        }
        Ok(None)
    }

    fn row(
        &self,
        bucket: Bucket,
        revision: Revision,
        written_at_ms: i64,
        vector: CountVector,
    ) -> Row {
        let small = SmallRow {
            bucket,
            revision,
            writer: self.shared.parts.writer,
            written_at_ms,
            source: RowSource::Stream,
            digest: 0,
            width: u32::try_from(vector.width()).unwrap_or(u32::MAX),
        };
        Row { small, vector }
    }

    fn put(&mut self, puts: &[(Row, PutCondition)]) -> Result<(), Stumble> {
        if puts.is_empty() {
            return Ok(());
        }
        let outcomes = put_resolved(self.shared.parts.counts.as_ref(), puts);
        let mut failure = None;
        for ((row, _), outcome) in puts.iter().zip(outcomes) {
            let start_ms = row.small.bucket.start_ms();
            match outcome {
                Ok(PutOutcome::Stored | PutOutcome::AlreadyDone) => {
                    self.rows.put += 1;
                    self.settle(start_ms, Some(row.small.revision));
                }
                Ok(PutOutcome::Refused { stored }) => self.refused(start_ms, stored.as_ref())?,
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Somebody wrote the row between our look and our put. Unless a later start did, the minute
    /// keeps waiting and is looked at again.
    fn refused(&self, start_ms: i64, stored: Option<&SmallRow>) -> Result<(), Stumble> {
        tracing::warn!(minute = start_ms, ?stored, "a put was refused");
        match stored.map(|small| small.revision) {
            Some(revision)
                if revision.class() == RevisionClass::Streaming
                    && revision.generation() > self.shared.parts.generation =>
            {
                Err(self.fenced(revision.generation()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Reads the rows of retired minutes back once, as readers read them, and lets go of those that
    /// are there. One that is not is put again.
    fn retire(&mut self) -> Result<(), Stumble> {
        let Some(up_to_ms) = self.horizon.retired_up_to_ms else {
            return Ok(());
        };
        let settled = self.minutes.settled_before(up_to_ms);
        let period_of = |start_ms: i64| Bucket::minute(start_ms).period();
        for minutes in settled.chunk_by(|(a, _), (b, _)| period_of(*a) == period_of(*b)) {
            self.read_back(minutes)?;
        }
        Ok(())
    }

    /// Reads minutes of one period back.
    fn read_back(&mut self, minutes: &[(i64, Option<Revision>)]) -> Result<(), Stumble> {
        let ([(first_ms, _), ..], [.., (last_ms, _)]) = (minutes, minutes) else {
            return Ok(());
        };
        let counts = &self.shared.parts.counts;
        let period = Bucket::minute(*first_ms).period();
        let stored = counts.small_rows(period, *first_ms, *last_ms + 1)?;
        let stored: BTreeMap<i64, Revision> =
            stored.iter().map(|small| (small.bucket.start_ms(), small.revision)).collect();
        let mut missing = None;
        for (start_ms, revision) in minutes {
            if stored.get(start_ms).copied() >= *revision {
                self.minutes.remove(*start_ms);
            } else {
                missing = Some(*start_ms);
                self.shared.parts.progress.row_misread();
                tracing::error!(minute = start_ms, "an acknowledged row is not there: put again");
                self.minutes.set(*start_ms, MinuteState::Waiting);
            }
        }
        match missing {
            None => Ok(()),
            Some(start_ms) => Err(Stumble::Store(StoreError::Unavailable {
                action: "keep an acknowledged row",
                source: format!("minute {start_ms}").into(),
            })),
        }
    }

    /// Publishes how far minutes are readable and retired, at most once a second.
    fn publish(&mut self, now: bool) -> Result<(), Stumble> {
        let at_ms = self.shared.parts.clock.monotonic_ms();
        let early = self.marks.published_at_ms.is_some_and(|last| at_ms < last + MARKS_EVERY_MS);
        let retired_up_to_ms = capped(self.horizon.retired_up_to_ms, self.minutes.first());
        let readable_up_to_ms =
            capped(self.horizon.closed_up_to_ms, self.minutes.first_unreadable());
        let grown = retired_up_to_ms > self.marks.retired_up_to_ms
            || readable_up_to_ms > self.marks.readable_up_to_ms;
        if !grown || early && !now {
            return Ok(());
        }
        self.marks.published_at_ms = Some(at_ms);
        let parts = &self.shared.parts;
        let (meta, generation) = (parts.meta.as_ref(), parts.generation);
        match marks::advance(meta, generation, retired_up_to_ms, readable_up_to_ms)? {
            Advance::Published(marks) => {
                self.marks.retired_up_to_ms = marks.retired_up_to_ms;
                self.marks.readable_up_to_ms = marks.readable_up_to_ms;
                parts.progress.show_marks(marks.readable_up_to_ms, marks.retired_up_to_ms);
                Ok(())
            }
            Advance::Fenced { newer } => Err(self.fenced(newer)),
        }
    }

    fn standing(&self) -> Standing {
        let now_ms = self.shared.parts.clock.now_ms();
        let kept_ms = self.shared.options.minutes_kept_days.saturating_mul(DAY_MS);
        Standing {
            generation: self.shared.parts.generation,
            retired_at_start_ms: self.shared.start.retired_up_to_ms,
            kept_from_ms: Granularity::Day.floor(now_ms).saturating_sub(kept_ms),
            caught_up: self.horizon.caught_up,
            now_ms,
        }
    }

    fn settle(&mut self, start_ms: i64, revision: Option<Revision>) {
        self.minutes.set(start_ms, MinuteState::Settled(revision));
    }

    /// Shows how far the writer is, to people and to the sources.
    fn show(&self) {
        let (waiting, held) = (self.minutes.waiting(), self.minutes.held());
        self.shared.parts.progress.show_rows(&self.rows, waiting, held);
        self.shared.outbox.show_taken(self.minutes.waiting_bytes());
    }

    fn fenced(&self, theirs: Generation) -> Stumble {
        Stumble::Fatal(CountError::Fenced { ours: self.shared.parts.generation, theirs })
    }
}

/// The mark, but not beyond the first minute that is not done.
fn capped(mark_ms: Option<i64>, first_undone_ms: Option<i64>) -> Option<i64> {
    match (mark_ms, first_undone_ms) {
        (Some(mark_ms), Some(first_ms)) => Some(mark_ms.min(first_ms)),
        (mark_ms, None) => mark_ms,
        (None, Some(_)) => None,
    }
}
