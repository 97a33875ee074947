//! What a collector counts about itself. No label holds anything that a client chose.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::ingest::{Answer, Verdict};

type Label = [(&'static str, &'static str); 1];

/// Why a request was not authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthFailure {
    /// No key, or one that cannot be read.
    Missing,
    /// No such key, or a revoked one.
    Unknown,
    /// A key that may not write events.
    WrongKind,
}

impl AuthFailure {
    const fn code(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unknown => "unknown",
            Self::WrongKind => "wrong_kind",
        }
    }
}

/// The collector's metrics. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: Family<[(&'static str, u16); 1], Counter>,
    auth_failures: Family<Label, Counter>,
    accepted: Counter,
    warned: Family<Label, Counter>,
    rejected: Family<Label, Counter>,
    appended_records: Counter,
    appended_bytes: Counter,
    append_failures: Family<Label, Counter>,
    append_seconds: Histogram,
    user_keys: Family<Label, Counter>,
    key_failures: Family<Label, Counter>,
    ledger_age_seconds: Gauge<f64, AtomicU64>,
    inflight_bytes: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            auth_failures: Family::default(),
            accepted: Counter::default(),
            warned: Family::default(),
            rejected: Family::default(),
            appended_records: Counter::default(),
            appended_bytes: Counter::default(),
            append_failures: Family::default(),
            append_seconds: Histogram::new([
                0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
            ]),
            user_keys: Family::default(),
            key_failures: Family::default(),
            ledger_age_seconds: Gauge::default(),
            inflight_bytes: Gauge::default(),
        }
    }
}

impl Metrics {
    /// Makes them visible in `registry` under names that start with `collector_`.
    pub fn register(&self, registry: &mut Registry) {
        let m = self.clone();
        let all = registry.sub_registry_with_prefix("collector");
        all.register("requests", "Requests to /v1/events by status", m.requests);
        all.register("auth_failures", "Requests refused for their key by cause", m.auth_failures);
        all.register("events_accepted", "Events accepted, repeats included", m.accepted);
        all.register("events_warned", "Warnings about accepted events by reason", m.warned);
        all.register("events_rejected", "Events rejected by reason", m.rejected);
        all.register("appended_records", "Records confirmed by the log", m.appended_records);
        all.register("appended_bytes", "Payload bytes confirmed by the log", m.appended_bytes);
        all.register("append_failures", "Appends not confirmed by cause", m.append_failures);
        all.register("append_seconds", "Time from append to the log's answer", m.append_seconds);
        all.register("key_failures", "Batches refused for lack of keys by cause", m.key_failures);
        all.register("user_keys", "Look-ups of user keys by where they were", m.user_keys);
        all.register(
            "erasure_ledger_age_seconds",
            "Age of the copy of the erasure ledger: how long an erasure takes to be heeded",
            m.ledger_age_seconds,
        );
        all.register("inflight_bytes", "Bytes reserved by requests in flight", m.inflight_bytes);
    }

    pub(crate) fn request(&self, status: u16) {
        self.requests.get_or_create(&[("status", status)]).inc();
    }

    pub(crate) fn auth_failure(&self, cause: AuthFailure) {
        self.auth_failures.get_or_create(&[("cause", cause.code())]).inc();
    }

    /// Counts the answers of a request that ended with 202.
    pub fn answers(&self, answers: &[Answer<'_>]) {
        let mut accepted = 0;
        for answer in answers {
            match answer.verdict {
                Verdict::Accepted(warnings) => {
                    accepted += 1;
                    for reason in warnings.iter() {
                        self.warned.get_or_create(&[("reason", reason.code())]).inc();
                    }
                }
                Verdict::Rejected(reason) => {
                    self.rejected.get_or_create(&[("reason", reason.code())]).inc();
                }
            }
        }
        self.accepted.inc_by(accepted);
    }

    pub(crate) fn appended(&self, records: usize, bytes: usize, after_ms: i64) {
        self.appended_records.inc_by(to_u64(records));
        self.appended_bytes.inc_by(to_u64(bytes));
        self.append_seconds.observe(seconds(after_ms));
    }

    pub(crate) fn append_failure(&self, cause: &'static str) {
        self.append_failures.get_or_create(&[("cause", cause)]).inc();
    }

    pub(crate) fn keys_failure(&self, cause: &'static str) {
        self.key_failures.get_or_create(&[("cause", cause)]).inc();
    }

    pub(crate) fn user_keys(&self, cached: usize, fetched: usize) {
        self.user_keys.get_or_create(&[("from", "cache")]).inc_by(to_u64(cached));
        self.user_keys.get_or_create(&[("from", "store")]).inc_by(to_u64(fetched));
    }

    pub(crate) fn ledger_age(&self, age_ms: u64) {
        self.ledger_age_seconds.set(seconds(i64::try_from(age_ms).unwrap_or(i64::MAX)));
    }

    pub(crate) fn reserved(&self, bytes: usize) {
        self.inflight_bytes.inc_by(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    pub(crate) fn released(&self, bytes: usize) {
        self.inflight_bytes.dec_by(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a duration in ms is far below 2^53")]
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}
