//! The writer thread: the only place of a run that talks to the counts store.
//!
//! It takes the newest vectors out of the outbox, compares them with what is stored, puts what must
//! be put under its condition, reads retired rows back once, and publishes the marks. A store that
//! does not answer is asked again, ever more slowly, while counting goes on.

use std::sync::Arc;
use std::time::Duration;

use tally_eventlog::LogError;
use tally_model::bucket::{Bucket, DAY_MS, Granularity};
use tally_model::revision::{Generation, Revision, RevisionClass};
use tally_model::vector::CountVector;
use tally_sinks::counts::{PutCondition, PutOutcome, Row, RowSource, SmallRow, put_resolved};
use tally_sinks::dirty::{self, DirtyHour};
use tally_sinks::error::StoreError;

use crate::decide::{Decision, Standing, decide};
use crate::error::CountError;
use crate::horizon::Horizon;
use crate::options::Mode;
use crate::outbox::{Finish, Taken};
use crate::progress::{RowTotals, WaitingRows};
use crate::shared::Shared;

use self::marks::Marks;
use self::minutes::{MinuteState, Minutes};

mod marks;
mod minutes;
#[cfg(test)]
mod tests;

/// Rows compared and put in one go.
const BATCH_ROWS: usize = 500;
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
            let wait = if self.failures > 0 {
                let _is_whole = self.shared.outbox.rest(self.pause_after_failure());
                Duration::ZERO
            } else if self.minutes.waiting() > 0 {
                Duration::ZERO
            } else {
                IDLE_WAIT
            };
            let taken = self.shared.outbox.take(wait);
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
                        None if self.has_waited_in_vain() => return Err(CountError::Store(error)),
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

    /// Whether a bounded run would wait for ever: its sources wait for a store that has failed for
    /// as long as the end of the run would have patience with it.
    fn has_waited_in_vain(&self) -> bool {
        let is_bounded = self.shared.options.mode == Mode::Bounded;
        is_bounded && self.failures >= self.last_attempts && self.shared.outbox.is_full()
    }

    /// How long to leave the store alone after so many failures in a row.
    fn pause_after_failure(&self) -> Duration {
        RETRY_WAIT.saturating_mul(1 << self.failures.min(10)).min(RETRY_WAIT_MAX)
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
        self.publish_dirty()?;
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
                let is_first = stored.is_none();
                let row = self.judge(&standing, bucket, stored.as_ref())?;
                puts.extend(row.map(|row| (is_first, (row, PutCondition::Below))));
            }
            self.put(puts)?;
        }
        Ok(!oldest.is_empty())
    }

    /// Carries out the decision about one minute; returns what has to be put for it.
    fn judge(
        &mut self,
        standing: &Standing,
        bucket: Bucket,
        stored: Option<&Row>,
    ) -> Result<Option<Row>, Stumble> {
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
                return Ok(Some(row));
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
                let hole = DirtyHour { hole: true, ..DirtyHour::default() };
                self.note_dirty(start_ms, hole)?;
                self.settle(start_ms, stored_revision);
            }
            Decision::Refused => {
                self.rows.refused += 1;
                let superseded = DirtyHour { superseded: true, ..DirtyHour::default() };
                self.note_dirty(start_ms, superseded)?;
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

    /// Puts rows; each with whether it is the first one of its minute.
    fn put(&mut self, puts: Vec<(bool, (Row, PutCondition))>) -> Result<(), Stumble> {
        if puts.is_empty() {
            return Ok(());
        }
        let (are_first, puts): (Vec<bool>, Vec<_>) = puts.into_iter().unzip();
        let outcomes = put_resolved(self.shared.parts.counts.as_ref(), &puts);
        let now_ms = self.shared.parts.clock.now_ms();
        let mut failure = None;
        for (((row, _), is_first), outcome) in puts.iter().zip(are_first).zip(outcomes) {
            let start_ms = row.small.bucket.start_ms();
            match outcome {
                Ok(PutOutcome::Stored | PutOutcome::AlreadyDone) => {
                    self.rows.put += 1;
                    if is_first {
                        self.shared.parts.progress.freshness().note(now_ms - start_ms);
                    }
                    self.settle(start_ms, Some(row.small.revision));
                }
                Ok(PutOutcome::Refused { stored }) => self.refused(start_ms, stored.as_ref())?,
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Notes that the hour of a minute lacks records up to the present end of the log.
    fn note_dirty(&self, start_ms: i64, mut dirty: DirtyHour) -> Result<(), Stumble> {
        let ends = self.shared.parts.log.end_offsets();
        let ends = ends.map_err(|error| match error {
            // Until its server answers again, no minute can be let go.
            LogError::Unavailable { .. } => Stumble::Store(StoreError::Unavailable {
                action: "say where the log ends",
                source: error.into(),
            }),
            fatal => Stumble::Fatal(CountError::Log(fatal)),
        })?;
        dirty.positions = (0..).zip(ends).collect();
        self.shared.dirty.note(start_ms, &dirty);
        Ok(())
    }

    /// Publishes the hours that were found dirty, before any minute of them is let go.
    fn publish_dirty(&self) -> Result<(), Stumble> {
        let hours = self.shared.dirty.waiting();
        if !hours.is_empty() {
            dirty::raise(self.shared.parts.meta.as_ref(), &hours)?;
            self.shared.dirty.published(&hours);
        }
        Ok(())
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
        let waiting = WaitingRows {
            rows: self.minutes.waiting(),
            held: self.minutes.held(),
            oldest_ms: self.minutes.first_waiting(),
        };
        self.shared.parts.progress.show_rows(&self.rows, &waiting);
        self.shared.outbox.show_taken(self.minutes.waiting_bytes(), waiting.rows);
    }

    fn fenced(&self, theirs: Generation) -> Stumble {
        Stumble::Fatal(CountError::Fenced { ours: self.shared.parts.generation, theirs })
    }
}
