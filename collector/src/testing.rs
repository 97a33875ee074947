//! A collector over a log and stores in memory, for tests.

mod store;

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use prost::Message as _;
use serde_json::{Value, json};
use tally_eventlog::memory::MemoryLog;
use tally_eventlog::{EventLog as _, ReadLimits};
use tally_model::clock::ManualClock;
use tally_model::ids::{EventId, IdMixer, Shards};
use tally_model::record::Record;
use tally_model::time::parse_rfc3339;
use tally_privacy::keys::{KeyStore, KeyStoreOptions};
use tally_privacy::ledger::ErasureLedger;
use tally_privacy::master::MasterKey;
use tally_privacy::seal::{Personal, open};
use tally_privacy::secrets::DeploymentSecrets;
use tally_sinks::meta::MetaStore;
use tally_sinks::meta::memory::MemoryMeta;
use tally_sinks::registry::{NewType, Registry, TypeStatus};
use tally_sinks::tokens::{Scope, TokenKind, Tokens};
use tower::ServiceExt as _;

use store::SwitchMeta;

use crate::append::Appender;
use crate::ingest::Preparer;
use crate::limits::{CollectorOptions, Limits};
use crate::metrics::Metrics;
use crate::service::{Collector, CollectorParts};

/// A write key.
pub(crate) const KEY: &str = "write-key";
/// A token that reads.
pub(crate) const READ: &str = "read-token";
/// The collector run.
pub(crate) const RUN: u64 = 0x1122_3344_5566_7788;
/// Partitions of the log.
pub(crate) const PARTITIONS: u32 = 4;

/// A collector at 2026-03-10T10:00:00Z that knows the types `page_view` (slot 1) and, deprecated,
/// `old_view` (slot 2).
pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) log: Arc<MemoryLog>,
    pub(crate) user_keys: Arc<SwitchMeta>,
    pub(crate) ledger: Arc<SwitchMeta>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) collector: Arc<Collector>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Reply {
    /// Event ids or indexes with reasons of a list of the answer.
    pub(crate) fn reasons(&self, list: &str) -> Vec<(u64, String)> {
        let notes = self.body[list].as_array().unwrap_or_else(|| panic!("{list}: {self:?}"));
        notes
            .iter()
            .map(|note| {
                (note["index"].as_u64().unwrap(), note["reason"].as_str().unwrap().to_owned())
            })
            .collect()
    }

    pub(crate) fn accepted(&self) -> u64 {
        assert_eq!(self.status, StatusCode::ACCEPTED, "{self:?}");
        self.body["accepted"].as_u64().unwrap()
    }

    /// That it is a problem document of this kind.
    pub(crate) fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(self.body["code"], code, "{self:?}");
        assert_eq!(self.body["status"], status);
        assert_eq!(self.body["type"], format!("urn:tally:problem:{code}"));
        assert!(self.body["title"].is_string() && self.body["detail"].is_string());
        assert!(self.body.get("accepted").is_none(), "{self:?}");
    }

    /// That it asks to be tried again after whole seconds.
    pub(crate) fn assert_retry_later(&self) {
        let seconds = self.headers[header::RETRY_AFTER].to_str().unwrap();
        assert!(seconds.parse::<u32>().unwrap() > 0, "{self:?}");
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default(), CollectorOptions::default())
    }

    pub(crate) fn with(limits: Limits, options: CollectorOptions) -> Self {
        let clock = Arc::new(ManualClock::new(at("2026-03-10T10:00:00Z")));
        let log = Arc::new(MemoryLog::new(PARTITIONS, Arc::clone(&clock) as _));
        let meta: Arc<dyn MetaStore> = Arc::new(MemoryMeta::default());
        let user_keys = Arc::new(SwitchMeta::default());
        let ledger = Arc::new(SwitchMeta::default());
        let master = MasterKey::from_bytes([9; 32]);
        let secrets = DeploymentSecrets::load_or_create(&*meta, &master).unwrap();
        let key_options = KeyStoreOptions { cache_entries: 10_000, ..KeyStoreOptions::default() };
        let keys = KeyStore::open(
            Arc::clone(&user_keys) as _,
            master,
            &secrets,
            key_options,
            Arc::clone(&clock) as _,
        );
        let keys = Arc::new(keys.unwrap());
        let copy = ErasureLedger::open(
            Arc::clone(&ledger) as _,
            Arc::clone(&keys),
            Arc::clone(&clock) as _,
        );
        let metrics = Arc::new(Metrics::default());
        let preparer = Preparer {
            registry: Arc::new(registry(Arc::clone(&meta))),
            keys,
            ledger: Arc::new(copy.unwrap()),
            mixer: IdMixer::new(secrets.id_key),
            secrets: Arc::new(secrets),
            shards: Shards::DEFAULT,
            partitions: PARTITIONS,
            limits,
            options,
        };
        let tokens = Arc::new(tokens(meta));
        let parts = CollectorParts {
            preparer: Arc::new(preparer),
            appender: Appender::new(
                Arc::clone(&log) as _,
                RUN,
                Arc::clone(&clock) as _,
                Arc::clone(&metrics),
            ),
            tokens: Arc::clone(&tokens),
            clock: Arc::clone(&clock) as _,
            metrics: Arc::clone(&metrics),
        };
        let collector = Arc::new(Collector::new(parts));
        Self { clock, log, user_keys, ledger, tokens, metrics, collector }
    }

    pub(crate) fn preparer(&self) -> &Preparer {
        &self.collector.parts.preparer
    }

    /// Sends any request.
    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let router = crate::http::router(Arc::clone(&self.collector));
        let response = router.oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body =
            if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
        Reply { status: parts.status, headers: parts.headers, body }
    }

    /// Posts a body as JSON with the write key.
    pub(crate) async fn post(&self, body: impl Into<Body>) -> Reply {
        self.send(request(body)).await
    }

    /// Posts a batch.
    pub(crate) async fn batch(&self, events: &[Value]) -> Reply {
        self.post(json!({ "events": events }).to_string()).await
    }

    /// Payloads in the log, in the order appended.
    pub(crate) fn payloads(&self) -> Vec<(u32, Vec<u8>)> {
        let from: Vec<_> = (0..PARTITIONS).map(|partition| (partition, 0)).collect();
        let mut reader = self.log.reader(&from).unwrap();
        let mut payloads = Vec::new();
        let limits = ReadLimits { records: usize::MAX, bytes: usize::MAX };
        reader
            .read(limits, &mut |record| {
                payloads.push((record.partition, record.payload.to_vec()));
            })
            .unwrap();
        payloads
    }

    /// Records in the log, in the order appended.
    pub(crate) fn records(&self) -> Vec<Record> {
        let decode = |(_, payload): (u32, Vec<u8>)| Record::decode(payload.as_slice()).unwrap();
        self.payloads().into_iter().map(decode).collect()
    }

    /// What the record's user, and nobody else, can read.
    pub(crate) fn personal(&self, record: &Record, user_id: &str) -> Personal {
        let keys = self.preparer().keys.cached(user_id).unwrap();
        let id = EventId(record.event_id.as_slice().try_into().unwrap());
        let tag = record.row_tag.as_slice().try_into().unwrap();
        Personal::read(&open(&keys, id, &tag, &record.sealed).unwrap()).unwrap()
    }

    /// All metrics as text.
    pub(crate) fn metrics_text(&self) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        self.metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }
}

