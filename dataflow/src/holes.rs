//! Records that retention removed before they were counted: which ones, and whose hours they are.
//!
//! They are found when a run starts, and while it runs if retention overtakes a reader. Never a
//! silent jump: each range is said with its exact offsets, and its hours are noted as dirty before
//! a checkpoint stands behind it.
//!
//! Invariant C-4 of ARCHITECTURE.md.

use std::ops::Range;

use tally_eventlog::{EventLog, LogError, Offset, Partition, ReadLimits};
use tally_model::record::{Decoded, RecordHead};
use tally_model::rules::Timing;

use crate::error::{CountError, MissingRange};
use crate::options::CountParts;
use crate::reading::Reading;
use crate::shared::Shared;

/// A missing range, and when its records were received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) range: MissingRange,
    /// From, to; in ms since the Unix epoch.
    pub(crate) received_ms: Range<i64>,
}

/// When the records of a missing range were received: after `counted_ms`, up to which everything is
/// counted for certain, and before the first record that is still there.
///
/// # Errors
/// [`CountError::Log`].
pub(crate) fn received(
    parts: &CountParts,
    timing: &Timing,
    counted_ms: i64,
    range: &MissingRange,
) -> Result<Range<i64>, CountError> {
    let first_ms = first_received(parts.log.as_ref(), range.partition, range.to)?;
    let to_ms = match first_ms {
        // Records may be out of order by the time that an append takes.
        Some(first_ms) => first_ms + timing.append_grace_ms + 1,
        None => parts.clock.now_ms(),
    };
    Ok(counted_ms..to_ms.max(counted_ms))
}

/// The receivedAt stamp of the first event from an offset on, if one is near.
fn first_received(
    log: &dyn EventLog,
    partition: Partition,
    offset: Offset,
) -> Result<Option<i64>, LogError> {
    let limits = ReadLimits { records: 100, bytes: 1 << 20 };
    let mut first_ms = None;
    let mut each = |payload: &[u8]| {
        if let (None, Ok(Decoded::Event(head))) = (first_ms, RecordHead::decode(payload)) {
            first_ms = Some(head.received_at_ms);
        }
    };
    let read = log
        .reader(&[(partition, offset)])
        .and_then(|mut reader| reader.read(limits, &mut |record| each(record.payload)));
    match read {
        // Retention is already further on, which the reader will find as well.
        Ok(_) | Err(LogError::OutOfRange { .. }) => Ok(first_ms),
        Err(error) => Err(error),
    }
}

/// Lets a reader that retention has overtaken go on at the oldest records that are there, if the
/// run accepts holes. `error` is what it met.
///
/// # Errors
/// [`CountError::Hole`] with what is gone unless that is accepted; [`CountError::Log`] with `error`
/// if nothing is gone.
pub(crate) fn pass_over(
    shared: &Shared,
    reading: &mut Reading,
    error: LogError,
) -> Result<(), CountError> {
    let (parts, options) = (&shared.parts, &shared.options);
    let ranges = match reading.missing() {
        // The next read meets the hole again, and by then the log may answer.
        Err(LogError::Unavailable { .. }) => return Ok(()),
        ranges => ranges?,
    };
    if ranges.is_empty() {
        return Err(error.into());
    }
    for range in &ranges {
        tracing::error!(missing = %range, "retention has removed records before they were counted");
    }
    if !options.accept_hole {
        return Err(CountError::Hole { ranges });
    }
    let watermark_ms = parts.progress.watermark_ms().max(shared.start.watermark_ms());
    let counted_ms = watermark_ms
        .map_or(shared.start.first_minute_ms, |at_ms| at_ms - options.timing.retire_after_ms());
    for range in ranges {
        let received_ms = match received(parts, &options.timing, counted_ms, &range) {
            Err(CountError::Log(LogError::Unavailable { .. })) => return Ok(()),
            received_ms => received_ms?,
        };
        note(shared, &Hole { range, received_ms });
        reading.go_on_at(range.partition, range.to);
    }
    Ok(())
}

/// Notes the hours of a hole as dirty, and counts its records.
pub(crate) fn note(shared: &Shared, hole: &Hole) {
    let MissingRange { partition, from, to } = hole.range;
    shared.dirty.note_hole(hole.received_ms.clone(), (partition, to));
    shared.parts.progress.miss(to - from);
}
