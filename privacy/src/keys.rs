//! The keys of users: a data key that seals, and a secret that row tags come from.
//!
//! A user is found by the HMAC of the userId (`UserIndex`); the userId itself is never stored. A
//! row holds the user's two secrets, wrapped under the master key, and when they were made. Rows
//! are written once, under the condition that there is none, so collectors that race for a new user
//! end up with the same keys.

mod cache;
mod creator;
mod row;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tally_model::clock::Clock;
use tally_model::time::date_number;
use tally_sinks::error::StoreError;
use tally_sinks::meta::{MetaStore, Table};
use zeroize::Zeroizing;

use crate::master::MasterKey;
use crate::random::{self, NoRandomness};
use crate::secrets::DeploymentSecrets;
use cache::Cache;
use creator::Creator;

/// Rows by `UserIndex`.
const TABLE: Table = "user_keys";
const KEY_BYTES: usize = 32;

/// HMAC-SHA-256 of `text`.
pub(crate) fn hmac_sha256(secret: &[u8; KEY_BYTES], text: &[u8]) -> [u8; 32] {
    keyed_hmac(secret).chain_update(text).finalize().into_bytes().into()
}

fn keyed_hmac(secret: &[u8; KEY_BYTES]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("HMAC takes keys of any length")
}

/// Where a user's keys stand: the HMAC of the userId. It leads back to a person who is known, so it
/// is shown nowhere and stands only in the key store and the erasure ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UserIndex(pub(crate) [u8; 32]);

impl fmt::Debug for UserIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserIndex(hidden)")
    }
}

impl Hash for UserIndex {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = self.0;
        state.write_u64(u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]));
    }
}

/// Takes an index's own bits as its hash: they come from a keyed HMAC, so they are uniform and
/// nobody outside can aim at them.
#[derive(Clone, Copy, Debug, Default)]
struct OwnBits(u64);

impl Hasher for OwnBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, bits: u64) {
        self.0 = bits;
    }
}

type ByUser<T> = HashMap<UserIndex, T, BuildHasherDefault<OwnBits>>;

/// The keys of one user. Wiped from memory when the last holder lets go.
pub struct UserKeys {
    created_at_ms: i64,
    data_key: Zeroizing<[u8; KEY_BYTES]>,
    secret: Zeroizing<[u8; KEY_BYTES]>,
    /// The row tag of the day that was asked for last.
    last_tag: Mutex<DayTag>,
}

struct DayTag {
    /// The day as `YYYYMMDD`; 0 before the first one.
    date: u32,
    tag: [u8; 16],
}

impl fmt::Debug for UserKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserKeys(hidden)")
    }
}

impl UserKeys {
    /// The keys made of these secrets. A [`KeyStore`] makes and finds them.
    #[must_use]
    pub fn new(created_at_ms: i64, data_key: [u8; KEY_BYTES], secret: [u8; KEY_BYTES]) -> Self {
        Self {
            created_at_ms,
            data_key: Zeroizing::new(data_key),
            secret: Zeroizing::new(secret),
            last_tag: Mutex::new(DayTag { date: 0, tag: [0; 16] }),
        }
    }

    /// When the keys were made, ms since the Unix epoch: the receivedAt of the first event that
    /// they sealed, or the moment of the erasure that they follow if that is later.
    #[must_use]
    pub const fn created_at_ms(&self) -> i64 {
        self.created_at_ms
    }

    /// The row tag of this user's records of the UTC day of `received_at_ms`: the first 16 bytes of
    /// the HMAC of that date under the user's secret.
    ///
    /// Without the secret, nothing tells that two tags of different days belong to one person.
    #[must_use]
    pub fn row_tag(&self, received_at_ms: i64) -> [u8; 16] {
        let date = date_number(received_at_ms);
        // Who finds the place taken by another thread computes the tag instead of waiting.
        let Ok(mut last) = self.last_tag.try_lock() else {
            return self.tag_of(date);
        };
        if last.date != date {
            *last = DayTag { date, tag: self.tag_of(date) };
        }
        last.tag
    }

    fn tag_of(&self, date: u32) -> [u8; 16] {
        let mac = hmac_sha256(&self.secret, format!("{date:08}").as_bytes());
        let mut tag = [0; 16];
        tag.copy_from_slice(mac.split_at(16).0);
        tag
    }

    pub(crate) fn data_key(&self) -> &[u8; KEY_BYTES] {
        &self.data_key
    }
}

/// Why the keys of a batch cannot be had. For every variant: nothing may be sealed, answer 503.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The store did not answer: try again. Keys that were being made may or may not be stored;
    /// the next call finds out.
    #[error("the key store does not answer")]
    Unavailable(#[source] Arc<StoreError>),
    /// A user was erased a moment ago and the old keys are still stored: try again.
    #[error("the keys of a user are being destroyed")]
    Destroyed,
    /// A row cannot be read: look at the store and the master key.
    #[error("the keys of a user cannot be read: {what}")]
    Corrupt {
        /// What is wrong with the row.
        what: &'static str,
    },
    /// The thread that makes new keys is gone: this process has to be restarted.
    #[error("new keys are not made any more")]
    Stopped,
}

/// What keeps one user's keys from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyFault {
    Destroyed,
    Corrupt(&'static str),
}

impl From<KeyFault> for KeyError {
    fn from(fault: KeyFault) -> Self {
        match fault {
            KeyFault::Destroyed => Self::Destroyed,
            KeyFault::Corrupt(what) => Self::Corrupt { what },
        }
    }
}