fn registry(meta: Arc<dyn MetaStore>) -> Registry {
    let registry = Registry::open(meta).unwrap();
    for name in ["page_view", "old_view"] {
        registry.register(NewType::named(name.to_owned())).unwrap();
    }
    registry.set_status("old_view", TypeStatus::Deprecated).unwrap();
    registry
}

fn tokens(meta: Arc<dyn MetaStore>) -> Tokens {
    let tokens = Tokens::open(meta).unwrap();
    tokens.create(TokenKind::Write, "web", &[], KEY, 0).unwrap();
    tokens.create(TokenKind::Read, "report", &[Scope::Stats], READ, 0).unwrap();
    tokens
}

/// An instant from RFC 3339.
pub(crate) fn at(text: &str) -> i64 {
    parse_rfc3339(text).unwrap()
}

/// A UUID that is different for each number.
pub(crate) fn id(number: u32) -> String {
    format!("0195f3a0-5b1c-7c3e-8a4d-{number:012x}")
}

/// A valid event: `page_view` at 09:59:30, half a minute ago.
pub(crate) fn event(number: u32) -> Value {
    json!({
        "eventId": id(number),
        "eventType": "page_view",
        "userId": format!("user-{number}"),
        "eventTime": "2026-03-10T09:59:30Z",
        "properties": { "path": "/private/page", "number": number },
    })
}

/// [`event`] with one field replaced; `null` removes it.
pub(crate) fn event_with(number: u32, field: &str, value: Value) -> Value {
    let mut event = event(number);
    if value.is_null() {
        event.as_object_mut().unwrap().remove(field);
    } else {
        event[field] = value;
    }
    event
}

/// A JSON POST with the write key.
pub(crate) fn request(body: impl Into<Body>) -> Request<Body> {
    Request::post("/v1/events")
        .header(header::CONTENT_TYPE, "application/json")
        .header("x-write-key", KEY)
        .body(body.into())
        .unwrap()
}
