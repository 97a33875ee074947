//! The sealed part of a record: who did it and what exactly.

mod personal;
#[cfg(test)]
mod tests;

use std::fmt;

use aes_gcm::{Aes256Gcm, KeyInit};
use rand::Rng;
use rand::rngs::StdRng;
use tally_model::ids::EventId;

pub use personal::{Personal, PersonalError};

use crate::aead::{self, NONCE_BYTES, TAG_BYTES};
use crate::keys::UserKeys;
use crate::random::{self, NoRandomness};

/// How much longer a sealed part is than its plaintext.
pub const SEALING_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// The plaintext is over 64 GiB, more than the cipher takes under one nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes are more than can be sealed at once")]
pub struct SealError {
    /// Size of the plaintext.
    pub bytes: usize,
}

/// Why a sealed part stays closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No sealed part at all: the record was not written by a collector.
    #[error("a sealed part has at least {SEALING_BYTES} bytes, this one has {bytes}")]
    Short {
        /// Its size.
        bytes: usize,
    },
    /// Other keys (those of another user, or new ones after an erasure), the part of another
    /// record, or damage.
    #[error("the sealed part does not open under these keys")]
    Forged,
}

/// Seals `plaintext` under the user's data key and appends nonce, ciphertext and tag to `out`.
///
/// The sealed part opens only together with the same event id and row tag, so it cannot be moved to
/// another record. `nonce` comes from [`Nonces`] and is used for this call alone.
///
/// # Errors
/// [`SealError`]; `out` is then as before.
#[inline]
pub fn seal(
    keys: &UserKeys,
    id: EventId,
    row_tag: &[u8; 16],
    plaintext: &[u8],
    nonce: [u8; NONCE_BYTES],
    out: &mut Vec<u8>,
) -> Result<(), SealError> {
    aead::seal(&cipher(keys), &associated(id, row_tag), nonce, plaintext, out)
        .map_err(|aead::TooLong| SealError { bytes: plaintext.len() })
}

/// What was sealed for this event id and row tag.
///
/// # Errors
/// [`OpenError`].
pub fn open(
    keys: &UserKeys,
    id: EventId,
    row_tag: &[u8; 16],
    sealed: &[u8],
) -> Result<Vec<u8>, OpenError> {
    aead::open(&cipher(keys), &associated(id, row_tag), sealed).map_err(|why| match why {
        aead::Unopened::Short => OpenError::Short { bytes: sealed.len() },
        aead::Unopened::Forged => OpenError::Forged,
    })
}

/// The key schedule is made anew each time: kept, it would take four times the memory of the keys
/// in the cache, and it costs less than fetching that memory.
#[inline]
fn cipher(keys: &UserKeys) -> Aes256Gcm {
    Aes256Gcm::new(keys.data_key().into())
}

#[inline]
fn associated(id: EventId, row_tag: &[u8; 16]) -> [u8; 32] {
    let mut associated = [0; 32];
    let (left, right) = associated.split_at_mut(16);
    left.copy_from_slice(&id.0);
    right.copy_from_slice(row_tag);
    associated
}

/// Nonces from a cryptographic generator. Each thread has its own, seeded by the operating system.
///
/// A nonce has 96 random bits, so one data key must not seal more than 2^32 records.
pub struct Nonces {
    generator: StdRng,
}

impl fmt::Debug for Nonces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonces(state hidden)")
    }
}

impl Nonces {
    /// A new generator.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn from_os() -> Result<Self, NoRandomness> {
        Ok(Self { generator: random::generator()? })
    }

    /// A nonce that nobody has used.
    #[expect(clippy::should_implement_trait, reason = "an iterator would say that nonces may end")]
    pub fn next(&mut self) -> [u8; NONCE_BYTES] {
        let mut nonce = [0; NONCE_BYTES];
        self.generator.fill_bytes(&mut nonce);
        nonce
    }
}
