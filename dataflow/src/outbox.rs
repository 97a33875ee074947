//! What waits for the writer: the newest vector of each minute.
//!
//! Workers deliver and never wait for the store. A newer vector takes the place of an older one, so
//! the outbox holds at most one row for each minute that is not retired, and its size in bytes
//! makes the sources pause when the store cannot keep up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tally_model::vector::CountVector;

use crate::horizon::Horizon;

/// Sources pause while more bytes of vectors than this wait for the store.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// How the writer is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// Everything was delivered and must be put.
    PutAll,
    /// The run was stopped: put what is there if the store takes it.
    PutOnce,
    /// The run failed: put nothing more.
    Abandon,
}

/// Passes rows from the workers to the writer.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes of the vectors in here and of those that wait at the writer.
    waiting_bytes: AtomicUsize,
}

#[derive(Debug)]
struct State {
    /// By start of the minute.
    rows: BTreeMap<i64, CountVector>,
    /// By worker.
    horizons: Vec<Horizon>,
    finish: Option<Finish>,
    fresh: bool,
}

/// What the writer takes out.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The newest vectors, by start of the minute.
    pub(crate) rows: BTreeMap<i64, CountVector>,
    /// What all workers have reached. Every row up to it has been delivered.
    pub(crate) horizon: Horizon,
    /// Set once nothing more will come.
    pub(crate) finish: Option<Finish>,
}

impl Outbox {
    pub(crate) fn new(workers: usize) -> Self {
        let state = State {
            rows: BTreeMap::new(),
            horizons: vec![Horizon::default(); workers],
            finish: None,
            fresh: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            waiting_bytes: AtomicUsize::new(0),
        }
    }

    /// Takes a worker's rows and, after them, its horizon.
    pub(crate) fn deliver(
        &self,
        worker: usize,
        rows: impl Iterator<Item = (i64, CountVector)>,
        horizon: Option<Horizon>,
    ) {
        let mut state = self.lock();
        for (start_ms, vector) in rows {
            self.wait_again(&vector);
            if let Some(old) = state.rows.insert(start_ms, vector) {
                self.settle(&old);
            }
        }
        if let Some(horizon) = horizon {
            state.horizons[worker] = horizon;
        }
        state.fresh = true;
        drop(state);
        self.changed.notify_one();
    }

    /// Says that nothing more will come.
    pub(crate) fn finish(&self, finish: Finish) {
        self.lock().finish = Some(finish);
        self.changed.notify_one();
    }

    /// Takes everything out; waits up to `wait` for something to be there.
    pub(crate) fn take(&self, wait: Duration) -> Taken {
        let idle = |state: &mut State| !state.fresh && state.finish.is_none();
        let (mut state, _timed_out) = self
            .changed
            .wait_timeout_while(self.lock(), wait, idle)
            .unwrap_or_else(PoisonError::into_inner);
        state.fresh = false;
        let horizons = state.horizons.iter().copied();
        Taken {
            horizon: horizons.reduce(Horizon::min).unwrap_or_default(),
            rows: std::mem::take(&mut state.rows),
            finish: state.finish,
        }
    }

    /// Whether so much waits for the store that sources should pause.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting_bytes() >= WAITING_BYTES_MAX
    }

    /// Bytes of the vectors that wait for the store.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Notes that a vector waits no longer.
    pub(crate) fn settle(&self, vector: &CountVector) {
        self.waiting_bytes.fetch_sub(bytes(vector), Ordering::Relaxed);
    }

    /// Notes that a vector waits.
    pub(crate) fn wait_again(&self, vector: &CountVector) {
        self.waiting_bytes.fetch_add(bytes(vector), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(vector: &CountVector) -> usize {
    size_of::<CountVector>() + vector.width() * size_of::<u64>()
}
