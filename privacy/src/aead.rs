//! AES-256-GCM in the one layout that everything here uses: nonce (12 bytes), ciphertext, tag (16).

use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes256Gcm, Nonce, Tag};

pub(crate) const NONCE_BYTES: usize = 12;
pub(crate) const TAG_BYTES: usize = 16;

/// The plaintext is over the 64 GiB that the cipher takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooLong;

/// Appends the sealed `plaintext` to `out`; after an error `out` is as before.
///
/// No nonce may ever be used twice with one key.
#[inline]
pub(crate) fn seal(
    cipher: &Aes256Gcm,
    associated: &[u8],
    nonce: [u8; NONCE_BYTES],
    plaintext: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), TooLong> {
    let start = out.len();
    out.reserve(NONCE_BYTES + plaintext.len() + TAG_BYTES);
    out.extend_from_slice(&nonce);
    out.extend_from_slice(plaintext);
    let (_before, text) = out.split_at_mut(start + NONCE_BYTES);
    match cipher.encrypt_inout_detached(&Nonce::from(nonce), associated, text.into()) {
        Ok(tag) => {
            out.extend_from_slice(&tag);
            Ok(())
        }
        Err(aes_gcm::Error) => {
            // What stands there now may be plaintext.
            out.truncate(start);
            Err(TooLong)
        }
    }
}

/// Why sealed bytes do not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// Shorter than a nonce and a tag.
    Short,
    /// Another key, other associated data, or changed bytes: the cipher cannot tell which.
    Forged,
}

/// What was sealed.
pub(crate) fn open(
    cipher: &Aes256Gcm,
    associated: &[u8],
    sealed: &[u8],
) -> Result<Vec<u8>, Unopened> {
    let (nonce, rest) = sealed.split_first_chunk::<NONCE_BYTES>().ok_or(Unopened::Short)?;
    let (text, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or(Unopened::Short)?;
    let mut plaintext = text.to_vec();
    cipher
        .decrypt_inout_detached(
            &Nonce::from(*nonce),
            associated,
            plaintext.as_mut_slice().into(),
            &Tag::from(*tag),
        )
        .map_err(|aes_gcm::Error| Unopened::Forged)?;
    Ok(plaintext)
}
