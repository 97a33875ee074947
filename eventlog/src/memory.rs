//! A log in memory, for unit tests of what stands on a log.
//!
//! It keeps the whole contract but durability, commits on a thread of its own as a real log does,
//! and fails on demand.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tally_model::clock::Clock;

use crate::convert::to_index;
use crate::queue::{Job, Next, Queue, refusal};
use crate::stats::LogStats;
use crate::{
    AppendDone, AppendError, EventLog, LogError, LogReader, LogRecord, NewRecord, Offset,
    Partition, ReadLimits, ReadProgress,
};

/// Largest key and payload together, as in the embedded log.
const RECORD_BYTES_MAX: usize = 1 << 20;
/// Most bytes that may wait for a commit, as in the embedded log.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// How a [`MemoryLog`] is to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `append` returns this error at once and queues nothing.
    Refuse(AppendError),
    /// Every record of a commit is lost and its caller hears this error.
    Lose(AppendError),
    /// Every record of a commit is kept, but its caller hears this error: an acknowledgement that
    /// went missing.
    KeepUnconfirmed(AppendError),
}

/// A log in memory.
///
/// # Examples
/// A caller whose records are not durable yet, and a reader who sees nothing until they are:
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::{Arc, mpsc};
/// use tally_eventlog::memory::MemoryLog;
/// use tally_eventlog::{EventLog, NewRecord};
/// use tally_model::clock::ManualClock;
///
/// let log = MemoryLog::new(2, Arc::new(ManualClock::new(0)));
/// log.hold();
/// let (sender, receiver) = mpsc::channel();
/// let record = NewRecord { partition: 1, key: [0; 16], payload: vec![1, 2, 3] };
/// log.append(vec![record], Box::new(move |results| sender.send(results).unwrap_or(())))?;
/// assert_eq!(log.end_offsets()?, [0, 0]);
///
/// log.release();
/// assert_eq!(receiver.recv()?, [Ok(0)]);
/// assert_eq!(log.end_offsets()?, [0, 1]);
/// # Ok(()) }
/// ```
pub struct MemoryLog {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    committer: Option<JoinHandle<()>>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    state: RwLock<State>,
}

struct State {
    /// Every record ever appended, in the order of commits.
    journal: Vec<Arc<Stored>>,
    lows: Vec<Offset>,
    ends: Vec<Offset>,
    fault: Option<Fault>,
}

struct Stored {
    offset: Offset,
    appended_at_ms: i64,
    record: NewRecord,
}

impl MemoryLog {
    /// An empty log.
    ///
    /// # Panics
    /// If no thread can be started.
    #[must_use]
    pub fn new(partitions: Partition, clock: Arc<dyn Clock>) -> Self {
        let zeros = vec![0; to_index(partitions)];
        let state = State { journal: Vec::new(), lows: zeros.clone(), ends: zeros, fault: None };
        let shared = Arc::new(Shared { clock, state: RwLock::new(state) });
        let queue = Arc::new(Queue::new(QUEUE_BYTES_MAX, Arc::new(LogStats::default())));
        let committer = {
            let (shared, queue) = (Arc::clone(&shared), Arc::clone(&queue));
            thread::Builder::new()
                .name("memorylog-commit".to_owned())
                .spawn(move || shared.commit_all(&queue))
                .expect("a thread can be started")
        };
        Self { shared, queue, committer: Some(committer) }
    }

    /// Keeps appends that are queued from now on from becoming durable, until
    /// [`MemoryLog::release`] or the log is dropped.
    pub fn hold(&self) {
        self.queue.hold(true);
    }

    /// Commits what was held, in order, and holds nothing any more.
    pub fn release(&self) {
        self.queue.hold(false);
    }

