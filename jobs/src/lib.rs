//! Work on stored counts, beside the streaming path: folding minutes into hours and days, and
//! deleting what is past its retention.
//!
//! A job reads the row that it would replace, then its source, and puts the new row under the
//! condition that the row is still the one that it read. So a job that was stopped, killed or
//! overtaken at any point has done nothing wrong, and its next run goes on from what is stored.
//!
//! - [`rollup`]: minute rows to hour rows to day rows;
//! - [`retention`]: whole periods of rows that are past their days.
//!
//! ```
//! use std::sync::Arc;
//! use tally_jobs::rollup::{Rollup, RollupOptions, RollupParts, Sweep};
//! use tally_model::clock::ManualClock;
//! use tally_sinks::counts::memory::MemoryCounts;
//! use tally_sinks::leases::Owner;
//! use tally_sinks::meta::memory::MemoryMeta;
//!
//! let parts = RollupParts {
//!     counts: Arc::new(MemoryCounts::default()),
//!     meta: Arc::new(MemoryMeta::default()),
//!     clock: Arc::new(ManualClock::new(0)),
//!     owner: Owner(1),
//! };
//! let report = Rollup::new(parts, RollupOptions::default()).run(Sweep::All, &|| true)?;
//! assert_eq!(report.folded(), 0, "nothing was counted yet");
//! # Ok::<(), tally_jobs::JobError>(())
//! ```

pub mod retention;
pub mod rollup;

use tally_model::bucket::Bucket;
use tally_model::revision::RevisionError;
use tally_model::time::format_rfc3339;
use tally_model::vector::VectorError;
use tally_sinks::error::StoreError;

/// Why a job ended early. What it had done by then stands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// A store did not do what it was asked: run the job again later.
    #[error("a store failed")]
    Store(#[from] StoreError),
    /// Counts do not fit into 64 bits: nothing to be done but to look at them.
    #[error(
        "the counts of the {} of {} do not fit",
        .bucket.granularity(), format_rfc3339(.bucket.start_ms())
    )]
    Overflow {
        /// The bucket that cannot be folded.
        bucket: Bucket,
        /// What does not fit.
        #[source]
        source: VectorError,
    },
    /// The clock shows a time that no revision can hold: set it right.
    #[error("the clock is wrong")]
    Clock(#[from] RevisionError),
}
