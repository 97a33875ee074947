//! Write keys, read tokens and admin tokens.
//!
//! The store holds SHA-256 digests of the secrets, never the secrets. A plain digest is right here:
//! a secret is 32 random bytes, so there is nothing to guess that a slow hash would have to protect,
//! and a check costs next to nothing.
//!
//! Two tables: `token_numbers` gives out the numbers (u32 big-endian, to the digest that has it),
//! `tokens` holds what is known about each digest (JSON). Rows are never deleted, so a number means
//! one token for ever and a revoked secret never comes back. A crash between the two rows costs a
//! number.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::error::StoreError;
use crate::meta::{CasOutcome, Change, MetaStore, Table, scan_all, update};

#[cfg(test)]
mod tests;

const TOKENS: Table = "tokens";
const NUMBERS: Table = "token_numbers";

/// Nothing longer can be a token: it is turned away unread.
const PRESENTED_BYTES_MAX: usize = 512;

type Digest = [u8; 32];

/// What a token opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKind {
    /// Sending events.
    Write,
    /// Reading counts, as far as its scopes go.
    Read,
    /// Everything that operators do.
    Admin,
}

/// What a read token may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// Counts by whole hours, small cells left out.
    #[serde(rename = "stats")]
    Stats,
    /// Exact counts by minute.
    #[serde(rename = "stats:raw")]
    StatsRaw,
}

/// What is known about a token. Not its secret: nobody knows that but its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenInfo {
    /// Its number, from 1; stands on every record that came in with it.
    pub number: u32,
    /// What it opens.
    pub kind: TokenKind,
    /// What people call it. Not unique.
    pub name: String,
    /// What a read token may read; empty for the other kinds.
    pub scopes: Vec<Scope>,
    /// When it was made, ms since the Unix epoch.
    pub created_at_ms: i64,
    /// When it was revoked, ms since the Unix epoch; `None` = it is good.
    pub revoked_at_ms: Option<i64>,
}

/// Why a token was not made or revoked.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// No token has the number.
    #[error("there is no token {number}")]
    NotFound {
        /// The number.
        number: u32,
    },
    /// The secret is in use or was revoked.
    #[error("this secret is that of token {number} already")]
    Exists {
        /// The token that has it.
        number: u32,
    },
    /// Read tokens have scopes, the others have none.
    #[error("scopes belong to read tokens, and a read token has at least one")]
    Scopes,
    /// The store failed. The same call may be repeated.
    #[error("the tokens could not be read or changed")]
    Store(#[from] StoreError),
}

/// The tokens as this process knows them, and the way to change them for all.
#[derive(Debug)]
pub struct Tokens {
    store: Arc<dyn MetaStore>,
    known: RwLock<Arc<Known>>,
    /// Tokens of this process alone, which are stored nowhere.
    local: RwLock<HashMap<Digest, Arc<TokenInfo>>>,
    /// Held while the tokens are read anew, so that an older reading never replaces a newer one
    /// and brings a revoked token back.
    updating: Mutex<()>,
}

#[derive(Default)]
struct Known {
    by_digest: HashMap<Digest, Held>,
    number_max: u32,
}

#[derive(PartialEq, Eq)]
struct Held {
    digest: Digest,
    info: Arc<TokenInfo>,
}

/// Not even digests belong into a log.
impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("tokens", &self.by_digest.len()).finish_non_exhaustive()
    }
}

/// Writes a secret as text: `tw_`, `tr_` or `ta_` by its kind, and the bytes in hex. `random` comes
/// from the operating system.
#[must_use]
pub fn format_secret(kind: TokenKind, random: [u8; 32]) -> String {
    let mut text = String::from(match kind {
        TokenKind::Write => "tw_",
        TokenKind::Read => "tr_",
        TokenKind::Admin => "ta_",
    });
    for byte in random {
        write!(text, "{byte:02x}").expect("a string takes any text");
    }
    text
}

