//! The event log: what happened, in order, durable before anyone is told so.
//!
//! [`EventLog`] is the seam between the pipeline and its log. A log has a fixed number of
//! partitions; each is a sequence of records with offsets 0, 1, 2, … from which retention removes
//! the oldest. Collectors append, and any number of readers read independently of each other.
//!
//! Implementations: [`memory::MemoryLog`] for unit tests, [`segment::SegmentLog`], the embedded
//! default, and [`kafka::KafkaLog`]. All pass [`contract`].
//!
//! What this crate does not know: what a record means. Payloads are bytes.

pub mod contract;
pub mod kafka;
pub mod memory;
pub mod segment;

mod convert;
mod queue;
mod stats;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

pub use stats::LogStats;

/// Number of a partition, from 0.
pub type Partition = u32;
/// Place of a record in its partition, from 0.
pub type Offset = u64;

/// A record to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRecord {
    /// The partition it belongs to.
    pub partition: Partition,
    /// The 16-byte event id (the key of a Kafka message).
    pub key: [u8; 16],
    /// The encoded record.
    pub payload: Vec<u8>,
}

/// A record as a reader sees it, borrowed from the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// The partition it was read from.
    pub partition: Partition,
    /// Its place in the partition.
    pub offset: Offset,
    /// When it was appended by the log's clock, ms since the Unix epoch.
    pub appended_at_ms: i64,
    /// The key as appended; a foreign producer's may have any length.
    pub key: &'a [u8],
    /// The payload as appended.
    pub payload: &'a [u8],
}

/// Receives the outcome of an append: one result per record, in the order given. Called exactly
/// once, on a thread of the log; it must not block.
pub type AppendDone = Box<dyn FnOnce(Vec<Result<Offset, AppendError>>) + Send>;

/// The log, as its users see it.
///
/// Contract, checked for every implementation by [`contract`]: a record whose append was confirmed
/// survives any crash and keeps its offset; a reader never sees a record that is not yet durable;
/// the records of one `append` call keep their order within a partition, and calls made one after
/// another keep theirs.
pub trait EventLog: Send + Sync + fmt::Debug {
    /// Number of partitions that this log was opened with; does not change while it is open.
    fn partitions(&self) -> Partition;

    /// Number of partitions that the log has now. More than [`partitions`](Self::partitions) if
    /// somebody has let it grow since it was opened; never fewer.
    ///
    /// # Errors
    /// [`LogError`] if the log cannot tell.
    fn partitions_now(&self) -> Result<Partition, LogError> {
        Ok(self.partitions())
    }

    /// Queues `records` and returns at once; `done` hears of their fate after they are durable.
    ///
    /// Appends of many callers share one commit.
    ///
    /// # Errors
    /// [`AppendError::Overloaded`] if the queue is full and [`AppendError::Unavailable`] if the log
    /// cannot take appends any more: then nothing was queued and `done` is not called.
    fn append(&self, records: Vec<NewRecord>, done: AppendDone) -> Result<(), AppendError>;

    /// The offset after the last durable record, by partition.
    ///
    /// # Errors
    /// [`LogError`] if the log cannot tell.
    fn end_offsets(&self) -> Result<Vec<Offset>, LogError>;

    /// The offset of the oldest record that retention has left, by partition; the end offset if a
    /// partition is empty.
    ///
    /// # Errors
    /// [`LogError`] if the log cannot tell.
    fn low_offsets(&self) -> Result<Vec<Offset>, LogError>;

    /// A reader of the given partitions, each named once, that starts at the given offsets.
    ///
    /// # Errors
    /// [`LogError::OutOfRange`] if retention has removed a start offset or it lies after the end,
    /// or if there is no such partition (then the range is empty).
    fn reader(&self, from: &[(Partition, Offset)]) -> Result<Box<dyn LogReader>, LogError>;

    /// Shows positions of a reader to outside tools that measure how far it lags. Nothing in Tally
    /// ever reads them back, so a failure is worth a warning and no more; a log without such tools
    /// does nothing.
    fn mirror_positions(&self, _positions: &[(Partition, Offset)]) {}

    /// What this log counts about its own work; all zero for a log that counts nothing.
    fn stats(&self) -> Arc<LogStats> {
        Arc::default()
    }
}

