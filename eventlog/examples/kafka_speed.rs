//! How fast the log in Kafka appends and reads, next to the client library by itself:
//! `cargo run --release --example kafka_speed`.
//!
//! Arguments, all optional: records (2,000,000), rounds (3), broker (127.0.0.1:19092), settings of
//! the client as in a URL. Makes a topic of 8 partitions and deletes it. Payloads have 500 bytes
//! that lz4 halves.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tally_eventlog::kafka::{KafkaDemands, KafkaLog, KafkaOptions};
use tally_eventlog::{AppendError, EventLog, NewRecord, ReadLimits};
use tally_model::clock::ManualClock;

const PARTITIONS: u32 = 8;
const PAYLOAD_BYTES: usize = 500;
/// Records in one call of `append`, as a collector's request.
const CALL_RECORDS: u64 = 500;
const LIMITS: ReadLimits = ReadLimits { records: 10_000, bytes: 4 << 20 };

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome<T> = Result<T, Failure>;

#[expect(clippy::disallowed_methods, reason = "measuring is what this is for")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::print_stdout, reason = "its output")]
fn report(what: &str, records: u64, took: Duration) -> f64 {
    // Microseconds as seconds: a count becomes millions without a cast.
    let millions = Duration::from_micros(records).as_secs_f64() / took.as_secs_f64();
    println!("{what:<34} {millions:>8.3} million records/s");
    millions
}

#[expect(clippy::print_stdout, reason = "its output")]
fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let records: u64 = arguments.next().map_or(Ok(2_000_000), |text| text.parse())?;
    let rounds: u32 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let broker = arguments.next().unwrap_or_else(|| "127.0.0.1:19092".to_owned());
    let settings = arguments.next().unwrap_or_default();
    let topic = format!("tally-speed-{}", std::process::id());
    let options = KafkaOptions::parse(&format!("kafka://{broker}/{topic}?{settings}"))?;
    let demands = KafkaDemands {
        partitions: None,
        partitions_to_create: PARTITIONS,
        retention_ms_min: 0,
        retention_ms_to_create: 24 * 60 * 60 * 1_000,
        record_bytes_max: 1 << 18,
        accept_settings: true,
    };
    let log = KafkaLog::open(&options, &demands, Arc::new(ManualClock::new(0)))?;
    let measured = measure(&log, records, rounds, &broker, &topic);
    drop(log);
    KafkaLog::delete_topic(&options)?;
    for (readers, ratio) in measured? {
        println!("{readers} readers: {:.0} % of the client library by itself", ratio * 100.0);
    }
    Ok(())
}

/// Returns, by number of readers, the rate of the log's readers in rates of plain consumers: the
/// best of all rounds each.
fn measure(
    log: &KafkaLog,
    records: u64,
    rounds: u32,
    broker: &str,
    topic: &str,
) -> Outcome<Vec<(u32, f64)>> {
    let started = now();
    append(log, records)?;
    report("append, many callers", records, started.elapsed());
    let mut ratios = Vec::new();
    for readers in [1, 2] {
        let (mut best, mut best_plain) = (0.0_f64, 0.0_f64);
        for _ in 0..rounds {
            let took = in_parallel(readers, |own| read_plain(log, broker, topic, own), records)?;
            let plain = report(&format!("{readers} consumers by themselves"), records, took);
            best_plain = best_plain.max(plain);
            let took = in_parallel(readers, |own| read_log(log, own), records)?;
            best = best.max(report(&format!("{readers} readers of the log"), records, took));
        }
        ratios.push((readers, best / best_plain));
    }
    Ok(ratios)
}

/// Runs so many readers, each of its share of the partitions, until all records are read. Returns
/// how long that took, connections included.
fn in_parallel(
    readers: u32,
    read: impl Fn(&[u32]) -> Outcome<u64> + Sync,
    records: u64,
) -> Outcome<Duration> {
    let total = AtomicU64::new(0);
    let read = |reader: u32| {
        let own: Vec<_> =
            (0..PARTITIONS).filter(|partition| partition % readers == reader).collect();
        total.fetch_add(read(&own)?, Relaxed);
        Ok(())
    };
    let started = now();
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..readers).map(|reader| scope.spawn(move || read(reader))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.collect::<Vec<Result<Outcome<()>, _>>>()
    })
    .into_iter()
    .try_for_each(|ended| ended.unwrap_or_else(|_| Err("a reader panicked".into())))?;
    let took = started.elapsed();
    let read = total.load(Relaxed);
    if read != records {
        return Err(format!("{read} of {records} records were read").into());
    }
    Ok(took)
}

