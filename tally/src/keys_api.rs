//! `/v1/keys`: listing, making and revoking write keys and tokens, for admin tokens only.

use std::sync::Arc;

use axum::body::Body;
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

use crate::admin_api::{admin, object, problem, unavailable};
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

const NAME_BYTES_MAX: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewKey {
    kind: String,
    name: String,
    /// Of a read token; all if they are not named.
    scopes: Option<Vec<Scope>>,
}

async fn list(State(api): State<Arc<KeysApi>>, headers: HeaderMap) -> Result<Response, Response> {
    admin(&api.tokens, &headers)?;
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
    admin(&api.tokens, &headers)?;
    let new: NewKey = object(body, "bad_key", "kind, name and scopes").await?;
    let bad = |detail| problem(StatusCode::BAD_REQUEST, "bad_key", detail);
    if new.name.trim().is_empty() || new.name.len() > NAME_BYTES_MAX {
        return Err(bad("a name has 1 to 256 bytes"));
    }
    let kind = match new.kind.as_str() {
        "write" => TokenKind::Write,
        "read" => TokenKind::Read,
        "admin" => TokenKind::Admin,
        _ => return Err(bad("kind is one of write, read, admin")),
    };
    let scopes = match (kind, new.scopes) {
        (TokenKind::Read, None) => vec![Scope::Stats, Scope::StatsRaw],
        (TokenKind::Read, Some(scopes)) if !scopes.is_empty() => scopes,
        (TokenKind::Write | TokenKind::Admin, None) => Vec::new(),
        _ => return Err(bad("a read token has scopes, stats or stats:raw, other keys have none")),
    };
    let random = random().map_err(|failure| unavailable(&format!("{:#}", failure.error)))?;
    let secret = format_secret(kind, random);
    let now_ms = api.clock.now_ms();
    let (tokens, shown) = (Arc::clone(&api.tokens), secret.clone());
    let info = blocking(move || tokens.create(kind, &new.name, &scopes, &secret, now_ms)).await?;
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
    admin(&api.tokens, &headers)?;
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
        "scopes": info.scopes,
        "createdAt": format_rfc3339(info.created_at_ms),
        "revokedAt": info.revoked_at_ms.map(format_rfc3339),
    })
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
