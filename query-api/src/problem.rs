//! Errors as RFC 9457 problem documents.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// Every kind of problem that the query service answers with. Codes are stable: programs branch
/// on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// A parameter is missing, unknown, repeated or outside its allowed values.
    BadParameter,
    /// The body is not the JSON that the route takes.
    BadBody,
    /// No token, or one that is not known.
    Unauthorized,
    /// The token does not allow this.
    Forbidden,
    /// Only exact answers are to be had, and the token lacks their scope.
    RawScopeRequired,
    /// The range is not final yet, and the token sees only final counts.
    NotFinal,
    /// There is no event type of that name.
    UnknownType,
    /// The route does not take this method.
    MethodNotAllowed,
    /// None of the formats that the client accepts can be had.
    NotAcceptable,
    /// The name is taken by a type with other fields.
    TypeExists,
    /// No slot is left.
    RegistryFull,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The body is longer than the route takes.
    BodyTooLarge,
    /// The body is not JSON by its content type.
    UnsupportedMediaType,
    /// A sum does not fit into 64 bits, or the store holds something unreadable.
    Internal,
    /// More queries wait than the service lets wait.
    Overloaded,
    /// A store did not answer, or rows kept changing while they were read.
    Unavailable,
}

impl Code {
    /// Status, code and title.
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadParameter => {
                (StatusCode::BAD_REQUEST, "bad_parameter", "A parameter is not valid")
            }
            Self::BadBody => (StatusCode::BAD_REQUEST, "bad_body", "The body is not valid"),
            Self::Unauthorized => {
                (StatusCode::UNAUTHORIZED, "unauthorized", "A valid token is required")
            }
            Self::Forbidden => {
                (StatusCode::FORBIDDEN, "forbidden", "The token does not allow this")
            }
            Self::RawScopeRequired => {
                (StatusCode::FORBIDDEN, "raw_scope_required", "The token lacks the scope stats:raw")
            }
            Self::NotFinal => (StatusCode::BAD_REQUEST, "not_final", "The range is not final yet"),
            Self::UnknownType => (StatusCode::NOT_FOUND, "unknown_type", "No such event type"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Method not allowed")
            }
            Self::NotAcceptable => {
                (StatusCode::NOT_ACCEPTABLE, "not_acceptable", "No acceptable format")
            }
            Self::TypeExists => {
                (StatusCode::CONFLICT, "type_exists", "The event type exists with other fields")
            }
            Self::RegistryFull => {
                (StatusCode::CONFLICT, "registry_full", "The registry has no free slot")
            }
            Self::BodyTimeout => {
                (StatusCode::REQUEST_TIMEOUT, "body_timeout", "The body did not arrive in time")
            }
            Self::BodyTooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", "The body is too large")
            }
            Self::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "The body must be application/json",
            ),
            Self::Internal => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal", "The answer cannot be computed")
            }
            Self::Overloaded => {
                (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too many queries are waiting")
            }
            Self::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The store did not answer")
            }
        }
    }
}

/// What is wrong with one parameter or field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ParameterError {
    /// Its name.
    pub parameter: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// One problem: an error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    code: Code,
    detail: String,
    errors: Vec<ParameterError>,
}

/// An error, as RFC 9457 has it.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct Document<'a> {
    /// `urn:tally:problem:` and the code.
    r#type: String,
    /// What kind of problem it is.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What is wrong with this request.
    detail: &'a str,
    /// Stable: programs branch on it.
    code: &'static str,
    /// What is wrong with single parameters or fields.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [ParameterError],
}

impl Problem {
    /// A problem that concerns the request as a whole.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), errors: Vec::new() }
    }

    /// A problem with parameters, all that were found.
    #[must_use]
    pub fn parameters(errors: Vec<ParameterError>) -> Self {
        let detail = errors
            .iter()
            .map(|error| format!("{}: {}", error.parameter, error.message))
            .collect::<Vec<_>>()
            .join("; ");
        Self { code: Code::BadParameter, detail, errors }
    }

    /// A problem with one field of a body.
    pub fn field(code: Code, field: &str, message: impl Into<String>) -> Self {
        let message = message.into();
        let detail = format!("{field}: {message}");
        let errors = vec![ParameterError { parameter: field.to_owned(), message }];
        Self { code, detail, errors }
    }

    /// Its kind.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// What is wrong with single parameters or fields.
    #[must_use]
    pub fn into_errors(self) -> Vec<ParameterError> {
        self.errors
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
            errors: &self.errors,
        };
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self.code {
            Code::Unauthorized => {
                let challenge = HeaderValue::from_static("Bearer realm=\"tally\"");
                headers.insert(WWW_AUTHENTICATE, challenge);
            }
            Code::Overloaded | Code::Unavailable => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
