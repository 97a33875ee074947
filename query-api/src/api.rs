//! The HTTP service: routes, access, and what keeps it bounded.

mod auth;
mod compress;
mod described;
mod event_types;
mod late_hours;
mod negotiate;
mod read;
mod respond;
mod stats;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch};
use prometheus_client::registry::Registry as MetricsRegistry;
use tally_model::bucket::HOUR_MS;
use tally_model::clock::Clock;
use tally_sinks::counts::CountsStore;
use tally_sinks::error::StoreError;
use tally_sinks::meta::MetaStore;
use tally_sinks::registry::Registry;
use tally_sinks::tokens::Tokens;
use tokio::sync::Semaphore;

pub use self::described::openapi_json;
use crate::metrics::{QueryMetrics, RequestLabels, Route, RouteLabels};
use crate::problem::{Code, Problem};
use crate::reader::Reader;

/// What a query service reads from.
#[derive(Clone, Debug)]
pub struct QueryParts {
    /// The counts.
    pub counts: Arc<dyn CountsStore>,
    /// Where the marks stand.
    pub meta: Arc<dyn MetaStore>,
    /// The event types.
    pub registry: Arc<Registry>,
    /// The read and admin tokens.
    pub tokens: Arc<Tokens>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// How a query service behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuerySettings {
    /// How many days minute rows are kept.
    pub minutes_days: i64,
    /// How many days hour rows are kept; at least as long as minutes.
    pub hours_days: i64,
    /// Counts of an event type in an hour below this are shown to raw tokens only.
    pub suppress_below: u64,
    /// The shortest range of answers to other tokens, ms.
    pub min_width_ms: i64,
    /// Bytes of vectors held in memory, about.
    pub cache_bytes: usize,
    /// Queries that read at the same time.
    pub concurrent_reads: usize,
    /// Queries that may wait for one of those; more are refused.
    pub waiting_reads: usize,
    /// How long the body of a request may take to arrive.
    pub body_timeout: Duration,
    /// Longest name of an event type, in bytes.
    pub type_name_bytes_max: usize,
}

impl Default for QuerySettings {
    fn default() -> Self {
        Self {
            minutes_days: 60,
            hours_days: 730,
            suppress_below: 10,
            min_width_ms: HOUR_MS,
            cache_bytes: 256 << 20,
            concurrent_reads: 4,
            waiting_reads: 256,
            body_timeout: Duration::from_secs(10),
            type_name_bytes_max: 128,
        }
    }
}

/// The query service.
#[derive(Debug)]
pub struct QueryApi {
    reader: Reader,
    registry: Arc<Registry>,
    tokens: Arc<Tokens>,
    clock: Arc<dyn Clock>,
    settings: QuerySettings,
    metrics: QueryMetrics,
    /// One permit for each query that runs or waits.
    admitted: Arc<Semaphore>,
    /// One permit for each query that runs.
    running: Arc<Semaphore>,
}

impl QueryApi {
    /// A service over `parts`, whose metrics are visible in `metrics`.
    #[must_use]
    pub fn new(parts: QueryParts, settings: QuerySettings, metrics: &mut MetricsRegistry) -> Self {
        let QueryParts { counts, meta, registry, tokens, clock } = parts;
        let admitted = settings.concurrent_reads.saturating_add(settings.waiting_reads);
        Self {
            reader: Reader::new(counts, meta, Arc::clone(&clock), settings.cache_bytes),
            registry,
            tokens,
            clock,
            metrics: QueryMetrics::register(metrics),
            admitted: Arc::new(Semaphore::new(admitted.clamp(1, Semaphore::MAX_PERMITS))),
            running: Arc::new(Semaphore::new(
                settings.concurrent_reads.clamp(1, Semaphore::MAX_PERMITS),
            )),
            settings,
        }
    }

    /// Runs work that blocks on a thread where it may, at most so many at a time.
    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let Ok(admitted) = Arc::clone(&self.admitted).try_acquire_owned() else {
            self.metrics.rejected.inc();
            return Err(Problem::new(Code::Overloaded, "too many queries wait; try again"));
        };
        let running = Arc::clone(&self.running).acquire_owned().await;
        let api = Arc::clone(self);
        // The permits move along: a client that hangs up does not end work that has begun.
        let joined = tokio::task::spawn_blocking(move || {
            let done = work(&api);
            drop((admitted, running));
            done
        });
        match joined.await {
            Ok(done) => done,
            Err(why) => {
                tracing::error!(error = %why, "a query ended without an answer");
                Err(Problem::new(Code::Internal, "the query ended without an answer"))
            }
        }
    }

    /// Counts and times an answer.
    async fn measured(
        &self,
        route: Route,
        answer: impl Future<Output = Result<Response, Problem>>,
    ) -> Response {
        let begun_ms = self.clock.monotonic_ms();
        let response = answer.await.unwrap_or_else(IntoResponse::into_response);
        let status = response.status().as_u16();
        self.metrics.requests.get_or_create(&RequestLabels { route, status }).inc();
        let took_ms = u32::try_from(self.clock.monotonic_ms() - begun_ms).unwrap_or(u32::MAX);
        let seconds = f64::from(took_ms) / 1_000.0;
        self.metrics.seconds.get_or_create(&RouteLabels { route }).observe(seconds);
        response
    }
}

/// The routes of the query service. Paths that it does not know are left to the router that it is
/// merged into.
pub fn router(api: Arc<QueryApi>) -> Router {
    let no_such_method = || async {
        Problem::new(Code::MethodNotAllowed, "the header Allow names the methods of this route")
    };
    Router::new()
        .route("/openapi.json", get(described::openapi))
        .route("/docs", get(described::page))
        .route("/v1/stats/top", get(stats::top).fallback(no_such_method))
        .route("/v1/stats/series", get(stats::series).fallback(no_such_method))
        .route("/v1/late-hours", get(late_hours::list).fallback(no_such_method))
        .route(
            "/v1/event-types",
            get(event_types::list).post(event_types::register).fallback(no_such_method),
        )
        .route("/v1/event-types/{name}", patch(event_types::change).fallback(no_such_method))
        .layer(axum::middleware::from_fn(compress::compress))
        .with_state(api)
}

/// What a client learns about a failed store; the log learns the cause.
fn store_problem(why: &StoreError) -> Problem {
    tracing::error!(error = %why, cause = ?std::error::Error::source(why), "the store failed");
    match why {
        StoreError::Corrupt { .. } => {
            Problem::new(Code::Internal, "the store holds something unreadable; see the log")
        }
        _ => Problem::new(Code::Unavailable, "the store did not answer; try again"),
    }
}
