//! How a run is told to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;

/// Tells a run to stop, and wakes its parked workers to hear it.
#[derive(Debug, Default)]
pub struct StopSignal {
    stopped: AtomicBool,
    workers: Mutex<Vec<Thread>>,
}

impl StopSignal {
    /// Asks the run to stop. It ends soon, without an error; what it had not put yet is counted
    /// again by the next run.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether [`stop`](Self::stop) was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Lets this thread be woken.
    pub(crate) fn register(&self) {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(std::thread::current());
    }

    /// Wakes every registered thread. One that is not parked now will not park the next time, so
    /// no wake-up is lost between looking and parking.
    pub(crate) fn wake(&self) {
        for worker in &*self.workers.lock().unwrap_or_else(PoisonError::into_inner) {
            worker.unpark();
        }
    }
}
