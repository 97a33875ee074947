//! A connection with its own small runtime, and what its errors mean.
//!
//! Invariant F-4 of ARCHITECTURE.md.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::response::query_result::QueryResult;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlValue, Row};
use tokio::runtime::Runtime;

use super::options::{CqlOptions, Tls};
use super::schema::CqlOpenError;
use crate::error::StoreError;

/// Values of a statement, in the order of its markers.
pub(super) type Values = Vec<CqlValue>;

/// A connection, and the threads that serve it.
pub(super) struct Session {
    runtime: OwnRuntime,
    client: Arc<Client>,
}

/// A runtime that may be dropped anywhere.
struct OwnRuntime(Option<Runtime>);

/// What a request needs, wherever it runs.
pub(super) struct Client {
    pub(super) session: scylla::client::session::Session,
    pub(super) options: CqlOptions,
    round_trips: AtomicU64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("options", &self.client.options).finish_non_exhaustive()
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // The last owner may stand on a thread of another runtime, which must not wait.
            runtime.shutdown_background();
        }
    }
}

impl Session {
    /// Connects to the servers, not yet to the keyspace.
    pub(super) fn connect(options: &CqlOptions) -> Result<Self, CqlOpenError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tally-cql")
            .enable_all()
            .build()
            .map_err(|error| CqlOpenError::unavailable(options, error))?;
        let runtime = OwnRuntime(Some(runtime));
        let owned = options.clone();
        let connected = wait(&runtime, async move { connect(&owned).await });
        let session =
            connected.ok_or_else(|| CqlOpenError::unavailable(options, StoppedMidway))?.map_err(
                |error| CqlOpenError::Unavailable { address: options.address(), source: error },
            )?;
        let client = Client { session, options: options.clone(), round_trips: AtomicU64::new(0) };
        Ok(Self { runtime, client: Arc::new(client) })
    }

    /// Runs a request on the store's own runtime and waits for its end.
    pub(super) fn wait<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        action: &'static str,
        request: impl FnOnce(Arc<Client>) -> F,
    ) -> Result<T, StoreError> {
        let request = request(Arc::clone(&self.client));
        wait(&self.runtime, request).ok_or_else(|| StoreError::unknown(action, StoppedMidway))
    }

    pub(super) fn options(&self) -> &CqlOptions {
        &self.client.options
    }

    pub(super) fn round_trips(&self) -> u64 {
        self.client.round_trips.load(Ordering::Relaxed)
    }
}

/// Waits for `request` on `runtime`, from a thread that need not be its own. `None` if it panicked.
fn wait<T: Send + 'static>(
    runtime: &OwnRuntime,
    request: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // The task ends by itself: every request has a time limit.
    drop(runtime.0.as_ref()?.spawn(async move { sender.send(request.await) }));
    receiver.recv().ok()
}

/// The runtime went down, or the request panicked, before there was an answer.
#[derive(Debug, thiserror::Error)]
#[error("the request was not finished")]
struct StoppedMidway;

type Failed = Box<dyn std::error::Error + Send + Sync>;

async fn connect(options: &CqlOptions) -> Result<scylla::client::session::Session, Failed> {
    let profile = ExecutionProfile::builder()
        .consistency(options.read)
        .serial_consistency(Some(options.serial))
        .request_timeout(Some(options.timeout))
        // A conditional write that is sent again may meet itself; see the module docs.
        .retry_policy(Arc::new(FallthroughRetryPolicy))
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes(&options.hosts)
        .connection_timeout(options.timeout)
        .default_execution_profile_handle(profile.into_handle());
    if let Some((user, password)) = &options.login {
        builder = builder.user(user, password);
    }
    if let Tls::On(ca) = &options.tls {
        builder = builder.tls_context(Some(super::tls::context(ca.as_deref())?));
    }
    Ok(builder.build().await?)
}

impl Client {
    /// A statement in which `ks.` stands for the keyspace.
    pub(super) fn qualified(&self, statement: &str) -> String {
        statement.replace(" ks.", &format!(" {}.", self.options.keyspace))
    }

