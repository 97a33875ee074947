//! What one worker reads: its log partitions, decoded into batches by shard.
//!
//! Plain state apart from the log behind its seam. The timely shell is [`crate::source`].

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tally_eventlog::{EventLog, LogError, LogReader, LogRecord, Offset, Partition, ReadLimits};
use tally_model::bucket::Granularity;
use tally_model::clock::Clock;
use tally_model::ids::{IdMixer, MixedId, Shard, Shards};
use tally_model::record::{Decoded, RecordHead};
use tally_model::types::TypeId;
use tally_operators::watermark::{Hold, PartitionWatermark, WatermarkReport};

use crate::error::MissingRange;
use crate::options::Mode;
use crate::shared::Shared;
use crate::totals::Totals;

#[cfg(test)]
mod tests;

/// One call of the reader: large enough that each shard gets a batch worth handing over.
const LIMITS: ReadLimits = ReadLimits { records: 16_384, bytes: 16 << 20 };
/// Skipped records that are written to the program's log, for each worker; all are counted.
const SKIPPED_LOGGED_MAX: u32 = 20;

/// Events of one shard in log order. Moves between workers as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardBatch {
    pub(crate) shard: Shard,
    /// Id and receivedAt (ms since the Unix epoch) of each event.
    pub(crate) ids: Vec<(MixedId, i64)>,
    /// Where each event counts; as long as `ids`.
    pub(crate) cells: Vec<(i64, TypeId)>,
}

/// Bytes of one event in a [`ShardBatch`].
pub(crate) const EVENT_BYTES: usize = size_of::<(MixedId, i64)>() + size_of::<(i64, TypeId)>();

/// The partitions of one worker: partition `p` belongs to worker `p % workers`.
#[derive(Debug)]
pub(crate) struct Reading {
    worker: usize,
    mode: Mode,
    log: Arc<dyn EventLog>,
    clock: Arc<dyn Clock>,
    /// `None` if it is to be opened at the partitions' positions.
    reader: Option<Box<dyn LogReader>>,
    decoder: Decoder,
    /// When the ends in `decoder.partitions` were asked for; `None` before the first answer.
    asked_at_ms: Option<i64>,
}

/// One partition that is read.
#[derive(Debug)]
struct ReadPartition {
    number: Partition,
    /// Where it ended when the run started.
    run_end: Offset,
    /// The next offset to read.
    position: Offset,
    /// Where it ended when that was last asked for.
    asked_end: Offset,
    watermark: PartitionWatermark,
}

impl ReadPartition {
    /// Where to go on.
    const fn next(&self) -> (Partition, Offset) {
        (self.number, self.position)
    }
}

/// Turns records into batches. Keeps its buffers from call to call.
#[derive(Debug)]
struct Decoder {
    bounded: bool,
    workers: usize,
    mixer: IdMixer,
    shards: Shards,
    partitions: Vec<ReadPartition>,
    ids: Vec<[u8; 16]>,
    heads: Vec<Head>,
    /// By shard.
    batches: Vec<Pending>,
    tally: Totals,
    skipped_logged: u32,
}

#[derive(Debug)]
struct Head {
    received_at_ms: i64,
    minute_ms: i64,
    slot: TypeId,
}

#[derive(Debug, Default)]
struct Pending {
    ids: Vec<(MixedId, i64)>,
    cells: Vec<(i64, TypeId)>,
}

impl Reading {
    /// The partitions of `worker`, where the run begins.
    ///
    /// # Errors
    /// [`LogError`] as the log says.
    pub(crate) fn open(shared: &Shared, worker: usize) -> Result<Self, LogError> {
        let (parts, options) = (&shared.parts, &shared.options);
        let offsets = shared.start.from.iter().zip(&shared.start.end);
        let partitions: Vec<ReadPartition> = (0..)
            .zip(offsets)
            .skip(worker)
            .step_by(options.workers)
            .map(|(number, (from, end))| ReadPartition {
                number,
                run_end: *end,
                position: *from,
                asked_end: Offset::MAX,
                watermark: PartitionWatermark::default(),
            })
            .collect();
        let mut reading = Self {
            worker,
            mode: options.mode,
            log: Arc::clone(&parts.log),
            clock: Arc::clone(&parts.clock),
            reader: None,
            decoder: Decoder {
                bounded: options.mode == Mode::Bounded,
                workers: options.workers,
                mixer: parts.mixer.clone(),
                shards: options.shards,
                partitions,
                ids: Vec::new(),
                heads: Vec::new(),
                batches: options.shards.all().map(|_| Pending::default()).collect(),
                tally: Totals::default(),
                skipped_logged: 0,
            },
            asked_at_ms: None,
        };
        reading.ask_ends()?;
        Ok(reading)
    }

