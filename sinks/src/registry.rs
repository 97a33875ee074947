//! The event types: names, slots and what is known about them.
//!
//! Two tables keep it. `types` has one row for each slot and is the truth: a type exists once its
//! slot row does. `type_names` has one row for each name and holds the slot that the name claims.
//!
//! A registration claims first, then fills:
//! 1. the name's row is made, pointing at the lowest free slot; if there is one already, its claim
//!    is taken over;
//! 2. the slot's row is made, with the whole entry. If the slot belongs to another name by now, the
//!    claim moves to the lowest free slot, and step 2 is tried again.
//!
//! Slot rows are never deleted and never change their name, and a claim moves only off a slot that
//! another name has for good. So whoever acts for a name, now or after a pause, can only fill the one
//! slot that the name's row points at: no name ever gets two slots, no slot two names. A crash
//! between the steps leaves a claim without a type, which the next registration of that name takes
//! over and any other registration ignores. While a batch is cut short, slots can be left out;
//! they are the first that are given away afterwards.
//!
//! Invariant S-1 of ARCHITECTURE.md.

mod allocate;
mod snapshot;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use tally_model::types::{BadTypeName, TypeId, normal_name};

use crate::error::StoreError;
use crate::meta::{Change, MetaStore, Table, scan_all, update};

pub use self::snapshot::RegistrySnapshot;

#[cfg(test)]
mod tests;

/// Slot (u16 big-endian) to entry (JSON).
const TYPES: Table = "types";
/// Name (UTF-8, NFC) to the slot that it claims (u16 big-endian).
const NAMES: Table = "type_names";

/// The longest name in bytes that any deployment can allow; its own limit is checked where names
/// come in.
pub const NAME_BYTES_MAX: usize = 1_024;

/// Whether a type is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TypeStatus {
    /// In use.
    #[default]
    Active,
    /// No longer meant to be sent. It keeps its slot and still counts; senders are warned.
    Deprecated,
}

/// One event type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeEntry {
    /// Its slot.
    pub type_id: TypeId,
    /// Its name, in NFC.
    pub name: String,
    /// Version of its schema, from 1.
    pub schema_version: u32,
    /// JSON Schema of its properties. Stored, not yet checked against.
    #[serde(default)]
    pub schema: Option<serde_json::Value>,
    /// Who answers for it.
    #[serde(default)]
    pub owner: Option<String>,
    /// Whether its properties hold personal data.
    #[serde(default)]
    pub pii_flag: bool,
    /// Whether it is in use.
    #[serde(default)]
    pub status: TypeStatus,
}

/// What a registration says about a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewType {
    /// Its name; brought into NFC.
    pub name: String,
    /// JSON Schema of its properties.
    pub schema: Option<serde_json::Value>,
    /// Who answers for it.
    pub owner: Option<String>,
    /// Whether its properties hold personal data.
    pub pii_flag: bool,
}

impl NewType {
    /// A type of which only the name is known.
    #[must_use]
    pub const fn named(name: String) -> Self {
        Self { name, schema: None, owner: None, pii_flag: false }
    }

    fn normal(&self) -> Result<Self, BadTypeName> {
        let name = normal_name(&self.name, NAME_BYTES_MAX)?.into_owned();
        let schema = self.schema.clone().filter(|schema| !schema.is_null());
        Ok(Self { name, schema, owner: self.owner.clone(), pii_flag: self.pii_flag })
    }

    fn entry(&self, type_id: TypeId) -> TypeEntry {
        TypeEntry {
            type_id,
            name: self.name.clone(),
            schema_version: 1,
            schema: self.schema.clone(),
            owner: self.owner.clone(),
            pii_flag: self.pii_flag,
            status: TypeStatus::Active,
        }
    }

    /// What registering it again means, given that `entry` has the name.
    fn against(&self, entry: &TypeEntry) -> Result<Registered, RegistryError> {
        let same = self.schema == entry.schema
            && self.owner == entry.owner
            && self.pii_flag == entry.pii_flag;
        if same {
            Ok(Registered::Same(entry.clone()))
        } else {
            Err(RegistryError::Conflict { name: entry.name.clone(), type_id: entry.type_id })
        }
    }
}

/// What became of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registered {
    /// The type is new.
    Created(TypeEntry),
    /// The type was there, with the same schema, owner and flag.
    Same(TypeEntry),
}

