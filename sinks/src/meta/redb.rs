//! Tables of bytes on redb: one redb table each.

use std::ops::Bound;
use std::sync::Arc;

use ::redb::{ReadTransaction, ReadableTable, TableDefinition, TableError};

use super::{CasOutcome, KeyValue, MetaStore, Table};
use crate::error::StoreError;
use crate::redb::{Database, Ending, Trouble};

type ReadTable = ::redb::ReadOnlyTable<&'static [u8], &'static [u8]>;
type WriteTable<'txn> = ::redb::Table<'txn, &'static [u8], &'static [u8]>;

/// A [`MetaStore`] in a redb file; made by [`crate::redb::RedbStore::meta`].
#[derive(Clone, Debug)]
pub struct RedbMeta {
    database: Arc<Database>,
}

impl RedbMeta {
    pub(crate) const fn new(database: Arc<Database>) -> Self {
        Self { database }
    }
}

/// Keeps the names apart from those of the counts tables in the same file.
fn redb_name(table: Table) -> String {
    format!("meta.{table}")
}

fn existing(transaction: &ReadTransaction, table: Table) -> Result<Option<ReadTable>, Trouble> {
    match transaction.open_table(TableDefinition::new(&redb_name(table))) {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn put_if(
    rows: &mut WriteTable<'_>,
    key: &[u8],
    expected: Option<&[u8]>,
    value: &[u8],
) -> Result<CasOutcome, Trouble> {
    let current = rows.get(key)?;
    if current.as_ref().map(|current| current.value()) != expected {
        let current = current.map(|current| current.value().to_vec());
        return Ok(CasOutcome::Refused { current });
    }
    drop(current);
    rows.insert(key, value)?;
    Ok(CasOutcome::Applied)
}

fn ending(outcome: CasOutcome) -> Ending<CasOutcome> {
    match outcome {
        CasOutcome::Applied => Ending::Commit(outcome),
        CasOutcome::Refused { .. } => Ending::Abort(outcome),
    }
}

impl MetaStore for RedbMeta {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.database.read("read a row", |transaction| {
            let Some(rows) = existing(transaction, table)? else {
                return Ok(None);
            };
            let value = ReadableTable::get(&rows, key)?;
            Ok(value.map(|value| value.value().to_vec()))
        })
    }

    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.database.read("read rows", |transaction| {
            let Some(rows) = existing(transaction, table)? else {
                return Ok(vec![None; keys.len()]);
            };
            let value_of = |key: &Vec<u8>| {
                let value = ReadableTable::get(&rows, key.as_slice())?;
                Ok(value.map(|value| value.value().to_vec()))
            };
            keys.iter().map(value_of).collect()
        })
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError> {
        self.database.read("read a table", |transaction| {
            let Some(rows) = existing(transaction, table)? else {
                return Ok(Vec::new());
            };
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let mut found = Vec::new();
            let slice = ReadableTable::range::<&[u8]>(&rows, (from, Bound::Unbounded))?;
            for entry in slice.take(limit) {
                let (key, value) = entry?;
                found.push((key.value().to_vec(), value.value().to_vec()));
            }
            Ok(found)
        })
    }

    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.database.write("write a row", |transaction| {
            let mut rows = transaction.open_table(TableDefinition::new(&redb_name(table)))?;
            Ok(ending(put_if(&mut rows, key, expected, value)?))
        })
    }

    fn insert_many(&self, table: Table, rows: &[KeyValue]) -> Result<Vec<CasOutcome>, StoreError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        self.database.write("insert rows", |transaction| {
            let mut stored = transaction.open_table(TableDefinition::new(&redb_name(table)))?;
            let mut outcomes = Vec::with_capacity(rows.len());
            for (key, value) in rows {
                outcomes.push(put_if(&mut stored, key, None, value)?);
            }
            let changed = outcomes.contains(&CasOutcome::Applied);
            Ok(if changed { Ending::Commit(outcomes) } else { Ending::Abort(outcomes) })
        })
    }

    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.database.write("delete a row", |transaction| {
            let name = redb_name(table);
            let definition: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new(&name);
            let mut rows = transaction.open_table(definition)?;
            let current = rows.get(key)?.map(|current| current.value().to_vec());
            if current.as_deref() != Some(expected) {
                return Ok(Ending::Abort(CasOutcome::Refused { current }));
            }
            rows.remove(key)?;
            Ok(Ending::Commit(CasOutcome::Applied))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::meta::contract;
    use crate::redb::tests::Files;

    #[test]
    fn the_tables_keep_the_contract() {
        let files = Files::default();
        contract::all(&|| Arc::new(files.fresh().meta()));
    }
}
