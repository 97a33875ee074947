//! One collector: what its requests share.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tally_model::clock::Clock;
use tally_sinks::error::StoreError;
use tally_sinks::tokens::Tokens;

use crate::append::Appender;
use crate::budget::Budget;
use crate::health::Health;
use crate::ingest::{IngestError, Preparer};
use crate::metrics::Metrics;

/// What a collector is made of.
#[derive(Debug)]
pub struct CollectorParts {
    /// Judges, seals and encodes events.
    pub preparer: Arc<Preparer>,
    /// Hands records to the log.
    pub appender: Appender,
    /// The write keys.
    pub tokens: Arc<Tokens>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// The state behind [`crate::http::router`].
#[derive(Debug)]
pub struct Collector {
    pub(crate) parts: CollectorParts,
    pub(crate) budget: Budget,
    user_keys: Health,
    is_draining: AtomicBool,
}

/// Why a collector should get no requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// It is being stopped.
    #[error("the collector is being stopped")]
    Draining,
    /// Its copy of the erasure ledger is too old to use cached keys.
    #[error("the copy of the erasure ledger is {age_ms} ms old")]
    StaleLedger {
        /// Age of the copy.
        age_ms: u64,
    },
    /// The log's last answer was a fault.
    #[error("the log does not confirm appends")]
    Log,
}

impl Collector {
    /// A collector that takes requests.
    #[must_use]
    pub fn new(parts: CollectorParts) -> Self {
        let budget = Budget::new(parts.preparer.limits.inflight_bytes, Arc::clone(&parts.metrics));
        Self {
            parts,
            budget,
            user_keys: Health::of("looking up the keys of users"),
            is_draining: AtomicBool::new(false),
        }
    }

    /// From now on new requests are answered 503; those in flight go on.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Whether it is being stopped.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Notes whether the keys of a batch were to be had.
    pub(crate) fn note_keys<T>(&self, found: Result<T, IngestError>) -> Result<T, IngestError> {
        let fault = found.as_ref().err();
        self.user_keys.note(fault.map(|fault| fault as &(dyn Error + 'static)));
        found.inspect_err(|fault| self.parts.metrics.keys_failure(fault.code()))
    }

    /// Looks at the erasure ledger's store and notes how old the copy is. Call it every few
    /// seconds; it blocks.
    ///
    /// A store that does not answer leaves the copy as it is: once that is older than the TTL,
    /// requests are answered 503.
    ///
    /// # Errors
    /// [`StoreError`], which the caller logs.
    pub fn poll_ledger(&self) -> Result<(), StoreError> {
        let ledger = &self.parts.preparer.ledger;
        let polled = ledger.poll();
        self.parts.metrics.ledger_age(ledger.age_ms());
        polled
    }

    /// Whether requests can be answered with 202 now.
    ///
    /// # Errors
    /// [`NotReady`] says why not.
    pub fn ready(&self) -> Result<(), NotReady> {
        let preparer = &self.parts.preparer;
        if self.is_draining() {
            Err(NotReady::Draining)
        } else if !preparer.ledger.is_fresh(preparer.options.key_cache_ttl_ms) {
            Err(NotReady::StaleLedger { age_ms: preparer.ledger.age_ms() })
        } else if !self.parts.appender.is_healthy() {
            Err(NotReady::Log)
        } else {
            Ok(())
        }
    }
}
