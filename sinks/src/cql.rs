//! The store on ScyllaDB or Apache Cassandra: counts and tables in one keyspace.
//!
//! ```text
//! counts       ((granularity, period), kind, start)   kind 0 = small row, kind 1 = its vector
//! meta_rows    ((tbl, bucket), key)                   bucket = first byte of the key, or -1
//! meta_buckets (tbl, bucket)                          which buckets a table has
//! tally_schema (id)                                   version of all this
//! ```
//!
//! Rows of one period share a partition, small rows in front of vectors: a range is a few slices,
//! and the revisions of a period are read without its vectors. The vector repeats revision and
//! writer of its small row, so a reader notices when it has met two different writes. There is no
//! static column (it would be repeated on every row of a slice), no collection and no expiry by
//! column: retention deletes a period whole.
//!
//! Every write of a row is a lightweight transaction whose condition stands on the small row; both
//! rows are written by one batch. The driver never sends one twice. An answer that got lost leaves
//! [`StoreError::Unknown`](crate::error::StoreError::Unknown), and is settled by reading at serial
//! consistency, which also finishes whatever is under way.
//!
//! Differences between the two servers: `[applied]` is read by its name, since Cassandra leaves out
//! the other columns of an applied write and ScyllaDB does not; keyspaces are made without tablets,
//! with which ScyllaDB knows no lightweight transactions.
//!
//! The driver is asynchronous and the store is not: it keeps a small runtime of its own, so that its
//! callers may stand anywhere, also on a thread of another runtime.

mod counts;
mod layout;
mod meta;
mod options;
mod parallel;
mod schema;
mod session;
mod tls;

use std::sync::Arc;

pub use self::counts::CqlCounts;
pub use self::meta::CqlMeta;
pub use self::options::{CqlOptions, CqlUrlError};
pub use self::schema::{CqlOpenError, Migration};

use self::session::Session;

/// A connection to a keyspace that holds one deployment.
#[derive(Clone, Debug)]
pub struct CqlStore {
    session: Arc<Session>,
}

impl CqlStore {
    /// Connects. A keyspace that is missing or empty is set up.
    ///
    /// # Errors
    /// [`CqlOpenError`].
    pub fn open(options: &CqlOptions) -> Result<Self, CqlOpenError> {
        Ok(Self { session: Arc::new(schema::open(options)?) })
    }

    /// Brings the keyspace to the layout of this release, step by step; may be repeated.
    ///
    /// # Errors
    /// [`CqlOpenError`].
    pub fn migrate(options: &CqlOptions) -> Result<Migration, CqlOpenError> {
        schema::migrate(options)
    }

    /// Removes the keyspace with everything in it: for tests and benchmarks.
    ///
    /// # Errors
    /// [`CqlOpenError`].
    pub fn drop_keyspace(options: &CqlOptions) -> Result<(), CqlOpenError> {
        schema::drop_keyspace(options)
    }

    /// The counts.
    #[must_use]
    pub fn counts(&self) -> CqlCounts {
        CqlCounts::new(Arc::clone(&self.session))
    }

    /// The tables.
    #[must_use]
    pub fn meta(&self) -> CqlMeta {
        CqlMeta::new(Arc::clone(&self.session))
    }

    /// How many requests were sent to the servers so far.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.session.round_trips()
    }
}
