//! How fast the embedded log appends and reads: `cargo run --release --example log_speed`.
//!
//! Arguments, all optional: records (2,000,000), payload bytes (500), folder (a temporary one; its
//! disk is what is measured). Reading is from the page cache.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tally_eventlog::segment::{SegmentLog, SegmentOptions};
use tally_eventlog::{AppendError, EventLog, NewRecord, ReadLimits};
use tally_model::clock::ManualClock;

/// Records in one call of `append`, as a collector's request.
const CALL_RECORDS: u64 = 500;
const LIMITS: ReadLimits = ReadLimits { records: 10_000, bytes: 4 << 20 };

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[expect(clippy::disallowed_methods, reason = "measuring is what this is for")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::print_stdout, reason = "its output")]
fn report(what: &str, records: u64, payload_bytes: usize, took: Duration) {
    let seconds = took.as_secs_f64();
    // Microseconds as seconds: a count becomes millions without a cast.
    let millions = Duration::from_micros(records).as_secs_f64() / seconds;
    let bytes = records * u64::try_from(payload_bytes).unwrap_or(0);
    let megabytes = Duration::from_micros(bytes).as_secs_f64() / seconds;
    println!("{what:<34} {millions:>8.3} million records/s {megabytes:>8.1} MB/s");
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let records: u64 = arguments.next().map_or(Ok(2_000_000), |text| text.parse())?;
    let payload_bytes: usize = arguments.next().map_or(Ok(500), |text| text.parse())?;
    let temporary = tempfile::tempdir()?;
    let folder = arguments.next().map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let log = SegmentLog::open(&folder.join("log"), SegmentOptions::default(), clock)?;

    let started = now();
    append(&log, records, payload_bytes)?;
    report("append, many callers", records, payload_bytes, started.elapsed());
    report_commits(&log);

    let started = now();
    let calls = 200;
    for _ in 0..calls {
        append(&log, CALL_RECORDS, payload_bytes)?;
    }
    report("append, one caller", calls * CALL_RECORDS, payload_bytes, started.elapsed());

    let partitions: Vec<_> = (0..log.partitions()).map(|partition| (partition, 0)).collect();
    for round in ["read all, first", "read all, again"] {
        let started = now();
        let read = read(&log, &partitions)?;
        report(round, read, payload_bytes, started.elapsed());
    }
    let started = now();
    let quarter = read(&log, &partitions[..partitions.len() / 4])?;
    report("read a quarter of the partitions", quarter, payload_bytes, started.elapsed());
    Ok(())
}

/// Appends in calls of [`CALL_RECORDS`] and waits until all are confirmed.
fn append(log: &SegmentLog, records: u64, payload_bytes: usize) -> Outcome<()> {
    let (sender, receiver) = mpsc::channel();
    let mut waiting = 0_u64;
    for first in (0..records).step_by(usize::try_from(CALL_RECORDS)?) {
        let last = records.min(first + CALL_RECORDS);
        let mut call: Vec<_> = (first..last).map(|number| record(number, payload_bytes)).collect();
        loop {
            let sender = sender.clone();
            let done = Box::new(move |results: Vec<_>| {
                sender.send(results.into_iter().collect::<Result<Vec<_>, _>>()).unwrap_or(());
            });
            match log.append(call, done) {
                Ok(()) => break,
                Err(AppendError::Overloaded { .. }) => {
                    receiver.recv()??;
                    waiting -= 1;
                }
                Err(error) => return Err(error.into()),
            }
            call = (first..last).map(|number| record(number, payload_bytes)).collect();
        }
        waiting += 1;
    }
    for _ in 0..waiting {
        receiver.recv()??;
    }
    Ok(())
}

fn record(number: u64, payload_bytes: usize) -> NewRecord {
    let key = u128::from(number).to_le_bytes();
    let payload = vec![number.to_le_bytes()[0]; payload_bytes];
    NewRecord { partition: u32::from(key[0] % 8), key, payload }
}

/// Reads everything from these places on. Returns the number of records.
fn read(log: &SegmentLog, from: &[(u32, u64)]) -> Outcome<u64> {
    let mut reader = log.reader(from)?;
    let (mut records, mut sum) = (0_u64, 0_u64);
    loop {
        let progress = reader.read(LIMITS, &mut |record| {
            records += 1;
            sum = sum.wrapping_add(record.payload.last().copied().map_or(0, u64::from));
        })?;
        if progress.records == 0 {
            std::hint::black_box(sum);
            return Ok(records);
        }
    }
}

#[expect(clippy::print_stdout, reason = "its output")]
fn report_commits(log: &SegmentLog) {
    let stats = log.stats();
    let commits = stats.commits.load(Relaxed).max(1);
    println!(
        "{commits} commits of {} records; fdatasync {} us on average, {} us at most",
        stats.records.load(Relaxed) / commits,
        stats.sync_ns_total.load(Relaxed) / 1_000 / commits,
        stats.sync_ns_max.load(Relaxed) / 1_000,
    );
}
