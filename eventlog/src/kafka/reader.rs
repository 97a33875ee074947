//! Reading: one consumer a reader, with an assignment of its own and no group.
//!
//! librdkafka fetches ahead into a queue of the consumer; [`LogReader::read`] hands out what is in
//! that queue, borrowed, until it is empty. It does not wait for new records. It does wait a little
//! for records that somebody is known to have seen, if it has nothing else to hand out.
//!
//! A partition's records are not all: markers of transactions take offsets too, and nobody sees
//! them. Where a partition ends in such, the broker's notice that its end is reached moves the
//! position over them, so that a reader at the end is at the end.
//!
//! Invariant L-5 of ARCHITECTURE.md.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rdkafka::Timestamp;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::Offset as Place;

use super::client::{Messages, cannot_make, consumer_config, log_error, reason};
use super::options::KafkaOptions;
use super::watermarks::Watermarks;
use crate::stats::LogStats;
use crate::{LogError, LogReader, LogRecord, Offset, Partition, ReadLimits, ReadProgress};

/// One wait for records that are known to be there.
const ROUND: Duration = Duration::from_millis(25);
/// Most such waits in one call, until the first record has come and after that.
const FIRST_ROUNDS: u32 = 200;
const ROUNDS: u32 = 8;

/// A reader of a log in Kafka.
pub(super) struct KafkaReader {
    consumer: BaseConsumer<Messages>,
    watermarks: Arc<Watermarks>,
    stats: Arc<LogStats>,
    positions: Positions,
    /// Whether anything has come yet: before that, connections are being made.
    has_begun: bool,
    /// The ends, as a sum, for which waiting was in vain.
    missed: Option<u128>,
    /// Retention has removed records at a position.
    is_overtaken: bool,
    /// The trouble that was logged last; nothing has come since.
    trouble: Option<RDKafkaErrorCode>,
}

/// The next offset of each partition.
struct Positions {
    places: Vec<(Partition, Offset)>,
    /// Where the partition of the last record is; the next one is most often of the same.
    last: usize,
}

impl KafkaReader {
    /// A reader at places that are in range.
    pub(super) fn new(
        options: &KafkaOptions,
        watermarks: Arc<Watermarks>,
        stats: Arc<LogStats>,
        from: &[(Partition, Offset)],
    ) -> Result<Self, LogError> {
        let consumer = consumer_config(options)
            .create_with_context(Messages)
            .map_err(cannot_make("make a consumer"))?;
        let positions = Positions { places: from.to_vec(), last: 0 };
        let reader = Self {
            consumer,
            watermarks,
            stats,
            positions,
            has_begun: false,
            missed: None,
            is_overtaken: false,
            trouble: None,
        };
        check_range(&reader.watermarks, from)?;
        reader.assign()?;
        Ok(reader)
    }

    fn assign(&self) -> Result<(), LogError> {
        let assigned = self
            .watermarks
            .list(&self.positions.places)
            .and_then(|list| self.consumer.assign(&list));
        assigned.map_err(cannot_make("assign partitions to a consumer"))
    }

    /// How long this call may wait for what is known to be there.
    fn rounds(&self) -> u32 {
        if self.missed == Some(self.known_ends()) {
            0
        } else if self.has_begun {
            ROUNDS
        } else {
            FIRST_ROUNDS
        }
    }

    fn known_ends(&self) -> u128 {
        let ends =
            self.positions.places.iter().map(|(partition, _)| self.watermarks.end_seen(*partition));
        ends.map(u128::from).sum()
    }

    fn is_behind(&self) -> bool {
        let mut places = self.positions.places.iter();
        places.any(|(partition, next)| *next < self.watermarks.end_seen(*partition))
    }

    /// What to do about an event that is no record.
    fn take_event(&mut self, event: &KafkaError) -> Result<(), LogError> {
        match event {
            KafkaError::PartitionEOF(partition) => {
                self.take_end(*partition);
                Ok(())
            }
            KafkaError::MessageConsumptionFatal(_) => Err(cannot_read(event)),
            event => match event.rdkafka_error_code() {
                Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                    self.is_overtaken = true;
                    self.look_for_what_is_gone()
                }
                // Going on would lose records silently.
                Some(
                    RDKafkaErrorCode::BadMessage
                    | RDKafkaErrorCode::BadCompression
                    | RDKafkaErrorCode::InvalidMessage
                    | RDKafkaErrorCode::NotImplemented,
                ) => Err(cannot_read(event)),
                code => {
                    self.note(event, code);
                    Ok(())
                }
            },
        }
    }

    /// A partition was read to its end, perhaps over markers.
    fn take_end(&mut self, partition: i32) {
        self.has_begun = true;
        self.trouble = None;
        let Ok(list) = self.consumer.position() else {
            return;
        };
        for element in list.elements() {
            if element.partition() == partition
                && let Place::Offset(offset) = element.offset()
                && let (Ok(partition), Ok(offset)) =
                    (Partition::try_from(partition), Offset::try_from(offset))
            {
                self.positions.reach(partition, offset);
            }
        }
    }

    /// Trouble that the client overcomes by itself: said once until something has come again.
    fn note(&mut self, event: &KafkaError, code: Option<RDKafkaErrorCode>) {
        self.stats.read_errors.fetch_add(1, Ordering::Relaxed);
        if code.is_some() && self.trouble == code {
            log_error(event, "a reader");
            return;
        }
        self.trouble = code;
        tracing::warn!(reason = reason(event), "the event log cannot be read; still trying");
    }

    /// The client has stopped at a place that the broker does not have.
    fn look_for_what_is_gone(&mut self) -> Result<(), LogError> {
        match check_range(&self.watermarks, &self.positions.places) {
            // The brokers have changed their minds: a leader that was behind.
            Ok(()) => {
                self.assign()?;
                self.is_overtaken = false;
                Ok(())
            }
            Err(error @ LogError::OutOfRange { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a reader met an offset that is not there; asking again");
                Ok(())
            }
        }
    }
}

