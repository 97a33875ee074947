//! Telling a lasting fault once instead of with every request.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the last use of something failed. Each change is logged, repetitions are not.
#[derive(Debug)]
pub(crate) struct Health {
    what: &'static str,
    is_faulty: AtomicBool,
}

impl Health {
    /// The health of `what`, which works until a fault is noted.
    pub(crate) const fn of(what: &'static str) -> Self {
        Self { what, is_faulty: AtomicBool::new(false) }
    }

    /// Notes how a use went. The fault's text must hold nothing private.
    pub(crate) fn note(&self, fault: Option<&(dyn Error + 'static)>) {
        let was_faulty = self.is_faulty.swap(fault.is_some(), Ordering::Relaxed);
        match fault {
            Some(error) if !was_faulty => tracing::error!(error, "{} does not work", self.what),
            None if was_faulty => tracing::info!("{} works again", self.what),
            Some(_) | None => {}
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        !self.is_faulty.load(Ordering::Relaxed)
    }
}
