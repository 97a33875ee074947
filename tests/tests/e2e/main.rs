//! End to end: real processes of the real binary, real data, real crashes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failure in a test is a panic")]

mod bad_input;
mod checkpoints;
mod clients;
mod crash;
mod dedup;
mod kafka_partitions;
mod late;
mod live;
mod real_data;
mod rollup;
mod servers;
mod synthetic;
mod tidy;
mod torture;
mod torture_servers;
