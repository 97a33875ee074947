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
    /// Bytes of the vectors that were taken out and still wait.
    taken_bytes: AtomicUsize,
    /// How many they are.
    taken_rows: AtomicUsize,
    /// Sources pause while more rows than this wait for the store.
    rows_max: usize,
}

#[derive(Debug)]
struct State {
    /// By start of the minute.
    rows: BTreeMap<i64, CountVector>,
    /// Bytes of their vectors.
    bytes: usize,
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
    pub(crate) fn new(workers: usize, rows_max: usize) -> Self {
        let state = State {
            rows: BTreeMap::new(),
            bytes: 0,
            horizons: vec![Horizon::default(); workers],
            finish: None,
            fresh: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            taken_bytes: AtomicUsize::new(0),
            taken_rows: AtomicUsize::new(0),
            rows_max,
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
            state.bytes += bytes(&vector);
            if let Some(old) = state.rows.insert(start_ms, vector) {
                state.bytes -= bytes(&old);
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
        self.taken_bytes.fetch_add(std::mem::take(&mut state.bytes), Ordering::Relaxed);
        self.taken_rows.fetch_add(state.rows.len(), Ordering::Relaxed);
        let horizons = state.horizons.iter().copied();
        Taken {
            horizon: horizons.reduce(Horizon::min).unwrap_or_default(),
            rows: std::mem::take(&mut state.rows),
            finish: state.finish,
        }
    }

    /// Waits for `pause`, whatever is delivered meanwhile; ends early only if the run is to end and
    /// has no patience with the store. Returns whether the whole pause has passed.
    pub(crate) fn rest(&self, pause: Duration) -> bool {
        let is_patient = |state: &mut State| matches!(state.finish, None | Some(Finish::PutAll));
        let (_state, wait) = self
            .changed
            .wait_timeout_while(self.lock(), pause, is_patient)
            .unwrap_or_else(PoisonError::into_inner);
        wait.timed_out()
    }

    /// Whether so much waits for the store that sources should pause.
    pub(crate) fn is_full(&self) -> bool {
        let (rows, bytes) = self.waiting();
        bytes >= WAITING_BYTES_MAX || rows > self.rows_max
    }

    /// Notes how much of what was taken out still waits.
    pub(crate) fn show_taken(&self, bytes: usize, rows: usize) {
        self.taken_bytes.store(bytes, Ordering::Relaxed);
        self.taken_rows.store(rows, Ordering::Relaxed);
    }

    /// Rows and bytes that wait: here, while the writer may hang in a call, and with the writer.
    fn waiting(&self) -> (usize, usize) {
        let state = self.lock();
        let rows = state.rows.len() + self.taken_rows.load(Ordering::Relaxed);
        (rows, state.bytes + self.taken_bytes.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(vector: &CountVector) -> usize {
    vector.width() * size_of::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn horizon(closed_up_to_ms: i64, caught_up: bool) -> Horizon {
        Horizon { closed_up_to_ms: Some(closed_up_to_ms), retired_up_to_ms: None, caught_up }
    }

    fn row(start_ms: i64, width: usize) -> (i64, CountVector) {
        (start_ms, CountVector::from_counts(vec![1; width]))
    }

    #[test]
    fn a_newer_vector_takes_the_place_of_the_older() {
        let outbox = Outbox::new(1, 10);
        outbox.deliver(0, [row(0, 9), row(1, 1)].into_iter(), None);
        outbox.deliver(0, [row(0, 2)].into_iter(), None);
        assert_eq!(outbox.waiting().1, 24);
        let taken = outbox.take(Duration::ZERO);
        assert_eq!(taken.rows.into_iter().collect::<Vec<_>>(), [row(0, 2), row(1, 1)]);
        assert_eq!(outbox.waiting().1, 24, "taken is not yet stored");
        outbox.show_taken(8, 1);
        assert_eq!(outbox.waiting().1, 8);
        assert!(outbox.take(Duration::ZERO).rows.is_empty());
    }

    #[test]
    fn a_rest_is_not_cut_short_by_deliveries_but_by_an_end_without_patience() {
        for (finish, is_whole) in [
            (None, true),
            (Some(Finish::PutAll), true),
            (Some(Finish::PutOnce), false),
            (Some(Finish::Abandon), false),
        ] {
            let outbox = Outbox::new(1, 10);
            outbox.deliver(0, [row(0, 2)].into_iter(), None);
            if let Some(finish) = finish {
                outbox.finish(finish);
            }
            assert_eq!(outbox.rest(Duration::from_millis(20)), is_whole, "{finish:?}");
            assert_eq!(outbox.take(Duration::ZERO).rows.len(), 1, "{finish:?}");
        }
    }

    #[test]
    fn what_all_workers_have_reached_is_the_least() {
        let outbox = Outbox::new(2, 10);
        let reached = || outbox.take(Duration::ZERO).horizon;
        outbox.deliver(0, [].into_iter(), Some(horizon(50, true)));
        assert_eq!(reached(), Horizon::default());
        outbox.deliver(1, [].into_iter(), Some(horizon(20, true)));
        assert_eq!(reached(), horizon(20, true));
        outbox.deliver(1, [].into_iter(), Some(horizon(60, false)));
        assert_eq!(reached(), horizon(50, false));
    }

    #[test]
    fn sources_pause_while_too_much_waits() {
        let outbox = Outbox::new(1, 10_000);
        let rows = || (0..).map(|start_ms| row(start_ms, 1 << 12));
        outbox.deliver(0, rows().take(2_047), None);
        assert!(!outbox.is_full());
        outbox.deliver(0, rows().skip(2_047).take(1), None);
        assert!(outbox.is_full());
        let outbox = Outbox::new(1, 10);
        outbox.show_taken(80, 10);
        assert!(!outbox.is_full());
        outbox.show_taken(88, 11);
        assert!(outbox.is_full(), "also while too many minutes wait, however small");
        outbox.show_taken(0, 0);
        outbox.deliver(0, rows().take(11), None);
        assert!(outbox.is_full(), "also if the writer does not come for them");
        outbox.take(Duration::ZERO);
        assert!(outbox.is_full(), "taken is not yet stored");
        outbox.show_taken(0, 0);
        assert!(!outbox.is_full());
    }
}
