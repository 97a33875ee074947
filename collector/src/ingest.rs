//! From events as sent to records ready for the log: judged, stamped, sealed, encoded.
//!
//! Three steps, so that a caller on an async thread can wait for new user keys between them:
//! [`Preparer::judge`] decides what is taken, [`Preparer::find_keys`] looks the users' keys up,
//! [`Preparer::seal`] writes the records. [`Preparer::prepare`] does all three and may block; it is
//! what a file import uses. Whoever prepares events, the same rules hold.
//!
//! Invariants I-1, K-2 of ARCHITECTURE.md.

mod judge;
mod seal;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tally_eventlog::NewRecord;
use tally_model::bucket::DAY_MS;
use tally_model::ids::{IdMixer, Shards};
use tally_model::reasons::{RejectReason, WarnReason};
use tally_privacy::keys::{KeyError, KeyStore, UserKeys};
use tally_privacy::ledger::ErasureLedger;
use tally_privacy::random::NoRandomness;
use tally_privacy::seal::{Nonces, SealError};
use tally_privacy::secrets::DeploymentSecrets;
use tally_sinks::registry::Registry;

pub use judge::Judged;

use crate::limits::{CollectorOptions, Limits};
use crate::parse::ParsedEvent;

/// How much older than receivedAt an event may be, in ms.
pub const EVENT_AGE_MAX_MS: i64 = 90 * DAY_MS;
/// An eventTime is set to receivedAt without a warning when it is at most this much later, in ms.
pub const CLAMP_QUIET_MS: i64 = 1_000;

/// Everything that deciding about events and sealing them needs. Shared by all requests.
#[derive(Debug)]
pub struct Preparer {
    /// The known event types.
    pub registry: Arc<Registry>,
    /// The users' keys.
    pub keys: Arc<KeyStore>,
    /// The copy of the erasure ledger; keys are used only while it is fresh.
    pub ledger: Arc<ErasureLedger>,
    /// The deployment's keys, here for the hash of unknown names.
    pub secrets: Arc<DeploymentSecrets>,
    /// From event ids to mixed ids.
    pub mixer: IdMixer,
    /// Shards of the deployment.
    pub shards: Shards,
    /// Partitions of the log.
    pub partitions: u32,
    /// Bounds on events.
    pub limits: Limits,
    /// Handling of personal data.
    pub options: CollectorOptions,
}

/// The receivedAt stamp that a batch of events gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedAt {
    /// All events arrive now, in ms since the Unix epoch.
    Now(i64),
    /// Each event arrived at its own eventTime, as when history is imported. An eventTime after
    /// `now_ms` is set to it, and age is judged against it.
    EventTime {
        /// The present, in ms since the Unix epoch.
        now_ms: i64,
    },
}

impl ReceivedAt {
    const fn now_ms(self) -> i64 {
        match self {
            Self::Now(now_ms) | Self::EventTime { now_ms } => now_ms,
        }
    }
}

/// Who sent a batch. Address and user agent only where their capture is on; its debug form shows
/// neither.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Sender {
    /// Number of the write key.
    pub write_key: u32,
    /// Where the request came from.
    pub ip: Option<IpAddr>,
    /// Its User-Agent header.
    pub user_agent: Option<String>,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("write_key", &self.write_key).finish_non_exhaustive()
    }
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Taken.
    Accepted(Warnings),
    /// Not taken.
    Rejected(RejectReason),
}

/// What is worth knowing about an accepted event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    clamped: bool,
    repeat: bool,
    of_type: Option<WarnReason>,
}

impl Warnings {
    /// The reasons, at most one of each.
    pub fn iter(self) -> impl Iterator<Item = WarnReason> {
        let clamped = self.clamped.then_some(WarnReason::Clamped);
        let repeat = self.repeat.then_some(WarnReason::Repeat);
        [clamped, self.of_type, repeat].into_iter().flatten()
    }

    /// Whether the event is a copy of an earlier one and was therefore not appended.
    #[must_use]
    pub const fn is_repeat(self) -> bool {
        self.repeat
    }
}

