//! `POST /v1/events`.
//!
//! The order of the steps is part of the protection: the key is checked before a byte of the body
//! is read, memory is reserved before the body is taken in, and nothing is appended before all of
//! it is parsed. The query string is never looked at, so a key in it is no key.
//!
//! Invariant I-2 of ARCHITECTURE.md.

mod answer;
mod auth;
mod body;
mod problem;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;

use tally_model::reasons::RejectReason;
use tally_privacy::keys::UserKeys;
use tally_privacy::seal::Nonces;
use tokio::runtime::RuntimeFlavor;

use tally_sinks::tokens::TokenInfo;

use crate::ingest::{IngestError, Judged, Prepared, Preparer, ReceivedAt, Sender};
use crate::parse::parse_batch;
use crate::service::{Collector, CollectorParts};
use problem::{Code, Problem};

/// The collector's routes. Paths that it does not know are left to the router it is merged into.
///
/// The sender's address can be captured only if the server puts
/// [`ConnectInfo<SocketAddr>`](ConnectInfo) into the requests' extensions.
pub fn router(collector: Arc<Collector>) -> Router {
    Router::new().route("/v1/events", any(events)).with_state(collector)
}

async fn events(State(collector): State<Arc<Collector>>, request: Request) -> Response {
    let mut response = match *request.method() {
        Method::POST => match post(&collector, request).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        },
        Method::OPTIONS => preflight(),
        _ => Problem::new(Code::MethodNotAllowed, "use POST").into_response(),
    };
    // Any page may send events, but never with the visitor's cookies or stored credentials.
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("retry-after, www-authenticate"),
    );
    collector.parts.metrics.request(response.status().as_u16());
    response
}

/// What a browser asks before it sends JSON or a key to another origin. Needs no key.
fn preflight() -> Response {
    let allow = |name: HeaderName, value| (name, HeaderValue::from_static(value));
    let headers = [
        allow(header::ACCESS_CONTROL_ALLOW_METHODS, "POST, OPTIONS"),
        allow(
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, content-encoding, x-write-key",
        ),
        allow(header::ACCESS_CONTROL_MAX_AGE, "86400"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

async fn post(collector: &Collector, request: Request) -> Result<Response, Problem> {
    if collector.is_draining() {
        return Err(Problem::new(Code::Draining, "this collector is being stopped"));
    }
    let (parts, body) = request.into_parts();
    let preparer = &collector.parts.preparer;
    let limits = &preparer.limits;
    let (token, encoding) = match check(collector, &parts.headers) {
        Ok(checked) => checked,
        Err(problem) => {
            body::discard(body, limits).await;
            return Err(problem);
        }
    };
    let body::Taken { text, share } = body::take(body, encoding, limits, &collector.budget).await?;

    let connection = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    let sender = sender(&parts.headers, connection, token.number, preparer);
    let events = in_place(text.len(), || parse_batch(&text, limits))?;

    // Everything from the stamp on happens within the append deadline.
    let stamped_ms = collector.parts.clock.monotonic_ms();
    let stamp = ReceivedAt::Now(collector.parts.clock.now_ms());
    let judged = preparer.judge(events, stamp);
    let keys = collector.note_keys(find_keys(collector, &judged, stamp).await)?;
    let mut nonces = Nonces::from_os().map_err(IngestError::Randomness)?;
    let prepared = in_place(text.len(), || preparer.seal(judged, &keys, &sender, &mut nonces))?;
    let prepared = append(collector, prepared, stamped_ms).await?;
    drop(share);
    collector.parts.metrics.answers(&prepared.answers);
    Ok(answer::accepted(&prepared.answers))
}

/// What the headers say: who sends, and how the body is compressed.
fn check(
    collector: &Collector,
    headers: &HeaderMap,
) -> Result<(Arc<TokenInfo>, body::Encoding), Problem> {
    let token = auth::authenticate(headers, &collector.parts.tokens)
        .map_err(|failure| auth::refuse(failure, &collector.parts.metrics))?;
    body::check_media_type(headers)?;
    Ok((token, body::Encoding::of(headers)?))
}

/// Where a batch comes from, as far as capture is on.
fn sender(
    headers: &HeaderMap,
    connection: Option<&ConnectInfo<SocketAddr>>,
    write_key: u32,
    preparer: &Preparer,
) -> Sender {
    let capture = preparer.options.capture;
    let user_agent = headers.get(header::USER_AGENT).filter(|_| capture.user_agent);
    Sender {
        write_key,
        ip: connection.filter(|_| capture.ip).map(|ConnectInfo(address)| address.ip()),
        user_agent: user_agent.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
    }
}

/// The keys of a batch's users; waits while those of new users are made on another thread.
async fn find_keys(
    collector: &Collector,
    judged: &Judged<'_>,
    stamp: ReceivedAt,
) -> Result<Vec<Arc<UserKeys>>, IngestError> {
    let CollectorParts { preparer, metrics, .. } = &collector.parts;
    let found = preparer.find_keys(judged)?;
    let missing = found.missing().len();
    metrics.user_keys(judged.taken() - found.waiting(), missing);
    if missing == 0 {
        return found.complete(&[]);
    }
    let users = found.missing().to_vec();
    let deadline = Duration::from_millis(preparer.limits.append_timeout_ms);
    let preparer = Arc::clone(preparer);
    let making = tokio::task::spawn_blocking(move || preparer.make_keys(&users, stamp));
    let made = match tokio::time::timeout(deadline, making).await {
        Ok(Ok(made)) => made?,
        Ok(Err(_panic)) => {
            return Err(IngestError::KeysIncomplete { wanted: missing, got: 0 });
        }
        Err(_elapsed) => return Err(IngestError::KeysLate { users: missing }),
    };
    found.complete(&made)
}

/// Appends the records and waits until the log has confirmed them.
async fn append<'a>(
    collector: &Collector,
    mut prepared: Prepared<'a>,
    stamped_ms: i64,
) -> Result<Prepared<'a>, Problem> {
    if prepared.records.is_empty() {
        return Ok(prepared);
    }
    let passed_ms = collector.parts.clock.monotonic_ms().saturating_sub(stamped_ms);
    let allowed_ms = collector.parts.preparer.limits.append_timeout_ms;
    let left_ms = allowed_ms.saturating_sub(u64::try_from(passed_ms).unwrap_or(0));
    if left_ms == 0 {
        // Its stamp is so old that the record could come after its minute is retired.
        return Err(Problem::new(Code::Overloaded, "nothing was written; send the batch again"));
    }
    let pending = collector.parts.appender.append(std::mem::take(&mut prepared.records))?;
    for position in pending.wait(Duration::from_millis(left_ms)).await? {
        prepared.reject(position, RejectReason::TooLarge);
    }
    Ok(prepared)
}

/// Runs work on a request of `bytes`. Where it may take milliseconds, other tasks of this thread
/// are moved away first.
fn in_place<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    const LONG_WORK_BYTES: usize = 128 << 10;
    let flavor = tokio::runtime::Handle::current().runtime_flavor();
    if bytes > LONG_WORK_BYTES && flavor == RuntimeFlavor::MultiThread {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

#[cfg(test)]
mod tests;
