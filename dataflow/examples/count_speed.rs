//! How fast the graph counts, stage by stage: `count_speed [EVENTS] [WORKERS] [FOLDER]`.
//!
//! Writes 500-byte records into an embedded log in FOLDER (default: a new folder under the
//! temporary folder, removed at the end) and counts them in bounded mode with each number of stages.

#![expect(clippy::print_stdout, clippy::expect_used, reason = "an example for people")]
#![expect(clippy::disallowed_methods, reason = "measures wall-clock time")]

use std::sync::{Arc, mpsc};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use prost::Message;
use tally_dataflow::{CountOptions, CountParts, Mode, Stages, run};
use tally_eventlog::segment::{SegmentLog, SegmentOptions};
use tally_eventlog::{EventLog, NewRecord, ReadLimits};
use tally_model::clock::Clock;
use tally_model::ids::{EventId, IdMixer, Shards};
use tally_model::record::{RECORD_VERSION, Record};
use tally_model::revision::Generation;
use tally_operators::dedup::MemoryStore;
use tally_sinks::counts::WriterId;
use tally_sinks::counts::memory::MemoryCounts;
use tally_sinks::meta::memory::MemoryMeta;

#[derive(Debug)]
struct SystemClock(Instant);

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        i64::try_from(since.as_millis()).expect("before the year 292 million")
    }

    fn monotonic_ms(&self) -> i64 {
        i64::try_from(self.0.elapsed().as_millis()).expect("not that long")
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let events = arguments.next().map_or(2_000_000, |n| n.parse().expect("a number of events"));
    let workers = arguments.next().map_or(2, |n| n.parse().expect("a number of workers"));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock(Instant::now()));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = arguments.next().map_or_else(|| folder.path().to_owned(), Into::into);
    let log = Arc::new(open(&path, &clock));
    let present: u64 = log.end_offsets().expect("ends").iter().sum();
    if present == 0 {
        let started = Usage::now();
        fill(log.as_ref(), events, clock.now_ms());
        report("generate", events, started);
    }
    let total: u64 = log.end_offsets().expect("ends").iter().sum();
    let started = Usage::now();
    raw(log.as_ref(), workers);
    report("raw", total, started);
    for (number, (name, stages)) in
        (1..).zip([("decode", Stages::Decode), ("dedup", Stages::Dedup), ("count", Stages::All)])
    {
        let parts = CountParts {
            log: Arc::<SegmentLog>::clone(&log),
            counts: Arc::new(MemoryCounts::default()),
            meta: Arc::new(MemoryMeta::default()),
            segments: Arc::new(MemoryStore),
            checkpoints: None,
            savepoints: Arc::default(),
            mixer: IdMixer::new([7; 16]),
            clock: Arc::clone(&clock),
            writer: WriterId(number),
            generation: Generation::new(1).expect("fits"),
            progress: Arc::default(),
            stop: Arc::default(),
        };
        let options =
            CountOptions { workers, mode: Mode::Bounded, stages, ..CountOptions::default() };
        let started = Usage::now();
        let outcome = run(parts, options).expect("counted");
        report(name, outcome.totals.records, started);
        println!("  counted {:?}, rows {:?}", outcome.counted_by_worker, outcome.rows);
    }
}

fn open(path: &std::path::Path, clock: &Arc<dyn Clock>) -> SegmentLog {
    let options = SegmentOptions { partitions: 4, ..SegmentOptions::default() };
    SegmentLog::open(path, options, Arc::clone(clock)).expect("the log opens")
}

/// Wall-clock time and CPU time of the process.
#[derive(Clone, Copy)]
struct Usage {
    at: Instant,
    cpu_seconds: f64,
}

impl Usage {
    fn now() -> Self {
        // User and system time in hundredths of a second, the 14th and 15th field.
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks = after_name.split_whitespace().skip(11).take(2);
        let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
        Self { at: Instant::now(), cpu_seconds: ticks / 100.0 }
    }
}

fn report(name: &str, records: u64, started: Usage) {
    let seconds = started.at.elapsed().as_secs_f64();
    let cpu_seconds = Usage::now().cpu_seconds - started.cpu_seconds;
    let records = u32::try_from(records).map_or(f64::INFINITY, f64::from);
    println!(
        "{name:9} {:>10.0} records/s  {seconds:>6.2} s  {cpu_seconds:>6.2} CPU s  {:>5.0} CPU ns a record",
        records / seconds,
        cpu_seconds * 1e9 / records
    );
}

/// Three days of events, 40 % of one type, two seconds old on average.
fn fill(log: &dyn EventLog, events: u64, now_ms: i64) {
    const BATCH: u64 = 10_000;
    let mixer = IdMixer::new([7; 16]);
    let span_ms = 3 * 86_400_000_i64;
    let start_ms = now_ms - span_ms;
    let step =
        |id: u64| i64::try_from(id).expect("fits") * span_ms / i64::try_from(events).expect("fits");
    let mut last = None;
    for batch in (0..events).step_by(usize::try_from(BATCH).expect("fits")) {
        let records = (batch..(batch + BATCH).min(events)).map(|number| {
            // One in fifty repeats an earlier event.
            let id = if number % 50 == 49 { number - 37 } else { number };
            let key = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut bytes = [1; 16];
            bytes[..8].copy_from_slice(&key.to_be_bytes());
            let slot =
                if key % 5 < 2 { 1 } else { 2 + u32::try_from(key >> 8 & 31).expect("small") };
            let received_at_ms = start_ms + step(number);
            let payload = Record {
                version: RECORD_VERSION,
                event_id: bytes.to_vec(),
                slot,
                event_time_ms: received_at_ms - i64::try_from(key & 4095).expect("small"),
                received_at_ms,
                row_tag: vec![3; 16],
                sealed: vec![4; 400],
                run: 5,
                sequence: number,
                ..Record::default()
            }
            .encode_to_vec();
            let shard = mixer.mix(EventId(bytes)).shard(Shards::DEFAULT);
            NewRecord { partition: shard.partition(log.partitions()), key: bytes, payload }
        });
        let (done, is_done) = mpsc::channel();
        log.append(records.collect(), Box::new(move |results| done.send(results).expect("heard")))
            .expect("appended");
        if let Some(last) = last.replace(is_done) {
            let _stored: Vec<_> = last.recv().expect("an answer");
        }
    }
    if let Some(last) = last {
        last.recv().expect("an answer");
    }
}

/// Reads everything and does nothing with it.
fn raw(log: &dyn EventLog, workers: usize) {
    let ends = log.end_offsets().expect("ends");
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let ends = &ends;
            scope.spawn(move || {
                let mine: Vec<_> =
                    (0..log.partitions()).zip(0..).skip(worker).step_by(workers).collect();
                let from: Vec<(u32, u64)> =
                    mine.iter().map(|(p, _): &(u32, u64)| (*p, 0)).collect();
                let mut left: u64 =
                    from.iter().map(|(p, _)| ends[usize::try_from(*p).expect("fits")]).sum();
                let mut reader = log.reader(&from).expect("a reader");
                let limits = ReadLimits { records: 16_384, bytes: 16 << 20 };
                let mut sum = 0_u64;
                while left > 0 {
                    let read = reader
                        .read(limits, &mut |record| {
                            sum += u64::from(record.payload.last().copied().unwrap_or(0));
                        })
                        .expect("read");
                    left -= u64::try_from(read.records).expect("fits");
                }
                std::hint::black_box(sum);
            });
        }
    });
}
