//! A store that can be switched off or made slow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tally_model::clock::ManualClock;
use tally_sinks::error::StoreError;
use tally_sinks::meta::memory::MemoryMeta;
use tally_sinks::meta::{CasOutcome, MetaStore, Table};

/// Tables in memory; while it is down, every call fails and changes nothing.
#[derive(Debug, Default)]
pub(crate) struct SwitchMeta {
    inner: MemoryMeta,
    is_down: AtomicBool,
    slow: Mutex<Option<(Arc<ManualClock>, i64)>>,
}

impl SwitchMeta {
    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::SeqCst);
    }

    /// From now on the clock goes forward by `by_ms` with every call.
    pub(crate) fn slow_down(&self, clock: Arc<ManualClock>, by_ms: i64) {
        *self.slow.lock().unwrap() = Some((clock, by_ms));
    }

    fn up(&self) -> Result<&MemoryMeta, StoreError> {
        if let Some((clock, by_ms)) = &*self.slow.lock().unwrap() {
            clock.advance(*by_ms);
        }
        if self.is_down.load(Ordering::SeqCst) {
            let source = Box::new(std::io::Error::other("switched off"));
            return Err(StoreError::Unavailable { action: "answer", source });
        }
        Ok(&self.inner)
    }
}

type Row = (Vec<u8>, Vec<u8>);

impl MetaStore for SwitchMeta {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.up()?.get(table, key)
    }

    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.up()?.get_many(table, keys)
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Row>, StoreError> {
        self.up()?.scan(table, after, limit)
    }

    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.up()?.put_if(table, key, expected, value)
    }

    fn insert_many(&self, table: Table, rows: &[Row]) -> Result<Vec<CasOutcome>, StoreError> {
        self.up()?.insert_many(table, rows)
    }

    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.up()?.delete_if(table, key, expected)
    }
}
