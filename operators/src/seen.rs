//! Bounded sets of keys that were seen: what a long-running process may keep for recognising
//! duplicates that come soon.
//!
//! [`CountBounded`] keeps a number of keys, [`TimeBuckets`] keeps keys for a time. Both forget, so
//! a duplicate whose twin is forgotten counts as new: exactness is [`dedup`](crate::dedup)'s task.
//! Keys are 16 bytes and never the payload. Sizes are known, and so are hits and evictions: a hit
//! rate that collapses says that the bound has become too small for the traffic, no eviction at
//! peak says that the bound was a guess.
//!
//! A set only lasts as long as its process and knows only its own process's keys.

mod count_bounded;
mod time_buckets;

pub use self::count_bounded::{CountBounded, Policy, ZeroCapacity};
pub use self::time_buckets::{TimeBuckets, TimeBucketsError};

/// What a seen set has done and how large it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenStats {
    /// Keys held.
    pub size: u64,
    /// Keys that were asked for or added and were there.
    pub hits: u64,
    /// Keys that were asked for or added and were not there.
    pub misses: u64,
    /// Keys that were forgotten because their time was over or room was needed.
    pub evictions: u64,
}
