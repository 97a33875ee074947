//! Parts of a deployment that are slow, stuck or away.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use tally_eventlog::{
    AppendDone, AppendError, EventLog, LogError, LogReader, LogRecord, NewRecord, Offset,
    Partition, ReadLimits, ReadProgress,
};
use tally_model::bucket::{Bucket, Period};
use tally_model::ids::Shard;
use tally_operators::dedup::{
    MemoryStore, SegmentError, SegmentHandle, SegmentName, SegmentStore, SegmentWriter,
};
use tally_sinks::counts::memory::MemoryCounts;
use tally_sinks::counts::{CountsStore, PutCondition, PutOutcome, Row, SmallRow};
use tally_sinks::error::StoreError;
use tally_sinks::meta::{CasOutcome, KeyValue, MetaStore, Table};

use crate::{CountProgress, Totals};

/// Calls wait here while it is shut.
#[derive(Debug, Default)]
pub(crate) struct Door {
    shut: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicU64,
}

impl Door {
    pub(crate) fn shut(&self) {
        *self.shut.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    /// Whether somebody waits for it to be opened.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(self.opened.wait_while(self.shut.lock().unwrap(), |shut| *shut).unwrap());
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A log that gives at most so many records at once, and measures how many were read of which it
/// is not yet known what became of them.
#[derive(Debug)]
pub(crate) struct MeasuredLog {
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) records_a_read: usize,
    pub(crate) meter: Arc<Meter>,
}

#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Measured from when it is set.
    pub(crate) progress: OnceLock<Arc<CountProgress>>,
    read: AtomicU64,
    most: AtomicU64,
}

impl Meter {
    /// The greatest number of records that were on their way at any time.
    pub(crate) fn most(&self) -> u64 {
        self.most.load(Ordering::SeqCst)
    }

    fn add(&self, records: u64) {
        let read = self.read.fetch_add(records, Ordering::SeqCst) + records;
        let Some(totals) = self.progress.get().map(|progress| progress.totals()) else {
            return;
        };
        let Totals { counted, repeats, late, straggler, past_window, .. } = totals;
        let done = counted + repeats + late + straggler + past_window;
        self.most.fetch_max(read.saturating_sub(done), Ordering::SeqCst);
    }
}

impl EventLog for MeasuredLog {
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
        let reader = self.log.reader(from)?;
        let (records, meter) = (self.records_a_read, Arc::clone(&self.meter));
        Ok(Box::new(MeasuredReader { reader, records, meter }))
    }
}

#[derive(Debug)]
struct MeasuredReader {
    reader: Box<dyn LogReader>,
    records: usize,
    meter: Arc<Meter>,
}

impl LogReader for MeasuredReader {
    fn read(
        &mut self,
        limits: ReadLimits,
        each: &mut dyn FnMut(LogRecord<'_>),
    ) -> Result<ReadProgress, LogError> {
        let limits = ReadLimits { records: limits.records.min(self.records), ..limits };
        let progress = self.reader.read(limits, each)?;
        self.meter.add(u64::try_from(progress.records).unwrap());
        Ok(progress)
    }

    fn positions(&self) -> Vec<(Partition, Offset)> {
        self.reader.positions()
    }
}

/// A log that can be out of reach.
#[derive(Debug)]
pub(crate) struct UnsteadyLog {
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) away: Arc<AtomicBool>,
}

impl UnsteadyLog {
    fn check(&self, action: &'static str) -> Result<(), LogError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(LogError::Unavailable { action, reason: "away".to_owned() });
        }
        Ok(())
    }
}

impl EventLog for UnsteadyLog {
    fn partitions(&self) -> Partition {
        self.log.partitions()
    }

    fn append(&self, records: Vec<NewRecord>, done: AppendDone) -> Result<(), AppendError> {
        self.log.append(records, done)
    }

    fn end_offsets(&self) -> Result<Vec<Offset>, LogError> {
        self.check("ask for the end offsets")?;
        self.log.end_offsets()
    }

    fn low_offsets(&self) -> Result<Vec<Offset>, LogError> {
        self.check("ask for the low offsets")?;
        self.log.low_offsets()
    }

    fn reader(&self, from: &[(Partition, Offset)]) -> Result<Box<dyn LogReader>, LogError> {
        self.check("make a reader")?;
        self.log.reader(from)
    }
}

/// A store of marks and dirty hours that can go away.
#[derive(Debug)]
pub(crate) struct UnsteadyMeta {
    pub(crate) inner: Arc<dyn MetaStore>,
    pub(crate) away: Arc<AtomicBool>,
}

impl UnsteadyMeta {
    fn check(&self, action: &'static str) -> Result<(), StoreError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable { action, source: "away".into() });
        }
        Ok(())
    }
}

impl MetaStore for UnsteadyMeta {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.check("get")?;
        self.inner.get(table, key)
    }

    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.check("get")?;
        self.inner.get_many(table, keys)
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError> {
        // The tests look here themselves.
        self.inner.scan(table, after, limit)
    }

    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.check("put")?;
        self.inner.put_if(table, key, expected, value)
    }

    fn insert_many(&self, table: Table, rows: &[KeyValue]) -> Result<Vec<CasOutcome>, StoreError> {
        self.check("insert")?;
        self.inner.insert_many(table, rows)
    }

    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.check("delete")?;
        self.inner.delete_if(table, key, expected)
    }
}

/// A counts store whose puts wait while the door is shut: a call that hangs.
#[derive(Debug, Default)]
pub(crate) struct StuckCounts {
    pub(crate) inner: MemoryCounts,
    pub(crate) door: Door,
}

impl CountsStore for StuckCounts {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        self.door.pass();
        self.inner.put_many(puts)
    }

    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        self.inner.small_rows(period, from_ms, to_ms)
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.inner.rows(buckets)
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        self.inner.is_empty()
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        self.inner.delete_period(period)
    }
}

/// A store of ids in which one shard's worker waits at the door whenever it freezes a head.
#[derive(Debug)]
pub(crate) struct StuckSegments {
    pub(crate) shard: Shard,
    pub(crate) door: Door,
}

impl SegmentStore for StuckSegments {
    fn create(&self, name: SegmentName, ids: u64) -> Result<Box<dyn SegmentWriter>, SegmentError> {
        if name.shard == self.shard {
            self.door.pass();
        }
        MemoryStore.create(name, ids)
    }

    fn import(&self, name: SegmentName, content: &[u8]) -> Result<SegmentHandle, SegmentError> {
        MemoryStore.import(name, content)
    }

    fn adopt(
        &self,
        name: SegmentName,
        is_it: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<SegmentHandle>, SegmentError> {
        MemoryStore.adopt(name, is_it)
    }

    fn keep_only(&self, names: &BTreeSet<SegmentName>) -> Result<u64, SegmentError> {
        MemoryStore.keep_only(names)
    }
}
