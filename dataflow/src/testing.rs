//! A deployment in memory, for tests of whole runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use prost::Message;
use tally_checkpoints::objects::ObjectStore;
use tally_checkpoints::reader::Origin;
use tally_eventlog::memory::MemoryLog;
use tally_eventlog::{
    AppendDone, AppendError, EventLog, LogError, LogReader, LogRecord, NewRecord, Offset,
    Partition, ReadLimits, ReadProgress,
};
use tally_model::bucket::{Bucket, DAY_MS, MINUTE_MS, Period};
use tally_model::clock::ManualClock;
use tally_model::ids::{EventId, IdMixer, Shards};
use tally_model::record::{RECORD_VERSION, Record};
use tally_model::revision::Generation;
use tally_model::rules::Timing;
use tally_model::truth::{LoggedEvent, Truth};
use tally_model::types::TypeId;
use tally_operators::dedup::{MemoryStore, SegmentStore};
use tally_sinks::counts::memory::MemoryCounts;
use tally_sinks::counts::{CountsStore, PutCondition, PutOutcome, Row, SmallRow, WriterId};
use tally_sinks::error::StoreError;
use tally_sinks::marks;
use tally_sinks::meta::MetaStore;
use tally_sinks::meta::memory::MemoryMeta;

use crate::{
    CheckpointParts, CountError, CountOptions, CountParts, CountProgress, CountReport, Mode,
    Savepoints, StopSignal, run,
};

use self::wrappers::UnsteadyMeta;
pub(crate) use self::wrappers::{MeasuredLog, Meter, StuckCounts, StuckSegments, UnsteadyLog};

mod wrappers;

/// Start of all tests: midnight of some day.
pub(crate) const T0: i64 = 20_000 * DAY_MS;

/// An event by a short number as id.
pub(crate) fn event(id: u64, slot: u16, event_time_ms: i64, received_at_ms: i64) -> LoggedEvent {
    let mut bytes = [0x11; 16];
    bytes[8..].copy_from_slice(&id.to_be_bytes());
    LoggedEvent { id: EventId(bytes), slot: TypeId(slot), event_time_ms, received_at_ms }
}

pub(crate) fn encode(event: &LoggedEvent) -> Vec<u8> {
    Record {
        version: RECORD_VERSION,
        event_id: event.id.0.to_vec(),
        slot: u32::from(event.slot.0),
        event_time_ms: event.event_time_ms,
        received_at_ms: event.received_at_ms,
        ..Record::default()
    }
    .encode_to_vec()
}

/// Counts by (start of the minute, slot), without zeros.
pub(crate) type Cells = BTreeMap<(i64, u16), u64>;

/// Everything that outlives a run.
pub(crate) struct Deployment {
    pub(crate) log: Arc<MemoryLog>,
    /// The log as runs see it.
    pub(crate) seen_log: Arc<dyn EventLog>,
    pub(crate) counts: Arc<dyn CountsStore>,
    pub(crate) meta: Arc<dyn MetaStore>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) mixer: IdMixer,
    pub(crate) options: CountOptions,
    /// Where checkpoints lie; none are made without it.
    pub(crate) objects: Option<Arc<dyn ObjectStore>>,
    pub(crate) origin: Origin,
    pub(crate) segments: Arc<dyn SegmentStore>,
    starts: u32,
}

impl Deployment {
    pub(crate) fn new(partitions: Partition, workers: usize) -> Self {
        let clock = Arc::new(ManualClock::new(T0 + MINUTE_MS));
        let log = Arc::new(MemoryLog::new(partitions, Arc::<ManualClock>::clone(&clock)));
        let meta = MemoryMeta::default();
        marks::set_origin_if_absent(&meta, T0).unwrap();
        Self {
            seen_log: Arc::<MemoryLog>::clone(&log),
            log,
            counts: Arc::new(MemoryCounts::default()),
            meta: Arc::new(meta),
            clock,
            mixer: IdMixer::new([7; 16]),
            options: CountOptions {
                workers,
                shards: Shards::new(16).unwrap(),
                timing: Timing::DEFAULT,
                epoch_ms: 10,
                restate_every_ms: 100,
                ..CountOptions::default()
            },
            objects: None,
            origin: Origin::Newest,
            segments: Arc::new(MemoryStore),
            starts: 0,
        }
    }

