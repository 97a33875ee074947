//! A query service over memory stores, for tests.

mod stores;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use prometheus_client::registry::Registry as MetricsRegistry;
use tally_jobs::rollup::{Rollup, RollupOptions, RollupParts, Sweep};
use tally_model::bucket::{Bucket, Granularity, MINUTE_MS};
use tally_model::clock::ManualClock;
use tally_model::range::Run;
use tally_model::revision::Revision;
use tally_model::time::parse_rfc3339;
use tally_model::vector::CountVector;
use tally_sinks::counts::{
    CountsStore as _, PutCondition, PutOutcome, Row, RowSource, SmallRow, WriterId,
};
use tally_sinks::dirty::{self, DirtyHour};
use tally_sinks::leases::Owner;
use tally_sinks::meta::MetaStore;
use tally_sinks::meta::memory::MemoryMeta;
use tally_sinks::registry::{NewType, Registry};
use tally_sinks::tokens::Tokens;
use tower::ServiceExt as _;

pub(crate) use stores::HookedCounts;
use stores::{new_tokens, publish};

use crate::{QueryApi, QueryParts, QuerySettings, router};

/// A read token with the raw scope.
pub(crate) const READ: &str = "read-token";
/// A read token without any scope.
pub(crate) const PLAIN: &str = "plain-token";
/// A write key.
pub(crate) const WRITE: &str = "write-token";
/// An admin token.
pub(crate) const ADMIN: &str = "admin-token";

/// A row with `revision` as its recomputed revision and writing time.
pub(crate) fn row(bucket: Bucket, revision: i64, counts: Vec<u64>) -> Row {
    let vector = CountVector::from_counts(counts);
    let small = SmallRow {
        bucket,
        revision: Revision::recomputed(revision).unwrap(),
        writer: WriterId(1),
        written_at_ms: revision,
        source: RowSource::Stream,
        digest: 0,
        width: u32::try_from(vector.width()).unwrap(),
    };
    Row { small, vector }
}

/// An instant from RFC 3339.
pub(crate) fn at(text: &str) -> i64 {
    parse_rfc3339(text).unwrap()
}

/// A deployment with nothing in it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) counts: Arc<HookedCounts>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) meta: Arc<dyn MetaStore>,
    tokens: Arc<Tokens>,
    pub(crate) settings: QuerySettings,
}

/// An answer, taken in whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|why| panic!("{why}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Name and count of each result.
    pub(crate) fn results(&self) -> Vec<(String, u64)> {
        let json = self.json();
        let results = json["results"].as_array().expect("results");
        results
            .iter()
            .map(|one| {
                (one["eventType"].as_str().unwrap().to_owned(), one["count"].as_u64().unwrap())
            })
            .collect()
    }
}

impl World {
    /// A deployment at `now`.
    pub(crate) fn at(now: &str) -> Self {
        let meta: Arc<dyn MetaStore> = Arc::new(MemoryMeta::default());
        Self {
            clock: Arc::new(ManualClock::new(at(now))),
            counts: Arc::default(),
            registry: Arc::new(Registry::open(Arc::clone(&meta)).expect("opens")),
            tokens: Arc::new(new_tokens(Arc::clone(&meta))),
            meta,
            settings: QuerySettings::default(),
        }
    }

    /// Registers types; the first gets slot 1.
    pub(crate) fn types(&self, names: &[&str]) {
        for name in names {
            self.registry.register(NewType::named((*name).to_owned())).expect("registers");
        }
    }

    /// Publishes the marks.
    pub(crate) fn marks(&self, origin: &str, retired: &str, readable: &str) {
        publish(&*self.meta, at(origin), at(retired), at(readable));
    }

    /// Raises what is noted of one hour.
    pub(crate) fn dirty(&self, start: &str, hour: DirtyHour) {
        dirty::raise(&*self.meta, &BTreeMap::from([(at(start), hour)])).expect("raises");
    }

    /// Puts one row.
    pub(crate) fn put(&self, row: Row) {
        let outcomes = self.counts.put_many(&[(row, PutCondition::Below)]);
        assert!(matches!(outcomes[..], [Ok(PutOutcome::Stored)]), "{outcomes:?}");
    }

    /// Puts every minute of a range, with what `counts` says for its number in the range.
    pub(crate) fn minutes(&self, start: &str, end: &str, counts: impl Fn(u64) -> Vec<u64>) {
        let granularity = Granularity::Minute;
        let run = Run { granularity, start_ms: at(start), end_ms: at(end) };
        for (number, bucket) in (0..).zip(run.buckets()) {
            self.put(row(bucket, bucket.end_ms() + 2 * MINUTE_MS, counts(number)));
        }
    }

    /// The rollup of the deployment.
    pub(crate) fn rollup(&self) -> Rollup {
        let parts = RollupParts {
            counts: Arc::<HookedCounts>::clone(&self.counts),
            meta: Arc::clone(&self.meta),
            clock: Arc::<ManualClock>::clone(&self.clock),
            owner: Owner(1),
        };
        let options = RollupOptions {
            minutes_days: self.settings.minutes_days,
            hours_days: self.settings.hours_days,
            suppress_below: self.settings.suppress_below,
            ..RollupOptions::default()
        };
        Rollup::new(parts, options)
    }

    /// Folds whatever is due.
    pub(crate) fn fold(&self) {
        let report = self.rollup().run(Sweep::All, &|| true).expect("folds");
        assert_eq!((report.lacking, report.refused), (0, 0));
    }

    /// A query service over the stores: each call makes another replica with a cache of its own.
    pub(crate) fn replica(&self) -> Router {
        self.measured_replica(&mut MetricsRegistry::default())
    }

    /// The same with its metrics in `metrics`.
    pub(crate) fn measured_replica(&self, metrics: &mut MetricsRegistry) -> Router {
        let parts = QueryParts {
            counts: Arc::<HookedCounts>::clone(&self.counts),
            meta: Arc::clone(&self.meta),
            registry: Arc::clone(&self.registry),
            tokens: Arc::clone(&self.tokens),
            clock: Arc::<ManualClock>::clone(&self.clock),
        };
        router(Arc::new(QueryApi::new(parts, self.settings, metrics)))
    }
}

/// `GET` with the read token.
pub(crate) async fn get(replica: &Router, path: &str) -> Answer {
    send(replica, request("GET", path, Some(READ), None)).await
}

pub(crate) fn request(
    method: &str,
    path: &str,
    token: Option<&str>,
    body: Option<&str>,
) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    request.body(body.map_or_else(Body::empty, |body| Body::from(body.to_owned()))).unwrap()
}

pub(crate) async fn send(replica: &Router, request: Request<Body>) -> Answer {
    let response = replica.clone().oneshot(request).await.expect("infallible");
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    Answer { status: parts.status, headers: parts.headers, body }
}
