//! Tables of bytes as maps, for tests and as the model of the others.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{CasOutcome, KeyValue, MetaStore, Table};
use crate::error::StoreError;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
type Tables = BTreeMap<Table, Rows>;

/// A [`MetaStore`] that forgets everything when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryMeta {
    tables: RwLock<Tables>,
}

impl MemoryMeta {
    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn put_if(rows: &mut Rows, key: &[u8], expected: Option<&[u8]>, value: &[u8]) -> CasOutcome {
    let current = rows.get(key);
    if current.map(Vec::as_slice) != expected {
        return CasOutcome::Refused { current: current.cloned() };
    }
    rows.insert(key.to_vec(), value.to_vec());
    CasOutcome::Applied
}

impl MetaStore for MemoryMeta {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.read().get(table).and_then(|rows| rows.get(key)).cloned())
    }

    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let tables = self.read();
        let rows = tables.get(table);
        Ok(keys.iter().map(|key| rows.and_then(|rows| rows.get(key)).cloned()).collect())
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError> {
        let tables = self.read();
        let Some(rows) = tables.get(table) else {
            return Ok(Vec::new());
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let slice = rows.range::<[u8], _>((from, Bound::Unbounded));
        Ok(slice.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        Ok(put_if(self.write().entry(table).or_default(), key, expected, value))
    }

    fn insert_many(&self, table: Table, rows: &[KeyValue]) -> Result<Vec<CasOutcome>, StoreError> {
        let mut tables = self.write();
        let stored = tables.entry(table).or_default();
        Ok(rows.iter().map(|(key, value)| put_if(stored, key, None, value)).collect())
    }

    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        let mut tables = self.write();
        let rows = tables.entry(table).or_default();
        let current = rows.get(key);
        if current.is_none_or(|current| current != expected) {
            return Ok(CasOutcome::Refused { current: current.cloned() });
        }
        rows.remove(key);
        Ok(CasOutcome::Applied)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::meta::contract;

    #[test]
    fn the_maps_keep_the_contract() {
        contract::all(&|| Arc::new(MemoryMeta::default()));
    }
}
