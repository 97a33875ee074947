//! What Tally counts and how it is written down: events, type slots, buckets, count vectors,
//! revisions, shards and the log record.
//!
//! Everything here is plain data and pure functions. There is no I/O, no clock and no
//! randomness, so every other crate can share it and every rule can be tested on its own. The
//! rules that decide *whether* an event counts ([`rules`]) and the naive model that every path is
//! held against ([`truth`]) live here too.
//!
//! ```
//! use tally_model::bucket::{Bucket, Granularity};
//! use tally_model::range::{Availability, TimeRange};
//!
//! // One day, two hours and one minute, read as the fewest aligned buckets.
//! let range = TimeRange::new(0, 26 * 3_600_000 + 60_000)?;
//! let plan = range.plan(&Availability::ALL);
//! assert_eq!(plan.buckets().count(), 4);
//! assert_eq!(plan.buckets().next(), Some(Bucket::containing(Granularity::Day, 0)));
//! # Ok::<(), tally_model::range::RangeError>(())
//! ```

pub mod bucket;
pub mod clock;
pub mod ids;
pub mod range;
pub mod reasons;
pub mod record;
pub mod revision;
pub mod rules;
#[cfg(test)]
mod strategies;
pub mod time;
pub mod truth;
pub mod types;
pub mod vector;
