//! The counting graph: from the event log to whole rows of the counts store.
//!
//! [`run`] reads a log on N worker threads, keeps the first copy of each event, adds events up by
//! minute and type, and puts each minute as one row: when it closes, and again when later arrivals
//! change it. It blocks until it is told to stop, or until the present end of the log in
//! [`Mode::Bounded`].
//!
//! ```text
//! source ──batches by shard──> dedup + local combine ──partials──> by type ──> by minute ──> sink
//!    └────watermark reports (to all)────┘  └────────────horizon────────────────────────────────┘
//! ```
//!
//! The timely timestamp is the *epoch*: coarse processing time in ms. Event time is data. All
//! state that must survive lies in plain structs, apart from the operators that feed it: by shard
//! (dedup ids, open minutes) or by worker (watermarks). The only place that talks to the counts
//! store is one writer thread.
//!
//! ```
//! use std::sync::Arc;
//!
//! use tally_dataflow::{CountOptions, CountParts, Mode, run};
//! use tally_eventlog::memory::MemoryLog;
//! use tally_model::clock::ManualClock;
//! use tally_model::ids::IdMixer;
//! use tally_model::revision::Generation;
//! use tally_operators::dedup::MemoryStore;
//! use tally_sinks::counts::WriterId;
//! use tally_sinks::counts::memory::MemoryCounts;
//! use tally_sinks::meta::memory::MemoryMeta;
//!
//! let clock = Arc::new(ManualClock::new(1_700_000_000_000));
//! let parts = CountParts {
//!     log: Arc::new(MemoryLog::new(4, clock.clone())),
//!     counts: Arc::new(MemoryCounts::default()),
//!     meta: Arc::new(MemoryMeta::default()),
//!     segments: Arc::new(MemoryStore),
//!     checkpoints: None,
//!     savepoints: Arc::default(),
//!     mixer: IdMixer::new([7; 16]),
//!     clock,
//!     writer: WriterId(1),
//!     generation: Generation::default(),
//!     progress: Arc::default(),
//!     stop: Arc::default(),
//! };
//! let options = CountOptions { workers: 2, mode: Mode::Bounded, ..CountOptions::default() };
//! let report = run(parts, options)?;
//! assert_eq!(report.totals.records, 0);
//! # Ok::<(), tally_dataflow::CountError>(())
//! ```

mod checkpoint_progress;
mod combine;
mod cuts;
mod decide;
mod dirty_notes;
mod error;
mod freshness;
mod frozen;
mod global;
mod holes;
mod horizon;
mod late_hours;
mod local;
mod options;
mod outbox;
mod progress;
mod reading;
mod restore;
mod run;
mod savepoints;
mod shard;
mod shared;
mod sink;
mod source;
mod stop;
#[cfg(test)]
mod testing;
mod totals;
mod uploader;
mod writer;

pub use checkpoint_progress::CheckpointProgress;
pub use error::{CountError, MissingRange};
pub use freshness::{FRESHNESS_BOUNDS_MS, Freshness};
pub use options::{CheckpointParts, CountOptions, CountParts, Mode, Stages};
pub use progress::{CountProgress, RowTotals};
pub use run::{CountReport, run};
pub use savepoints::{SavepointError, Savepoints};
pub use stop::StopSignal;
pub use totals::Totals;

/// The timely timestamp: coarse processing time in ms since the Unix epoch.
type Epoch = u64;
