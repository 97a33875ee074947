//! What a collector accepts, and how it is set up.

use serde::Deserialize;

/// Bounds on a request and its events. Nothing that a client sends can make the collector use more
/// than these.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Most events in a request; more are answered 413.
    pub events: usize,
    /// Most bytes of a request body on the wire; more are answered 413.
    pub wire_bytes: usize,
    /// Most bytes of a request body after decompression; more are answered 413.
    pub inflated_bytes: usize,
    /// Most bytes of a log record. An event over it is rejected as `too_large`.
    pub record_bytes: usize,
    /// Deepest nesting of `properties`: `[]` has depth 1. Deeper is rejected as `too_deep`.
    pub depth: usize,
    /// Most bytes of an event type's name in Unicode NFC. Longer is rejected as `bad_type`.
    pub type_bytes: usize,
    /// Most bytes of a userId. Longer is rejected as `bad_user_id`.
    pub user_id_bytes: usize,
    /// How long a client may take to send the body once the headers are there; then 408.
    ///
    /// The deadline for the headers themselves belongs to the server that accepts connections.
    pub body_timeout_ms: u64,
    /// How long after its receivedAt stamp an event may still be confirmed; then 503.
    pub append_timeout_ms: u64,
    /// Most bytes that all requests in flight may hold at once, bodies and records together; a
    /// request for which there is no room is answered 503 before its body is read.
    pub inflight_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            events: 500,
            wire_bytes: 1 << 20,
            inflated_bytes: 8 << 20,
            record_bytes: 256 << 10,
            depth: 64,
            type_bytes: 128,
            user_id_bytes: 512,
            body_timeout_ms: 30_000,
            append_timeout_ms: 30_000,
            inflight_bytes: 256 << 20,
        }
    }
}

/// How a collector treats personal data, and what it stamps on records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorOptions {
    /// How old the copy of the erasure ledger may be while cached user keys are used. This is the
    /// longest time for which an erased user's events are still sealed under the old key.
    pub key_cache_ttl_ms: u64,
    /// What of the request itself is sealed with its events.
    pub capture: Capture,
    /// Whether an event must say that its user consents.
    pub consent: ConsentRule,
    /// Region stamped on records; empty where there is only one.
    pub region: String,
}

impl Default for CollectorOptions {
    fn default() -> Self {
        Self {
            key_cache_ttl_ms: 60_000,
            capture: Capture::default(),
            consent: ConsentRule::Optional,
            region: String::new(),
        }
    }
}

/// What of a request is sealed with its events. Nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// The address that the connection comes from.
    pub ip: bool,
    /// The User-Agent header.
    pub user_agent: bool,
}

/// Which events are taken, by what they say in `consent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsentRule {
    /// All but those that deny it.
    Optional,
    /// Only those with `"consent":{"analytics":true}`.
    Required,
}