    /// Makes the store of marks and dirty hours fail while the returned flag is set.
    pub(crate) fn unsteady_meta(&mut self) -> Arc<AtomicBool> {
        let away = Arc::<AtomicBool>::default();
        self.meta =
            Arc::new(UnsteadyMeta { inner: Arc::clone(&self.meta), away: Arc::clone(&away) });
        away
    }

    /// The partition of an event's shard.
    pub(crate) fn home(&self, event: &LoggedEvent) -> Partition {
        let shard = self.mixer.mix(event.id).shard(self.options.shards);
        shard.partition(self.log.partitions())
    }

    /// Appends events to their home partitions.
    pub(crate) fn append(&self, events: &[LoggedEvent]) {
        self.append_raw(events.iter().map(|event| (self.home(event), encode(event))));
    }

    /// Appends payloads to partitions, and waits until they are durable.
    pub(crate) fn append_raw(&self, payloads: impl IntoIterator<Item = (Partition, Vec<u8>)>) {
        let records: Vec<NewRecord> = payloads
            .into_iter()
            .map(|(partition, payload)| NewRecord { partition, key: [0; 16], payload })
            .collect();
        if records.is_empty() {
            return;
        }
        let (done, is_done) = mpsc::channel();
        let done = Box::new(move |results| done.send(results).unwrap());
        self.log.append(records, done).unwrap();
        for result in is_done.recv().unwrap() {
            result.unwrap();
        }
    }

    /// How many records the log holds.
    pub(crate) fn log_len(&self) -> u64 {
        self.log.end_offsets().unwrap().iter().sum()
    }

    /// A run that is prepared but not started.
    pub(crate) fn parts(&mut self) -> CountParts {
        self.starts += 1;
        CountParts {
            log: Arc::clone(&self.seen_log),
            counts: Arc::clone(&self.counts),
            meta: Arc::clone(&self.meta),
            segments: Arc::clone(&self.segments),
            checkpoints: self.objects.as_ref().map(|objects| CheckpointParts {
                objects: Arc::clone(objects),
                deployment: "test".to_owned(),
                origin: self.origin.clone(),
                keep_last: 3,
            }),
            savepoints: Arc::default(),
            mixer: self.mixer.clone(),
            clock: Arc::<ManualClock>::clone(&self.clock),
            writer: WriterId(u64::from(self.starts)),
            generation: Generation::new(self.starts).unwrap(),
            progress: Arc::default(),
            stop: Arc::default(),
        }
    }

    /// Counts to the present end.
    pub(crate) fn count_bounded(&mut self) -> Result<CountReport, CountError> {
        let options = CountOptions { mode: Mode::Bounded, ..self.options };
        run(self.parts(), options)
    }

    /// Starts counting.
    pub(crate) fn start(&mut self) -> Running {
        let parts = self.parts();
        let options = self.options;
        let (progress, stop, clock) =
            (Arc::clone(&parts.progress), Arc::clone(&parts.stop), Arc::clone(&self.clock));
        let savepoints = Arc::clone(&parts.savepoints);
        let thread = std::thread::spawn(move || run(parts, options));
        Running { progress, stop, savepoints, clock, thread }
    }

    pub(crate) fn row(&self, start_ms: i64) -> Option<Row> {
        self.counts.rows(&[Bucket::minute(start_ms)]).unwrap().remove(0)
    }

    /// The stored rows of the days around [`T0`].
    pub(crate) fn rows(&self) -> Vec<Row> {
        let days = (-2..5).map(|day| Bucket::minute(T0 + day * DAY_MS).period());
        let small =
            days.flat_map(|day| self.counts.small_rows(day, day.start_ms(), day.end_ms()).unwrap());
        let buckets: Vec<Bucket> = small.map(|small| small.bucket).collect();
        self.counts.rows(&buckets).unwrap().into_iter().map(Option::unwrap).collect()
    }

