//! The query service: exact counts over HTTP.
//!
//! `GET /v1/stats/top` and `GET /v1/stats/series` answer from the counts store; `/v1/event-types`
//! lists, registers and changes event types. Nothing here knows users or events: what is read are
//! vectors of counts.
//!
//! An answer is made in steps that can be tested alone:
//! 1. [`ask`] reads the parameters, strictly;
//! 2. [`tally_model::range`] says which aligned buckets cover the range;
//! 3. [`resolve`] finds out, from the small rows of the periods concerned ([`manifest`]), which
//!    rows to add, and which are missing or not there yet;
//! 4. the reader takes their vectors from the cache, or from the store if it lacks that revision;
//! 5. [`answer`] ranks, and says how far the counts can be relied on.
//!
//! ```
//! use tally_model::types::TypeId;
//! use tally_model::vector::CountVector;
//! use tally_query_api::answer::rank;
//!
//! let names = ["__other", "signup", "login"];
//! let sum = CountVector::from_counts(vec![1, 7, 7]);
//! let top = rank(&sum, 10, |slot| names.get(usize::from(slot.0)).copied())?;
//! assert_eq!(top[0].event_type, "login", "ties go by name");
//! assert_eq!(top.len(), 2, "what the registry does not know has no rank");
//! # Ok::<(), tally_query_api::answer::UnknownSlot>(())
//! ```

pub mod answer;
pub mod api;
pub mod ask;
mod cache;
pub mod manifest;
pub mod metrics;
pub mod problem;
mod reader;
pub mod resolve;
pub mod shown;
pub mod spans;
#[cfg(test)]
mod testing;

pub use api::{QueryApi, QueryParts, QuerySettings, openapi_json, router};
