//! Answers as responses.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, VARY};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

use crate::answer::Envelope;
use crate::ask::Format;
use crate::problem::{Code, Problem};

pub(super) fn internal(why: &dyn std::error::Error) -> Problem {
    tracing::error!(error = %why, "a query cannot be answered");
    Problem::new(Code::Internal, why.to_string())
}

pub(super) fn json(answer: &impl Serialize, tag: &str) -> Result<Response, Problem> {
    let body = serde_json::to_vec(answer).map_err(|why| internal(&why))?;
    typed(Body::from(body), Format::Json, tag)
}

/// What the table has no room for goes into headers.
pub(super) fn table(
    body: impl Into<Body>,
    format: Format,
    envelope: &Envelope,
    tag: &str,
) -> Result<Response, Problem> {
    let mut response = typed(body.into(), format, tag)?;
    let Envelope { window, complete, exact, suppressed_below, .. } = envelope;
    let mut say = |name: &'static str, value: &str| {
        response.headers_mut().insert(HeaderName::from_static(name), header(value)?);
        Ok::<(), Problem>(())
    };
    say("tally-window", &format!("{}/{}", window.start, window.end))?;
    say("tally-complete", &complete.to_string())?;
    say("tally-exact", &exact.to_string())?;
    if let Some(below) = suppressed_below {
        say("tally-suppressed-below", &below.to_string())?;
    }
    Ok(response)
}

/// A body of a format.
pub(super) fn typed(body: Body, format: Format, tag: &str) -> Result<Response, Problem> {
    let mut response = tagged(body, tag)?;
    let content_type = HeaderValue::from_static(format.content_type());
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

pub(super) fn not_modified(tag: &str) -> Result<Response, Problem> {
    let mut response = tagged(Body::empty(), tag)?;
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    Ok(response)
}

/// An answer belongs to one token's holder, and its youngest buckets change every few seconds:
/// only the client itself may keep it, and it asks each time whether it still holds. That is
/// cheap: it reads no vector.
fn tagged(body: Body, tag: &str) -> Result<Response, Problem> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(ETAG, header(tag)?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(VARY, HeaderValue::from_static("accept, accept-encoding, authorization"));
    Ok(response)
}

fn header(text: &str) -> Result<HeaderValue, Problem> {
    HeaderValue::from_str(text).map_err(|why| internal(&why))
}
