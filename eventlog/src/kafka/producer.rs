//! The writing half of a log in Kafka: one idempotent producer, fed by one thread.
//!
//! A call waits in the [`Queue`], which bounds everything that has no report yet: it is taken whole
//! or not at all, and its bytes are given back when it is answered. The feeding thread hands its
//! records to librdkafka, in order; the reporting thread takes what librdkafka says about each.
//!
//! An idempotent producer that meets a sequence that it cannot explain is dead for good. It is
//! replaced by a new one; the fate of what was in flight is unknown.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext, PurgeConfig};
use rdkafka::{ClientContext, config::RDKafkaLogLevel, statistics::Statistics};

use super::calls::{Call, Calls, Ticket, outcome_of};
use super::client::{Messages, cannot_make, reason};
use super::watermarks::Watermarks;
use crate::queue::{Next, Queue, refusal};
use crate::{AppendError, LogError, NewRecord, Offset, Partition};

/// How long a closing log waits for reports before it gives up what is in flight.
const FLUSH: Duration = Duration::from_secs(5);
/// How long it waits for the reports about what it has given up.
const LAST_REPORTS: Duration = Duration::from_secs(1);
/// Longest sleep of the two threads.
const PAUSE: Duration = Duration::from_millis(100);
/// Most bytes taken from the queue at once; the rest stays in order behind them.
const TAKE_BYTES: usize = 1 << 20;

thread_local! {
    /// Whether this thread belongs to a log, which must then not wait for its threads.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller runs on a thread of a log, that is, in a completion.
pub(super) fn is_own_thread() -> bool {
    IS_OWN.get()
}

/// What the feeding thread works with.
pub(super) struct Feeder {
    pub(super) queue: Arc<Queue>,
    pub(super) calls: Arc<Calls>,
    pub(super) watermarks: Arc<Watermarks>,
    pub(super) config: ClientConfig,
    pub(super) topic: String,
    pub(super) partitions: Partition,
    pub(super) record_bytes_max: usize,
}

/// A producer and the thread that takes its reports.
struct Line {
    producer: Arc<BaseProducer<Reports>>,
    stop: Arc<AtomicBool>,
    reporter: Option<JoinHandle<()>>,
}

/// Takes delivery reports.
struct Reports {
    calls: Arc<Calls>,
    /// Hears of every confirmed record: whoever was told of it can read it.
    watermarks: Arc<Watermarks>,
    record_bytes_max: usize,
}

impl Feeder {
    /// Makes the producer and the thread that feeds it until the queue is closed.
    pub(super) fn start(self) -> Result<JoinHandle<()>, LogError> {
        let line = self.line()?;
        thread::Builder::new()
            .name("kafka-feeder".to_owned())
            .spawn(move || self.run(line))
            .map_err(|error| LogError::Client {
                action: "start the producing thread",
                reason: error.to_string(),
            })
    }

    fn line(&self) -> Result<Line, LogError> {
        let reports = Reports {
            calls: Arc::clone(&self.calls),
            watermarks: Arc::clone(&self.watermarks),
            record_bytes_max: self.record_bytes_max,
        };
        Line::new(&self.config, reports)
    }

    fn run(self, line: Line) {
        IS_OWN.set(true);
        let mut line = Some(line);
        loop {
            match self.queue.take(TAKE_BYTES, PAUSE) {
                Next::Idle => retire_dead(&mut line),
                Next::Close => break,
                Next::Commit(jobs) => {
                    for job in jobs {
                        let (call, records) = self.calls.open(job);
                        let line = self.working(&mut line);
                        self.send_all(line, &call, &records);
                    }
                }
            }
        }
        drop(line);
        self.calls.give_up("the log was closed");
    }

    /// The producer, made anew if the old one is gone. None if that fails, to be tried again.
    fn working<'a>(&self, line: &'a mut Option<Line>) -> Option<&'a Line> {
        retire_dead(line);
        if line.is_none() {
            match self.line() {
                Ok(new) => *line = Some(new),
                Err(error) => tracing::error!(%error, "there is no Kafka producer"),
            }
        }
        line.as_ref()
    }

    fn send_all(&self, line: Option<&Line>, call: &Arc<Call>, records: &[NewRecord]) {
        for (place, record) in records.iter().enumerate() {
            let bytes = record.payload.len();
            let sent = match (refusal(record, self.partitions, self.record_bytes_max), line) {
                (Some(error), _) => Err(error),
                (None, None) => {
                    Err(AppendError::Unavailable { reason: "there is no producer".to_owned() })
                }
                (None, Some(line)) => {
                    self.send(line, Ticket { call: Arc::clone(call), place, bytes }, record)
                }
            };
            if let Err(error) = sent {
                self.calls.report(call, place, bytes, Err(error));
            }
        }
    }

    /// Hands a record to librdkafka. An error is sure: it was not taken.
    fn send(&self, line: &Line, ticket: Ticket, record: &NewRecord) -> Result<(), AppendError> {
        let partition = record.partition;
        let number = i32::try_from(partition).map_err(|_too_large| AppendError::NoPartition {
            partition,
            partitions: self.partitions,
        })?;
        let sent = line.producer.send(
            BaseRecord::with_opaque_to(&self.topic, Box::new(ticket))
                .partition(number)
                .key(&record.key[..])
                .payload(&record.payload[..]),
        );
        sent.map_err(|(error, _record)| {
            let bytes = record.key.len() + record.payload.len();
            match outcome_of(&error, bytes, self.record_bytes_max) {
                AppendError::Unknown { reason } => AppendError::Unavailable { reason },
                sure => sure,
            }
        })
    }
}