/// The answer about one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The eventId as sent; `None` if there was none or it is no string.
    pub sent_id: Option<Cow<'a, str>>,
    /// What became of it.
    pub verdict: Verdict,
}

/// A batch that is ready for the log.
#[derive(Debug)]
pub struct Prepared<'a> {
    /// One answer per event, in the order sent. They hold once `records` are confirmed.
    pub answers: Vec<Answer<'a>>,
    /// One record per accepted event that is no repeat. Run and sequence are still to be added.
    pub records: Vec<NewRecord>,
    /// Index in `answers` of each record.
    indexes: Vec<usize>,
    /// Index of each repeat and of the event that it repeats, ascending.
    repeats: Vec<(usize, usize)>,
}

impl Prepared<'_> {
    /// The same without the ids as sent, so that it outlives the text of the events.
    #[must_use]
    pub fn without_ids(self) -> Prepared<'static> {
        let answers = self.answers.into_iter();
        Prepared {
            answers: answers.map(|a| Answer { sent_id: None, verdict: a.verdict }).collect(),
            records: self.records,
            indexes: self.indexes,
            repeats: self.repeats,
        }
    }

    /// Index in `answers` of each of `records`, in the order of the records.
    #[must_use]
    pub fn indexes(&self) -> &[usize] {
        &self.indexes
    }

    /// Rejects the event of the record at `position` of `records`, together with its repeats: what
    /// was not appended must not be reported as taken.
    pub fn reject(&mut self, position: usize, reason: RejectReason) {
        let Some(index) = self.indexes.get(position).copied() else { return };
        let copies =
            self.repeats.iter().filter(|(_, first)| *first == index).map(|(copy, _)| *copy);
        for index in copies.chain([index]).collect::<Vec<_>>() {
            self.reject_index(index, reason);
        }
    }

    fn reject_index(&mut self, index: usize, reason: RejectReason) {
        if let Some(answer) = self.answers.get_mut(index) {
            answer.verdict = Verdict::Rejected(reason);
        }
    }
}

/// Keys of a batch's users, some perhaps still to be made.
pub struct FoundKeys {
    /// One per event that was taken.
    places: Vec<KeyPlace>,
    /// Distinct userIds whose keys are not cached.
    missing: Vec<String>,
}

enum KeyPlace {
    Cached(Arc<UserKeys>),
    /// Index in `missing`.
    Missing(usize),
}

impl fmt::Debug for FoundKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FoundKeys").field("missing", &self.missing.len()).finish_non_exhaustive()
    }
}

impl FoundKeys {
    /// The users whose keys are still to be fetched or made, each once.
    #[must_use]
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// How many events wait for a missing key.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.places.iter().filter(|place| matches!(place, KeyPlace::Missing(_))).count()
    }

    /// One key per event; `made` are the keys of [`FoundKeys::missing`], in that order.
    ///
    /// # Errors
    /// [`IngestError::KeysIncomplete`] if a key is not there.
    pub fn complete(self, made: &[Arc<UserKeys>]) -> Result<Vec<Arc<UserKeys>>, IngestError> {
        self.places
            .into_iter()
            .map(|place| match place {
                KeyPlace::Cached(keys) => Ok(keys),
                KeyPlace::Missing(at) => made
                    .get(at)
                    .map(Arc::clone)
                    .ok_or(IngestError::KeysIncomplete { wanted: at + 1, got: made.len() }),
            })
            .collect()
    }
}

