//! The secrets of a whole deployment: made on its first start, stored wrapped.

use std::fmt;

use tally_sinks::error::StoreError;
use tally_sinks::meta::{CasOutcome, MetaStore, Table};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::keys::hmac_sha256;
use crate::master::{MasterKey, WRAPPING_BYTES};
use crate::random::{self, NoRandomness};

const TABLE: Table = "deployment_secrets";
const KEY: &[u8] = b"deployment";
const LABEL: &[u8] = b"tally deployment secrets 1";

/// Version of the stored row: this byte, then the wrapped secrets one after another.
const VERSION: u8 = 1;
const ID_KEY_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
const ALL_BYTES: usize = ID_KEY_BYTES + 2 * SECRET_BYTES;

/// What a deployment keys its ids and names with. It never changes: with other secrets no id would
/// be recognised as a repeat and no user would be found.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct DeploymentSecrets {
    /// Key of the bijection from event ids to mixed ids.
    pub id_key: [u8; ID_KEY_BYTES],
    /// HMAC key under which the key store finds a user.
    pub index_secret: [u8; SECRET_BYTES],
    /// HMAC key of the names of unknown event types.
    pub name_secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for DeploymentSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeploymentSecrets(hidden)")
    }
}

/// Why the deployment's secrets cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretsError {
    /// The store did not answer: try again.
    #[error("the secrets of the deployment cannot be read or stored")]
    Store(#[source] StoreError),
    /// The key file and the store do not belong together, or the row is damaged: use the key file
    /// of this deployment.
    #[error(
        "the secrets of the deployment do not open: the master key is not the one that they were \
         stored under"
    )]
    WrongMasterKey,
    /// The row is not what this program writes: use the version that wrote it.
    #[error("the secrets of the deployment are stored in a form that this program does not know")]
    UnknownForm,
    /// No secrets can be made.
    #[error("cannot make the secrets of the deployment")]
    Random(#[source] NoRandomness),
}

impl DeploymentSecrets {
    /// Reads the secrets, or makes and stores them if there are none. Of several processes that
    /// start at once all get the same.
    ///
    /// # Errors
    /// [`SecretsError`].
    pub fn load_or_create(meta: &dyn MetaStore, master: &MasterKey) -> Result<Self, SecretsError> {
        if let Some(row) = meta.get(TABLE, KEY).map_err(SecretsError::Store)? {
            return Self::from_row(master, &row);
        }
        let all = random::bytes::<ALL_BYTES>().map_err(SecretsError::Random)?;
        let nonce = random::bytes().map_err(SecretsError::Random)?;
        let mut row = vec![VERSION];
        row.extend_from_slice(&master.wrap(LABEL, all.as_slice(), *nonce));
        match meta.put_if(TABLE, KEY, None, &row) {
            Ok(CasOutcome::Applied) => Self::from_row(master, &row),
            Ok(CasOutcome::Refused { current: Some(theirs) }) => Self::from_row(master, &theirs),
            Ok(CasOutcome::Refused { current: None }) => {
                let what = format!("{TABLE}: a row was in the way and then was not");
                Err(SecretsError::Store(StoreError::Corrupt { what }))
            }
            Err(unknown @ StoreError::Unknown { .. }) => {
                match meta.get_settled(TABLE, KEY).map_err(SecretsError::Store)? {
                    Some(stored) => Self::from_row(master, &stored),
                    None => Err(SecretsError::Store(unknown)),
                }
            }
            Err(error) => Err(SecretsError::Store(error)),
        }
    }

    /// What stands on a record in place of the name of an unknown event type: the first 8 bytes,
    /// big-endian, of the name's HMAC-SHA-256.
    #[must_use]
    pub fn name_hash(&self, name: &str) -> u64 {
        let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = hmac_sha256(&self.name_secret, name.as_bytes());
        u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7])
    }

    fn from_row(master: &MasterKey, row: &[u8]) -> Result<Self, SecretsError> {
        let Some((&VERSION, wrapped)) = row.split_first() else {
            return Err(SecretsError::UnknownForm);
        };
        if wrapped.len() != WRAPPING_BYTES + ALL_BYTES {
            return Err(SecretsError::UnknownForm);
        }
        let all: Zeroizing<Vec<u8>> =
            master.unwrap(LABEL, wrapped).map_err(|_unwrap| SecretsError::WrongMasterKey)?;
        let mut secrets = Self {
            id_key: [0; ID_KEY_BYTES],
            index_secret: [0; SECRET_BYTES],
            name_secret: [0; SECRET_BYTES],
        };
        let (id_key, rest) = all.split_at(ID_KEY_BYTES);
        let (index_secret, name_secret) = rest.split_at(SECRET_BYTES);
        secrets.id_key.copy_from_slice(id_key);
        secrets.index_secret.copy_from_slice(index_secret);
        secrets.name_secret.copy_from_slice(name_secret);
        Ok(secrets)
    }
}

#[cfg(test)]
mod tests;
