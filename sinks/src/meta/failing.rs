//! A key-value store that fails on order.

use super::{CasOutcome, KeyValue, MetaStore, Table};
use crate::error::StoreError;
use crate::faults::{Fault, Script};

/// A [`MetaStore`] around another one, whose calls fail as scripted. One step of the script is used
/// up by each call.
#[derive(Debug)]
pub struct FailingMeta<S> {
    inner: S,
    writes: Script,
    reads: Script,
}

impl<S: MetaStore> FailingMeta<S> {
    /// A store that does not fail before it is told to.
    #[must_use]
    pub fn new(inner: S) -> Self {
        Self { inner, writes: Script::default(), reads: Script::default() }
    }

    /// Appends steps for the next writes; `None` = succeed.
    pub fn script_writes(&self, steps: impl IntoIterator<Item = Option<Fault>>) {
        self.writes.extend(steps);
    }

    /// Appends steps for the next reads; `None` = succeed, any fault = unavailable.
    pub fn script_reads(&self, steps: impl IntoIterator<Item = Option<Fault>>) {
        self.reads.extend(steps);
    }

    /// The store inside, which never fails on order.
    #[must_use]
    pub const fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: MetaStore> MetaStore for FailingMeta<S> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.reads.read("read a row", || self.inner.get(table, key))
    }

    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.reads.read("read rows", || self.inner.get_many(table, keys))
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError> {
        self.reads.read("read a table", || self.inner.scan(table, after, limit))
    }

    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.writes.write("write a row", || self.inner.put_if(table, key, expected, value))
    }

    fn insert_many(&self, table: Table, rows: &[KeyValue]) -> Result<Vec<CasOutcome>, StoreError> {
        self.writes.write("insert rows", || self.inner.insert_many(table, rows))
    }

    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.writes.write("delete a row", || self.inner.delete_if(table, key, expected))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::meta::contract;
    use crate::meta::memory::MemoryMeta;

    #[test]
    fn without_a_script_the_contract_holds() {
        contract::all(&|| Arc::new(FailingMeta::new(MemoryMeta::default())));
    }

    #[test]
    fn each_fault_reports_and_applies_what_it_says() {
        // (fault, whether the row is stored, whether the outcome is called unknown)
        let cases = [
            (Fault::Refused, false, false),
            (Fault::AppliedThenLost, true, true),
            (Fault::LostBeforeApplied, false, true),
        ];
        for (fault, stored, unknown) in cases {
            let store = FailingMeta::new(MemoryMeta::default());
            store.script_writes([Some(fault)]);
            let error = store.put_if("t", b"k", None, b"v").unwrap_err();
            assert_eq!(matches!(error, StoreError::Unknown { .. }), unknown, "{fault:?}");
            assert_eq!(store.get("t", b"k").unwrap().is_some(), stored, "{fault:?}");
        }
    }
}
