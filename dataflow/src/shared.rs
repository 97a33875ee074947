//! What the threads of one run share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tally_checkpoints::reader::Restored;
use tally_eventlog::Offset;
use tally_model::clock::Clock;

use crate::Epoch;
use crate::cuts::Cuts;
use crate::dirty_notes::DirtyNotes;
use crate::error::CountError;
use crate::options::{CountOptions, CountParts};
use crate::outbox::Outbox;
use crate::totals::Totals;

/// What the threads of one run share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) parts: CountParts,
    pub(crate) options: CountOptions,
    pub(crate) start: Start,
    pub(crate) epochs: EpochClock,
    pub(crate) outbox: Outbox,
    pub(crate) cuts: Cuts,
    pub(crate) dirty: DirtyNotes,
    failure: Mutex<Option<CountError>>,
    aborted: AtomicBool,
}

/// How things stood when the run started.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// The offset of each partition at which reading begins.
    pub(crate) from: Vec<Offset>,
    /// The end offset of each partition.
    pub(crate) end: Vec<Offset>,
    /// The first minute that gets a row even if it is quiet; start, in ms since the Unix epoch.
    pub(crate) first_minute_ms: i64,
    /// Minutes that end at or before this were retired and stored by an earlier run.
    pub(crate) retired_up_to_ms: Option<i64>,
    /// The checkpoint to go on from.
    pub(crate) restored: Option<Restored>,
}

impl Start {
    /// The watermark never falls below this one.
    pub(crate) fn watermark_ms(&self) -> Option<i64> {
        self.restored.as_ref().and_then(|restored| restored.manifest().cut.watermark_ms)
    }

    /// What had become of all records at the checkpoint.
    pub(crate) fn totals(&self) -> Totals {
        let totals = self.restored.as_ref().map(|restored| restored.manifest().totals());
        Totals::from_names(&totals.unwrap_or_default())
    }

    /// What had become of records before they reached a shard.
    pub(crate) fn source_totals(&self) -> Totals {
        let totals = self.restored.as_ref().map(|restored| &restored.manifest().cut.totals);
        totals.map(Totals::from_names).unwrap_or_default()
    }
}

impl Shared {
    pub(crate) fn new(parts: CountParts, options: CountOptions, start: Start) -> Self {
        let epochs = EpochClock::new(Arc::clone(&parts.clock));
        let outbox = Outbox::new(options.workers, options.windows_wait_minutes);
        let cuts = Cuts::new(
            parts.checkpoints.is_some(),
            options.workers,
            options.checkpoint_every_ms,
            parts.clock.monotonic_ms(),
        );
        Self {
            parts,
            options,
            start,
            epochs,
            outbox,
            cuts,
            dirty: DirtyNotes::default(),
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
