//! What the routes for operators have in common: only an admin token opens them, bodies are small
//! objects, errors are problems.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::json;
use tally_sinks::tokens::{TokenKind, Tokens};

/// How long the body of a request may take.
const BODY_DEADLINE: Duration = Duration::from_secs(10);
const BODY_BYTES_MAX: usize = 64 << 10;

/// Only an admin token opens these routes.
#[expect(clippy::result_large_err, reason = "the error is the response itself")]
pub(crate) fn admin(tokens: &Tokens, headers: &HeaderMap) -> Result<(), Response> {
    let presented = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("Bearer"))
        .map(|(_, token)| token.trim());
    match presented.and_then(|token| tokens.authenticate(token)).map(|info| info.kind) {
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

/// Reads a body that must be an object with the given fields.
///
/// # Errors
/// The problem to answer with, under `code`.
pub(crate) async fn object<T: DeserializeOwned>(
    body: Body,
    code: &str,
    fields: &str,
) -> Result<T, Response> {
    let read = tokio::time::timeout(BODY_DEADLINE, to_bytes(body, BODY_BYTES_MAX)).await;
    let bad = |status, detail: &str| problem(status, code, detail);
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_too_long)) => {
            return Err(bad(StatusCode::PAYLOAD_TOO_LARGE, "a body has at most 64 KiB"));
        }
        Err(_elapsed) => return Err(bad(StatusCode::REQUEST_TIMEOUT, "the body did not arrive")),
    };
    // A list of the fields' values would be read as the fields.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        let detail = format!("the body is an object with {fields}");
        return Err(bad(StatusCode::BAD_REQUEST, &detail));
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| bad(StatusCode::BAD_REQUEST, &format!("{error}; the fields are {fields}")))
}

/// The answer when a store or a part of the node does not do its work.
pub(crate) fn unavailable(detail: &str) -> Response {
    problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
}

/// The answer for paths that nobody serves.
pub(crate) async fn not_found() -> Response {
    problem(StatusCode::NOT_FOUND, "no_such_path", "there is nothing at this path")
}

/// An answer in the form of RFC 9457.
pub(crate) fn problem(status: StatusCode, code: &str, detail: &str) -> Response {
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