    /// What is stored, without zeros.
    pub(crate) fn cells(&self) -> Cells {
        let mut cells = Cells::new();
        for row in self.rows() {
            let start_ms = row.small.bucket.start_ms();
            for (slot, count) in (0..).zip(row.vector.counts()) {
                if *count > 0 {
                    cells.insert((start_ms, slot), *count);
                }
            }
        }
        cells
    }

    /// The truth about `events`.
    pub(crate) fn truth(&self, events: &[LoggedEvent]) -> Truth {
        let mut truth = Truth::new(self.options.dedup, self.options.timing);
        for event in events {
            truth.append(event);
        }
        truth
    }
}

/// What streaming must have stored.
pub(crate) fn streaming_cells(truth: &Truth) -> Cells {
    let cells = truth.streaming_counts();
    cells.into_iter().map(|((bucket, slot), n)| ((bucket.start_ms(), slot.0), n)).collect()
}

/// A run on its own thread.
pub(crate) struct Running {
    pub(crate) progress: Arc<CountProgress>,
    pub(crate) stop: Arc<StopSignal>,
    pub(crate) savepoints: Arc<Savepoints>,
    clock: Arc<ManualClock>,
    thread: JoinHandle<Result<CountReport, CountError>>,
}

impl Running {
    /// Lets the clock run, 10 ms at a time, until `is_so`; half a minute of real time at most.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut(&CountProgress) -> bool) {
        for _ in 0..30_000 {
            if is_so(&self.progress) {
                return;
            }
            assert!(!self.thread.is_finished(), "the run ended while waiting until {what}");
            self.clock.advance(10);
            std::thread::park_timeout(Duration::from_millis(1));
        }
        panic!("never: {what}; {:?}", self.progress);
    }

    /// Moves the clock on at once, then lets it run until the watermark has followed.
    pub(crate) fn pass(&self, by_ms: i64) {
        self.clock.advance(by_ms);
        let now_ms = tally_model::clock::Clock::now_ms(self.clock.as_ref());
        self.until("the watermark follows", |p| p.watermark_ms() >= Some(now_ms));
    }

    /// Waits until everything that has closed is stored.
    pub(crate) fn settle(&self) {
        let timing = Timing::DEFAULT;
        let closed_ms = self.progress.watermark_ms().unwrap() - timing.watermark_delay_ms;
        let closed_ms = closed_ms - closed_ms.rem_euclid(MINUTE_MS);
        self.until("closed minutes are stored", |p| p.readable_up_to_ms() >= Some(closed_ms));
    }

    pub(crate) fn stop(self) -> CountReport {
        self.stop.stop();
        self.wait().unwrap()
    }

    /// Lets the clock run until the run ends by itself.
    pub(crate) fn wait(self) -> Result<CountReport, CountError> {
        for _ in 0..30_000 {
            if self.thread.is_finished() {
                break;
            }
            self.clock.advance(10);
            std::thread::park_timeout(Duration::from_millis(1));
        }
        assert!(self.thread.is_finished(), "the run does not end; {:?}", self.progress);
        self.thread.join().unwrap()
    }
}

/// How many more records readers get of gated partitions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<AtomicUsize>);

impl Gate {
    pub(crate) fn allow(&self, records: usize) {
        self.0.store(records, Ordering::SeqCst);
    }

    pub(crate) fn open(&self) {
        self.allow(usize::MAX);
    }

    /// Makes the next read panic.
    pub(crate) fn poison(&self) {
        self.allow(POISONED);
    }
}

const POISONED: usize = usize::MAX - 1;

/// A log that gives readers of some partitions only what the gate allows.
#[derive(Debug)]
pub(crate) struct GatedLog {
    pub(crate) log: Arc<MemoryLog>,
    pub(crate) gated: Vec<Partition>,
    pub(crate) gate: Gate,
}

impl EventLog for GatedLog {
    fn partitions(&self) -> Partition {
        self.log.partitions()
    }

