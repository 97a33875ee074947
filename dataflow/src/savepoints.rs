//! How a run is asked for a savepoint.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tally_checkpoints::{CheckpointId, SavepointName};

/// Why there is no savepoint of that name now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SavepointError {
    /// There is one of that name: choose another, or remove it.
    #[error("savepoint {name} exists already")]
    Exists {
        /// The name.
        name: SavepointName,
    },
    /// The checkpoint could not be written: mend the object store and ask again.
    #[error("the checkpoint was not written: {reason}")]
    NotWritten {
        /// What was in the way.
        reason: String,
    },
    /// The run has ended, or keeps no checkpoints.
    #[error("the pipeline is not running")]
    Ended,
}

/// What came of a request.
pub(crate) type SavepointOutcome = Result<CheckpointId, SavepointError>;

/// One request.
#[derive(Debug)]
pub(crate) struct SavepointRequest {
    pub(crate) name: SavepointName,
    answer: Sender<SavepointOutcome>,
}

impl SavepointRequest {
    pub(crate) fn answer(self, outcome: SavepointOutcome) {
        // Who asked may have given up.
        let _nobody_waits = self.answer.send(outcome);
    }
}

/// Asks a run for savepoints.
#[derive(Debug, Default)]
pub struct Savepoints {
    /// Whether something may wait: looked at for each batch that is read.
    waiting: AtomicBool,
    ended: AtomicBool,
    requests: Mutex<VecDeque<SavepointRequest>>,
}

impl Savepoints {
    /// Asks for a savepoint. The answer comes when its checkpoint is written or the run ends.
    #[must_use]
    pub fn request(&self, name: SavepointName) -> Receiver<Result<CheckpointId, SavepointError>> {
        let (answer, outcome) = mpsc::channel();
        self.put_back(SavepointRequest { name, answer });
        if self.ended.load(Ordering::SeqCst) {
            self.end();
        }
        outcome
    }

    pub(crate) fn take(&self) -> Option<SavepointRequest> {
        if !self.waiting.load(Ordering::Acquire) {
            return None;
        }
        let mut requests = self.lock();
        let request = requests.pop_front();
        self.waiting.store(!requests.is_empty(), Ordering::Release);
        request
    }

    pub(crate) fn put_back(&self, request: SavepointRequest) {
        self.lock().push_front(request);
        self.waiting.store(true, Ordering::Release);
    }

    /// Tells everybody who still waits that the run has ended.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        for request in self.lock().drain(..) {
            request.answer(Err(SavepointError::Ended));
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<SavepointRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