    /// Prepares a [qualified](Self::qualified) statement; unless it is told otherwise, it reads.
    pub(super) async fn prepare(&self, statement: &str) -> Result<PreparedStatement, StoreError> {
        let prepared = self.session.prepare(self.qualified(statement)).await;
        prepared.map_err(|error| StoreError::unavailable("prepare a statement", error))
    }

    /// Reads rows, by column name.
    pub(super) async fn read(
        &self,
        action: &'static str,
        statement: &PreparedStatement,
        values: Values,
    ) -> Result<Vec<Columns>, StoreError> {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        let answer = self.session.execute_unpaged(statement, values).await;
        let answer = answer.map_err(|error| StoreError::unavailable(action, error))?;
        columns(answer).map_err(|error| StoreError::unavailable(action, error))
    }

    /// Writes without a condition: only what may be repeated.
    pub(super) async fn write(
        &self,
        action: &'static str,
        statement: &PreparedStatement,
        values: Values,
    ) -> Result<(), StoreError> {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        let mut statement = statement.clone();
        statement.set_consistency(self.options.write);
        let answer = self.session.execute_unpaged(&statement, values).await;
        answer.map(drop).map_err(|error| meaning(action, error))
    }

    /// Writes under the conditions of `statements`, all or nothing; they stand in one partition.
    /// `None` if the conditions do not hold.
    pub(super) async fn write_if(
        &self,
        action: &'static str,
        statements: Vec<(PreparedStatement, Values)>,
    ) -> Result<Result<(), Vec<Columns>>, StoreError> {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_consistency(self.options.write);
        batch.set_serial_consistency(Some(self.options.serial));
        let (mut values, mut single) = (Vec::with_capacity(statements.len()), None);
        for (statement, of) in statements {
            single = Some(statement.clone());
            batch.append_statement(statement);
            values.push(of);
        }
        let answer = match (single, values.len()) {
            (Some(mut statement), 1) => {
                statement.set_consistency(self.options.write);
                let values = values.pop().unwrap_or_default();
                self.session.execute_unpaged(&statement, values).await
            }
            _ => self.session.batch(&batch, values).await,
        };
        let answer = answer.map_err(|error| meaning(action, error))?;
        let rows = columns(answer).map_err(|error| StoreError::unknown(action, error))?;
        // Null, or no such column, is never success.
        match rows.first().and_then(|row| row.boolean("[applied]")) {
            Some(true) => Ok(Ok(())),
            Some(false) => Ok(Err(rows)),
            None => Err(StoreError::unknown(action, NoVerdict)),
        }
    }
}

/// A conditional write whose answer does not say whether it was applied.
#[derive(Debug, thiserror::Error)]
#[error("the server did not say whether the write was applied")]
struct NoVerdict;

/// What a failed write means: whether it certainly did not happen.
fn meaning(action: &'static str, error: ExecutionError) -> StoreError {
    if certainly_not_applied(&error) {
        StoreError::unavailable(action, error)
    } else {
        StoreError::unknown(action, error)
    }
}

fn certainly_not_applied(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::BadQuery(_)
        | ExecutionError::EmptyPlan
        | ExecutionError::PrepareError(_)
        | ExecutionError::ConnectionPoolError(_) => true,
        ExecutionError::LastAttemptError(attempt) => match attempt {
            RequestAttemptError::SerializationError(_)
            | RequestAttemptError::CqlRequestSerialization(_)
            | RequestAttemptError::UnableToAllocStreamId => true,
            RequestAttemptError::DbError(error, _) => matches!(
                error,
                DbError::SyntaxError
                    | DbError::Invalid
                    | DbError::AlreadyExists { .. }
                    | DbError::AuthenticationError
                    | DbError::Unauthorized
                    | DbError::ConfigError
                    | DbError::Unavailable { .. }
                    | DbError::IsBootstrapping
            ),
            // Among these: a broken connection, and an answer that cannot be read.
            _ => false,
        },
        // Among these: the time limit of the request.
        _ => false,
    }
}