impl LogReader for KafkaReader {
    fn read(
        &mut self,
        limits: ReadLimits,
        each: &mut dyn FnMut(LogRecord<'_>),
    ) -> Result<ReadProgress, LogError> {
        let mut progress = ReadProgress::default();
        if self.positions.places.is_empty() {
            return Ok(progress);
        }
        if self.is_overtaken {
            self.look_for_what_is_gone()?;
        }
        let mut rounds = self.rounds();
        while progress.records < limits.records && progress.bytes < limits.bytes {
            let waits = progress.records == 0 && rounds > 0 && self.is_behind();
            match self.consumer.poll(if waits { ROUND } else { Duration::ZERO }) {
                Some(Ok(message)) => {
                    if let Some(record) = self.positions.take(&message) {
                        each(record);
                        progress.records += 1;
                        progress.bytes += record.payload.len();
                    }
                }
                Some(Err(event)) => {
                    self.take_event(&event)?;
                    rounds = rounds.saturating_sub(1);
                }
                None if waits => rounds -= 1,
                None => break,
            }
        }
        if progress.records > 0 {
            self.has_begun = true;
            self.trouble = None;
        } else if rounds == 0 && self.is_behind() {
            self.missed = Some(self.known_ends());
            self.has_begun = true;
        }
        Ok(progress)
    }

    fn positions(&self) -> Vec<(Partition, Offset)> {
        self.positions.places.clone()
    }
}

impl Positions {
    /// A message as a record, once: what lies before the position was handed out before.
    fn take<'m>(&mut self, message: &'m BorrowedMessage<'_>) -> Option<LogRecord<'m>> {
        let partition = Partition::try_from(message.partition()).ok()?;
        let offset = Offset::try_from(message.offset()).ok()?;
        let (_, next) = self.find(partition)?;
        if offset < *next {
            return None;
        }
        *next = offset + 1;
        let appended_at_ms = match message.timestamp() {
            Timestamp::CreateTime(at_ms) | Timestamp::LogAppendTime(at_ms) => at_ms,
            Timestamp::NotAvailable => 0,
        };
        Some(LogRecord {
            partition,
            offset,
            appended_at_ms,
            key: message.key().unwrap_or_default(),
            // What has no payload is handed out as an empty one, which no decoder takes.
            payload: message.payload().unwrap_or_default(),
        })
    }

    fn reach(&mut self, partition: Partition, offset: Offset) {
        if let Some((_, next)) = self.find(partition) {
            *next = offset.max(*next);
        }
    }

    fn find(&mut self, partition: Partition) -> Option<&mut (Partition, Offset)> {
        if self.places.get(self.last).is_none_or(|(number, _)| *number != partition) {
            self.last = self.places.iter().position(|(number, _)| *number == partition)?;
        }
        self.places.get_mut(self.last)
    }
}

/// Refuses places that the log does not have.
fn check_range(watermarks: &Watermarks, places: &[(Partition, Offset)]) -> Result<(), LogError> {
    let partitions: Vec<_> = places.iter().map(|(partition, _)| *partition).collect();
    // The low ones first: they may rise in between, and then the reader finds out.
    let (lows, ends) = (watermarks.lows(&partitions)?, watermarks.ends(&partitions)?);
    for ((&(partition, offset), low), end) in places.iter().zip(lows).zip(ends) {
        if offset < low || offset > end {
            return Err(LogError::OutOfRange { partition, offset, low, end });
        }
    }
    Ok(())
}

fn cannot_read(error: &KafkaError) -> LogError {
    LogError::Client { action: "read the topic", reason: reason(error) }
}

impl fmt::Debug for KafkaReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaReader")
            .field("positions", &self.positions.places)
            .field("is_overtaken", &self.is_overtaken)
            .finish_non_exhaustive()
    }
}
