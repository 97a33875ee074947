//! Sealing of personal data, the keys that it takes, and the ledger of erasures.
//!
//! Everything that says who did something rests sealed under a key of that user alone, so that
//! destroying one key erases a person from every copy of the log and the lake. The collector seals;
//! counting never opens anything.
//!
//! - [`master`]: the key from a file that wraps every other stored secret;
//! - [`secrets`]: what a whole deployment keys its ids and names with;
//! - [`keys`]: the keys of users, made on first sight, cached, durable before use;
//! - [`seal`]: the sealed part of a record;
//! - [`ledger`]: the process's copy of the erasure ledger, which decides how long cached keys live.
//!
//! ```
//! use tally_model::ids::EventId;
//! use tally_privacy::keys::UserKeys;
//! use tally_privacy::seal::{Nonces, Personal, open, seal};
//!
//! // A key store hands these out: `KeyStore::user_keys`.
//! let keys = UserKeys::new(1_772_000_000_000, [7; 32], [8; 32]);
//!
//! let personal = Personal { user_id: "u-1".to_owned(), ..Personal::default() };
//! let (id, tag) = (EventId([1; 16]), keys.row_tag(1_772_000_000_000));
//! let (mut plaintext, mut sealed) = (Vec::new(), Vec::new());
//! personal.append_to(&mut plaintext);
//! seal(&keys, id, &tag, &plaintext, Nonces::from_os()?.next(), &mut sealed)?;
//!
//! assert_eq!(Personal::read(&open(&keys, id, &tag, &sealed)?)?, personal);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod keys;
pub mod ledger;
pub mod master;
pub mod random;
pub mod seal;
pub mod secrets;

mod aead;
#[cfg(test)]
mod testing;