    /// Makes every append fail in this way from now on; `None` makes them succeed again.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.shared.write().fault = fault;
    }

    /// Removes the records of a partition before `offset`, as retention does.
    pub fn remove_before(&self, partition: Partition, offset: Offset) {
        let mut state = self.shared.write();
        let at = to_index(partition);
        let end = state.ends.get(at).copied().unwrap_or(0);
        if let Some(low) = state.lows.get_mut(at) {
            *low = (*low).max(offset.min(end));
        }
    }
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit_all(&self, queue: &Queue) {
        const WAIT: Duration = Duration::from_secs(3_600);
        loop {
            match queue.take(usize::MAX, WAIT) {
                Next::Commit(jobs) => self.commit(jobs, queue),
                Next::Idle => {}
                Next::Close => return,
            }
        }
    }

    fn commit(&self, mut jobs: Vec<Job>, queue: &Queue) {
        let results = {
            let now_ms = self.clock.now_ms();
            let mut state = self.write();
            let append = |job: &mut Job| {
                let records = std::mem::take(&mut job.records);
                records.into_iter().map(|record| state.append(record, now_ms)).collect::<Vec<_>>()
            };
            jobs.iter_mut().map(append).collect::<Vec<_>>()
        };
        queue.release(jobs.iter().map(|job| job.bytes).sum());
        for (job, results) in jobs.into_iter().zip(results) {
            job.finish(results);
        }
    }
}

impl State {
    fn append(&mut self, record: NewRecord, now_ms: i64) -> Result<Offset, AppendError> {
        let partitions = Partition::try_from(self.ends.len()).expect("partitions are 32 bits");
        if let Some(error) = refusal(&record, partitions, RECORD_BYTES_MAX) {
            return Err(error);
        }
        if let Some(Fault::Lose(error)) = &self.fault {
            return Err(error.clone());
        }
        let end = &mut self.ends[to_index(record.partition)];
        let offset = *end;
        *end += 1;
        self.journal.push(Arc::new(Stored { offset, appended_at_ms: now_ms, record }));
        match &self.fault {
            Some(Fault::KeepUnconfirmed(error)) => Err(error.clone()),
            Some(Fault::Refuse(_) | Fault::Lose(_)) | None => Ok(offset),
        }
    }

    /// Checks that a partition can be read from `offset` on.
    fn check(&self, partition: Partition, offset: Offset) -> Result<(), LogError> {
        let at = to_index(partition);
        let range = self.lows.get(at).zip(self.ends.get(at));
        let (low, end) = range.map_or((0, 0), |(low, end)| (*low, *end));
        if range.is_some() && (low..=end).contains(&offset) {
            return Ok(());
        }
        Err(LogError::OutOfRange { partition, offset, low, end })
    }
}

impl EventLog for MemoryLog {
    fn partitions(&self) -> Partition {
        Partition::try_from(self.shared.read().ends.len()).expect("partitions are 32 bits")
    }

    fn append(&self, records: Vec<NewRecord>, done: AppendDone) -> Result<(), AppendError> {
        if let Some(Fault::Refuse(error)) = &self.shared.read().fault {
            return Err(error.clone());
        }
        self.queue.push(records, done)
    }

    fn end_offsets(&self) -> Result<Vec<Offset>, LogError> {
        Ok(self.shared.read().ends.clone())
    }

    fn low_offsets(&self) -> Result<Vec<Offset>, LogError> {
        Ok(self.shared.read().lows.clone())
    }

    fn reader(&self, from: &[(Partition, Offset)]) -> Result<Box<dyn LogReader>, LogError> {
        let state = self.shared.read();
        for (at, &(partition, offset)) in from.iter().enumerate() {
            state.check(partition, offset)?;
            let is_new = from.iter().take(at).all(|(earlier, _)| *earlier != partition);
            assert!(is_new, "partition {partition} is named twice");
        }
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(MemoryReader { shared, positions: from.to_vec(), next: 0 }))
    }
}

impl Drop for MemoryLog {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(committer) = self.committer.take()
            // The last owner may have been a completion, which runs on that thread.
            && committer.thread().id() != thread::current().id()
            && committer.join().is_err()
        {
            tracing::error!("the committing thread of a log in memory panicked");
        }
    }
}

impl fmt::Debug for MemoryLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLog").field("ends", &self.shared.read().ends).finish_non_exhaustive()
    }
}

struct MemoryReader {
    shared: Arc<Shared>,
    positions: Vec<(Partition, Offset)>,
    /// The next place of the journal to look at.
    next: usize,
}

