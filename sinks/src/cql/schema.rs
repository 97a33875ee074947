//! The layout of a keyspace: made, checked at each start, and changed by numbered steps.

use std::error::Error;
use std::sync::Arc;

use scylla::frame::types::Consistency;
use scylla::value::CqlValue;

use super::options::CqlOptions;
use super::session::{Client, Session};
use crate::error::StoreError;

/// The layout that this release reads and writes.
const VERSION: i32 = 1;

/// What leads from one version to the next, the first one to version 1. A step may be cut short and
/// taken again: each of its statements can be repeated.
const STEPS: [&[&str]; 1] = [&[
    "CREATE TABLE IF NOT EXISTS ks.counts (granularity tinyint, period bigint, kind tinyint, start \
     bigint, revision bigint, writer bigint, written_at bigint, source tinyint, digest bigint, width \
     int, vector blob, PRIMARY KEY ((granularity, period), kind, start))",
    "CREATE TABLE IF NOT EXISTS ks.meta_rows (tbl text, bucket smallint, key blob, value blob, PRIMARY \
     KEY ((tbl, bucket), key))",
    "CREATE TABLE IF NOT EXISTS ks.meta_buckets (tbl text, bucket smallint, PRIMARY KEY (tbl, bucket))",
]];

/// The row by which it is seen whether the servers know lightweight transactions.
const PROBE: i8 = 2;
/// The row that holds the version.
const LAYOUT: i8 = 1;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CqlOpenError {
    /// No server answered: try again.
    #[error("cannot use {address}")]
    Unavailable {
        /// Where it should be.
        address: String,
        /// What the driver said.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The keyspace was made by an older release.
    #[error(
        "{address} has layout {found} and this release needs {current}; stop everything that uses \
         it and run: tally store migrate"
    )]
    NeedsMigration {
        /// Where it is.
        address: String,
        /// Its layout.
        found: i32,
        /// The layout of this release.
        current: i32,
    },
    /// The keyspace was made by a later release: use that one.
    #[error("{address} has layout {found}; this release knows none after {current}")]
    TooNew {
        /// Where it is.
        address: String,
        /// Its layout.
        found: i32,
        /// The layout of this release.
        current: i32,
    },
    /// The keyspace knows no lightweight transactions, or holds something else.
    #[error("{address} cannot hold counts: {what}")]
    Unfit {
        /// Where it is.
        address: String,
        /// What is in the way, and what to do.
        what: String,
    },
}

impl CqlOpenError {
    pub(super) fn unavailable(
        options: &CqlOptions,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Unavailable { address: options.address(), source: source.into() }
    }
}

/// What a migration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The layout that was found; 0 = none.
    pub from: i32,
    /// The layout now.
    pub to: i32,
}

/// Connects to a keyspace with the layout of this release; sets up one that is missing or empty.
pub(super) fn open(options: &CqlOptions) -> Result<Session, CqlOpenError> {
    let session = Session::connect(options)?;
    run(&session, |client| async move {
        make_keyspace(&client).await?;
        let found = version(&client).await?;
        let address = client.options.address();
        match found {
            0 => refuse_foreign(&client).await?,
            found if found < VERSION => {
                return Err(CqlOpenError::NeedsMigration { address, found, current: VERSION });
            }
            found if found > VERSION => {
                return Err(CqlOpenError::TooNew { address, found, current: VERSION });
            }
            _ => return probe(&client).await,
        }
        probe(&client).await?;
        take_steps(&client, found).await
    })?;
    Ok(session)
}

/// Takes the steps that are missing.
pub(super) fn migrate(options: &CqlOptions) -> Result<Migration, CqlOpenError> {
    let session = Session::connect(options)?;
    run(&session, |client| async move {
        make_keyspace(&client).await?;
        let found = version(&client).await?;
        if found > VERSION {
            let address = client.options.address();
            return Err(CqlOpenError::TooNew { address, found, current: VERSION });
        }
        if found == 0 {
            refuse_foreign(&client).await?;
        }
        probe(&client).await?;
        take_steps(&client, found).await?;
        Ok(Migration { from: found, to: VERSION })
    })
}

pub(super) fn drop_keyspace(options: &CqlOptions) -> Result<(), CqlOpenError> {
    let session = Session::connect(options)?;
    run(&session, |client| async move {
        let statement = format!("DROP KEYSPACE IF EXISTS {}", client.options.keyspace);
        execute(&client, &statement).await
    })
}

fn run<T: Send + 'static, F: Future<Output = Result<T, CqlOpenError>> + Send + 'static>(
    session: &Session,
    work: impl FnOnce(Arc<Client>) -> F,
) -> Result<T, CqlOpenError> {
    let options = session.options().clone();
    let done = session.wait("set up the keyspace", work);
    done.map_err(|error| CqlOpenError::unavailable(&options, error))?
}

async fn execute(client: &Client, statement: &str) -> Result<(), CqlOpenError> {
    let done = client.session.query_unpaged(client.qualified(statement), ()).await;
    done.map(drop).map_err(|error| CqlOpenError::unavailable(&client.options, error))
}

