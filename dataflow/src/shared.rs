//! What the threads of one run share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tally_eventlog::Offset;
use tally_model::clock::Clock;

use crate::Epoch;
use crate::error::CountError;
use crate::options::{CountOptions, CountParts};
use crate::outbox::Outbox;

/// What the threads of one run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) parts: CountParts,
    pub(crate) options: CountOptions,
    pub(crate) start: Start,
    pub(crate) epochs: EpochClock,
    pub(crate) outbox: Outbox,
    failure: Mutex<Option<CountError>>,
    aborted: AtomicBool,
}

/// How things stood when the run started.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// The oldest offset of each partition.
    pub(crate) low: Vec<Offset>,
    /// The end offset of each partition.
    pub(crate) end: Vec<Offset>,
    /// The first minute that gets a row even if it is quiet; start, in ms since the Unix epoch.
    pub(crate) first_minute_ms: i64,
    /// Minutes that end at or before this were retired and stored by an earlier run.
    pub(crate) retired_up_to_ms: Option<i64>,
}

impl Shared {
    pub(crate) fn new(parts: CountParts, options: CountOptions, start: Start) -> Self {
        let epochs = EpochClock::new(Arc::clone(&parts.clock));
        let outbox = Outbox::new(options.workers);
        Self {
            parts,
            options,
            start,
            epochs,
            outbox,
            failure: Mutex::new(None),
            aborted: AtomicBool::new(false),
        }
    }

    /// Ends the run with an error; the first one counts.
    pub(crate) fn fail(&self, error: CountError) {
        tracing::error!(%error, "counting failed");
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.abort();
    }

    /// Makes every worker let go of its dataflow, whatever is under way.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.parts.stop.wake();
    }

    /// Whether the run ends without finishing.
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::SeqCst)
    }

    /// The error that ended the run.
    pub(crate) fn take_failure(&self) -> Option<CountError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Hands out epochs: the wall clock at the start, moved on by the monotonic clock, so that they
/// never step back and are the same for all workers.
#[derive(Debug)]
pub(crate) struct EpochClock {
    clock: Arc<dyn Clock>,
    start_epoch: Epoch,
    start_monotonic_ms: i64,
}

impl EpochClock {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            start_epoch: Epoch::try_from(clock.now_ms()).unwrap_or(0),
            start_monotonic_ms: clock.monotonic_ms(),
            clock,
        }
    }

    /// The present epoch.
    pub(crate) fn now(&self) -> Epoch {
        let elapsed_ms = self.clock.monotonic_ms() - self.start_monotonic_ms;
        self.start_epoch + Epoch::try_from(elapsed_ms).unwrap_or(0)
    }
}
