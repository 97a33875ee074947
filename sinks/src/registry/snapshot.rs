//! The registry at one moment, in memory.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use tally_model::types::{OTHER_NAME, TypeId};

use super::{TypeEntry, TypeStatus, encode};
use crate::error::StoreError;

/// Bits of a version: so many that a JSON number keeps exact everywhere.
const VERSION_BITS: u32 = 53;

/// Every event type at one moment, slot 0 included.
#[derive(Debug)]
pub struct RegistrySnapshot {
    /// Ascending by slot, slot 0 first.
    entries: Vec<TypeEntry>,
    /// Place in `entries` by name.
    by_name: HashMap<String, usize>,
    version: u64,
}

impl RegistrySnapshot {
    /// The snapshot with these entries, given in ascending order of their slots, and slot 0.
    pub(super) fn of(registered: Vec<TypeEntry>) -> Result<Self, StoreError> {
        let mut entries = vec![other()];
        entries.extend(registered);
        let mut by_name = HashMap::with_capacity(entries.len());
        let mut hash = Sha256::new();
        for (place, entry) in entries.iter().enumerate() {
            if let Some(first) = by_name.insert(entry.name.clone(), place) {
                let what = format!("table types (rows {first} and {place} have one name)");
                return Err(StoreError::Corrupt { what });
            }
            let bytes = encode(entry)?;
            hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
            hash.update(&bytes);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let first = digest.first_chunk().copied().unwrap_or_default();
        let version = u64::from_le_bytes(first) >> (u64::BITS - VERSION_BITS);
        Ok(Self { entries, by_name, version })
    }

    /// The type called `name`, which has to be in the form that
    /// [`normal_name`](tally_model::types::normal_name) gives.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&TypeEntry> {
        self.by_name.get(name).and_then(|place| self.entries.get(*place))
    }

    /// The type in a slot.
    #[must_use]
    pub fn by_id(&self, type_id: TypeId) -> Option<&TypeEntry> {
        let place = self.entries.binary_search_by_key(&type_id, |entry| entry.type_id);
        place.ok().and_then(|place| self.entries.get(place))
    }

    /// Every type, ascending by slot; the first is slot 0.
    #[must_use]
    pub fn entries(&self) -> &[TypeEntry] {
        &self.entries
    }

    /// How wide a count vector has to be: the highest slot in use + 1.
    #[must_use]
    pub fn width(&self) -> usize {
        self.entries.last().map_or(1, |entry| usize::from(entry.type_id.0) + 1)
    }

    /// Changes with every change of any type; equal for equal registries in all processes. Below
    /// 2^53, so it is exact in JSON.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The slots that no type has, lowest first.
    pub(super) fn free_slots(&self) -> impl Iterator<Item = TypeId> {
        let mut taken = self.entries.iter().map(|entry| entry.type_id).peekable();
        (0..TypeId::CAP).map(TypeId).filter(move |slot| taken.next_if_eq(slot).is_none())
    }
}

fn other() -> TypeEntry {
    TypeEntry {
        type_id: TypeId::OTHER,
        name: OTHER_NAME.to_owned(),
        schema_version: 1,
        schema: None,
        owner: None,
        pii_flag: false,
        status: TypeStatus::Active,
    }
}
