//! Giving away slots: claim by name, then fill the slot. The parent module says why this is safe.

use std::collections::{BTreeMap, BTreeSet};

use tally_model::types::TypeId;

use super::{
    NAMES, NewType, Registered, Registry, RegistryError, RegistrySnapshot, TYPES, TypeEntry, encode,
};
use crate::error::StoreError;
use crate::meta::{CasOutcome, Change, MetaStore, update};

/// Types registered in one commit.
pub(super) const BATCH: usize = 500;

/// How often another name may take the slot that we claim. Each time, one of the slots is gone.
const ATTEMPTS_MAX: u16 = TypeId::CAP;

#[derive(Debug, thiserror::Error)]
#[error("the slot was taken {ATTEMPTS_MAX} times")]
struct Contended;

impl Registry {
    /// Registers one type that has a normal name. For holders of `updating` with a fresh snapshot.
    pub(super) fn allocate(&self, new: &NewType) -> Result<Registered, RegistryError> {
        let mut lost: Option<TypeEntry> = None;
        for _attempt in 0..ATTEMPTS_MAX {
            let snapshot = self.snapshot();
            if let Some(entry) = snapshot.get(&new.name) {
                return match lost {
                    // The answer to our own write got lost.
                    Some(ours) if ours == *entry => Ok(Registered::Created(ours)),
                    _ => new.against(entry),
                };
            }
            let entry = new.entry(claim(&*self.store, &snapshot, &new.name)?);
            let key = entry.type_id.0.to_be_bytes();
            match self.store.put_if(TYPES, &key, None, &encode(&entry)?) {
                Ok(CasOutcome::Applied) => {
                    self.reload()?;
                    return Ok(Registered::Created(entry));
                }
                Ok(CasOutcome::Refused { .. }) => lost = None,
                Err(StoreError::Unknown { .. }) => lost = Some(entry),
                Err(error) => return Err(error.into()),
            }
            self.reload()?;
        }
        Err(StoreError::unavailable("give away a slot", Contended).into())
    }

    /// Registers types in two commits, and those that this does not settle (taken meanwhile, an
    /// answer lost, no slot left) one by one. For holders of `updating` with a fresh snapshot.
    pub(super) fn allocate_batch(
        &self,
        types: &[NewType],
    ) -> Result<Vec<Result<Registered, RegistryError>>, StoreError> {
        let types: Vec<_> = types.iter().map(NewType::normal).collect();
        let mut created = self.fill(types.iter().flatten())?;
        let mut results = Vec::with_capacity(types.len());
        for new in types {
            results.push(match new {
                Err(bad) => Err(bad.into()),
                Ok(new) => match created.remove(&new.name) {
                    Some(entry) => Ok(Registered::Created(entry)),
                    None => match self.allocate(&new) {
                        Err(RegistryError::Store(error)) => return Err(error),
                        settled => settled,
                    },
                },
            });
        }
        Ok(results)
    }

    /// Claims and fills slots for the new names among `types`. Returns the entries that certainly
    /// were made here, by name.
    fn fill<'a>(
        &self,
        types: impl Iterator<Item = &'a NewType>,
    ) -> Result<BTreeMap<String, TypeEntry>, StoreError> {
        let snapshot = self.snapshot();
        let mut seen = BTreeSet::new();
        let new: Vec<&NewType> = types
            .filter(|new| snapshot.get(&new.name).is_none() && seen.insert(new.name.as_str()))
            .collect();
        let entries = self.claim_batch(&snapshot, &new)?;
        let mut rows = Vec::with_capacity(entries.len());
        for entry in &entries {
            rows.push((entry.type_id.0.to_be_bytes().to_vec(), encode(entry)?));
        }
        let outcomes = applied(self.store.insert_many(TYPES, &rows), rows.len())?;
        if !rows.is_empty() {
            self.reload()?;
        }
        let made = entries.into_iter().zip(outcomes).filter(|(_, applied)| *applied);
        Ok(made.map(|(entry, _)| (entry.name.clone(), entry)).collect())
    }

    /// The entries whose slots are certainly claimed by their names and free in the snapshot.
    fn claim_batch(
        &self,
        snapshot: &RegistrySnapshot,
        new: &[&NewType],
    ) -> Result<Vec<TypeEntry>, StoreError> {
        let keys: Vec<Vec<u8>> = new.iter().map(|new| new.name.clone().into_bytes()).collect();
        let claims = self.store.get_many(NAMES, &keys)?;
        let mut claimed = Vec::with_capacity(new.len());
        let mut unclaimed = Vec::new();
        for (new, claim) in new.iter().zip(claims) {
            match claim.as_deref().map(slot_of).transpose()? {
                // Left behind by a registration that was cut short.
                Some(slot) if snapshot.by_id(slot).is_none() => claimed.push(new.entry(slot)),
                Some(_taken) => {}
                None => unclaimed.push(*new),
            }
        }
        let taken: BTreeSet<TypeId> = claimed.iter().map(|entry| entry.type_id).collect();
        let free = snapshot.free_slots().filter(|slot| !taken.contains(slot));
        let fresh: Vec<TypeEntry> =
            unclaimed.into_iter().zip(free).map(|(new, slot)| new.entry(slot)).collect();
        let rows: Vec<(Vec<u8>, Vec<u8>)> = fresh
            .iter()
            .map(|entry| (entry.name.clone().into_bytes(), entry.type_id.0.to_be_bytes().to_vec()))
            .collect();
        let outcomes = applied(self.store.insert_many(NAMES, &rows), rows.len())?;
        let ours = fresh.into_iter().zip(outcomes).filter(|(_, applied)| *applied);
        claimed.extend(ours.map(|(entry, _)| entry));
        Ok(claimed)
    }
}

/// Which rows were certainly inserted; none if the answer got lost.
fn applied(
    outcomes: Result<Vec<CasOutcome>, StoreError>,
    rows: usize,
) -> Result<Vec<bool>, StoreError> {
    match outcomes {
        Ok(outcomes) => {
            Ok(outcomes.iter().map(|outcome| *outcome == CasOutcome::Applied).collect())
        }
        Err(StoreError::Unknown { .. }) => Ok(vec![false; rows]),
        Err(error) => Err(error),
    }
}

/// The slot that `name` claims from now on; `snapshot` must not have the name.
fn claim(
    store: &dyn MetaStore,
    snapshot: &RegistrySnapshot,
    name: &str,
) -> Result<TypeId, RegistryError> {
    update(store, NAMES, name.as_bytes(), |current| {
        let claim = current.map(slot_of).transpose()?;
        if let Some(slot) = claim.filter(|slot| snapshot.by_id(*slot).is_none()) {
            return Ok(Change::Keep(slot));
        }
        let free = snapshot.free_slots().next();
        let slot = free.ok_or_else(|| RegistryError::Full { name: name.to_owned() })?;
        Ok(Change::Put(slot.0.to_be_bytes().to_vec(), slot))
    })
}

fn slot_of(row: &[u8]) -> Result<TypeId, StoreError> {
    let slot = row.try_into().map(u16::from_be_bytes);
    match slot {
        Ok(slot) if (1..TypeId::CAP).contains(&slot) => Ok(TypeId(slot)),
        Ok(_) | Err(_) => Err(StoreError::corrupt(format!("table {NAMES} (slot {row:02x?})"))),
    }
}
