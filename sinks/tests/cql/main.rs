//! The store on a real Cassandra, at the address `TALLY_TEST_CQL`.

mod faults;
mod layout;
mod proxy;
mod races;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tally_sinks::cql::{CqlOptions, CqlStore};

/// Where the tests' server is.
fn address() -> String {
    std::env::var("TALLY_TEST_CQL").unwrap_or_else(|_unset| "127.0.0.1:19042".to_owned())
}

/// A keyspace of its own, which goes with it.
#[derive(Clone)]
struct Keyspace(Arc<Owned>);

struct Owned {
    name: String,
    options: CqlOptions,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Err(error) = CqlStore::drop_keyspace(&self.options) {
            eprintln!("the keyspace {} stays: {error}", self.name);
        }
    }
}

impl Keyspace {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        Self(Arc::new(Owned { options: options(&address(), &name), name }))
    }

    fn open(&self) -> CqlStore {
        CqlStore::open(&self.0.options).unwrap_or_else(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            panic!("{error} ({cause:?}); start the server with: scripts/services start cassandra")
        })
    }

    /// The same keyspace through another address.
    fn through(&self, address: &str) -> CqlOptions {
        options(address, &self.0.name)
    }
}

fn options(address: &str, keyspace: &str) -> CqlOptions {
    CqlOptions::parse(&format!("cql://{address}/{keyspace}?replication=1&timeout=10s"))
        .expect("a valid URL")
}

thread_local! {
    /// The keyspaces of the contract's checks: one is made after the other has been used.
    static KEPT: std::cell::RefCell<Option<Keyspace>> = const { std::cell::RefCell::new(None) };
}

/// Makes stores one after another, each in a keyspace that goes when the next one comes.
fn fresh() -> CqlStore {
    let keyspace = Keyspace::new();
    let store = keyspace.open();
    KEPT.with(|kept| *kept.borrow_mut() = Some(keyspace));
    store
}

#[test]
fn the_counts_keep_the_contract() {
    tally_sinks::counts::contract::all(&|| Arc::new(fresh().counts()));
    KEPT.with(|kept| *kept.borrow_mut() = None);
}

#[test]
fn the_tables_keep_the_contract() {
    tally_sinks::meta::contract::all(&|| Arc::new(fresh().meta()));
    KEPT.with(|kept| *kept.borrow_mut() = None);
}
