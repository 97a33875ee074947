//! `tally bench`: figures that anyone can repeat.

mod count;
mod dedup;
mod generate;
mod kafka;
mod query;

pub(crate) use query::BenchQueryArgs;

use serde::Serialize;
use tally_model::clock::Clock;

use crate::cli::BenchCommand;
use crate::clock::SystemClock;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::process;

/// `tally bench …`.
pub(crate) fn bench(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Count(args) => count::run(args),
        BenchCommand::Dedup(args) => dedup::run(args),
        BenchCommand::Kafka(args) => kafka::run(args),
        BenchCommand::Query(args) => query::run(args),
        BenchCommand::Generate(args) => generate::run(args),
    }
}

/// One row of a report.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    per_second: f64,
    seconds: f64,
    cpu_seconds: f64,
    peak_rss_bytes: u64,
    #[serde(flatten)]
    more: serde_json::Map<String, serde_json::Value>,
}

/// Runs `work`, which returns how many things it did, and measures it.
fn measure(
    name: &'static str,
    work: impl FnOnce() -> Result<u64, Failure>,
) -> Result<Row, Failure> {
    let clock = SystemClock::new();
    process::reset_peak();
    let cpu_before = process::usage().cpu_seconds;
    let before_ms = clock.monotonic_ms();
    let done = work()?;
    let seconds = seconds(clock.monotonic_ms() - before_ms);
    let usage = process::usage();
    Ok(Row {
        name,
        per_second: float(done) / seconds.max(0.001),
        seconds,
        cpu_seconds: usage.cpu_seconds - cpu_before,
        peak_rss_bytes: usage.peak_rss_bytes,
        more: serde_json::Map::new(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to count with")]
fn float(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "a figure to read, not to count with")]
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

/// Prints a report.
fn print(bench: &str, rows: &[Row], format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        return output::json(&serde_json::json!({"bench": bench, "rows": rows}));
    }
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let more: Vec<String> =
                row.more.iter().map(|(key, value)| format!("{key} {value}")).collect();
            vec![
                row.name.to_owned(),
                format!("{:.0}", row.per_second),
                format!("{:.2}", row.seconds),
                format!("{:.2}", row.cpu_seconds),
                format!("{} MiB", row.peak_rss_bytes >> 20),
                more.join(", "),
            ]
        })
        .collect();
    let headings = ["name", "per second", "seconds", "cpu seconds", "peak rss", "more"];
    output::rows(format, &headings, &cells)
}
