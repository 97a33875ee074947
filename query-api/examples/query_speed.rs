//! How long a top-K over a ragged 30 days takes, over 60 days of minute rows with 224 slots in the
//! embedded store: first as a deployment without a rollup has them, then with hour and day rows.
//!
//! `cargo run --release -p tally-query-api --example query_speed`
//!
//! The service is called without a network. *cold*: an empty cache of vectors (the store's pages
//! are in the system's memory); *cached*: vectors cached, manifests read anew; *cached within a
//! second*: nothing read at all.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use prometheus_client::registry::Registry as Metrics;
use tally_model::bucket::{Bucket, DAY_MS, Granularity, HOUR_MS, MINUTE_MS};
use tally_model::clock::ManualClock;
use tally_model::range::Run;
use tally_model::revision::Revision;
use tally_model::vector::CountVector;
use tally_query_api::{QueryApi, QueryParts, QuerySettings, router};
use tally_sinks::counts::{CountsStore, PutCondition, Row, RowSource, SmallRow, WriterId};
use tally_sinks::marks::{self, Advance};
use tally_sinks::meta::MetaStore;
use tally_sinks::redb::RedbStore;
use tally_sinks::registry::{NewType, Registry};
use tally_sinks::tokens::{Scope, TokenKind, Tokens};
use tower::ServiceExt as _;

const SLOTS: u16 = 224;
const DAYS: i64 = 60;
const NOW_MS: i64 = 1_773_144_000_000;
const TOKEN: &str = "read-token";

type Failure = Box<dyn std::error::Error>;

struct Deployment {
    counts: Arc<dyn CountsStore>,
    meta: Arc<dyn MetaStore>,
    registry: Arc<Registry>,
    tokens: Arc<Tokens>,
    clock: Arc<ManualClock>,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let store = RedbStore::open(&folder.path().join("counts.redb"))?;
    let deployment = Deployment::new(Arc::new(store.counts()), Arc::new(store.meta()))?;
    deployment.fill(Granularity::Minute)?;
    deployment.measure("minute rows only").await?;
    deployment.fill(Granularity::Hour)?;
    deployment.fill(Granularity::Day)?;
    deployment.measure("with hour and day rows").await
}

impl Deployment {
    fn new(counts: Arc<dyn CountsStore>, meta: Arc<dyn MetaStore>) -> Result<Self, Failure> {
        let registry = Arc::new(Registry::open(Arc::clone(&meta))?);
        for slot in 1..SLOTS {
            registry.register(NewType::named(format!("type-{slot}")))?;
        }
        let tokens = Arc::new(Tokens::open(Arc::clone(&meta))?);
        tokens.create(TokenKind::Read, "bench", &[Scope::StatsRaw], TOKEN, NOW_MS)?;
        let generation = marks::claim_generation(&*meta, NOW_MS)?;
        marks::set_origin_if_absent(&*meta, NOW_MS - DAYS * DAY_MS)?;
        let advanced = marks::advance(&*meta, generation, Some(NOW_MS), Some(NOW_MS))?;
        if !matches!(advanced, Advance::Published(_)) {
            return Err("the marks of a new store did not move".into());
        }
        Ok(Self { counts, meta, registry, tokens, clock: Arc::new(ManualClock::new(NOW_MS)) })
    }

    /// Puts every row of one granularity.
    fn fill(&self, granularity: Granularity) -> Result<(), Failure> {
        let floor = |at_ms| granularity.floor(at_ms);
        let run =
            Run { granularity, start_ms: floor(NOW_MS - DAYS * DAY_MS), end_ms: floor(NOW_MS) };
        let rows: Vec<_> = run.buckets().map(row).collect::<Result<_, _>>()?;
        for batch in rows.chunks(2_000) {
            self.counts.put_many(batch).into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        Ok(())
    }

    fn service(&self) -> Router {
        let parts = QueryParts {
            counts: Arc::clone(&self.counts),
            meta: Arc::clone(&self.meta),
            registry: Arc::clone(&self.registry),
            tokens: Arc::clone(&self.tokens),
            clock: Arc::<ManualClock>::clone(&self.clock),
        };
        let settings = QuerySettings::default();
        router(Arc::new(QueryApi::new(parts, settings, &mut Metrics::default())))
    }

    async fn measure(&self, rows: &str) -> Result<(), Failure> {
        let mut cold = Vec::new();
        for ask in 0..30 {
            cold.push(time(&self.service(), ask).await?);
        }
        report(rows, "cold", cold)?;
        let service = self.service();
        time(&service, 0).await?;
        let mut cached = Vec::new();
        for _ in 0..200 {
            self.clock.advance(1_000);
            cached.push(time(&service, 0).await?);
        }
        report(rows, "cached", cached)?;
        let mut within = Vec::new();
        for _ in 0..1_000 {
            within.push(time(&service, 0).await?);
        }
        report(rows, "cached within a second", within)
    }
}

fn row(bucket: Bucket) -> Result<(Row, PutCondition), Failure> {
    let minutes = u64::try_from(bucket.granularity().width_ms() / MINUTE_MS)?;
    let counts = (0..u64::from(SLOTS)).map(|slot| minutes * (1_000 / (slot + 1))).collect();
    let small = SmallRow {
        bucket,
        revision: Revision::recomputed(NOW_MS)?,
        writer: WriterId(1),
        written_at_ms: NOW_MS,
        source: RowSource::Rollup,
        digest: 0,
        width: u32::from(SLOTS),
    };
    Ok((Row { small, vector: CountVector::from_counts(counts) }, PutCondition::Exactly(None)))
}

/// Asks for 30 days that begin and end within an hour and within a day; another 30 for another
/// `ask`.
async fn time(service: &Router, ask: i64) -> Result<Duration, Failure> {
    let start_ms = NOW_MS - 40 * DAY_MS - 5 * HOUR_MS + (17 + ask) * MINUTE_MS;
    let end_ms = start_ms + 30 * DAY_MS + HOUR_MS + 13 * MINUTE_MS;
    let request = Request::get(format!("/v1/stats/top?start={start_ms}&end={end_ms}&k=10"))
        .header("authorization", format!("Bearer {TOKEN}"))
        .body(Body::empty())?;
    let begun = now();
    let response = service.clone().oneshot(request).await?;
    let took = begun.elapsed();
    if response.status() == StatusCode::OK {
        Ok(took)
    } else {
        Err(format!("the service answered {}", response.status()).into())
    }
}

#[expect(clippy::disallowed_methods, reason = "real time is what this program measures")]
fn now() -> Instant {
    Instant::now()
}

fn report(rows: &str, what: &str, mut times: Vec<Duration>) -> Result<(), Failure> {
    times.sort_unstable();
    let at = |percent: usize| times.get(times.len() * percent / 100).or(times.last());
    let [p50, p99] = [at(50), at(99)].map(|time| time.copied().unwrap_or_default());
    writeln!(std::io::stdout(), "{rows}, {what}: p50 {p50:.2?}, p99 {p99:.2?}")?;
    Ok(())
}
