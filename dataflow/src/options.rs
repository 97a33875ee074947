//! What a run works on, and how.

use std::sync::Arc;

use tally_checkpoints::objects::ObjectStore;
use tally_checkpoints::reader::Origin;
use tally_eventlog::EventLog;
use tally_model::clock::Clock;
use tally_model::ids::{IdMixer, Shards};
use tally_model::revision::Generation;
use tally_model::rules::{DedupRule, Timing};
use tally_operators::dedup::SegmentStore;
use tally_sinks::counts::{CountsStore, WriterId};
use tally_sinks::meta::MetaStore;

use crate::progress::CountProgress;
use crate::savepoints::Savepoints;
use crate::stop::StopSignal;

/// What a run works on.
#[derive(Clone, Debug)]
pub struct CountParts {
    /// The log to count.
    pub log: Arc<dyn EventLog>,
    /// Where the rows go.
    pub counts: Arc<dyn CountsStore>,
    /// Where the marks stand: origin, and how far minutes are readable and retired.
    pub meta: Arc<dyn MetaStore>,
    /// Where the dedup state keeps the ids that it has frozen. What an earlier run left there is
    /// taken over if the checkpoint names it, and removed if not.
    pub segments: Arc<dyn SegmentStore>,
    /// Where checkpoints lie; `None` counts the whole log at each start.
    pub checkpoints: Option<CheckpointParts>,
    /// Where savepoints are asked for.
    pub savepoints: Arc<Savepoints>,
    /// The deployment's keyed bijection of event ids.
    pub mixer: IdMixer,
    /// The clock that all workers share.
    pub clock: Arc<dyn Clock>,
    /// Number of this writer, drawn at random for this run.
    pub writer: WriterId,
    /// The generation that was claimed for this run.
    pub generation: Generation,
    /// Where the run shows how far it is; after an earlier run of this process, the same one.
    pub progress: Arc<CountProgress>,
    /// Ends the run.
    pub stop: Arc<StopSignal>,
}

/// Where checkpoints lie, and which one to start from.
#[derive(Clone, Debug)]
pub struct CheckpointParts {
    /// The object store.
    pub objects: Arc<dyn ObjectStore>,
    /// The deployment's id; checkpoints of another one are refused.
    pub deployment: String,
    /// What to start from.
    pub origin: Origin,
    /// How many whole checkpoints are kept besides savepoints.
    pub keep_last: usize,
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When it is told to.
    Continuous,
    /// At the end that the log had when the run started. All minutes are put then; which of them
    /// count as readable and retired follows the stamps, so that a later run still counts events
    /// that are on time.
    Bounded,
}

/// How much of the graph runs; less than all only to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// Reads and decodes records, mixes their ids, and drops them.
    Decode,
    /// Decides what is a repeat as well, and counts nothing.
    Dedup,
    /// Everything.
    All,
}

/// How a run works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountOptions {
    /// Worker threads.
    pub workers: usize,
    /// Shards of the deployment.
    pub shards: Shards,
    /// When minutes close and retire, and which events are late.
    pub timing: Timing,
    /// Which copies are repeats.
    pub dedup: DedupRule,
    /// How long an epoch lasts, in ms.
    pub epoch_ms: i64,
    /// A closed minute that changed is put again at most once in this time, in ms.
    pub restate_every_ms: i64,
    /// A checkpoint is begun so long after the last one, in ms, unless that one is still uploaded.
    pub checkpoint_every_ms: i64,
    /// Sources pause while more closed minutes than this wait for the store.
    pub windows_wait_minutes: usize,
    /// Most records of one worker's source that are on their way to the dedup stage.
    pub budget_records: usize,
    /// Most bytes of the same, as held in memory: what is not needed for counting stays behind in
    /// the log.
    pub budget_bytes: usize,
    /// When the run ends.
    pub mode: Mode,
    /// Count although retention has removed records that stored rows were made from.
    pub accept_hole: bool,
    /// How many whole UTC days of minute rows are kept besides today; older ones are not put.
    pub minutes_kept_days: i64,
    /// How much of the graph runs.
    pub stages: Stages,
}

impl Default for CountOptions {
    fn default() -> Self {
        Self {
            workers: 1,
            shards: Shards::DEFAULT,
            timing: Timing::DEFAULT,
            dedup: DedupRule::DEFAULT,
            epoch_ms: 1_000,
            restate_every_ms: 10_000,
            checkpoint_every_ms: 10_000,
            windows_wait_minutes: 24 * 60,
            budget_records: 1_000_000,
            budget_bytes: 64 << 20,
            mode: Mode::Continuous,
            accept_hole: false,
            minutes_kept_days: 60,
            stages: Stages::All,
        }
    }
}