/// Why a batch cannot be taken now. For every variant: nothing was written, try again later.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// Cached keys may belong to users who were erased since: look at the ledger's store.
    #[error("the copy of the erasure ledger is {age_ms} ms old, over the {ttl_ms} ms allowed")]
    StaleLedger {
        /// Age of the copy.
        age_ms: u64,
        /// How old it may be.
        ttl_ms: u64,
    },
    /// The key store did not answer: look at it.
    #[error("the keys of {users} users cannot be had")]
    Keys {
        /// How many users were asked for.
        users: usize,
        /// What the key store reported.
        #[source]
        source: KeyError,
    },
    /// The key store did not answer in time: look at it.
    #[error("the keys of {users} users did not come in time")]
    KeysLate {
        /// How many users were asked for.
        users: usize,
    },
    /// The key store returned fewer keys than users: a fault of this program.
    #[error("the key store returned {got} keys where {wanted} or more were asked for")]
    KeysIncomplete {
        /// Keys needed.
        wanted: usize,
        /// Keys returned.
        got: usize,
    },
    /// The operating system gave no random numbers: nothing can be sealed.
    #[error("no random numbers can be had")]
    Randomness(#[source] NoRandomness),
    /// A record could not be sealed: a fault of this program.
    #[error("a record cannot be sealed")]
    Seal(#[source] SealError),
}

impl IngestError {
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::StaleLedger { .. } => "stale_ledger",
            Self::Keys { .. } | Self::KeysLate { .. } | Self::KeysIncomplete { .. } => "key_store",
            Self::Randomness(_) => "randomness",
            Self::Seal(_) => "seal",
        }
    }
}

impl Preparer {
    /// Judges, seals and encodes a batch. Blocks while keys of new users are made durable.
    ///
    /// # Errors
    /// [`IngestError`]: nothing of the batch may be written.
    pub fn prepare<'a>(
        &self,
        events: Vec<ParsedEvent<'a>>,
        stamp: ReceivedAt,
        sender: &Sender,
        nonces: &mut Nonces,
    ) -> Result<Prepared<'a>, IngestError> {
        let judged = self.judge(events, stamp);
        let found = self.find_keys(&judged)?;
        let made = if found.missing.is_empty() {
            Vec::new()
        } else {
            self.make_keys(found.missing(), stamp)?
        };
        self.seal(judged, &found.complete(&made)?, sender, nonces)
    }

    /// The cached keys of the users of `judged`, and whose are missing. Never blocks.
    ///
    /// # Errors
    /// [`IngestError::StaleLedger`]: then no cached key may be used.
    pub fn find_keys(&self, judged: &Judged<'_>) -> Result<FoundKeys, IngestError> {
        let ttl_ms = self.options.key_cache_ttl_ms;
        if !self.ledger.is_fresh(ttl_ms) {
            return Err(IngestError::StaleLedger { age_ms: self.ledger.age_ms(), ttl_ms });
        }
        let mut found =
            FoundKeys { places: Vec::with_capacity(judged.taken.len()), missing: Vec::new() };
        for taken in &judged.taken {
            let user = taken.sent.user_id.as_ref();
            let place = match self.keys.cached(user) {
                Some(keys) => KeyPlace::Cached(keys),
                None => KeyPlace::Missing(position(&mut found.missing, user)),
            };
            found.places.push(place);
        }
        Ok(found)
    }

    /// Fetches or makes the keys of `users`, which are distinct. Blocks until they are durable.
    ///
    /// `stamp` is that of the events to seal: new keys must not look younger than these, or an
    /// erasure between the two would spare them.
    ///
    /// # Errors
    /// [`IngestError::Keys`].
    pub fn make_keys(
        &self,
        users: &[String],
        stamp: ReceivedAt,
    ) -> Result<Vec<Arc<UserKeys>>, IngestError> {
        let names: Vec<&str> = users.iter().map(String::as_str).collect();
        match self.keys.user_keys(&names, stamp.now_ms()) {
            Ok(batch) => Ok(batch.keys),
            Err(source) => Err(IngestError::Keys { users: users.len(), source }),
        }
    }
}

/// Place of `user` in the list, added at its end if it is new. A batch has few missing users, so
/// looking through them is faster than hashing.
fn position(users: &mut Vec<String>, user: &str) -> usize {
    if let Some(at) = users.iter().position(|known| known == user) {
        return at;
    }
    users.push(user.to_owned());
    users.len() - 1
}

#[cfg(test)]
mod tests;
