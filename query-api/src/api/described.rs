//! The API's own description: OpenAPI 3.1, made from the code, and a page that shows it.
//!
//! Neither holds any data, so both are open to everybody. `docs/openapi.json` is this description,
//! which a test holds against the code.

#[cfg(test)]
mod tests;

use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{IntoParams, Modify, OpenApi, ToSchema};

use super::{event_types, late_hours, stats};

const PAGE: &str = include_str!("described/page.html");

/// The page's own script and style, and requests to this service.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      connect-src 'self'";

/// The query service of Tally.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tally query API",
        version = "1",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(),
        description = "Exact counts of events by type and UTC minute. Ranges are half open. Answers \
                       say how far they can be relied on, and carry a weak ETag.",
    ),
    paths(
        stats::top,
        stats::series,
        late_hours::list,
        event_types::list,
        event_types::register,
        event_types::change,
    ),
    modifiers(&Token)
)]
struct Described;

/// How a token is sent.
struct Token;

impl Modify for Token {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "A read token for counts, any key for the list of event types, an admin token to \
                 change it. A read token without the scope stats:raw sees final counts by whole \
                 hours, without those of fewer than 10 events of a type in an hour.",
            ))
            .build();
        let components = api.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
    }
}

/// The description as JSON, as `docs/openapi.json` has it.
///
/// # Errors
/// What the encoder reports, which would be a fault of this program.
pub fn openapi_json() -> Result<String, serde_json::Error> {
    // Through a value, so that keys come in one order always.
    let value = serde_json::to_value(Described::openapi())?;
    serde_json::to_string_pretty(&value).map(|text| text + "\n")
}

pub(super) async fn openapi() -> Response {
    match openapi_json() {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(why) => super::respond::internal(&why).into_response(),
    }
}

pub(super) async fn page() -> Response {
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)];
    (headers, PAGE).into_response()
}

/// Parameters of `/v1/stats/top`, as [`crate::ask::TopAsk`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it only describes")]
pub(super) struct TopParameters {
    /// First instant counted: RFC 3339 with an offset, or ms since the Unix epoch; on a whole
    /// minute (without the scope stats:raw: hour).
    start: String,
    /// First instant not counted any more, at most 20 years after `start`.
    end: String,
    /// How many event types.
    #[param(minimum = 1, maximum = 4_000, default = 10)]
    k: Option<u16>,
    /// Widen bounds to whole buckets instead of refusing them.
    #[param(default = false)]
    snap: Option<bool>,
    /// Form of the answer; without it the header Accept decides.
    #[param(pattern = "^(json|csv|arrow)$")]
    format: Option<String>,
}

/// Parameters of `/v1/stats/series`, as [`crate::ask::SeriesAsk`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it only describes")]
pub(super) struct SeriesParameters {
    /// Name of the event type, or `__other`.
    r#type: String,
    /// First instant counted: RFC 3339 with an offset, or ms since the Unix epoch; on a bound of
    /// `granularity`.
    start: String,
    /// First instant not counted any more; at most 10,000 points after `start`.
    end: String,
    /// Width of a point.
    #[param(pattern = "^(minute|hour|day)$")]
    granularity: String,
    /// Widen bounds to whole buckets instead of refusing them.
    #[param(default = false)]
    snap: Option<bool>,
    /// Form of the answer; without it the header Accept decides.
    #[param(pattern = "^(json|csv|arrow)$")]
    format: Option<String>,
}

/// Parameters of `/v1/late-hours`, as [`crate::ask::LateAsk`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "it only describes")]
pub(super) struct LateParameters {
    /// First instant: RFC 3339 with an offset, or ms since the Unix epoch; on a whole hour.
    start: String,
    /// First instant after the range, at most 10,000 hours after `start`.
    end: String,
    /// Widen bounds to whole hours instead of refusing them.
    #[param(default = false)]
    snap: Option<bool>,
    /// Form of the answer; without it the header Accept decides.
    #[param(pattern = "^(json|csv)$")]
    format: Option<String>,
}

/// One event type, as [`tally_sinks::registry::TypeEntry`] is written.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it only describes")]
pub(super) struct EventType {
    /// Its place in every vector; never reused.
    type_id: u16,
    /// Its name, in NFC.
    name: String,
    /// Version of its schema, from 1.
    schema_version: u32,
    /// JSON Schema of its properties.
    #[schema(value_type = Option<Object>)]
    schema: Option<String>,
    /// Who answers for it.
    owner: Option<String>,
    /// Whether its properties hold personal data.
    pii_flag: bool,
    /// `active` or `deprecated`.
    #[schema(pattern = "^(active|deprecated)$")]
    status: String,
}
