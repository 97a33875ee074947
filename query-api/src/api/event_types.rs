//! `GET`, `POST` and `PATCH` of `/v1/event-types`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::{CONTENT_TYPE, HeaderMap};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tally_model::types::{TypeId, normal_name};
use tally_sinks::registry::{NewType, Registered, RegistryError, TypeEntry, TypeStatus};
use utoipa::ToSchema;

use super::described::EventType;
use super::negotiate::KnownTags;
use super::respond::{internal, json, not_modified};
use super::{QueryApi, auth, store_problem};
use crate::metrics::Route;
use crate::problem::{Code, Document, Problem};

/// The longest body that is read.
const BODY_BYTES_MAX: usize = 64 << 10;

/// All event types.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventTypes)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listing<'a> {
    /// Changes with anything in the list.
    version: String,
    /// By id.
    #[schema(value_type = Vec<EventType>)]
    event_types: Vec<&'a TypeEntry>,
}

/// A type to register.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = NewEventType)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct NewBody {
    /// As clients send it.
    name: String,
    /// JSON Schema of its properties.
    #[schema(value_type = Option<Object>)]
    schema: Option<serde_json::Value>,
    /// Who answers for it.
    owner: Option<String>,
    /// Whether its properties hold personal data.
    #[serde(default)]
    pii_flag: bool,
}

/// What to change of a type.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = EventTypeChange)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeBody {
    /// A deprecated type keeps its slot and still counts.
    #[schema(value_type = String, pattern = "^(active|deprecated)$")]
    status: TypeStatus,
}

/// Lists every type by id. `__other` is not among them: it is no event type.
#[utoipa::path(
    get,
    operation_id = "list_event_types",
    path = "/v1/event-types",
    responses(
        (status = 200, body = Listing<'static>, description = "The types"),
        (status = 304, description = "Nothing has changed since the answer of If-None-Match"),
        (status = "4XX", description = "The request is wrong, or not allowed", body = Document<'static>, content_type = "application/problem+json"),
    ),
    security(("token" = [])),
)]
pub(super) async fn list(State(api): State<Arc<QueryApi>>, headers: HeaderMap) -> Response {
    let answer = async {
        auth::may_list_types(&api.tokens, &headers)?;
        let snapshot = api.registry.snapshot();
        let version = format!("{:016x}", snapshot.version());
        let tag = format!("W/\"{version}\"");
        if KnownTags::of(&headers).has(&tag) {
            return not_modified(&tag);
        }
        let types = snapshot.entries().iter();
        let event_types = types.filter(|entry| entry.type_id != TypeId::OTHER).collect();
        json(&Listing { version, event_types }, &tag)
    };
    api.measured(Route::EventTypes, answer).await
}

/// Registers a type: 201; the same fields again 200; other fields under a known name 409.
#[utoipa::path(
    post,
    operation_id = "register_event_type",
    path = "/v1/event-types",
    request_body = NewBody,
    responses(
        (status = 201, body = EventType, description = "The type is new"),
        (status = 200, body = EventType, description = "It was there with the same fields"),
        (status = "4XX", description = "The request is wrong, or not allowed", body = Document<'static>, content_type = "application/problem+json"),
    ),
    security(("token" = [])),
)]
pub(super) async fn register(
    State(api): State<Arc<QueryApi>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        auth::may_change_types(&api.tokens, &headers)?;
        let body: NewBody = read_json(&api, &headers, body).await?;
        if body.schema.as_ref().is_some_and(|schema| !schema.is_object() && !schema.is_boolean()) {
            return Err(Problem::field(Code::BadBody, "schema", "must be a JSON Schema object"));
        }
        let name = normal_name(&body.name, api.settings.type_name_bytes_max)
            .map_err(|why| Problem::field(Code::BadBody, "name", why.to_string()))?
            .into_owned();
        let new = NewType { name, schema: body.schema, owner: body.owner, pii_flag: body.pii_flag };
        api.blocking(move |api| api.register(new)).await
    };
    api.measured(Route::EventTypes, answer).await
}

