//! Errors as RFC 9457 problem documents.

use std::borrow::Cow;

use axum::http::StatusCode;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::append::AppendFailure;
use crate::ingest::IngestError;
use crate::parse::BatchError;

/// Every kind of problem that the collector answers with. Codes are stable: programs branch on
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    InvalidJson,
    InvalidEnvelope,
    DuplicateField,
    EmptyBatch,
    InvalidGzip,
    IncompleteBody,
    Unauthorized,
    Forbidden,
    MethodNotAllowed,
    BodyTimeout,
    BodyTooLarge,
    TooManyEvents,
    UnsupportedMediaType,
    UnsupportedEncoding,
    Overloaded,
    Unavailable,
    Draining,
}

impl Code {
    /// Status, code and title.
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::InvalidJson => {
                (StatusCode::BAD_REQUEST, "invalid_json", "The body is not a JSON document")
            }
            Self::InvalidEnvelope => {
                (StatusCode::BAD_REQUEST, "invalid_envelope", "The body is not a batch of events")
            }
            Self::DuplicateField => {
                (StatusCode::BAD_REQUEST, "duplicate_field", "A field of the body stands twice")
            }
            Self::EmptyBatch => {
                (StatusCode::BAD_REQUEST, "empty_batch", "The batch holds no events")
            }
            Self::InvalidGzip => {
                (StatusCode::BAD_REQUEST, "invalid_gzip", "The body is not valid gzip")
            }
            Self::IncompleteBody => {
                (StatusCode::BAD_REQUEST, "incomplete_body", "The body ended early")
            }
            Self::Unauthorized => {
                (StatusCode::UNAUTHORIZED, "unauthorized", "A valid write key is required")
            }
            Self::Forbidden => {
                (StatusCode::FORBIDDEN, "forbidden", "The key does not allow writing events")
            }
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method not allowed")
            }
            Self::BodyTimeout => {
                (StatusCode::REQUEST_TIMEOUT, "body_timeout", "The body did not arrive in time")
            }
            Self::BodyTooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "The body is too large")
            }
            Self::TooManyEvents => {
                (StatusCode::PAYLOAD_TOO_LARGE, "too_many_events", "The batch has too many events")
            }
            Self::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "The body must be JSON, as application/json or text/plain in UTF-8",
            ),
            Self::UnsupportedEncoding => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_encoding",
                "The body must be plain or compressed once with gzip",
            ),
            Self::Overloaded => {
                (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "The collector is overloaded")
            }
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "Events cannot be stored now")
            }
            Self::Draining => {
                (StatusCode::SERVICE_UNAVAILABLE, "draining", "The collector is being stopped")
            }
        }
    }

    /// What the client's program needs to know beside the document.
    const fn header(self) -> Option<(HeaderName, HeaderValue)> {
        let (name, value) = match self {
            Self::Unauthorized => (header::WWW_AUTHENTICATE, "Bearer realm=\"tally\""),
            Self::MethodNotAllowed => (header::ALLOW, "POST, OPTIONS"),
            Self::UnsupportedEncoding => (header::ACCEPT_ENCODING, "gzip"),
            Self::Overloaded | Self::Draining => (header::RETRY_AFTER, "1"),
            Self::Unavailable => (header::RETRY_AFTER, "5"),
            Self::InvalidJson
            | Self::InvalidEnvelope
            | Self::DuplicateField
            | Self::EmptyBatch
            | Self::InvalidGzip
            | Self::IncompleteBody
            | Self::Forbidden
            | Self::BodyTimeout
            | Self::BodyTooLarge
            | Self::TooManyEvents
            | Self::UnsupportedMediaType => return None,
        };
        Some((name, HeaderValue::from_static(value)))
    }
}

/// One problem: an answer that takes none of the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    code: Code,
    detail: Cow<'static, str>,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: &'static str,
}

impl Problem {
    /// `detail` never holds anything of the request's content.
    pub(super) fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, code, title) = self.code.parts();
        let document = Document {
            r#type: format!("urn:tally:problem:{code}"),
            title,
            status: status.as_u16(),
            detail: &self.detail,
            code,
        };
        let json = serde_json::to_vec(&document).expect("texts and numbers are always valid JSON");
        let mut response = (status, json).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = self.code.header() {
            headers.insert(name, value);
        }
        response
    }
}

impl From<BatchError> for Problem {
    fn from(error: BatchError) -> Self {
        let code = match &error {
            BatchError::NotUtf8 { .. } | BatchError::Syntax { .. } => Code::InvalidJson,
            BatchError::Envelope => Code::InvalidEnvelope,
            BatchError::DuplicateEvents => Code::DuplicateField,
            BatchError::Empty => Code::EmptyBatch,
            BatchError::TooMany { .. } => Code::TooManyEvents,
        };
        Self::new(code, error.to_string())
    }
}

impl From<IngestError> for Problem {
    fn from(_nothing_was_written: IngestError) -> Self {
        Self::new(Code::Unavailable, "nothing was written; send the same batch again")
    }
}

impl From<AppendFailure> for Problem {
    fn from(failure: AppendFailure) -> Self {
        match failure {
            AppendFailure::Overloaded(_) => {
                Self::new(Code::Overloaded, "nothing was written; send the same batch again")
            }
            AppendFailure::Refused(_) | AppendFailure::Unknown => Self::new(
                Code::Unavailable,
                "events may or may not be written; send the same batch with the same event ids \
                 again",
            ),
        }
    }
}
