//! The log in Kafka against a real broker, and against librdkafka's mock cluster where a broker has
//! to fail in a way that a real one cannot be made to.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failure in a test is a panic; a topic that stays is worth a line"
)]

mod contract;
mod proxy;
mod reading;
mod support;
mod topics;
mod transactions;
mod writing;
