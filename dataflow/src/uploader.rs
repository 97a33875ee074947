//! The uploader thread: turns cuts into checkpoints, beside the flow.
//!
//! It owns the checkpoint writer. A checkpoint that cannot be written is given up with a word of
//! warning, and the next one covers it; counting never waits. Hours that lack records which
//! retention removed are published first: behind a checkpoint nobody would find the hole again.
//! After each one, late hours are published from it and what no checkpoint needs is collected.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use tally_checkpoints::manifest::Cut;
use tally_checkpoints::writer::{ShardPart, Uploaded, Writer};
use tally_checkpoints::{CheckpointError, CheckpointId, SavepointName};
use tally_operators::dedup::SegmentHandle;
use tally_sinks::dirty;
use tally_sinks::error::StoreError;

use crate::checkpoint_progress::Written;
use crate::cuts::{Frozen, Purpose};
use crate::error::CountError;
use crate::late_hours::LateHours;
use crate::savepoints::{SavepointError, SavepointOutcome};
use crate::shared::Shared;
use crate::totals::Totals;

/// Why a cut did not become a checkpoint.
#[derive(Debug, thiserror::Error)]
enum UploadError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// It would hide that records are missing.
    #[error("cannot publish which hours lack records")]
    Holes(#[source] StoreError),
}

impl From<UploadError> for CountError {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Checkpoint(error) => error.into(),
            UploadError::Holes(error) => Self::Store(error),
        }
    }
}

/// Uploads the cuts of a run. Runs on its own thread.
#[derive(Debug)]
pub(crate) struct Uploader {
    shared: Arc<Shared>,
    writer: Writer,
    /// What had become of records before they reached a shard when the run started.
    source_totals: Totals,
    /// Those of the last whole checkpoint.
    late_hours: LateHours,
    /// Whether they are published.
    published: bool,
}

impl Uploader {
    /// `late_hours` are those of the checkpoint that was restored.
    pub(crate) fn new(shared: Arc<Shared>, writer: Writer, late_hours: LateHours) -> Self {
        let source_totals = shared.start.source_totals();
        Self { shared, writer, source_totals, late_hours, published: false }
    }

