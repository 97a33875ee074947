//! What the query service tells Prometheus about itself.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// A route, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Route {
    /// `/v1/stats/top`.
    Top,
    /// `/v1/stats/series`.
    Series,
    /// `/v1/late-hours`.
    LateHours,
    /// `/v1/event-types` and below.
    EventTypes,
}

/// Labels of [`QueryMetrics::requests`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The route.
    pub route: Route,
    /// The status of the answer.
    pub status: u16,
}

/// Labels of [`QueryMetrics::seconds`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    /// The route.
    pub route: Route,
}

/// Metrics of the query service. Cloning shares them.
#[derive(Clone, Debug)]
pub struct QueryMetrics {
    /// Requests answered.
    pub requests: Family<RequestLabels, Counter>,
    /// Time from the arrival of a request to its answer. The clock has a resolution of 1 ms.
    pub seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    /// Rows read from the counts store.
    pub rows_read: Counter,
    /// Vectors that the cache had.
    pub cache_hits: Counter,
    /// Vectors that the cache lacked.
    pub cache_misses: Counter,
    /// Bytes that the cached vectors take.
    pub cache_bytes: Gauge,
    /// Reads that started over because a row changed meanwhile.
    pub rereads: Counter,
    /// Requests refused because too many were waiting.
    pub rejected: Counter,
}

fn latency_histogram() -> Histogram {
    Histogram::new([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])
}

impl QueryMetrics {
    /// New metrics, visible in `registry` under `query_...`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(latency_histogram),
            rows_read: Counter::default(),
            cache_hits: Counter::default(),
            cache_misses: Counter::default(),
            cache_bytes: Gauge::default(),
            rereads: Counter::default(),
            rejected: Counter::default(),
        };
        let all = registry.sub_registry_with_prefix("query");
        all.register("requests", "Requests answered", metrics.requests.clone());
        all.register("request_seconds", "Time to answer a request", metrics.seconds.clone());
        all.register("rows_read", "Rows read from the counts store", metrics.rows_read.clone());
        all.register("cache_hits", "Vectors found in the cache", metrics.cache_hits.clone());
        all.register("cache_misses", "Vectors not in the cache", metrics.cache_misses.clone());
        all.register("cache_bytes", "Bytes of cached vectors", metrics.cache_bytes.clone());
        all.register("rereads", "Reads begun anew after a row changed", metrics.rereads.clone());
        all.register("rejected", "Requests refused under overload", metrics.rejected.clone());
        metrics
    }
}
