//! The queue between the callers of `append` and the one thread that commits.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::convert::to_u64;
use crate::stats::LogStats;
use crate::{AppendDone, AppendError, NewRecord, Offset, Partition};

/// What a record costs in memory beside its payload, about.
const RECORD_OVERHEAD_BYTES: usize = size_of::<NewRecord>();

/// One call of `append`.
pub(crate) struct Job {
    pub(crate) records: Vec<NewRecord>,
    pub(crate) bytes: usize,
    done: AppendDone,
}

impl Job {
    /// Tells the caller. A panic there must not take the log from everybody else.
    pub(crate) fn finish(self, results: Vec<Result<Offset, AppendError>>) {
        let done = self.done;
        if catch_unwind(AssertUnwindSafe(|| done(results))).is_err() {
            tracing::error!("a caller panicked when it heard of its append");
        }
    }

    /// Tells the caller that every record met `error`.
    pub(crate) fn fail(self, error: &AppendError) {
        let results = vec![Err(error.clone()); self.records.len()];
        self.finish(results);
    }
}

/// What the committing thread is to do next.
pub(crate) enum Next {
    /// Commit these, in order.
    Commit(Vec<Job>),
    /// Nothing came in time.
    Idle,
    /// The log is closed and everything queued was handed out.
    Close,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    queued_bytes: usize,
    is_held: bool,
    is_closed: bool,
    /// Why nothing more is taken.
    stopped: Option<String>,
}

/// Calls that wait for a commit, bounded in bytes.
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    bytes_max: usize,
    stats: Arc<LogStats>,
}

impl Queue {
    pub(crate) fn new(bytes_max: usize, stats: Arc<LogStats>) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), bytes_max, stats }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a call. One that is larger than the whole queue is taken when nothing else waits, or
    /// it could never be appended.
    pub(crate) fn push(
        &self,
        records: Vec<NewRecord>,
        done: AppendDone,
    ) -> Result<(), AppendError> {
        let bytes = records
            .iter()
            .map(|record| record.payload.len() + RECORD_OVERHEAD_BYTES)
            .sum::<usize>();
        let mut state = self.lock();
        if let Some(reason) = &state.stopped {
            return Err(AppendError::Unavailable { reason: reason.clone() });
        }
        let queued_bytes = state.queued_bytes;
        if queued_bytes > 0 && queued_bytes.saturating_add(bytes) > self.bytes_max {
            return Err(AppendError::Overloaded { queued_bytes });
        }
        self.set_queued(&mut state, queued_bytes + bytes);
        state.jobs.push_back(Job { records, bytes, done });
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Waits for work and takes as many whole calls as fit `bytes_max`, at least one. What is taken
    /// counts as queued until [`Queue::release`].
    pub(crate) fn take(&self, bytes_max: usize, wait_at_most: Duration) -> Next {
        let has_nothing =
            |state: &mut State| !state.is_closed && (state.is_held || state.jobs.is_empty());
        let (mut state, _timeout) = self
            .wake
            .wait_timeout_while(self.lock(), wait_at_most, has_nothing)
            .unwrap_or_else(PoisonError::into_inner);
        if has_nothing(&mut state) {
            return Next::Idle;
        }
        let mut jobs = Vec::new();
        let mut bytes = 0_usize;
        while let Some(job) = state.jobs.front() {
            bytes = bytes.saturating_add(job.bytes);
            if bytes > bytes_max && !jobs.is_empty() {
                break;
            }
            jobs.extend(state.jobs.pop_front());
        }
        if jobs.is_empty() { Next::Close } else { Next::Commit(jobs) }
    }

    /// Gives back the room of calls that were taken.
    pub(crate) fn release(&self, bytes: usize) {
        let mut state = self.lock();
        let left = state.queued_bytes - bytes;
        self.set_queued(&mut state, left);
    }

    /// Keeps what is queued from being taken, or lets it go.
    pub(crate) fn hold(&self, is_held: bool) {
        self.lock().is_held = is_held;
        self.wake.notify_one();
    }

    /// Lets the committing thread end once it has taken everything, held or not.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.wake.notify_one();
    }

    /// Refuses everything from now on and returns what waited. The first reason stays.
    pub(crate) fn stop(&self, reason: &str) -> Vec<Job> {
        let mut state = self.lock();
        state.stopped.get_or_insert_with(|| reason.to_owned());
        let jobs = Vec::from(std::mem::take(&mut state.jobs));
        let left = state.queued_bytes - jobs.iter().map(|job| job.bytes).sum::<usize>();
        self.set_queued(&mut state, left);
        jobs
    }

    fn set_queued(&self, state: &mut State, bytes: usize) {
        state.queued_bytes = bytes;
        self.stats.queued_bytes.store(to_u64(bytes), Ordering::Relaxed);
    }
}

/// Why a record can never be appended, if so. Its neighbours still can.
pub(crate) fn refusal(
    record: &NewRecord,
    partitions: Partition,
    bytes_max: usize,
) -> Option<AppendError> {
    let partition = record.partition;
    if partition >= partitions {
        return Some(AppendError::NoPartition { partition, partitions });
    }
    let bytes = record.key.len() + record.payload.len();
    (bytes > bytes_max).then_some(AppendError::TooLarge { bytes, bytes_max })
}