fn read_log(log: &KafkaLog, partitions: &[u32]) -> Outcome<u64> {
    let ends = log.end_offsets()?;
    let from: Vec<_> = partitions.iter().map(|partition| (*partition, 0)).collect();
    let mut reader = log.reader(&from)?;
    let (mut sum, mut count) = (0_u64, 0_u64);
    loop {
        let progress = reader.read(LIMITS, &mut |record| {
            sum = sum.wrapping_add(record.payload.last().copied().map_or(0, u64::from));
        })?;
        count += u64::try_from(progress.records)?;
        let is_done = |(partition, next): &(u32, u64)| {
            usize::try_from(*partition)
                .is_ok_and(|index| ends.get(index).is_some_and(|end| next >= end))
        };
        if progress.records < LIMITS.records && reader.positions().iter().all(is_done) {
            std::hint::black_box(sum);
            return Ok(count);
        }
    }
}

/// A plain consumer with the settings of the log's readers.
fn read_plain(log: &KafkaLog, broker: &str, topic: &str, partitions: &[u32]) -> Outcome<u64> {
    let ends = log.end_offsets()?;
    let mut left: u64 =
        partitions.iter().filter_map(|own| ends.get(usize::try_from(*own).ok()?)).sum();

    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("group.id", "tally-speed")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set("check.crcs", "true")
        .set("fetch.wait.max.ms", "100")
        .set("fetch.message.max.bytes", "4194304")
        .set("fetch.queue.backoff.ms", "5")
        .set("queued.min.messages", "200000")
        .set("queued.max.messages.kbytes", "65536")
        .create()?;
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition_offset(topic, i32::try_from(*partition)?, Offset::Beginning)?;
    }
    consumer.assign(&list)?;
    let (mut sum, mut count) = (0_u64, 0_u64);
    while left > 0 {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                sum = sum.wrapping_add(
                    message.payload().and_then(<[u8]>::last).copied().map_or(0, u64::from),
                );
                count += 1;
                left -= 1;
            }
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => {}
            Some(Err(error)) => return Err(error.into()),
            None => {}
        }
    }
    std::hint::black_box(sum);
    Ok(count)
}

/// Appends in calls of [`CALL_RECORDS`] and waits until all are confirmed.
fn append(log: &KafkaLog, records: u64) -> Outcome<()> {
    let (sender, receiver) = mpsc::channel::<Result<Vec<u64>, AppendError>>();
    let mut waiting = 0_u64;
    for first in (0..records).step_by(usize::try_from(CALL_RECORDS)?) {
        let last = records.min(first + CALL_RECORDS);
        loop {
            let sender = sender.clone();
            let done = Box::new(move |results: Vec<_>| {
                sender.send(results.into_iter().collect()).unwrap_or(());
            });
            match log.append((first..last).map(record).collect(), done) {
                Ok(()) => break,
                Err(AppendError::Overloaded { .. }) => {
                    receiver.recv()??;
                    waiting -= 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
        waiting += 1;
    }
    for _ in 0..waiting {
        receiver.recv()??;
    }
    Ok(())
}

/// Half of the payload is noise, half repeats.
fn record(number: u64) -> NewRecord {
    let mut state = number;
    let mut payload = Vec::with_capacity(PAYLOAD_BYTES);
    while payload.len() < PAYLOAD_BYTES / 2 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        payload.extend_from_slice(&state.to_be_bytes());
    }
    payload.resize(PAYLOAD_BYTES, b'x');
    let partition = u32::from(number.to_le_bytes()[0]) % PARTITIONS;
    NewRecord { partition, key: u128::from(number).to_le_bytes(), payload }
}
