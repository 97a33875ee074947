//! Why a run ended by itself.

use std::fmt;

use tally_checkpoints::CheckpointError;
use tally_eventlog::{LogError, Offset, Partition};
use tally_model::ids::Shard;
use tally_model::revision::{Generation, RevisionError};
use tally_operators::dedup::SegmentError;
use tally_sinks::error::StoreError;

/// Records that retention has removed: offsets `from..to` of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRange {
    /// The partition.
    pub partition: Partition,
    /// First missing offset.
    pub from: Offset,
    /// The oldest offset that is there.
    pub to: Offset,
}

impl fmt::Display for MissingRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {} lacks offsets {} to {}", self.partition, self.from, self.to - 1)
    }
}

/// Why a run ended by itself; one variant for each thing the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CountError {
    /// Records are gone before they were counted, although there are rows or a checkpoint, or while
    /// the run was reading: start with `accept_hole`, which never lowers a stored count, or recount
    /// elsewhere.
    #[error("counting anew would come out short: {}", list(ranges))]
    Hole {
        /// What is gone.
        ranges: Vec<MissingRange>,
    },
    /// The checkpoint was made from more records than the log holds: put the log back from a copy,
    /// or start from an older checkpoint.
    #[error("the checkpoint goes on behind the end of the log: {}", list(ranges))]
    LogShort {
        /// What the checkpoint has counted and the log lacks.
        ranges: Vec<MissingRange>,
    },
    /// There is no checkpoint to start from, or the last one could not be written.
    #[error("cannot use the checkpoints")]
    Checkpoint(#[source] CheckpointError),
    /// A shard's state in the checkpoint cannot be read by this release.
    #[error("the state of shard {} in the checkpoint cannot be used: {reason}", shard.0)]
    State {
        /// The shard.
        shard: Shard,
        /// What is wrong with it.
        reason: String,
    },
    /// A later start of the deployment writes now: stop, and do not start again.
    #[error("generation {ours} was replaced by generation {theirs}")]
    Fenced {
        /// The generation of this run.
        ours: Generation,
        /// The greater one that was met.
        theirs: Generation,
    },
    /// The store held something unreadable, or failed for too long at the end of a bounded run.
    #[error("cannot keep the counts")]
    Store(#[source] StoreError),
    /// The log cannot be read.
    #[error("cannot read the log")]
    Log(#[from] LogError),
    /// The dedup state cannot be read or written.
    #[error("cannot keep the ids that were seen")]
    Dedup(#[source] SegmentError),
    /// The clock shows a time that no revision can hold.
    #[error("the clock is wrong")]
    Clock(#[source] RevisionError),
    /// The run could not be started: fewer than one worker, or no thread to be had.
    #[error("cannot start counting: {reason}")]
    Start {
        /// What is in the way.
        reason: String,
    },
    /// A thread of the run panicked; its message stands on standard error.
    #[error("{thread} panicked")]
    Panicked {
        /// Which thread.
        thread: String,
    },
}

impl From<CheckpointError> for CountError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::TakenOver { own, greater } => {
                Self::Fenced { ours: own, theirs: greater }
            }
            other => Self::Checkpoint(other),
        }
    }
}

fn list(ranges: &[MissingRange]) -> String {
    ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
