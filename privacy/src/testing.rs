//! What the tests of this crate share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tally_model::clock::{Clock, ManualClock};
use tally_sinks::error::StoreError;
use tally_sinks::meta::memory::MemoryMeta;
use tally_sinks::meta::{CasOutcome, KeyValue, MetaStore, Table};

/// Longest wait for something that has to happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// The present of the tests: 2026-03-09T23:46:40Z.
pub(crate) const NOW_MS: i64 = 1_773_100_000_000;

pub(crate) fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(NOW_MS))
}

pub(crate) fn as_clock(clock: &Arc<ManualClock>) -> Arc<dyn Clock> {
    Arc::<ManualClock>::clone(clock)
}

/// Waits until `is_so`, looking each millisecond.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..DEADLINE.as_millis() {
        if is_so() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("in vain: {what}");
}

/// Runs `work` on a thread of its own; the answer arrives in the channel.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, answer) = channel();
    std::thread::spawn(move || sender.send(work()));
    answer
}

/// What becomes of a call other than a read.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Nothing is inserted.
    Unavailable,
    /// The rows are inserted, but the caller is told that this is unknown.
    Unknown,
    /// Another process puts this value first.
    Beaten(&'static [u8]),
    /// The store panics.
    Panic,
}

/// A store in memory whose insertions can be held up and whose calls can be made to fail.
#[derive(Debug, Default)]
pub(crate) struct TestMeta {
    pub(crate) rows: MemoryMeta,
    /// Number of rows of each call of `insert_many`, noted as the call begins.
    commits: Mutex<Vec<usize>>,
    /// What the next calls run into, last one first.
    faults: Mutex<Vec<Fault>>,
    pub(crate) lookups: AtomicUsize,
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl TestMeta {
    pub(crate) fn shut(&self) {
        *self.is_shut.lock().unwrap() = true;
    }

    pub(crate) fn open(&self) {
        *self.is_shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    pub(crate) fn fail_next(&self, fault: Fault) {
        self.faults.lock().unwrap().push(fault);
    }

    fn next_fault(&self) -> Option<Fault> {
        self.faults.lock().unwrap().pop()
    }

    pub(crate) fn commits(&self) -> Vec<usize> {
        self.commits.lock().unwrap().clone()
    }
}

fn down() -> Box<dyn std::error::Error + Send + Sync> {
    "the test took it down".into()
}

impl MetaStore for TestMeta {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.rows.get(table, key)
    }

    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        self.rows.get_many(table, keys)
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError> {
        match self.next_fault() {
            None => self.rows.scan(table, after, limit),
            Some(_) => Err(StoreError::Unavailable { action: "scan", source: down() }),
        }
    }

    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        match self.next_fault() {
            None => self.rows.put_if(table, key, expected, value),
            Some(Fault::Unknown) => {
                self.rows.put_if(table, key, expected, value)?;
                Err(StoreError::Unknown { action: "put a row", source: down() })
            }
            Some(Fault::Beaten(theirs)) => {
                self.rows.put_if(table, key, expected, theirs)?;
                self.rows.put_if(table, key, expected, value)
            }
            Some(_) => Err(StoreError::Unavailable { action: "put a row", source: down() }),
        }
    }

    fn insert_many(&self, table: Table, rows: &[KeyValue]) -> Result<Vec<CasOutcome>, StoreError> {
        self.commits.lock().unwrap().push(rows.len());
        drop(self.opened.wait_while(self.is_shut.lock().unwrap(), |is_shut| *is_shut).unwrap());
        match self.next_fault() {
            None => self.rows.insert_many(table, rows),
            Some(Fault::Unknown) => {
                self.rows.insert_many(table, rows)?;
                Err(StoreError::Unknown { action: "insert rows", source: down() })
            }
            Some(Fault::Panic) => panic!("the test wants it"),
            Some(_) => Err(StoreError::Unavailable { action: "insert rows", source: down() }),
        }
    }

    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.rows.delete_if(table, key, expected)
    }
}