/// Why a key store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyStoreOpenError {
    /// No secret can be made.
    #[error("cannot make keys for users")]
    Random(#[from] NoRandomness),
    /// The system has no room for a thread.
    #[error("cannot start the thread that makes keys for users")]
    Thread(#[source] io::Error),
}

/// Bounds of a [`KeyStore`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyStoreOptions {
    /// Most users whose keys are kept in memory (about 200 bytes each), rounded down to a multiple
    /// of 128, but at least 128.
    pub cache_entries: usize,
    /// Most keys that are made in one commit, unless a single call asks for more.
    pub batch_keys: usize,
    /// How long a commit waits for callers who are about to join it.
    pub batch_wait: Duration,
}

impl Default for KeyStoreOptions {
    fn default() -> Self {
        Self { cache_entries: 1_000_000, batch_keys: 1_000, batch_wait: Duration::from_millis(5) }
    }
}

/// The keys of a batch of users.
#[derive(Clone, Debug)]
pub struct UserKeysBatch {
    /// One per user asked for, in that order.
    pub keys: Vec<Arc<UserKeys>>,
    /// How many of the users were new, so that this call made their keys.
    pub created: usize,
}

/// Finds the keys of users and makes those of new ones. Shared by all threads.
pub struct KeyStore {
    meta: Arc<dyn MetaStore>,
    master: MasterKey,
    index: Hmac<Sha256>,
    cache: Arc<Cache>,
    creator: Creator,
}

impl fmt::Debug for KeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyStore")
            .field("cached_users", &self.cached_users())
            .finish_non_exhaustive()
    }
}

impl KeyStore {
    /// The key store of a deployment, and the thread that makes new keys.
    ///
    /// # Errors
    /// [`KeyStoreOpenError`].
    pub fn open(
        meta: Arc<dyn MetaStore>,
        master: MasterKey,
        secrets: &DeploymentSecrets,
        options: KeyStoreOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, KeyStoreOpenError> {
        let cache = Arc::new(Cache::new(options.cache_entries));
        let minter = creator::Minter {
            meta: Arc::clone(&meta),
            master: master.clone(),
            cache: Arc::clone(&cache),
            generator: random::generator()?,
            clock,
        };
        let creator = Creator::start(minter, options.batch_keys, options.batch_wait)
            .map_err(KeyStoreOpenError::Thread)?;
        Ok(Self { meta, master, index: keyed_hmac(&secrets.index_secret), cache, creator })
    }

    /// The user's keys if they are in memory. Never waits for the store.
    #[must_use]
    pub fn cached(&self, user_id: &str) -> Option<Arc<UserKeys>> {
        self.cache.get(&self.index_of(user_id))
    }

    /// The keys of `user_ids`: from memory, from the store, or made now. Blocks; what it returns is
    /// durable.
    ///
    /// `now_ms` is the receivedAt of the events to seal, ms since the Unix epoch. New keys carry it,
    /// so an erasure requested after an event was received always covers the event's keys.
    ///
    /// # Errors
    /// [`KeyError`], if the keys of any of the users cannot be had.
    pub fn user_keys(&self, user_ids: &[&str], now_ms: i64) -> Result<UserKeysBatch, KeyError> {
        let users: Vec<UserIndex> = user_ids.iter().map(|user| self.index_of(user)).collect();
        let mut found: ByUser<Arc<UserKeys>> = ByUser::default();
        let mut missing = Vec::new();
        for user in &users {
            match self.cache.get(user) {
                Some(keys) => {
                    found.insert(*user, keys);
                }
                None => missing.push(*user),
            }
        }
        missing.sort_unstable();
        missing.dedup();

        let mut created = 0;
        if !missing.is_empty() {
            let arrival = self.creator.arrive();
            let absent = self.fetch(missing, &mut found)?;
            if !absent.is_empty() {
                for (user, made) in absent.iter().zip(arrival.order(absent.clone(), now_ms)?) {
                    let made = made?;
                    created += usize::from(made.is_new);
                    found.insert(*user, made.keys);
                }
            }
        }
        let keys: Vec<_> =
            users.iter().filter_map(|user| found.get(user).map(Arc::clone)).collect();
        if keys.len() != users.len() {
            return Err(KeyError::Corrupt {
                what: "the store answered for fewer users than asked",
            });
        }
        Ok(UserKeysBatch { keys, created })
    }

    /// How many users' keys are in memory.
    #[must_use]
    pub fn cached_users(&self) -> usize {
        self.cache.len()
    }

    /// From now on, keys of `user` that were made before `requested_at_ms` are not used: neither
    /// those in memory nor those that the store may still hold.
    pub(crate) fn revoke(&self, user: &UserIndex, requested_at_ms: i64) {
        self.cache.revoke(user, requested_at_ms);
    }

    fn index_of(&self, user_id: &str) -> UserIndex {
        UserIndex(self.index.clone().chain_update(user_id).finalize().into_bytes().into())
    }

    /// Reads `users` from the store into `found`; returns those that are not there.
    fn fetch(
        &self,
        users: Vec<UserIndex>,
        found: &mut ByUser<Arc<UserKeys>>,
    ) -> Result<Vec<UserIndex>, KeyError> {
        let keys: Vec<Vec<u8>> = users.iter().map(|user| user.0.to_vec()).collect();
        let rows = self
            .meta
            .get_many(TABLE, &keys)
            .map_err(|error| KeyError::Unavailable(Arc::new(error)))?;
        let mut absent = Vec::new();
        for (user, row) in users.into_iter().zip(rows) {
            match row {
                Some(row) => {
                    let keys = row::decode(&self.master, &user, &row)?;
                    found.insert(user, self.cache.admit(user, Arc::new(keys))?);
                }
                None => absent.push(user),
            }
        }
        Ok(absent)
    }
}