/// Makes the keyspace unless it is there, and the table of its version.
async fn make_keyspace(client: &Client) -> Result<(), CqlOpenError> {
    let options = &client.options;
    let keyspace = &options.keyspace;
    let known = client.session.get_cluster_state().get_keyspace(keyspace).is_some();
    if !known {
        let nodes = client.session.get_cluster_state().get_nodes_info().len();
        let replicas = options.replication.unwrap_or(if nodes < 3 { 1 } else { 3 });
        if replicas < 3 {
            tracing::warn!(keyspace, replicas, "counts will not survive the loss of a server");
        }
        // ScyllaDB knows no lightweight transactions with tablets; Cassandra knows no tablets.
        let is_scylla =
            execute(client, "SELECT key FROM system.scylla_local LIMIT 1").await.is_ok();
        let tablets = if is_scylla { " AND tablets = {'enabled': false}" } else { "" };
        let statement = format!(
            "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {{'class': \
             'NetworkTopologyStrategy', 'replication_factor': {replicas}}}{tablets}"
        );
        execute(client, &statement).await?;
    }
    execute(
        client,
        "CREATE TABLE IF NOT EXISTS ks.tally_schema (id tinyint PRIMARY KEY, version int)",
    )
    .await
}

fn store_error(client: &Client, error: StoreError) -> CqlOpenError {
    CqlOpenError::unavailable(&client.options, error)
}

/// The layout of the keyspace; 0 if it has none yet.
async fn version(client: &Client) -> Result<i32, CqlOpenError> {
    let read = async {
        let select = "SELECT version FROM ks.tally_schema WHERE id = ?";
        let mut statement = client.prepare(select).await?;
        statement.set_consistency(serial_read(client));
        client.read("read the layout", &statement, vec![CqlValue::TinyInt(LAYOUT)]).await
    };
    let rows = read.await.map_err(|error| store_error(client, error))?;
    Ok(rows.first().and_then(|row| row.int("version")).unwrap_or(0))
}

/// The consistency of a read that has to see, and to finish, every conditional write.
pub(super) fn serial_read(client: &Client) -> Consistency {
    match client.options.serial {
        scylla::frame::types::SerialConsistency::Serial => Consistency::Serial,
        scylla::frame::types::SerialConsistency::LocalSerial => Consistency::LocalSerial,
    }
}

/// A keyspace without our layout must not hold tables of somebody else.
async fn refuse_foreign(client: &Client) -> Result<(), CqlOpenError> {
    let read = async {
        let select = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
        let statement = client.prepare(select).await?;
        let keyspace = CqlValue::Text(client.options.keyspace.clone());
        client.read("list the tables", &statement, vec![keyspace]).await
    };
    let tables = read.await.map_err(|error| store_error(client, error))?;
    let ours = ["tally_schema", "counts", "meta_rows", "meta_buckets"];
    let foreign =
        tables.iter().filter_map(|row| row.text("table_name")).find(|table| !ours.contains(table));
    match foreign {
        None => Ok(()),
        Some(table) => Err(CqlOpenError::Unfit {
            address: client.options.address(),
            what: format!("it holds the table {table} of something else; choose another keyspace"),
        }),
    }
}

/// Writes a scratch row under a condition: whether the servers can is not told by their version.
async fn probe(client: &Client) -> Result<(), CqlOpenError> {
    let update = async {
        let insert = "INSERT INTO ks.tally_schema (id, version) VALUES (?, ?) IF NOT EXISTS";
        let statement = client.prepare(insert).await?;
        let values = vec![CqlValue::TinyInt(PROBE), CqlValue::Int(0)];
        client.write_if("try a lightweight transaction", vec![(statement, values)]).await
    };
    match update.await {
        // Written now or at an earlier start.
        Ok(Ok(()) | Err(_)) => Ok(()),
        Err(error) => Err(CqlOpenError::Unfit {
            address: client.options.address(),
            what: format!(
                "a lightweight transaction failed ({}); on ScyllaDB the keyspace must be made with \
                 tablets = {{'enabled': false}}",
                chain(&error)
            ),
        }),
    }
}

fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause: &&dyn Error| (*cause).source());
    std::iter::once(error.to_string())
        .chain(causes.map(ToString::to_string))
        .collect::<Vec<_>>()
        .join(": ")
}

/// Takes the steps after version `from`, and writes down each that is done.
async fn take_steps(client: &Client, from: i32) -> Result<(), CqlOpenError> {
    for (version, step) in (0..).zip(STEPS).skip_while(|(version, _)| *version < from) {
        for statement in step {
            execute(client, statement).await?;
        }
        let agreed = client.session.await_schema_agreement().await;
        agreed.map_err(|error| CqlOpenError::unavailable(&client.options, error))?;
        advance(client, version).await.map_err(|error| store_error(client, error))?;
    }
    Ok(())
}

/// Raises the version from `from` by one, unless another process has done so.
async fn advance(client: &Client, from: i32) -> Result<(), StoreError> {
    let (id, next) = (CqlValue::TinyInt(LAYOUT), CqlValue::Int(from + 1));
    let (statement, values) = if from == 0 {
        ("INSERT INTO ks.tally_schema (id, version) VALUES (?, ?) IF NOT EXISTS", vec![id, next])
    } else {
        let from = CqlValue::Int(from);
        ("UPDATE ks.tally_schema SET version = ? WHERE id = ? IF version = ?", vec![next, id, from])
    };
    let statement = client.prepare(statement).await?;
    let done = client.write_if("write the layout's version", vec![(statement, values)]).await?;
    // A refusal means that somebody else was there first with the same step.
    drop(done);
    Ok(())
}