/// A position in some partitions of a log. Independent of every other reader.
pub trait LogReader: Send + fmt::Debug {
    /// Hands durable records to `each`, in order within each partition, until a limit is reached or
    /// nothing more is at hand. Never waits for new records. If none is handed out within limits
    /// that allow one, none was there; a log that is out of reach counts as one that has none.
    ///
    /// # Errors
    /// [`LogError`]; records handed out before the error count as read. After
    /// [`LogError::OutOfRange`], retention has overtaken the reader: it stays where it is, and
    /// going on from the low offsets is a new reader's work.
    fn read(
        &mut self,
        limits: ReadLimits,
        each: &mut dyn FnMut(LogRecord<'_>),
    ) -> Result<ReadProgress, LogError>;

    /// The next offset of each partition, in the order the reader was made with.
    fn positions(&self) -> Vec<(Partition, Offset)>;
}

/// How much one call of [`LogReader::read`] may hand out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Most records.
    pub records: usize,
    /// Most payload bytes; passed by at most one record.
    pub bytes: usize,
}

/// What one call of [`LogReader::read`] handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadProgress {
    /// Number of records.
    pub records: usize,
    /// Their payload bytes.
    pub bytes: usize,
}

/// Why a record was not confirmed; one variant for each thing the caller can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// Too much is waiting: nothing was queued, try again later.
    #[error("the log's queue is full ({queued_bytes} bytes wait)")]
    Overloaded {
        /// Bytes that wait for a commit.
        queued_bytes: usize,
    },
    /// This record can never be appended; its neighbours can.
    #[error("a record of {bytes} bytes is over the log's limit of {bytes_max}")]
    TooLarge {
        /// Size of the record.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// No such partition: a fault of the deployment.
    #[error("partition {partition} does not exist; the log has {partitions}")]
    NoPartition {
        /// The partition asked for.
        partition: Partition,
        /// How many there are.
        partitions: Partition,
    },
    /// The write did not happen and the log takes no more (disk full, read-only, closed).
    #[error("the log takes no appends: {reason}")]
    Unavailable {
        /// What the operating system said.
        reason: String,
    },
    /// The write may or may not be durable: never confirm it to a client.
    #[error("the outcome of the append is unknown: {reason}")]
    Unknown {
        /// What the operating system said.
        reason: String,
    },
}

/// Why the log could not be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The start offset is not there (any more).
    #[error("partition {partition} holds offsets {low} to {end}, not {offset}")]
    OutOfRange {
        /// The partition.
        partition: Partition,
        /// The offset asked for.
        offset: Offset,
        /// The oldest offset.
        low: Offset,
        /// The offset after the last.
        end: Offset,
    },
    /// Bytes in the middle of the log are damaged. Reading on would lose records silently.
    #[error("{path} is damaged at byte {position}: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        position: u64,
        /// What does not fit.
        what: &'static str,
    },
    /// The folder holds something else, or a log with other settings.
    #[error("{path} is not this log: {what}")]
    Foreign {
        /// The folder or file.
        path: PathBuf,
        /// What does not fit, and what to do.
        what: String,
    },
    /// The options fit no log: correct them.
    #[error("the event log's options do not fit: {what}")]
    Options {
        /// What does not fit.
        what: &'static str,
    },
    /// A topic with settings that lose records. An operator changes them, or accepts them.
    #[error("the topic {topic} is not safe for Tally: {}", failing.join("; "))]
    Settings {
        /// The topic.
        topic: String,
        /// Each setting that fails: its name, its value and what is needed.
        failing: Vec<String>,
    },
    /// The log did not answer, or refused for now: try again later.
    #[error("cannot {action}: {reason}")]
    Unavailable {
        /// What was tried, for example `ask for the end offsets`.
        action: &'static str,
        /// What the client library or the broker said.
        reason: String,
    },
    /// The client cannot go on, or its address and options fit no broker.
    #[error("cannot {action}: {reason}")]
    Client {
        /// What was tried, for example `make a consumer`.
        action: &'static str,
        /// What the client library or the broker said.
        reason: String,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried, for example `open`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
}
