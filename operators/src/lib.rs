//! The pure heart of the pipeline: dedup state, seen sets, watermarks, open windows.
//!
//! Plain state that is fed records and asked questions. No timely type, no clock, no randomness,
//! and no I/O but one seam: where [`dedup`] keeps frozen ids. The dataflow wraps these states in
//! operators, the collector uses [`seen`] in front of the log.
//!
//! ```
//! use tally_model::ids::MixedId;
//! use tally_model::rules::{DedupRule, Timing};
//! use tally_operators::dedup::{DedupOptions, DedupState, Verdict};
//!
//! let mut state = DedupState::new(DedupRule::DEFAULT, Timing::DEFAULT, DedupOptions::default());
//! assert_eq!(state.observe_one(MixedId(7), 1_000)?, Verdict::First);
//! assert_eq!(state.observe_one(MixedId(7), 2_000)?, Verdict::Repeat);
//! # Ok::<(), tally_operators::dedup::SegmentError>(())
//! ```

pub mod dedup;
pub mod seen;
pub mod watermark;
pub mod windows;
