//! The log as a topic of Apache Kafka.
//!
//! | what | how | why |
//! | --- | --- | --- |
//! | durable | `acks=all`, idempotent producer, and a topic with three replicas of which two are in sync | one machine may be lost |
//! | confirmed | each record by its own delivery report | a flush that ends says nothing about a record |
//! | bounded | what has no report waits in one queue of `queue.bytes`; a call is taken whole or not at all | librdkafka's own queue takes half of a call |
//! | partition | named by the caller | it follows from the shard, not from Kafka's hash |
//! | start | an exact offset, `auto.offset.reset=error` | a reader never jumps: what retention removed is [`LogError::OutOfRange`] |
//! | read | `read_committed`, up to the last stable offset | a record of an aborted transaction never happened |
//! | position | kept by Tally's checkpoints; a consumer group only mirrors it | one truth |
//! | append time | `LogAppendTime` where Tally makes the topic | retention counts from the append |
//!
//! The client is librdkafka. It connects again by itself: a broker that is gone makes appends end as
//! [`AppendError::Unknown`] after `delivery.timeout.ms`, makes [`LogReader::read`] hand out nothing,
//! and questions for offsets fail as [`LogError::Unavailable`] until it is back.

mod calls;
mod client;
mod options;
mod producer;
mod reader;
mod topic;
mod watermarks;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

use tally_model::clock::Clock;

use self::calls::Calls;
use self::client::{RECORD_OVERHEAD_BYTES, producer_config};
pub use self::options::{KafkaOptions, KafkaUrlError};
use self::producer::{Feeder, is_own_thread};
use self::reader::KafkaReader;
use self::watermarks::Watermarks;
use crate::queue::Queue;
use crate::stats::LogStats;
use crate::{AppendDone, AppendError, EventLog, LogError, LogReader, NewRecord, Offset, Partition};

/// What a deployment demands of the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KafkaDemands {
    /// Partitions of the deployment's layout; the topic may have more. None takes what is there.
    pub partitions: Option<Partition>,
    /// Partitions of a topic that is made.
    pub partitions_to_create: Partition,
    /// Records must be kept for longer than this.
    pub retention_ms_min: i64,
    /// How long a topic that is made keeps records.
    pub retention_ms_to_create: i64,
    /// Largest key and payload together.
    pub record_bytes_max: usize,
    /// Takes a topic whose settings can lose records, with a warning for each.
    pub accept_settings: bool,
}

/// A log in Kafka.
///
/// Dropping it waits up to five seconds for what is not acknowledged yet; after that every caller
/// is told that the outcome is unknown. Readers may outlive it.
pub struct KafkaLog {
    options: KafkaOptions,
    partitions: Partition,
    queue: Arc<Queue>,
    stats: Arc<LogStats>,
    watermarks: Arc<Watermarks>,
    feeder: Option<JoinHandle<()>>,
}

impl KafkaLog {
    /// Opens the topic, or makes it if it is missing.
    ///
    /// # Errors
    /// [`LogError::Settings`] if the topic's settings can lose records and are not accepted;
    /// [`LogError::Foreign`] if it has fewer partitions than demanded; [`LogError::Unavailable`] if
    /// the brokers do not answer; [`LogError::Client`] if the options fit no client.
    pub fn open(
        options: &KafkaOptions,
        demands: &KafkaDemands,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, LogError> {
        let watermarks = Watermarks::new(options)?;
        let topic = topic::open(options, demands, &watermarks)?;
        let partitions = demands.partitions.unwrap_or(topic.partitions);
        let watermarks = Arc::new(watermarks.of_partitions(partitions));
        // Where smaller records were accepted, a larger one is refused before it fails its neighbours.
        let batch_bytes_max = topic.batch_bytes_max.unwrap_or(usize::MAX);
        let record_bytes_max =
            demands.record_bytes_max.min(batch_bytes_max.saturating_sub(RECORD_OVERHEAD_BYTES));
        let stats = Arc::new(LogStats::default());
        let queue = Arc::new(Queue::new(options.queue_bytes_max, Arc::clone(&stats)));
        let calls = Arc::new(Calls::new(Arc::clone(&queue), Arc::clone(&stats), clock));
        let feeder = Feeder {
            queue: Arc::clone(&queue),
            calls,
            watermarks: Arc::clone(&watermarks),
            config: producer_config(options, record_bytes_max, batch_bytes_max),
            topic: options.topic().to_owned(),
            partitions,
            record_bytes_max,
        };
        let feeder = Some(feeder.start()?);
        Ok(Self { options: options.clone(), partitions, queue, stats, watermarks, feeder })
    }

    /// Makes a topic with these settings, on as many brokers as `replicas`; one that is there stays
    /// as it is.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] if the brokers refuse or do not answer.
    pub fn create_topic(
        options: &KafkaOptions,
        partitions: Partition,
        replicas: usize,
        settings: &[(&str, &str)],
    ) -> Result<(), LogError> {
        topic::create(options, partitions, replicas, settings)
    }

    /// Deletes the topic with everything in it.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] if the brokers refuse or do not answer.
    pub fn delete_topic(options: &KafkaOptions) -> Result<(), LogError> {
        topic::delete(options)
    }

    /// Raises the topic's number of partitions to this; one that has as many stays as it is.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] if the brokers refuse or do not answer.
    pub fn grow(options: &KafkaOptions, partitions: Partition) -> Result<(), LogError> {
        topic::grow(options, partitions)
    }

    fn all(&self) -> Vec<Partition> {
        (0..self.partitions).collect()
    }
}

impl EventLog for KafkaLog {
    fn partitions(&self) -> Partition {
        self.partitions
    }

    fn partitions_now(&self) -> Result<Partition, LogError> {
        self.watermarks.partitions_now()
    }

    fn append(&self, records: Vec<NewRecord>, done: AppendDone) -> Result<(), AppendError> {
        self.queue.push(records, done)
    }

    fn end_offsets(&self) -> Result<Vec<Offset>, LogError> {
        self.watermarks.ends(&self.all())
    }

    fn low_offsets(&self) -> Result<Vec<Offset>, LogError> {
        self.watermarks.lows(&self.all())
    }

    fn reader(&self, from: &[(Partition, Offset)]) -> Result<Box<dyn LogReader>, LogError> {
        if let Some(&(partition, offset)) = from.iter().find(|(p, _)| *p >= self.partitions) {
            return Err(LogError::OutOfRange { partition, offset, low: 0, end: 0 });
        }
        let (watermarks, stats) = (Arc::clone(&self.watermarks), Arc::clone(&self.stats));
        Ok(Box::new(KafkaReader::new(&self.options, watermarks, stats, from)?))
    }

    fn mirror_positions(&self, positions: &[(Partition, Offset)]) {
        self.watermarks.mirror(positions);
    }

    fn stats(&self) -> Arc<LogStats> {
        Arc::clone(&self.stats)
    }
}

impl Drop for KafkaLog {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(feeder) = self.feeder.take()
            // The last owner may have been a completion, for which the feeding thread waits.
            && !is_own_thread()
            && feeder.join().is_err()
        {
            tracing::error!("the thread that feeds the Kafka producer panicked");
        }
    }
}

impl fmt::Debug for KafkaLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaLog")
            .field("options", &self.options)
            .field("partitions", &self.partitions)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
