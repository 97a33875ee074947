//! Tables of bytes with compare-and-set: the one primitive behind registry, tokens, marks, keys
//! and ledgers.

pub mod contract;
pub mod failing;
pub mod memory;
pub mod redb;
mod update;

use std::fmt;
use std::sync::Arc;

use crate::error::StoreError;

pub use self::update::{Change, update};

/// Name of a table. Tables come into being with their first row.
pub type Table = &'static str;
/// A key and its value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// What became of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CasOutcome {
    /// The write is stored and durable.
    Applied,
    /// The condition did not hold; nothing changed.
    Refused {
        /// What is stored; `None` = nothing.
        current: Option<Vec<u8>>,
    },
}

/// A key-value store whose every write is conditional.
///
/// Contract, checked for every implementation by `contract`: of two racing writes with one
/// condition exactly one wins; an applied write is durable on return and seen by every later read.
/// Calls block.
pub trait MetaStore: Send + Sync + fmt::Debug {
    /// The value of a key.
    ///
    /// # Errors
    /// [`StoreError`].
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Like [`get`](Self::get), and no write of the key whose outcome got lost is under way
    /// afterwards: what is found is what it came to.
    ///
    /// # Errors
    /// [`StoreError`].
    fn get_settled(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(table, key)
    }

    /// Values of several keys, in the order given.
    ///
    /// # Errors
    /// [`StoreError`].
    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError>;

    /// Up to `limit` rows with keys above `after`, ascending by key.
    ///
    /// # Errors
    /// [`StoreError`].
    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError>;

    /// Stores `value` if the key's value is `expected` (`None` = there must be none).
    ///
    /// # Errors
    /// [`StoreError`].
    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError>;

    /// Inserts rows whose keys are free, all in one durable commit; a taken key is refused with its
    /// value and does not stop its neighbours. Outcomes in the order given.
    ///
    /// # Errors
    /// [`StoreError`]: then nothing was inserted, or it is unknown.
    fn insert_many(&self, table: Table, rows: &[KeyValue]) -> Result<Vec<CasOutcome>, StoreError>;

    /// Deletes the key if its value is `expected`.
    ///
    /// # Errors
    /// [`StoreError`].
    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError>;
}

impl<S: MetaStore + ?Sized> MetaStore for Arc<S> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        (**self).get(table, key)
    }

    fn get_settled(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        (**self).get_settled(table, key)
    }

    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        (**self).get_many(table, keys)
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError> {
        (**self).scan(table, after, limit)
    }

    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        (**self).put_if(table, key, expected, value)
    }

    fn insert_many(&self, table: Table, rows: &[KeyValue]) -> Result<Vec<CasOutcome>, StoreError> {
        (**self).insert_many(table, rows)
    }

    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        (**self).delete_if(table, key, expected)
    }
}

/// Rows read at once by [`scan_all`].
const SCAN_ROWS: usize = 1_000;

/// Every row with a key above `after`, ascending by key. The rows are read in pages: what is
/// written meanwhile may or may not be among them.
///
/// # Errors
/// [`StoreError`].
pub fn scan_all(
    store: &dyn MetaStore,
    table: Table,
    after: Option<&[u8]>,
) -> Result<Vec<KeyValue>, StoreError> {
    let mut rows = store.scan(table, after, SCAN_ROWS)?;
    let mut page_rows = rows.len();
    while page_rows == SCAN_ROWS {
        let after = rows.last().map(|(key, _)| key.as_slice());
        let page = store.scan(table, after, SCAN_ROWS)?;
        page_rows = page.len();
        rows.extend(page);
    }
    Ok(rows)
}
