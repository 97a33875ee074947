//! Event ids, mixed ids and shards.

#[cfg(test)]
mod tests;

use std::fmt;

use aes::Aes128;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use serde::{Deserialize, Serialize};

/// The id that a client gave its event before the first attempt to send it: 16 bytes.
///
/// It is the idempotency key: two records with one id are copies of one event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(pub [u8; 16]);

/// The text is not a UUID in one of its usual spellings, or it is the nil UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event id is a UUID other than the nil UUID")]
pub struct BadEventId;

impl EventId {
    /// Reads a UUID in one of its usual spellings: hyphenated, plain, braced or as a URN, in
    /// either case. All spellings of one UUID give the same 16 bytes.
    ///
    /// # Errors
    /// [`BadEventId`] for any other text and for the nil UUID, which clients send when they
    /// forgot to make an id.
    pub fn parse(text: &str) -> Result<Self, BadEventId> {
        match uuid::Uuid::try_parse(text) {
            Ok(id) if !id.is_nil() => Ok(Self(id.into_bytes())),
            Ok(_) | Err(_) => Err(BadEventId),
        }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&uuid::Uuid::from_bytes(self.0), f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventId({self})")
    }
}

/// An event id under the deployment's keyed bijection.
///
/// Uniformly distributed whatever the clients' ids look like (time-ordered UUIDs included), so
/// its bits serve as shard, hash and filter position alike; exact, because a bijection has no
/// collisions; and impossible to aim at without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MixedId(pub u128);

impl MixedId {
    /// The shard that keeps the state of this id: the low 64 bits modulo the shard count.
    ///
    /// Filters and hash tables inside a shard take their bits from the high half, because the low
    /// bits of one shard's ids are not independent of each other.
    #[must_use]
    pub fn shard(self, shards: Shards) -> Shard {
        let [low, _high] = self.halves();
        #[expect(clippy::cast_possible_truncation, reason = "a remainder is below its u16 divisor")]
        let number = (low % u64::from(shards.0)) as u16;
        Shard(number)
    }

    /// The low and the high 64 bits; both uniform.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "this is how the low half is taken")]
    pub const fn halves(self) -> [u64; 2] {
        [self.0 as u64, (self.0 >> 64) as u64]
    }
}

/// One share of the event id space: the unit of state. Counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shard(pub u16);

/// How many shards a deployment has; fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards(u16);

impl Shards {
    /// The default of a new deployment.
    pub const DEFAULT: Self = Self(64);
    /// The most shards a deployment can have, and so the most workers.
    pub const MAX: u16 = 1024;

    /// `None` unless `count` is in `1..=1024`.
    #[must_use]
    pub fn new(count: u16) -> Option<Self> {
        (1..=Self::MAX).contains(&count).then_some(Self(count))
    }

    /// The number of shards.
    #[must_use]
    pub fn count(self) -> u16 {
        self.0
    }

    /// Every shard, in ascending order.
    pub fn all(self) -> impl Iterator<Item = Shard> {
        (0..self.0).map(Shard)
    }
}

impl Shard {
    /// The log partition that collectors append this shard's records to.
    ///
    /// # Panics
    /// If `partitions` is zero.
    #[must_use]
    pub fn partition(self, partitions: u32) -> u32 {
        u32::from(self.0) % partitions
    }

    /// The worker, of `workers`, that keeps this shard's state.
    ///
    /// When `workers` divides the partition count and partition `p` is read by worker
    /// `p % workers`, the worker that reads a shard's partition also keeps its state.
    ///
    /// # Panics
    /// If `workers` is zero.
    #[must_use]
    pub fn owner(self, workers: usize) -> usize {
        usize::from(self.0) % workers
    }
}

/// The keyed bijection from event ids to mixed ids: AES-128 of one block.
#[derive(Clone)]
pub struct IdMixer {
    cipher: Aes128,
}

impl fmt::Debug for IdMixer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdMixer(key hidden)")
    }
}

impl IdMixer {
    /// The mixer of a deployment with this secret key.
    #[must_use]
    pub fn new(key: [u8; 16]) -> Self {
        Self { cipher: Aes128::new(&Array::from(key)) }
    }

    /// Mixes one id.
    #[must_use]
    pub fn mix(&self, id: EventId) -> MixedId {
        let mut block = Array::from(id.0);
        self.cipher.encrypt_block(&mut block);
        MixedId(u128::from_le_bytes(block.0))
    }

    /// Mixes a batch in place: several blocks travel through the cipher together, which is about
    /// five times as fast as one by one. Each block of an event id becomes the little-endian bytes
    /// of its [`MixedId`].
    pub fn mix_blocks(&self, ids: &mut [[u8; 16]]) {
        let blocks = Array::cast_slice_from_core_mut(ids);
        self.cipher.encrypt_blocks(blocks);
    }

    /// The event id behind a mixed id.
    #[must_use]
    pub fn unmix(&self, mixed: MixedId) -> EventId {
        let mut block = Array::from(mixed.0.to_le_bytes());
        self.cipher.decrypt_block(&mut block);
        EventId(block.0)
    }
}
