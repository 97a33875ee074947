//! Where the partitions of a topic begin and end.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{Offset as Place, TopicPartitionList};

use super::client::{Messages, cannot_make, consumer_config, unavailable};
use super::options::KafkaOptions;
use crate::convert::to_index;
use crate::{LogError, Offset, Partition};

/// How long a question may take.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// Asks the brokers, and remembers the greatest end of each partition that anybody has heard of.
pub(super) struct Watermarks {
    client: BaseConsumer<Messages>,
    topic: String,
    /// By partition: everything before is there for readers.
    ends_seen: Vec<AtomicU64>,
}

impl Watermarks {
    pub(super) fn new(options: &KafkaOptions) -> Result<Self, LogError> {
        let client = consumer_config(options)
            .create_with_context(Messages)
            .map_err(cannot_make("make a consumer"))?;
        Ok(Self { client, topic: options.topic.clone(), ends_seen: Vec::new() })
    }

    /// With room for the ends of so many partitions.
    pub(super) fn of_partitions(mut self, partitions: Partition) -> Self {
        self.ends_seen = (0..partitions).map(|_| AtomicU64::new(0)).collect();
        self
    }

    pub(super) const fn client(&self) -> &BaseConsumer<Messages> {
        &self.client
    }

    /// The offset after the last record that readers can reach, by partition as asked for: while a
    /// transaction is open, everything from its first record on is not to be read yet.
    pub(super) fn ends(&self, partitions: &[Partition]) -> Result<Vec<Offset>, LogError> {
        let ends = self.ask(partitions, Place::End, "ask for the end offsets")?;
        for (partition, end) in partitions.iter().zip(&ends) {
            self.saw_end(*partition, *end);
        }
        Ok(ends)
    }

    /// The offset of the oldest record, by partition as asked for.
    pub(super) fn lows(&self, partitions: &[Partition]) -> Result<Vec<Offset>, LogError> {
        self.ask(partitions, Place::Beginning, "ask for the low offsets")
    }

    /// How many partitions the topic has.
    pub(super) fn partitions_now(&self) -> Result<Partition, LogError> {
        const ACTION: &str = "ask for the partitions";
        let metadata =
            self.client.fetch_metadata(Some(&self.topic), ANSWER).map_err(unavailable(ACTION))?;
        self.serve();
        let topic = metadata.topics().iter().find(|topic| topic.name() == self.topic);
        let partitions = topic.map_or(0, |topic| topic.partitions().len());
        match Partition::try_from(partitions) {
            Ok(partitions @ 1..) => Ok(partitions),
            Ok(0) | Err(_) => Err(LogError::Unavailable {
                action: ACTION,
                reason: format!("the broker knows no topic {}", self.topic),
            }),
        }
    }

    /// Everything before `end` is there.
    pub(super) fn saw_end(&self, partition: Partition, end: Offset) {
        if let Some(seen) = self.ends_seen.get(to_index(partition)) {
            seen.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// The greatest end that anybody has heard of.
    pub(super) fn end_seen(&self, partition: Partition) -> Offset {
        self.ends_seen.get(to_index(partition)).map_or(0, |seen| seen.load(Ordering::Relaxed))
    }

    /// Shows positions to tools that look at consumer groups. Does not wait.
    pub(super) fn mirror(&self, positions: &[(Partition, Offset)]) {
        if let Err(error) =
            self.list(positions).and_then(|list| self.client.commit(&list, CommitMode::Async))
        {
            tracing::warn!(%error, "cannot show lag tools how far the log was read");
        }
        self.serve();
    }

    /// A list of places in the topic.
    pub(super) fn list(
        &self,
        positions: &[(Partition, Offset)],
    ) -> KafkaResult<TopicPartitionList> {
        let mut list = TopicPartitionList::with_capacity(positions.len());
        for &(partition, offset) in positions {
            let place = Place::Offset(i64::try_from(offset).unwrap_or(i64::MAX));
            list.add_partition_offset(&self.topic, to_number(partition), place)?;
        }
        Ok(list)
    }

    /// One request to each broker that leads one of the partitions.
    fn ask(
        &self,
        partitions: &[Partition],
        place: Place,
        action: &'static str,
    ) -> Result<Vec<Offset>, LogError> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let asked = self.asked(partitions, place).map_err(unavailable(action))?;
        let answer = self.client.offsets_for_times(asked, ANSWER);
        self.serve();
        let answer = answer.map_err(unavailable(action))?;
        let offset_of = |partition: &Partition| {
            let missing = || LogError::Unavailable {
                action,
                reason: format!("there is no answer for partition {partition}"),
            };
            let found = answer.find_partition(&self.topic, to_number(*partition));
            let found = found.ok_or_else(missing)?;
            found.error().map_err(unavailable(action))?;
            match found.offset() {
                Place::Offset(offset) => Offset::try_from(offset).map_err(|_negative| missing()),
                Place::Beginning
                | Place::End
                | Place::Stored
                | Place::Invalid
                | Place::OffsetTail(_) => Err(missing()),
            }
        };
        partitions.iter().map(offset_of).collect()
    }

    /// The request is one for times; the two ends have times of their own, -1 and -2.
    fn asked(&self, partitions: &[Partition], place: Place) -> KafkaResult<TopicPartitionList> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            list.add_partition_offset(&self.topic, to_number(*partition), place)?;
        }
        Ok(list)
    }

    /// Takes what the client has to say: it waits there for somebody to ask.
    fn serve(&self) {
        while let Some(event) = self.client.poll(Duration::ZERO) {
            if let Err(error) = event {
                super::client::log_error(&error, "the client that asks for offsets");
            }
        }
    }
}

impl fmt::Debug for Watermarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watermarks").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// A partition's number as Kafka counts. A log has fewer than 2^31: its topic has.
pub(super) fn to_number(partition: Partition) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}
