//! Keys in memory, bounded, and what the erasure ledger says about them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ByUser, KeyFault, UserIndex, UserKeys};

/// A power of two; enough that threads seldom meet.
const SHARDS: usize = 64;

/// Keys by user, in shards that each have a lock.
///
/// A shard keeps two generations. What is used moves to the young one; when that is full the old
/// one is dropped and the young one takes its place. So the users of at least half the capacity who
/// came last are always there, and a hit on a young entry writes nothing but the lock.
pub(super) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    generation_max: usize,
}

#[derive(Default)]
struct Shard {
    young: ByUser<Arc<UserKeys>>,
    old: ByUser<Arc<UserKeys>>,
    /// When the last erasure of a user was requested, ms since the Unix epoch. As long as the
    /// ledger: a row with dead keys may come back at any time, for instance out of a backup.
    revoked: ByUser<i64>,
}

impl Cache {
    /// A cache of at most `entries` users, rounded down to whole generations.
    pub(super) fn new(entries: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            generation_max: (entries / (2 * SHARDS)).max(1),
        }
    }

    pub(super) fn get(&self, user: &UserIndex) -> Option<Arc<UserKeys>> {
        let mut shard = self.shard(user);
        if let Some(keys) = shard.young.get(user) {
            return Some(Arc::clone(keys));
        }
        let keys = shard.old.remove(user)?;
        let dropped = shard.insert(*user, Arc::clone(&keys), self.generation_max);
        // Wiping a whole generation takes a while: not under the lock.
        drop(shard);
        drop(dropped);
        Some(keys)
    }

    /// Keeps keys that were read or made just now, unless the ledger revoked them. The check and
    /// the insertion are one step: a revocation comes either before and is seen, or after and finds
    /// the entry.
    pub(super) fn admit(
        &self,
        user: UserIndex,
        keys: Arc<UserKeys>,
    ) -> Result<Arc<UserKeys>, KeyFault> {
        let mut shard = self.shard(&user);
        if shard.revoked.get(&user).is_some_and(|at_ms| keys.created_at_ms() < *at_ms) {
            return Err(KeyFault::Destroyed);
        }
        shard.old.remove(&user);
        let dropped = shard.insert(user, Arc::clone(&keys), self.generation_max);
        drop(shard);
        drop(dropped);
        Ok(keys)
    }

    /// Drops the user's keys if they were made before `requested_at_ms`, and from now on admits none
    /// that were.
    pub(super) fn revoke(&self, user: &UserIndex, requested_at_ms: i64) {
        let mut shard = self.shard(user);
        let Shard { young, old, revoked } = &mut *shard;
        let at_ms = revoked.entry(*user).or_insert(requested_at_ms);
        *at_ms = requested_at_ms.max(*at_ms);
        for generation in [young, old] {
            if generation.get(user).is_some_and(|keys| keys.created_at_ms() < requested_at_ms) {
                generation.remove(user);
            }
        }
    }

    /// When the last erasure of this user was requested.
    pub(super) fn revoked_at_ms(&self, user: &UserIndex) -> Option<i64> {
        self.shard(user).revoked.get(user).copied()
    }

    pub(super) fn len(&self) -> usize {
        let size = |shard: &Mutex<Shard>| {
            let shard = lock(shard);
            shard.young.len() + shard.old.len()
        };
        self.shards.iter().map(size).sum()
    }

    fn shard(&self, user: &UserIndex) -> MutexGuard<'_, Shard> {
        // The first bytes place an entry inside its map, so the last one chooses the shard.
        let UserIndex([.., last]) = *user;
        lock(&self.shards[usize::from(last) % SHARDS])
    }
}

/// A panic elsewhere leaves a shard whole: every change of it is one insertion or removal.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    /// Puts an entry into the young generation; returns the generation that had to go, if any.
    fn insert(
        &mut self,
        user: UserIndex,
        keys: Arc<UserKeys>,
        generation_max: usize,
    ) -> Option<ByUser<Arc<UserKeys>>> {
        let is_full = self.young.len() >= generation_max && !self.young.contains_key(&user);
        let dropped = is_full.then(|| {
            let young = std::mem::take(&mut self.young);
            std::mem::replace(&mut self.old, young)
        });
        self.young.insert(user, keys);
        dropped
    }
}

#[cfg(test)]
mod tests;
