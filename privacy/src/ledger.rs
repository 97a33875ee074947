//! A process's copy of the erasure ledger: which cached keys must not be used any more.
//!
//! The ledger is a table of its own store, apart from the key store, so that a key store restored
//! from a backup cannot undo an erasure. Its rows are only ever added, numbered from 1 without
//! gaps; this copy reads the new ones at each poll and revokes the keys that they name. Users'
//! cached keys may be used only while the copy is young, which bounds how long an erasure takes to
//! be heeded everywhere.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prost::Message;
use tally_model::clock::Clock;
use tally_sinks::error::StoreError;
use tally_sinks::meta::{MetaStore, Table};

use crate::keys::{KeyStore, UserIndex};

/// Entries by sequence number, 8 bytes, big-endian.
const TABLE: Table = "erasure_ledger";
/// Entries read at once.
const PAGE: usize = 1_000;

/// Version of the entries that this program reads.
const VERSION: u32 = 1;
/// An erasure was requested.
const KIND_REQUESTED: u32 = 1;

/// One entry. Numbers are part of the format: never reuse one.
///
/// A kind that is not known here says nothing about keys: whatever does comes with a new version.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct Entry {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(uint32, tag = "2")]
    kind: u32,
    /// The user's index in the key store, 32 bytes.
    #[prost(bytes = "vec", tag = "3")]
    user: Vec<u8>,
    /// Keys made before this moment die, ms since the Unix epoch.
    #[prost(sfixed64, tag = "4")]
    requested_at_ms: i64,
}

/// The copy that one process holds. Shared by all threads; one of them polls.
pub struct ErasureLedger {
    meta: Arc<dyn MetaStore>,
    keys: Arc<KeyStore>,
    clock: Arc<dyn Clock>,
    /// Number of the last entry that was applied; 0 before the first. Locked during a poll.
    applied: Mutex<u64>,
    /// When the last successful poll began, by the monotonic clock: what was added later may be
    /// missing.
    read_at_ms: AtomicI64,
}

impl fmt::Debug for ErasureLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErasureLedger").field("age_ms", &self.age_ms()).finish_non_exhaustive()
    }
}

impl ErasureLedger {
    /// A copy of the whole ledger in `meta`, applied to `keys` from the first entry on.
    ///
    /// # Errors
    /// [`StoreError`]. Without its ledger a process must not use any key.
    pub fn open(
        meta: Arc<dyn MetaStore>,
        keys: Arc<KeyStore>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StoreError> {
        let read_at_ms = AtomicI64::new(clock.monotonic_ms());
        let ledger = Self { meta, keys, clock, applied: Mutex::new(0), read_at_ms };
        ledger.poll()?;
        Ok(ledger)
    }

    /// Reads and applies what was added since the last poll. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; the copy then grows older. An entry that cannot be read is such an error and
    /// not skipped: it may be the erasure of somebody.
    pub fn poll(&self) -> Result<(), StoreError> {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let started_ms = self.clock.monotonic_ms();
        loop {
            let after = (*applied > 0).then(|| applied.to_be_bytes());
            let rows = self.meta.scan(TABLE, after.as_ref().map(<[u8; 8]>::as_slice), PAGE)?;
            for (key, value) in &rows {
                let next = *applied + 1;
                if key[..] != next.to_be_bytes() {
                    return Err(corrupt(next, "is missing"));
                }
                self.apply(next, value)?;
                *applied = next;
            }
            if rows.len() < PAGE {
                break;
            }
        }
        // Before the lock goes, so that a poll that began earlier cannot set it back.
        self.read_at_ms.store(started_ms, Ordering::Release);
        drop(applied);
        Ok(())
    }

    /// How old the copy is, in ms: the time since the last successful poll began, however the wall
    /// clock steps.
    #[must_use]
    pub fn age_ms(&self) -> u64 {
        let age_ms = self.clock.monotonic_ms() - self.read_at_ms.load(Ordering::Acquire);
        u64::try_from(age_ms).unwrap_or(0)
    }

    /// Whether cached keys may be used: the copy is younger than `ttl_ms`.
    #[must_use]
    pub fn is_fresh(&self, ttl_ms: u64) -> bool {
        self.age_ms() < ttl_ms
    }

    fn apply(&self, sequence: u64, value: &[u8]) -> Result<(), StoreError> {
        let entry =
            Entry::decode(value).map_err(|_not_protobuf| corrupt(sequence, "is no entry"))?;
        if entry.version != VERSION {
            return Err(corrupt(sequence, "has a version that this program does not know"));
        }
        if entry.kind == KIND_REQUESTED {
            let user = entry.user.as_slice().try_into();
            let user = user.map_err(|_length| corrupt(sequence, "names no user"))?;
            self.keys.revoke(&UserIndex(user), entry.requested_at_ms);
        }
        Ok(())
    }
}

fn corrupt(sequence: u64, what: &str) -> StoreError {
    StoreError::Corrupt { what: format!("{TABLE}: entry {sequence} {what}") }
}

#[cfg(test)]
mod tests;