/// Ends a producer that cannot go on: its records are answered.
fn retire_dead(line: &mut Option<Line>) {
    let error = line.as_ref().and_then(|line| line.producer.client().fatal_error());
    if let Some((code, why)) = error {
        tracing::error!(%code, why, "the Kafka producer cannot go on; a new one takes over");
        *line = None;
    }
}

impl Line {
    fn new(config: &ClientConfig, reports: Reports) -> Result<Self, LogError> {
        let producer = BaseProducer::from_config_and_context(config, reports)
            .map_err(cannot_make("make a producer"))?;
        let (producer, stop) = (Arc::new(producer), Arc::new(AtomicBool::new(false)));
        let reporter = thread::Builder::new().name("kafka-reports".to_owned()).spawn({
            let (producer, stop) = (Arc::clone(&producer), Arc::clone(&stop));
            move || {
                IS_OWN.set(true);
                while !stop.load(Ordering::Relaxed) {
                    producer.poll(PAUSE);
                }
            }
        });
        let reporter = reporter.map_err(|error| LogError::Client {
            action: "start the reporting thread",
            reason: error.to_string(),
        })?;
        Ok(Self { producer, stop, reporter: Some(reporter) })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let is_dead = self.producer.client().fatal_error().is_some();
        if !is_dead && let Err(error) = self.producer.flush(FLUSH) {
            let records = self.producer.in_flight_count();
            tracing::warn!(records, reason = reason(&error), "appends end without an answer");
        }
        self.producer.purge(PurgeConfig::default().queue().inflight());
        if self.producer.flush(LAST_REPORTS).is_err() {
            tracing::warn!("the Kafka client keeps reports back");
        }
        self.stop.store(true, Ordering::Relaxed);
        if let Some(reporter) = self.reporter.take()
            && reporter.join().is_err()
        {
            tracing::error!("the thread that takes Kafka's reports panicked");
        }
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        Messages.log(level, facility, message);
    }

    fn stats(&self, _statistics: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        Messages.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let Ticket { call, place, bytes } = *ticket;
        let outcome = match result {
            Ok(message) => {
                match (Partition::try_from(message.partition()), Offset::try_from(message.offset()))
                {
                    (Ok(partition), Ok(offset)) => {
                        self.watermarks.saw_end(partition, offset + 1);
                        Ok(offset)
                    }
                    // Written before, by an attempt whose answer was lost.
                    _ => Err(AppendError::Unknown {
                        reason: "acknowledged without an offset".to_owned(),
                    }),
                }
            }
            Err((error, message)) => Err(self.outcome(error, message.key_len() + bytes)),
        };
        self.calls.report(&call, place, bytes, outcome);
    }
}

impl Reports {
    fn outcome(&self, error: &KafkaError, bytes: usize) -> AppendError {
        tracing::debug!(reason = reason(error), "a record was not acknowledged");
        debug_assert!(error.rdkafka_error_code() != Some(RDKafkaErrorCode::NoError));
        outcome_of(error, bytes, self.record_bytes_max)
    }
}