    /// Uploads until the run has ended.
    ///
    /// # Errors
    /// [`CountError::Fenced`] if a later start has taken over, and whatever else makes it
    /// impossible to write any further checkpoint; [`CountError::Checkpoint`] if the last one could
    /// not be written.
    pub(crate) fn run(mut self) -> Result<(), CountError> {
        // The last run may have ended between its last checkpoint and this.
        self.publish();
        while let Some(frozen) = self.shared.cuts.next() {
            let is_last = matches!(frozen.purpose, Purpose::Last);
            match self.checkpoint(frozen) {
                Ok(()) => {}
                Err(error) if is_last || is_fatal(&error) => return Err(error.into()),
                Err(error) => tracing::error!(
                    error = %describe(&error),
                    in_a_row = self.shared.parts.progress.checkpoints().failed_in_a_row(),
                    "a checkpoint was not written; the next one covers it"
                ),
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self, mut frozen: Frozen) -> Result<(), UploadError> {
        let clock = Arc::clone(&self.shared.parts.clock);
        let began_ms = clock.monotonic_ms();
        let late_hours = self.late_hours.at_cut(&frozen.shards, &frozen.next_offsets);
        let purpose = std::mem::replace(&mut frozen.purpose, Purpose::Regular);
        let positions: Vec<_> = frozen.next_offsets.iter().map(|(of, next)| (*of, *next)).collect();
        let progress = Arc::clone(&self.shared.parts.progress);
        let progress = progress.checkpoints();
        let holes = self.publish_holes().map_err(UploadError::Holes);
        match holes.and_then(|()| Ok(self.write(frozen, &late_hours)?)) {
            Ok((id, uploaded)) => {
                progress.wrote(Written {
                    at_ms: clock.now_ms(),
                    bytes: uploaded.bytes,
                    took_ms: clock.monotonic_ms() - began_ms,
                });
                self.shared.parts.log.mirror_positions(&positions);
                self.published &= late_hours == self.late_hours;
                self.late_hours = late_hours;
                self.publish();
                if let Purpose::Savepoint(request) = purpose {
                    let outcome = self.keep(id, &request.name);
                    request.answer(outcome);
                }
                Ok(self.collect()?)
            }
            Err(error) => {
                progress.fail();
                if let Purpose::Savepoint(request) = purpose {
                    let reason = describe(&error);
                    request.answer(Err(SavepointError::NotWritten { reason }));
                }
                Err(error)
            }
        }
    }

    /// Writes one checkpoint.
    fn write(
        &mut self,
        frozen: Frozen,
        late_hours: &LateHours,
    ) -> Result<(CheckpointId, Uploaded), CheckpointError> {
        let mut totals = self.source_totals;
        totals += frozen.totals;
        let mut pending = self.writer.begin(Cut {
            epoch: frozen.epoch,
            watermark_ms: frozen.watermark_ms,
            created_at_ms: self.shared.parts.clock.now_ms(),
            next_offsets: frozen.next_offsets,
            totals: totals.by_name(),
            global_state: late_hours.encode(),
        })?;
        // One after the other, so that what is uploaded can be let go.
        for shard in frozen.shards {
            let segments: BTreeMap<String, &SegmentHandle> =
                shard.segments().map(|of| (of.name.to_string(), of)).collect();
            let names: Vec<String> = segments.keys().cloned().collect();
            let part = ShardPart {
                shard: shard.shard,
                state: &shard.encode(),
                segments: &names,
                totals: shard.totals.by_name(),
            };
            pending.put(part, &mut |name| {
                let segment = segments.get(name).ok_or(io::ErrorKind::NotFound)?;
                segment.data.export().map_err(io::Error::other)
            })?;
        }
        pending.finish()
    }

    fn keep(&self, id: CheckpointId, name: &SavepointName) -> SavepointOutcome {
        match self.writer.keep(name) {
            Ok(()) => Ok(id),
            Err(CheckpointError::SavepointExists { name }) => Err(SavepointError::Exists { name }),
            Err(error) => Err(SavepointError::NotWritten { reason: describe(&error) }),
        }
    }

    /// Publishes the hours of holes that were noted before the cut at hand.
    fn publish_holes(&self) -> Result<(), StoreError> {
        let mut hours = self.shared.dirty.waiting();
        hours.retain(|_, dirty| dirty.hole);
        dirty::raise(self.shared.parts.meta.as_ref(), &hours)?;
        self.shared.dirty.published(&hours);
        Ok(())
    }

    /// Publishes the late hours of the last whole checkpoint.
    fn publish(&mut self) {
        if self.published {
            return;
        }
        match dirty::raise(self.shared.parts.meta.as_ref(), &self.late_hours.0) {
            Ok(()) => self.published = true,
            Err(error) => tracing::warn!(
                error = %describe(&error),
                "late hours are not published yet; tried again after the next checkpoint"
            ),
        }
    }

    /// Removes what no checkpoint needs. A store that fails loses nothing: the next one removes it.
    fn collect(&mut self) -> Result<(), CheckpointError> {
        let collected = match self.writer.collect() {
            Ok(collected) => collected,
            Err(CheckpointError::Objects(error)) => {
                tracing::warn!(error = %describe(&error), "old checkpoints are not removed yet");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for savepoint in collected.held_back_by {
            tracing::error!(
                %savepoint,
                "a savepoint is damaged: nothing is removed from the object store until it is \
                 removed or put back"
            );
        }
        Ok(())
    }
}

/// Whether no further checkpoint of this run can be written either.
fn is_fatal(error: &UploadError) -> bool {
    match error {
        UploadError::Checkpoint(error) => !matches!(error, CheckpointError::Objects(_)),
        UploadError::Holes(error) => {
            !matches!(error, StoreError::Unavailable { .. } | StoreError::Unknown { .. })
        }
    }
}

/// The error with its causes, in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