    /// Whose partitions these are.
    pub(crate) const fn worker(&self) -> usize {
        self.worker
    }

    /// Reads once, without waiting. Returns how many records there were; none while the log's server
    /// does not answer.
    ///
    /// # Errors
    /// [`LogError`] as the log says; what was read before counts as read. After
    /// [`LogError::OutOfRange`], retention has removed records that are [`missing`](Self::missing).
    pub(crate) fn read(&mut self) -> Result<usize, LogError> {
        let decoder = &mut self.decoder;
        if decoder.partitions.is_empty() {
            return Ok(0);
        }
        let reader = match &mut self.reader {
            Some(reader) => reader,
            closed @ None => {
                let from: Vec<_> = decoder.partitions.iter().map(ReadPartition::next).collect();
                match self.log.reader(&from) {
                    Ok(reader) => closed.insert(reader),
                    Err(error @ LogError::Unavailable { .. }) => {
                        tracing::warn!(%error, "the log cannot be read yet; still trying");
                        return Ok(0);
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let outcome = reader.read(LIMITS, &mut |record| decoder.take(&record));
        for (partition, (_, position)) in decoder.partitions.iter_mut().zip(reader.positions()) {
            partition.position = position;
        }
        self.decoder.sort_by_shard();
        self.confirm_ends();
        outcome.map(|progress| progress.records)
    }

    /// What is gone at the positions where reading has to go on.
    ///
    /// # Errors
    /// [`LogError`] as the log says.
    pub(crate) fn missing(&self) -> Result<Vec<MissingRange>, LogError> {
        let low = self.log.low_offsets()?;
        let missing = |partition: &ReadPartition| {
            let (number, from) = partition.next();
            let to = *low.get(usize::try_from(number).ok()?)?;
            (from < to).then_some(MissingRange { partition: number, from, to })
        };
        Ok(self.decoder.partitions.iter().filter_map(missing).collect())
    }

    /// Goes on at another offset of a partition.
    pub(crate) fn go_on_at(&mut self, number: Partition, offset: Offset) {
        self.reader = None;
        for partition in &mut self.decoder.partitions {
            if partition.number == number {
                partition.position = offset;
            }
        }
    }

    /// The events read since the last call, by shard.
    pub(crate) fn take_batches(&mut self) -> impl Iterator<Item = ShardBatch> {
        let filled = (0..).map(Shard).zip(&mut self.decoder.batches);
        filled.filter(|(_, pending)| !pending.ids.is_empty()).map(|(shard, pending)| {
            // The next batch of this shard will be about as long.
            let length = pending.ids.len();
            ShardBatch {
                shard,
                ids: std::mem::replace(&mut pending.ids, Vec::with_capacity(length)),
                cells: std::mem::replace(&mut pending.cells, Vec::with_capacity(length)),
            }
        })
    }

    /// What was read since the last call, counted and not counted.
    pub(crate) fn take_tally(&mut self) -> Totals {
        std::mem::take(&mut self.decoder.tally)
    }

    /// The next offset of each partition.
    pub(crate) fn next_offsets(&self) -> Vec<(Partition, Offset)> {
        self.decoder.partitions.iter().map(ReadPartition::next).collect()
    }

    /// Whether the worker will never read anything more.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.decoder.partitions.iter().all(|partition| self.is_done(partition))
    }

    /// How far the worker's partitions have been read.
    ///
    /// # Errors
    /// [`LogError`] as the log says.
    pub(crate) fn report(&mut self) -> Result<WatermarkReport, LogError> {
        self.ask_ends()?;
        let now_ms = self.clock.now_ms();
        let mut report = WatermarkReport {
            worker: self.worker,
            hold: Hold::Nothing,
            greatest_ms: None,
            caught_up: true,
        };
        let bounded = self.mode == Mode::Bounded;
        for partition in &mut self.decoder.partitions {
            let watermark_ms = partition.watermark.at(now_ms);
            report.greatest_ms = report.greatest_ms.max(watermark_ms);
            let at_run_end = partition.position >= partition.run_end;
            report.caught_up &= at_run_end;
            if !(bounded && at_run_end) {
                report.hold = report.hold.min(watermark_ms.into());
            }
        }
        Ok(report)
    }

    fn is_done(&self, partition: &ReadPartition) -> bool {
        match self.mode {
            Mode::Continuous => false,
            Mode::Bounded => partition.position >= partition.run_end,
        }
    }

    /// Asks where the partitions end now, unless none has reached the end that is known: a
    /// watermark follows the stamps until then. A bounded run follows the stamps alone.
    /// While the log does not answer, what is known stays, and W stands.
    fn ask_ends(&mut self) -> Result<(), LogError> {
        let mut partitions = self.decoder.partitions.iter();
        let news = self.asked_at_ms.is_none()
            || partitions.any(|partition| partition.position >= partition.asked_end);
        if self.mode == Mode::Bounded || self.decoder.partitions.is_empty() || !news {
            return Ok(());
        }
        // The time first: everything appended before it lies before the ends.
        let asked_at_ms = self.clock.now_ms();
        let ends = match self.log.end_offsets() {
            Ok(ends) => ends,
            Err(error @ LogError::Unavailable { .. }) => {
                tracing::warn!(%error, "the watermark may stand still");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.asked_at_ms = Some(asked_at_ms);
        for partition in &mut self.decoder.partitions {
            let end = usize::try_from(partition.number).ok().and_then(|number| ends.get(number));
            partition.asked_end = end.copied().unwrap_or(Offset::MAX);
        }
        self.confirm_ends();
        Ok(())
    }

    fn confirm_ends(&mut self) {
        let Some(asked_at_ms) = self.asked_at_ms else {
            return;
        };
        for partition in &mut self.decoder.partitions {
            if partition.position >= partition.asked_end {
                partition.watermark.read_to_end(asked_at_ms);
            }
        }
    }
}

impl Decoder {
    #[inline]
    fn take(&mut self, record: &LogRecord<'_>) {
        let place = usize::try_from(record.partition).unwrap_or(usize::MAX) / self.workers;
        let Some(partition) = self.partitions.get_mut(place) else {
            return;
        };
        if self.bounded && record.offset >= partition.run_end {
            return;
        }
        self.tally.records += 1;
        match RecordHead::decode(record.payload) {
            Ok(Decoded::Event(head)) => {
                partition.watermark.read(head.received_at_ms);
                self.ids.push(head.id.0);
                self.heads.push(Head {
                    received_at_ms: head.received_at_ms,
                    minute_ms: Granularity::Minute.floor(head.event_time_ms),
                    slot: head.slot,
                });
            }
            Ok(Decoded::Control) => self.tally.control += 1,
            Err(reason) => {
                self.tally.skip(reason);
                if self.skipped_logged < SKIPPED_LOGGED_MAX {
                    self.skipped_logged += 1;
                    tracing::warn!(
                        partition = record.partition,
                        offset = record.offset,
                        bytes = record.payload.len(),
                        reason = reason.code(),
                        "a record of the log was skipped"
                    );
                }
            }
        }
    }

    /// Mixes the ids, all at once, and hands every event to its shard.
    fn sort_by_shard(&mut self) {
        self.mixer.mix_blocks(&mut self.ids);
        for (block, head) in self.ids.iter().zip(&self.heads) {
            let id = MixedId(u128::from_le_bytes(*block));
            let pending = &mut self.batches[usize::from(id.shard(self.shards).0)];
            pending.ids.push((id, head.received_at_ms));
            pending.cells.push((head.minute_ms, head.slot));
        }
        self.ids.clear();
        self.heads.clear();
    }
}