impl Tokens {
    /// Reads the tokens from `store`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(store: Arc<dyn MetaStore>) -> Result<Self, StoreError> {
        let known = RwLock::new(Arc::new(load(&*store)?));
        Ok(Self { store, known, local: RwLock::default(), updating: Mutex::new(()) })
    }

    /// The token whose secret was presented, unless it is unknown or revoked. From memory only, so
    /// as old as the last [`refresh`](Self::refresh).
    ///
    /// The time that this takes says nothing about secrets: what is looked up is the digest of what
    /// was presented, which nobody can steer towards a stored one, and the two digests are compared
    /// in constant time.
    #[must_use]
    pub fn authenticate(&self, presented: &str) -> Option<Arc<TokenInfo>> {
        if presented.len() > PRESENTED_BYTES_MAX {
            return None;
        }
        let digest = digest_of(presented);
        let known = self.known();
        let Some(held) = known.by_digest.get(&digest) else {
            let local = self.local.read().unwrap_or_else(PoisonError::into_inner);
            return local.get(&digest).map(Arc::clone);
        };
        let is_same = bool::from(held.digest.ct_eq(&digest));
        (is_same && held.info.revoked_at_ms.is_none()).then(|| Arc::clone(&held.info))
    }

    /// Lets `secret` in, in this process and until it ends: for whoever holds the stores
    /// themselves and so needs nobody's leave.
    pub fn admit_here(&self, kind: TokenKind, scopes: &[Scope], secret: &str) {
        let info = TokenInfo {
            number: 0,
            kind,
            name: "local".to_owned(),
            scopes: scopes.to_vec(),
            created_at_ms: 0,
            revoked_at_ms: None,
        };
        let mut local = self.local.write().unwrap_or_else(PoisonError::into_inner);
        local.insert(digest_of(secret), Arc::new(info));
    }

    /// Reads the tokens anew. Returns whether anything changed.
    ///
    /// # Errors
    /// [`StoreError`]; what is known then stays as it was.
    pub fn refresh(&self) -> Result<bool, StoreError> {
        let _updating = self.updating.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.known();
        Ok(self.reload()?.by_digest != before.by_digest)
    }

    /// Every token, revoked ones too, by number. Read from the store.
    ///
    /// # Errors
    /// [`TokenError::Store`].
    pub fn list(&self) -> Result<Vec<TokenInfo>, TokenError> {
        let rows = scan_all(&*self.store, TOKENS, None)?;
        let mut tokens =
            rows.iter().map(|(_, row)| decode(row)).collect::<Result<Vec<_>, StoreError>>()?;
        tokens.sort_unstable_by_key(|info| info.number);
        Ok(tokens)
    }

    /// Makes a token with a secret of [`format_secret`]. Good here at once, elsewhere after a
    /// refresh.
    ///
    /// # Units
    /// `now_ms` in ms since the Unix epoch.
    ///
    /// # Errors
    /// [`TokenError`]. After [`TokenError::Store`] the token may be there: making it again then
    /// gives [`TokenError::Exists`].
    pub fn create(
        &self,
        kind: TokenKind,
        name: &str,
        scopes: &[Scope],
        secret: &str,
        now_ms: i64,
    ) -> Result<TokenInfo, TokenError> {
        if (kind == TokenKind::Read) == scopes.is_empty() {
            return Err(TokenError::Scopes);
        }
        let _updating = self.updating.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.reload()?;
        let digest = digest_of(secret);
        if let Some(held) = known.by_digest.get(&digest) {
            return Err(TokenError::Exists { number: held.info.number });
        }
        let info = TokenInfo {
            number: self.claim_number(known.number_max, &digest)?,
            kind,
            name: name.to_owned(),
            scopes: scopes.to_vec(),
            created_at_ms: now_ms,
            revoked_at_ms: None,
        };
        let row = encode(&info)?;
        update(&*self.store, TOKENS, &digest, |current| match current {
            None => Ok(Change::Put(row.clone(), ())),
            Some(stored) if *stored == row => Ok(Change::Keep(())),
            Some(stored) => Err(TokenError::Exists { number: decode(stored)?.number }),
        })?;
        self.reload()?;
        Ok(info)
    }

    /// Revokes a token for good; the time of the first revocation stays. No longer good here at
    /// once, elsewhere after a refresh.
    ///
    /// # Units
    /// `now_ms` in ms since the Unix epoch.
    ///
    /// # Errors
    /// [`TokenError::NotFound`] or [`TokenError::Store`].
    pub fn revoke(&self, number: u32, now_ms: i64) -> Result<TokenInfo, TokenError> {
        let missing = || TokenError::NotFound { number };
        let _updating = self.updating.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = self.store.get(NUMBERS, &number.to_be_bytes())?.ok_or_else(missing)?;
        let revoked = update(&*self.store, TOKENS, &digest, |current| {
            let mut info = decode(current.ok_or_else(missing)?)?;
            // A number whose token was cut short before its digest got another number.
            if info.number != number {
                return Err(missing());
            }
            if info.revoked_at_ms.is_some() {
                return Ok(Change::Keep(info));
            }
            info.revoked_at_ms = Some(now_ms);
            Ok(Change::Put(encode(&info)?, info))
        })?;
        self.reload()?;
        Ok(revoked)
    }

    /// The lowest number above `last` that is free, now held by `digest`.
    fn claim_number(&self, last: u32, digest: &Digest) -> Result<u32, StoreError> {
        let mut number = last;
        let mut again = false;
        loop {
            if !again {
                let next = number.checked_add(1);
                number = next.ok_or_else(|| StoreError::Unstorable {
                    what: "more tokens: every number is taken".to_owned(),
                })?;
            }
            match self.store.put_if(NUMBERS, &number.to_be_bytes(), None, digest) {
                Ok(CasOutcome::Applied) => return Ok(number),
                // Ours, from a try whose answer got lost or that was cut short.
                Ok(CasOutcome::Refused { current: Some(holder) }) if holder == digest => {
                    return Ok(number);
                }
                Ok(CasOutcome::Refused { .. }) => again = false,
                // Once more: a second loss costs the number.
                Err(StoreError::Unknown { .. }) => again = !again,
                Err(error) => return Err(error),
            }
        }
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the tokens and knows them from now on. For holders of `updating` only.
    fn reload(&self) -> Result<Arc<Known>, StoreError> {
        let fresh = Arc::new(load(&*self.store)?);
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&fresh);
        Ok(fresh)
    }
}

fn load(store: &dyn MetaStore) -> Result<Known, StoreError> {
    let mut known = Known::default();
    for (key, row) in scan_all(store, TOKENS, None)? {
        let digest: Digest = key.as_slice().try_into().map_err(|_not_32_bytes| {
            StoreError::corrupt(format!("table {TOKENS} (a key of {} bytes)", key.len()))
        })?;
        let info = Arc::new(decode(&row)?);
        known.number_max = known.number_max.max(info.number);
        known.by_digest.insert(digest, Held { digest, info });
    }
    Ok(known)
}

fn digest_of(secret: &str) -> Digest {
    Sha256::digest(secret.as_bytes()).into()
}

fn encode(info: &TokenInfo) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(info).map_err(|why| StoreError::Unstorable { what: why.to_string() })
}

fn decode(row: &[u8]) -> Result<TokenInfo, StoreError> {
    serde_json::from_slice(row)
        .map_err(|why| StoreError::corrupt(format!("table {TOKENS} ({why})")))
}
