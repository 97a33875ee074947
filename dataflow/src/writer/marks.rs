//! The end of a minute: its row is read back, then it is let go and the marks move on.
//!
//! Invariant P-4 of ARCHITECTURE.md.

use std::collections::BTreeMap;

use tally_model::bucket::Bucket;
use tally_model::revision::Revision;
use tally_sinks::error::StoreError;
use tally_sinks::marks::{self, Advance};

use super::minutes::MinuteState;
use super::{Stumble, Writer};

/// How often the marks are published, at most.
const MARKS_EVERY_MS: i64 = 1_000;

/// The marks as they were last published.
#[derive(Debug, Default)]
pub(super) struct Marks {
    readable_up_to_ms: Option<i64>,
    retired_up_to_ms: Option<i64>,
    published_at_ms: Option<i64>,
}

impl Writer {
    /// Reads the rows of retired minutes back once, as readers read them, and lets go of those that
    /// are there. One that is not is put again.
    pub(super) fn retire(&mut self) -> Result<(), Stumble> {
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
    pub(super) fn publish(&mut self, now: bool) -> Result<(), Stumble> {
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
}

/// The mark, but not beyond the first minute that is not done.
fn capped(mark_ms: Option<i64>, first_undone_ms: Option<i64>) -> Option<i64> {
    match (mark_ms, first_undone_ms) {
        (Some(mark_ms), Some(first_ms)) => Some(mark_ms.min(first_ms)),
        (mark_ms, None) => mark_ms,
        (None, Some(_)) => None,
    }
}
