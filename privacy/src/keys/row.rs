//! How a user's keys are stored.
//!
//! A version byte, createdAt (8 bytes, big-endian, ms since the Unix epoch), then data key and
//! secret, wrapped together. The wrapping is bound to the user's index and to createdAt, so neither
//! can a row be put in another user's place, nor made to look younger than an erasure.

use zeroize::Zeroizing;

use super::{KEY_BYTES, KeyFault, UserIndex, UserKeys};
use crate::aead::NONCE_BYTES;
use crate::master::{MasterKey, WRAPPING_BYTES};

const VERSION: u8 = 1;
const PURPOSE: &str = "tally user keys";
const WRAPPED_BYTES: usize = WRAPPING_BYTES + 2 * KEY_BYTES;

pub(super) fn encode(
    master: &MasterKey,
    user: &UserIndex,
    keys: &UserKeys,
    nonce: [u8; NONCE_BYTES],
) -> Vec<u8> {
    let mut both = Zeroizing::new([0; 2 * KEY_BYTES]);
    let (data_key, secret) = both.split_at_mut(KEY_BYTES);
    data_key.copy_from_slice(keys.data_key.as_slice());
    secret.copy_from_slice(keys.secret.as_slice());
    let mut row = Vec::with_capacity(1 + 8 + WRAPPED_BYTES);
    row.push(VERSION);
    row.extend_from_slice(&keys.created_at_ms.to_be_bytes());
    row.extend_from_slice(&master.wrap(&label(user, keys.created_at_ms), both.as_slice(), nonce));
    row
}

pub(super) fn decode(
    master: &MasterKey,
    user: &UserIndex,
    row: &[u8],
) -> Result<UserKeys, KeyFault> {
    let Some((&VERSION, rest)) = row.split_first() else {
        return Err(KeyFault::Corrupt("the row has a version that this program does not know"));
    };
    let wrapped = rest.split_first_chunk::<8>().filter(|(_, rest)| rest.len() == WRAPPED_BYTES);
    let Some((created_at, wrapped)) = wrapped else {
        return Err(KeyFault::Corrupt("the row has the wrong length"));
    };
    let created_at_ms = i64::from_be_bytes(*created_at);
    let both = master.unwrap(&label(user, created_at_ms), wrapped).map_err(|_unwrap| {
        KeyFault::Corrupt("the row was stored under another master key, or it is damaged")
    })?;
    let (mut data_key, mut secret) =
        (Zeroizing::new([0; KEY_BYTES]), Zeroizing::new([0; KEY_BYTES]));
    let (left, right) = both.split_at(KEY_BYTES);
    data_key.copy_from_slice(left);
    secret.copy_from_slice(right);
    Ok(UserKeys::new(created_at_ms, *data_key, *secret))
}

fn label(user: &UserIndex, created_at_ms: i64) -> Vec<u8> {
    [PURPOSE.as_bytes(), &[VERSION], &user.0, &created_at_ms.to_be_bytes()].concat()
}
