//! Faults on order, for the failing wrappers of both seams.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::error::StoreError;

/// How a scripted call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing happens, and the store says so: [`StoreError::Unavailable`].
    Refused,
    /// It happens, but the answer is lost: [`StoreError::Unknown`].
    AppliedThenLost,
    /// Nothing happens and nobody can tell: [`StoreError::Unknown`].
    LostBeforeApplied,
}

/// What the next calls do, in order: `None` = succeed. Calls after the script's end succeed.
#[derive(Debug, Default)]
pub(crate) struct Script {
    steps: Mutex<VecDeque<Option<Fault>>>,
}

/// Why a scripted call failed.
#[derive(Debug, thiserror::Error)]
#[error("a fault on order")]
struct Ordered;

impl Script {
    pub(crate) fn extend(&self, steps: impl IntoIterator<Item = Option<Fault>>) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).extend(steps);
    }

    fn next(&self) -> Option<Fault> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).pop_front().flatten()
    }

    /// Runs a write as the script says.
    pub(crate) fn write<T>(
        &self,
        action: &'static str,
        call: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.next() {
            None => call(),
            Some(Fault::Refused) => Err(StoreError::unavailable(action, Ordered)),
            Some(Fault::AppliedThenLost) => {
                call()?;
                Err(StoreError::unknown(action, Ordered))
            }
            Some(Fault::LostBeforeApplied) => Err(StoreError::unknown(action, Ordered)),
        }
    }

    /// Runs a read as the script says. A read changes nothing, so every fault means the same.
    pub(crate) fn read<T>(
        &self,
        action: &'static str,
        call: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match self.next() {
            None => call(),
            Some(Fault::Refused | Fault::AppliedThenLost | Fault::LostBeforeApplied) => {
                Err(StoreError::unavailable(action, Ordered))
            }
        }
    }
}
