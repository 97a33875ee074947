//! `/v1/keys`: listing, making and revoking write keys and tokens, for admin tokens only.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use tally_model::clock::Clock;
use tally_model::time::format_rfc3339;
use tally_sinks::tokens::{Scope, TokenError, TokenInfo, TokenKind, Tokens, format_secret};

use crate::deployment::random;

/// What the routes work on.
#[derive(Debug)]
pub(crate) struct KeysApi {
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The routes of `/v1/keys`.
pub(crate) fn router(api: KeysApi) -> Router {
    Router::new()
        .route("/v1/keys", get(list).post(create))
        .route("/v1/keys/{number}/revoke", post(revoke))
        .with_state(Arc::new(api))
}

/// How long the body of a request may take.
const BODY_DEADLINE: Duration = Duration::from_secs(10);
const BODY_BYTES_MAX: usize = 64 << 10;
const NAME_BYTES_MAX: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewKey {
    kind: String,
    name: String,
}

async fn list(State(api): State<Arc<KeysApi>>, headers: HeaderMap) -> Result<Response, Response> {
    admin(&api, &headers)?;
    let tokens = Arc::clone(&api.tokens);
    let keys = blocking(move || tokens.list()).await?;
    Ok(Json(json!({"keys": keys.iter().map(describe).collect::<Vec<_>>()})).into_response())
}

async fn create(
    State(api): State<Arc<KeysApi>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    // Who sends the body must be known before a byte of it is read.
    admin(&api, &headers)?;
    let read = tokio::time::timeout(BODY_DEADLINE, to_bytes(body, BODY_BYTES_MAX)).await;
    let bad = |status, detail: &str| problem(status, "bad_key", detail);
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_too_long)) => {
            return Err(bad(StatusCode::PAYLOAD_TOO_LARGE, "a body has at most 64 KiB"));
        }
        Err(_elapsed) => return Err(bad(StatusCode::REQUEST_TIMEOUT, "the body did not arrive")),
    };
    // A list of the fields' values would be read as the fields.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(bad(StatusCode::BAD_REQUEST, "the body is an object with kind and name"));
    }
    let new: NewKey = serde_json::from_slice(&bytes).map_err(|error| {
        bad(StatusCode::BAD_REQUEST, &format!("{error}; the fields are kind and name"))
    })?;
    if new.name.trim().is_empty() || new.name.len() > NAME_BYTES_MAX {
        return Err(bad(StatusCode::BAD_REQUEST, "a name has 1 to 256 bytes"));
    }
    let (kind, scopes): (_, &[Scope]) = match new.kind.as_str() {
        "write" => (TokenKind::Write, &[]),
        "read" => (TokenKind::Read, &[Scope::Stats, Scope::StatsRaw]),
        "admin" => (TokenKind::Admin, &[]),
        _ => {
            let detail = "kind is one of write, read, admin";
            return Err(problem(StatusCode::BAD_REQUEST, "bad_key", detail));
        }
    };
    let random = random().map_err(|failure| unavailable(&format!("{:#}", failure.error)))?;
    let secret = format_secret(kind, random);
    let now_ms = api.clock.now_ms();
    let (tokens, shown) = (Arc::clone(&api.tokens), secret.clone());
    let info = blocking(move || tokens.create(kind, &new.name, scopes, &secret, now_ms)).await?;
    let mut body = describe(&info);
    if let Some(fields) = body.as_object_mut() {
        fields.insert("secret".to_owned(), json!(shown));
    }
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response())
}

async fn revoke(
    State(api): State<Arc<KeysApi>>,
    Path(number): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    admin(&api, &headers)?;
    let missing =
        || problem(StatusCode::NOT_FOUND, "no_such_key", &format!("there is no key {number}"));
    let number: u32 = number.parse().map_err(|_not_a_number| missing())?;
    let (tokens, now_ms) = (Arc::clone(&api.tokens), api.clock.now_ms());
    blocking(move || tokens.revoke(number, now_ms)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn describe(info: &TokenInfo) -> serde_json::Value {
    json!({
        "number": info.number,
        "kind": match info.kind {
            TokenKind::Write => "write",
            TokenKind::Read => "read",
            TokenKind::Admin => "admin",
        },
        "name": info.name,
        "createdAt": format_rfc3339(info.created_at_ms),
        "revokedAt": info.revoked_at_ms.map(format_rfc3339),
    })
}

/// Only an admin token opens these routes.
#[expect(clippy::result_large_err, reason = "the error is the response itself")]
fn admin(api: &KeysApi, headers: &HeaderMap) -> Result<(), Response> {
    let presented = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer"))
        .map(|(_, token)| token.trim());
    match presented.and_then(|token| api.tokens.authenticate(token)).map(|info| info.kind) {
        Some(TokenKind::Admin) => Ok(()),
        Some(TokenKind::Read | TokenKind::Write) => {
            Err(problem(StatusCode::FORBIDDEN, "forbidden", "this needs an admin token"))
        }
        None => {
            let mut response =
                problem(StatusCode::UNAUTHORIZED, "unauthorized", "this needs an admin token");
            let scheme = header::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            Err(response)
        }
    }
}

async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, TokenError> + Send + 'static,
) -> Result<T, Response> {
    match tokio::task::spawn_blocking(call).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(TokenError::NotFound { number })) => {
            Err(problem(StatusCode::NOT_FOUND, "no_such_key", &format!("there is no key {number}")))
        }
        Ok(Err(error)) => Err(unavailable(&error.to_string())),
        Err(panicked) => Err(unavailable(&panicked.to_string())),
    }
}

fn unavailable(detail: &str) -> Response {
    problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
}

/// The answer for paths that nobody serves.
pub(crate) async fn not_found() -> Response {
    problem(StatusCode::NOT_FOUND, "no_such_path", "there is nothing at this path")
}

fn problem(status: StatusCode, code: &str, detail: &str) -> Response {
    let body = json!({
        "type": format!("urn:tally:problem:{code}"),
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "detail": detail,
        "code": code,
    });
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    (status, kind, body.to_string()).into_response()
}