/// One row of an answer, by column name.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns(Vec<(String, Option<CqlValue>)>);

impl Columns {
    fn get(&self, name: &str) -> Option<&CqlValue> {
        self.0.iter().find(|(of, _)| of == name).and_then(|(_, value)| value.as_ref())
    }

    pub(super) fn boolean(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_boolean()
    }

    pub(super) fn tiny(&self, name: &str) -> Option<i8> {
        self.get(name)?.as_tinyint()
    }

    pub(super) fn small(&self, name: &str) -> Option<i16> {
        self.get(name)?.as_smallint()
    }

    pub(super) fn int(&self, name: &str) -> Option<i32> {
        self.get(name)?.as_int()
    }

    pub(super) fn long(&self, name: &str) -> Option<i64> {
        self.get(name)?.as_bigint()
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text().map(String::as_str)
    }

    pub(super) fn blob(&self, name: &str) -> Option<&[u8]> {
        match self.get(name)? {
            CqlValue::Blob(bytes) => Some(bytes),
            _ => None,
        }
    }
}

fn columns(answer: QueryResult) -> Result<Vec<Columns>, Failed> {
    if !answer.is_rows() {
        return Ok(Vec::new());
    }
    let answer = answer.into_rows_result()?;
    let names: Vec<String> =
        answer.column_specs().iter().map(|column| column.name().to_owned()).collect();
    let mut rows = Vec::with_capacity(answer.rows_num());
    for row in answer.rows::<Row>()? {
        rows.push(Columns(names.iter().cloned().zip(row?.columns).collect()));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scylla::errors::{BadQuery, WriteType};
    use scylla::frame::types::Consistency;

    use super::*;

    /// As at the start of a node, whose supervisor knows what to do about "unavailable".
    #[test]
    fn servers_that_are_away_are_an_error_on_the_thread_of_another_runtime_too() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let options = CqlOptions::parse(&format!("cql://{nobody}/nothing")).unwrap();
        let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let connected = other.block_on(async { Session::connect(&options).map(drop) });
        assert!(matches!(connected, Err(CqlOpenError::Unavailable { .. })), "{connected:?}");
    }

    /// The table of B82: which failures leave the outcome open.
    #[test]
    fn only_a_failure_that_is_certain_lets_a_write_be_tried_again_b82() {
        let quorum = Consistency::Quorum;
        let attempt = |error: DbError| {
            ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, String::new()))
        };
        let timeout = DbError::WriteTimeout {
            consistency: quorum,
            received: 0,
            required: 1,
            write_type: WriteType::Cas,
        };
        let failure = DbError::WriteFailure {
            consistency: quorum,
            received: 0,
            required: 1,
            numfailures: 1,
            write_type: WriteType::Cas,
        };
        let read_timeout = DbError::ReadTimeout {
            consistency: quorum,
            received: 0,
            required: 1,
            data_present: false,
        };
        // (what the row shows, error, whether it certainly did not happen)
        let cases = [
            ("time-out in the server", attempt(timeout), false),
            ("failed replicas", attempt(failure), false),
            ("time-out while preparing", attempt(read_timeout), false),
            ("overloaded after it may have begun", attempt(DbError::Overloaded), false),
            ("server error", attempt(DbError::ServerError), false),
            ("CAS_WRITE_UNKNOWN", attempt(DbError::Other(0x1700)), false),
            ("time limit of the client", ExecutionError::RequestTimeout(Duration::ZERO), false),
            (
                "too few replicas to begin",
                attempt(DbError::Unavailable { consistency: quorum, required: 2, alive: 1 }),
                true,
            ),
            ("starting up", attempt(DbError::IsBootstrapping), true),
            ("no such table", attempt(DbError::Invalid), true),
            ("no node to ask", ExecutionError::EmptyPlan, true),
            ("no partition key", ExecutionError::BadQuery(BadQuery::PartitionKeyExtraction), true),
        ];
        for (name, error, certain) in cases {
            let unavailable = matches!(meaning("put", error), StoreError::Unavailable { .. });
            assert_eq!(unavailable, certain, "{name}");
        }
    }
}
