//! The store on a real Cassandra, at the address `TALLY_TEST_CQL`.

mod faults;
mod layout;
mod proxy;
mod races;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use scylla::client::session_builder::SessionBuilder;
use scylla::serialize::row::SerializeRow;
use tally_model::bucket::{Bucket, MINUTE_MS};
use tally_model::revision::{Generation, Revision};
use tally_model::vector::CountVector;
use tally_sinks::counts::{Row, RowSource, SmallRow, WriterId};
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
        // It may be gone already; what is left of it harms nobody.
        drop(CqlStore::drop_keyspace(&self.options));
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
        CqlStore::open(&self.0.options)
            .expect("the server answers; start it with: scripts/services start cassandra")
    }

    fn options(&self) -> &CqlOptions {
        &self.0.options
    }

    /// Runs a statement in the keyspace as somebody else would.
    fn execute(&self, statement: &str) {
        self.execute_with(statement, ());
    }

    fn execute_with(&self, statement: &str, values: impl SerializeRow) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let session = SessionBuilder::new().known_node(address()).build().await;
            let session = session.expect("the server answers");
            session.use_keyspace(&self.0.name, false).await.expect("the keyspace is there");
            session.query_unpaged(statement, values).await.expect("a valid statement");
        });
    }

    /// Writes a row without any condition, with its vector or without.
    fn plant(&self, row: &Row, with_vector: bool) {
        let (small, start_ms) = (&row.small, row.small.bucket.start_ms());
        let (revision, writer) = (small.revision.raw(), small.writer.0.cast_signed());
        let period = small.bucket.period().start_ms();
        self.execute_with(
            "INSERT INTO counts (granularity, period, kind, start, revision, writer, written_at, \
             source, digest, width) VALUES (1, ?, 0, ?, ?, ?, 0, 1, 0, ?)",
            (period, start_ms, revision, writer, small.width.cast_signed()),
        );
        if with_vector {
            self.execute_with(
                "INSERT INTO counts (granularity, period, kind, start, revision, writer, vector) \
                 VALUES (1, ?, 1, ?, ?, ?, ?)",
                (period, start_ms, revision, writer, row.vector.to_bytes()),
            );
        }
    }

    /// The same keyspace through another address.
    fn through(&self, address: &str) -> CqlOptions {
        options(address, &self.0.name)
    }
}

/// Revision of the streaming path at `round`, from 1.
fn revision(round: i64) -> Revision {
    Revision::streaming(Generation::new(1).expect("small"), round).expect("a time")
}

/// The row of a minute that `writer` puts in `round`; every round has a vector of its own.
fn row(minute: i64, round: i64, writer: u64, slots: usize) -> Row {
    let seed = round.unsigned_abs() * 10 + writer;
    let counts = (0..).map(|slot: u64| seed * 7_919 + slot).take(slots).collect();
    let small = SmallRow {
        bucket: Bucket::minute(minute * MINUTE_MS),
        revision: revision(round),
        writer: WriterId(writer),
        written_at_ms: round,
        source: RowSource::Stream,
        digest: 0,
        width: u32::try_from(slots).expect("few"),
    };
    Row { small, vector: CountVector::from_counts(counts) }
}

/// Asks until there is an answer.
#[expect(clippy::disallowed_methods, reason = "a deadline for a real server needs the real clock")]
fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within 30 s");
        std::thread::yield_now();
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