impl MemoryReader {
    /// The next records within the limits.
    fn collect(&mut self, limits: ReadLimits) -> Result<Vec<Arc<Stored>>, LogError> {
        let state = self.shared.read();
        for &(partition, offset) in &self.positions {
            state.check(partition, offset)?;
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        while found.len() < limits.records && bytes < limits.bytes {
            let Some(stored) = state.journal.get(self.next) else {
                break;
            };
            self.next += 1;
            let position = self.positions.iter_mut().find(|(p, _)| *p == stored.record.partition);
            if let Some((_, offset)) = position.filter(|(_, offset)| *offset == stored.offset) {
                *offset += 1;
                bytes += stored.record.payload.len();
                found.push(Arc::clone(stored));
            }
        }
        Ok(found)
    }
}

impl LogReader for MemoryReader {
    fn read(
        &mut self,
        limits: ReadLimits,
        each: &mut dyn FnMut(LogRecord<'_>),
    ) -> Result<ReadProgress, LogError> {
        let mut progress = ReadProgress::default();
        // No lock is held while the caller's code runs: it may use the log.
        for stored in self.collect(limits)? {
            let NewRecord { partition, key, payload } = &stored.record;
            each(LogRecord {
                partition: *partition,
                offset: stored.offset,
                appended_at_ms: stored.appended_at_ms,
                key,
                payload,
            });
            progress.records += 1;
            progress.bytes += payload.len();
        }
        Ok(progress)
    }

    fn positions(&self) -> Vec<(Partition, Offset)> {
        self.positions.clone()
    }
}

impl fmt::Debug for MemoryReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryReader").field("positions", &self.positions).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tally_model::clock::ManualClock;

    use super::*;
    use crate::contract::{self, UnderTest};

    fn log(partitions: Partition) -> Arc<MemoryLog> {
        Arc::new(MemoryLog::new(partitions, Arc::new(ManualClock::new(7))))
    }

    fn append_one(log: &MemoryLog) -> Vec<Result<Offset, AppendError>> {
        let (sender, receiver) = mpsc::channel();
        let record = NewRecord { partition: 0, key: [0; 16], payload: vec![1] };
        let done = Box::new(move |results| sender.send(results).unwrap());
        log.append(vec![record], done).unwrap();
        receiver.recv_timeout(contract::DEADLINE).unwrap()
    }

    #[test]
    fn keeps_the_contract() {
        contract::run(|partitions| {
            let log = log(partitions);
            let (held, removed) = (Arc::clone(&log), Arc::clone(&log));
            UnderTest {
                log,
                record_bytes_max: RECORD_BYTES_MAX,
                hold: Box::new(move |is_held| if is_held { held.hold() } else { held.release() }),
                remove_oldest: Box::new(move || removed.remove_before(0, 1)),
                keep: Box::new(()),
            }
        });
    }

    #[test]
    fn a_fault_refuses_loses_or_keeps_until_it_is_lifted() {
        let log = log(1);
        let unknown = AppendError::Unknown { reason: "test".to_owned() };
        log.set_fault(Some(Fault::Refuse(unknown.clone())));
        let refused = log.append(Vec::new(), Box::new(|_| panic!("nothing was queued")));
        assert_eq!(refused, Err(unknown.clone()));
        log.set_fault(Some(Fault::Lose(unknown.clone())));
        assert_eq!(append_one(&log), [Err(unknown.clone())]);
        assert_eq!(log.end_offsets().unwrap(), [0]);
        log.set_fault(Some(Fault::KeepUnconfirmed(unknown.clone())));
        assert_eq!(append_one(&log), [Err(unknown)]);
        assert_eq!(log.end_offsets().unwrap(), [1]);
        log.set_fault(None);
        assert_eq!(append_one(&log), [Ok(1)]);
    }

    #[test]
    fn dropping_a_held_log_still_answers_every_caller() {
        let log = log(1);
        log.hold();
        let (sender, receiver) = mpsc::channel();
        let record = NewRecord { partition: 0, key: [0; 16], payload: vec![1] };
        log.append(vec![record], Box::new(move |results| sender.send(results).unwrap())).unwrap();
        drop(log);
        assert_eq!(receiver.try_recv().unwrap(), [Ok(0)]);
    }
}