/// Why a type was not registered or changed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The name is taken, with another schema, owner or flag.
    #[error("event type {name:?} is registered already, as {type_id}, with other fields")]
    Conflict {
        /// The name.
        name: String,
        /// The slot that it has.
        type_id: TypeId,
    },
    /// Every slot is taken.
    #[error("all {} slots are taken: no room for event type {name:?}", TypeId::CAP)]
    Full {
        /// The name that found no slot.
        name: String,
    },
    /// The name is none.
    #[error("the name is refused")]
    BadName(#[from] BadTypeName),
    /// No type has the name.
    #[error("there is no event type {name:?}")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The store failed. The same call may be repeated.
    #[error("the registry could not be changed")]
    Store(#[from] StoreError),
}

/// The registry as this process knows it, and the way to change it for all.
#[derive(Debug)]
pub struct Registry {
    store: Arc<dyn MetaStore>,
    snapshot: RwLock<Arc<RegistrySnapshot>>,
    /// Held while the snapshot is read anew, so that an older reading never replaces a newer one.
    updating: Mutex<()>,
}

impl Registry {
    /// Reads the registry from `store`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(store: Arc<dyn MetaStore>) -> Result<Self, StoreError> {
        let snapshot = RwLock::new(Arc::new(load(&*store)?));
        Ok(Self { store, snapshot, updating: Mutex::new(()) })
    }

    /// The registry as last read. Cheap; take one for each batch, not for each event.
    #[must_use]
    pub fn snapshot(&self) -> Arc<RegistrySnapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the registry anew. Returns whether anything changed.
    ///
    /// # Errors
    /// [`StoreError`]; the snapshot then stays as it was.
    pub fn refresh(&self) -> Result<bool, StoreError> {
        let _updating = self.updating.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.snapshot().version();
        Ok(self.reload()?.version() != before)
    }

    /// Registers a type. It is in the snapshot, here at once and elsewhere after a refresh.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn register(&self, new: NewType) -> Result<Registered, RegistryError> {
        let new = new.normal()?;
        let _updating = self.updating.lock().unwrap_or_else(PoisonError::into_inner);
        self.reload()?;
        self.allocate(&new)
    }

    /// Registers many types in a few commits. New ones get their slots in the order given, as long
    /// as nobody else registers meanwhile. Results in the order given.
    ///
    /// # Errors
    /// [`StoreError`] if the store failed on the way: some types may then be registered. The same
    /// call may be repeated. Types that cannot be registered have their own [`RegistryError`].
    pub fn register_many(
        &self,
        types: &[NewType],
    ) -> Result<Vec<Result<Registered, RegistryError>>, StoreError> {
        let _updating = self.updating.lock().unwrap_or_else(PoisonError::into_inner);
        self.reload()?;
        let mut results = Vec::with_capacity(types.len());
        for batch in types.chunks(allocate::BATCH) {
            results.extend(self.allocate_batch(batch)?);
        }
        Ok(results)
    }

    /// Changes the status of the type called `name`. Returns the entry as it is now.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`], [`RegistryError::BadName`] (also for slot 0, which has no status)
    /// or [`RegistryError::Store`].
    pub fn set_status(&self, name: &str, status: TypeStatus) -> Result<TypeEntry, RegistryError> {
        let name = normal_name(name, NAME_BYTES_MAX)?;
        let _updating = self.updating.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.reload()?;
        let unknown = || RegistryError::Unknown { name: name.as_ref().to_owned() };
        let slot = snapshot.get(&name).ok_or_else(unknown)?.type_id;
        let key = slot.0.to_be_bytes();
        let entry = update(&*self.store, TYPES, &key, |current| {
            let mut entry = decode(&key, current.ok_or_else(unknown)?)?;
            if entry.status == status {
                return Ok::<_, RegistryError>(Change::Keep(entry));
            }
            entry.status = status;
            Ok(Change::Put(encode(&entry)?, entry))
        })?;
        self.reload()?;
        Ok(entry)
    }

    /// Reads the registry and shows it to this process. For holders of `updating` only.
    fn reload(&self) -> Result<Arc<RegistrySnapshot>, StoreError> {
        let fresh = Arc::new(load(&*self.store)?);
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&fresh);
        Ok(fresh)
    }
}

fn load(store: &dyn MetaStore) -> Result<RegistrySnapshot, StoreError> {
    let rows = scan_all(store, TYPES, None)?;
    let entries = rows.iter().map(|(key, row)| decode(key, row)).collect::<Result<_, _>>()?;
    RegistrySnapshot::of(entries)
}

fn encode(entry: &TypeEntry) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(entry).map_err(|why| StoreError::Unstorable { what: why.to_string() })
}

fn decode(key: &[u8], row: &[u8]) -> Result<TypeEntry, StoreError> {
    let corrupt = |why: &str| StoreError::corrupt(format!("table {TYPES}, key {key:02x?} ({why})"));
    let entry: TypeEntry = serde_json::from_slice(row).map_err(|why| corrupt(&why.to_string()))?;
    let slot = entry.type_id;
    if slot.0.to_be_bytes() != key || slot == TypeId::OTHER || slot.0 >= TypeId::CAP {
        return Err(corrupt("another slot"));
    }
    Ok(entry)
}
