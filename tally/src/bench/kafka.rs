//! `tally bench kafka`: the pipeline over a topic, with the plain client beside it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tally_eventlog::kafka::{KafkaLog, KafkaOptions};
use tally_sinks::cql::CqlStore;

use super::{Row, count, generate, measure, print};
use crate::cli::BenchKafkaArgs;
use crate::clock::SystemClock;
use crate::config::{CountsPlace, LogPlace, Settings};
use crate::deployment::{Deployment, Missing, random};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::target::load_settings;

/// How long the plain client may see nothing of a topic that is not read to its end.
const SILENCE: Duration = Duration::from_secs(30);

pub(super) fn run(args: &BenchKafkaArgs) -> Result<(), Failure> {
    let workers = i64::from(args.workers);
    let name = format!("bench-{:016x}", u64::from_le_bytes(random()?));
    let url = with_place(&args.log, &name);
    let settings = load_settings(None, |layers| {
        layers.add_flag("--workers", "pipeline.workers", workers)?;
        layers.add_flag("--log", "log.url", url)?;
        layers.add_flag("--log", "log.accept_settings", true)?;
        if let Some(counts) = &args.counts {
            let keyspace = name.replace('-', "_");
            layers.add_flag("--counts", "counts.url", with_place(counts, &keyspace))?;
        }
        Ok(())
    })?;
    let LogPlace::Kafka(options) = settings.log.place.clone() else {
        return Err(Failure::usage("--log names no broker, like kafka://127.0.0.1:19092"));
    };
    let folder = tempfile::tempdir()?;
    let clock = Arc::new(SystemClock::new());
    let deployment = Deployment::open(folder.path(), Missing::Create, &settings, clock)?;
    output::note(format!("writing {} records into {}", args.synth.events, options.address()));
    let rows = rows(&deployment, &settings, &options, args);
    KafkaLog::delete_topic(&options)?;
    if let CountsPlace::Cql(options) = &settings.counts {
        CqlStore::drop_keyspace(options)?;
    }
    print("kafka", &rows?, args.output)
}

/// The URL of servers with a topic or keyspace of theirs.
fn with_place(servers: &str, name: &str) -> String {
    let (address, settings) = servers.split_once('?').unwrap_or((servers, ""));
    format!("{}/{name}?{settings}", address.trim_end_matches('/'))
}

fn rows(
    deployment: &Deployment,
    settings: &Settings,
    options: &KafkaOptions,
    args: &BenchKafkaArgs,
) -> Result<Vec<Row>, Failure> {
    let mut rows = vec![measure("generate", || generate::fill(deployment, &args.synth, |_| {}))?];
    rows.push(measure("client", || client(options, deployment.partitions, args.workers))?);
    rows.extend(count::stages(deployment, settings, args.workers)?);
    Ok(rows)
}

/// Reads every record with the client library alone, one consumer a thread: what the broker and the
/// client give on this machine.
fn client(options: &KafkaOptions, partitions: u32, workers: u16) -> Result<u64, Failure> {
    let read_share = |worker: u32| -> Result<u64, Failure> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", options.brokers())
            .set("group.id", "tally-bench")
            .set("check.crcs", "false")
            .set("enable.partition.eof", "true")
            .set("enable.auto.offset.store", "false")
            .set("enable.auto.commit", "false")
            .set("fetch.message.max.bytes", "4194304")
            .set("queued.min.messages", "500000")
            .set("queued.max.messages.kbytes", "262144")
            .create()
            .context("cannot make a consumer")?;
        let share = (worker..partitions).step_by(usize::from(workers));
        let (mut list, mut open) = (TopicPartitionList::new(), 0_u32);
        for partition in share {
            let partition = i32::try_from(partition)?;
            list.add_partition_offset(options.topic(), partition, Offset::Beginning)?;
            open += 1;
        }
        consumer.assign(&list)?;
        let (mut records, mut sum) = (0, 0_u64);
        while open > 0 {
            match consumer.poll(SILENCE) {
                Some(Ok(message)) => {
                    let last = message.payload().and_then(<[u8]>::last).copied();
                    sum = sum.wrapping_add(u64::from(last.unwrap_or(0)));
                    records += 1;
                }
                Some(Err(KafkaError::PartitionEOF(_))) => open -= 1,
                Some(Err(error)) => return Err(error.into()),
                None => return Err(Failure::message(Exit::Failed, "the broker sends nothing")),
            }
        }
        std::hint::black_box(sum);
        Ok(records)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..u32::from(workers)).map(|worker| scope.spawn(move || read_share(worker))).collect();
        let panicked = |_panic| Failure::message(Exit::Failed, "a reading thread panicked");
        threads.into_iter().map(|thread| thread.join().map_err(panicked)?).sum()
    })
}