/// Changes the status of a type.
#[utoipa::path(
    patch,
    operation_id = "change_event_type",
    path = "/v1/event-types/{name}",
    params(("name" = String, Path, description = "The type's name")),
    request_body = ChangeBody,
    responses(
        (status = 200, body = EventType, description = "The type as it is now"),
        (status = "4XX", description = "The request is wrong, or not allowed", body = Document<'static>, content_type = "application/problem+json"),
    ),
    security(("token" = [])),
)]
pub(super) async fn change(
    State(api): State<Arc<QueryApi>>,
    headers: HeaderMap,
    name: Result<Path<String>, PathRejection>,
    body: Body,
) -> Response {
    let answer = async {
        auth::may_change_types(&api.tokens, &headers)?;
        let Path(name) =
            name.map_err(|why| Problem::field(Code::BadParameter, "name", why.body_text()))?;
        let body: ChangeBody = read_json(&api, &headers, body).await?;
        api.blocking(move |api| api.change(&name, body.status)).await
    };
    api.measured(Route::EventTypes, answer).await
}

impl QueryApi {
    fn register(&self, new: NewType) -> Result<Response, Problem> {
        let (status, entry) = match self.registry.register(new) {
            Ok(Registered::Created(entry)) => (StatusCode::CREATED, entry),
            Ok(Registered::Same(entry)) => (StatusCode::OK, entry),
            Err(why) => return Err(registry_problem(&why)),
        };
        entry_response(status, &entry)
    }

    fn change(&self, name: &str, status: TypeStatus) -> Result<Response, Problem> {
        let name = normal_name(name, self.settings.type_name_bytes_max)
            .map_err(|why| Problem::field(Code::BadParameter, "name", why.to_string()))?;
        let entry =
            self.registry.set_status(&name, status).map_err(|why| registry_problem(&why))?;
        entry_response(StatusCode::OK, &entry)
    }
}

fn registry_problem(why: &RegistryError) -> Problem {
    match why {
        RegistryError::Conflict { .. } => Problem::new(Code::TypeExists, why.to_string()),
        RegistryError::Full { .. } => Problem::new(Code::RegistryFull, why.to_string()),
        RegistryError::BadName(_) => Problem::field(Code::BadBody, "name", why.to_string()),
        RegistryError::Unknown { .. } => Problem::field(Code::UnknownType, "name", why.to_string()),
        RegistryError::Store(why) => store_problem(why),
    }
}

fn entry_response(status: StatusCode, entry: &TypeEntry) -> Result<Response, Problem> {
    let body = serde_json::to_vec(entry).map_err(|why| internal(&why))?;
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}

/// Reads a JSON body, bounded in bytes and time.
async fn read_json<T: DeserializeOwned>(
    api: &QueryApi,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Problem> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or("").trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let detail = "send the header \"Content-Type: application/json\"";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    let read = axum::body::to_bytes(body, BODY_BYTES_MAX);
    let bytes = match tokio::time::timeout(api.settings.body_timeout, read).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(why)) if is_too_long(&why) => {
            let detail = format!("a body has at most {BODY_BYTES_MAX} bytes");
            return Err(Problem::new(Code::BodyTooLarge, detail));
        }
        Ok(Err(why)) => return Err(Problem::new(Code::BadBody, format!("cannot read it: {why}"))),
        Err(_elapsed) => {
            let detail = format!("the body took longer than {:?}", api.settings.body_timeout);
            return Err(Problem::new(Code::BodyTimeout, detail));
        }
    };
    // A list of the fields' values would be read as the fields.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::new(Code::BadBody, "the body is a JSON object"));
    }
    serde_json::from_slice(&bytes).map_err(|why| Problem::new(Code::BadBody, why.to_string()))
}

fn is_too_long(why: &axum::Error) -> bool {
    std::error::Error::source(why)
        .is_some_and(|cause| cause.is::<http_body_util::LengthLimitError>())
}