    fn append(&self, records: Vec<NewRecord>, done: AppendDone) -> Result<(), AppendError> {
        self.log.append(records, done)
    }

    fn end_offsets(&self) -> Result<Vec<Offset>, LogError> {
        self.log.end_offsets()
    }

    fn low_offsets(&self) -> Result<Vec<Offset>, LogError> {
        self.log.low_offsets()
    }

    fn reader(&self, from: &[(Partition, Offset)]) -> Result<Box<dyn LogReader>, LogError> {
        let readers = from.iter().map(|start| {
            let gate = self.gated.contains(&start.0).then(|| self.gate.clone());
            Ok((gate, self.log.reader(&[*start])?))
        });
        Ok(Box::new(GatedReader { readers: readers.collect::<Result<_, LogError>>()? }))
    }
}

#[derive(Debug)]
struct GatedReader {
    /// One for each partition.
    readers: Vec<(Option<Gate>, Box<dyn LogReader>)>,
}

impl LogReader for GatedReader {
    fn read(
        &mut self,
        limits: ReadLimits,
        each: &mut dyn FnMut(LogRecord<'_>),
    ) -> Result<ReadProgress, LogError> {
        let mut progress = ReadProgress::default();
        for (gate, reader) in &mut self.readers {
            let allowed = gate.as_ref().map_or(usize::MAX, |gate| gate.0.load(Ordering::SeqCst));
            assert_ne!(allowed, POISONED, "the gate is poisoned");
            if allowed == 0 {
                continue;
            }
            let records = limits.records.min(allowed);
            let read = reader.read(ReadLimits { records, ..limits }, each)?;
            if let Some(gate) = gate
                && allowed < usize::MAX
            {
                gate.0.fetch_sub(read.records, Ordering::SeqCst);
            }
            progress.records += read.records;
            progress.bytes += read.bytes;
        }
        Ok(progress)
    }

    fn positions(&self) -> Vec<(Partition, Offset)> {
        self.readers.iter().flat_map(|(_, reader)| reader.positions()).collect()
    }
}

/// What a [`FlakyCounts`] is doing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing happens.
    Down,
    /// Puts happen, but the answer is lost.
    AnswerLost,
    /// Puts are acknowledged and forgotten.
    Forgetful,
    /// The call panics.
    Panics,
}

/// A store that misbehaves while a fault is set.
#[derive(Debug, Default)]
pub(crate) struct FlakyCounts {
    pub(crate) inner: MemoryCounts,
    pub(crate) fault: Mutex<Option<Fault>>,
}

impl FlakyCounts {
    pub(crate) fn set(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap() = fault;
    }

    fn check(&self, action: &'static str) -> Result<(), StoreError> {
        let fault = *self.fault.lock().unwrap();
        match fault {
            Some(Fault::Down) => Err(StoreError::Unavailable { action, source: "down".into() }),
            Some(Fault::Panics) => panic!("the store is broken"),
            Some(Fault::AnswerLost | Fault::Forgetful) | None => Ok(()),
        }
    }
}

impl CountsStore for FlakyCounts {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        let fault = *self.fault.lock().unwrap();
        let each = |error: fn() -> Result<PutOutcome, StoreError>| {
            puts.iter().map(|_| error()).collect::<Vec<_>>()
        };
        match fault {
            None => self.inner.put_many(puts),
            Some(Fault::Down) => {
                each(|| Err(StoreError::Unavailable { action: "put", source: "down".into() }))
            }
            Some(Fault::AnswerLost) => {
                self.inner.put_many(puts);
                each(|| Err(StoreError::Unknown { action: "put", source: "time-out".into() }))
            }
            Some(Fault::Panics) => panic!("the store is broken"),
            Some(Fault::Forgetful) => each(|| Ok(PutOutcome::Stored)),
        }
    }

    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        self.check("list rows")?;
        self.inner.small_rows(period, from_ms, to_ms)
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.check("read rows")?;
        self.inner.rows(buckets)
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        self.inner.is_empty()
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        self.inner.delete_period(period)
    }
}
