//! The ingest service: takes batches of events over HTTP and confirms them once the log has.
//!
//! The way of a request: [`http`] checks the key, bounds the body and answers; [`parse`] reads the
//! body; [`ingest`] judges each event, seals its personal part and encodes the record; [`append`]
//! numbers the records and hands them to the log. A 202 is sent only after every record of the
//! request is durable, and each event is accepted or rejected exactly once.
//!
//! What this crate does not do: serve connections (the binary does), count, or decide what is a
//! repeat beyond one request (the pipeline does).
//!
//! ```
//! use tally_collector::limits::Limits;
//! use tally_collector::parse::parse_batch;
//! use tally_model::reasons::RejectReason;
//!
//! let body = br#"{"events":[
//!     {"eventId":"0195f3a0-5b1c-7c3e-8a4d-0123456789ab","eventType":"page_view",
//!      "userId":"u-1","eventTime":"2026-03-10T09:59:30Z","properties":{"path":"/"}},
//!     {"eventId":"0195f3a0-5b1c-7c3e-8a4d-0123456789ac","eventType":"page_view",
//!      "userId":"u-1","eventTime":"yesterday"}
//! ]}"#;
//! let events = parse_batch(body, &Limits::default())?;
//! assert!(events[0].event.is_ok());
//! assert_eq!(events[1].event, Err(RejectReason::BadEventTime));
//! # Ok::<(), tally_collector::parse::BatchError>(())
//! ```

pub mod append;
pub mod background;
mod budget;
mod health;
pub mod http;
pub mod ingest;
pub mod limits;
pub mod metrics;
pub mod parse;
pub mod service;
#[cfg(test)]
mod testing;

pub use http::router;
pub use limits::{CollectorOptions, Limits};
pub use service::{Collector, CollectorParts};
