//! The body of a 202.

use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::ingest::{Answer, Verdict};

#[derive(Serialize)]
struct Accepted<'a> {
    accepted: usize,
    warned: Vec<Note<'a>>,
    rejected: Vec<Note<'a>>,
}

/// One reason about one event. Its eventId stands as it was sent.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Note<'a> {
    event_id: Option<&'a str>,
    index: usize,
    reason: &'static str,
}

/// Warned events count as accepted; an event with two warnings stands in `warned` twice.
pub(super) fn accepted(answers: &[Answer<'_>]) -> Response {
    let mut body = Accepted { accepted: 0, warned: Vec::new(), rejected: Vec::new() };
    for (index, Answer { sent_id, verdict }) in answers.iter().enumerate() {
        let note = |reason| Note { event_id: sent_id.as_deref(), index, reason };
        match verdict {
            Verdict::Accepted(warnings) => {
                body.accepted += 1;
                body.warned.extend(warnings.iter().map(|reason| note(reason.code())));
            }
            Verdict::Rejected(reason) => body.rejected.push(note(reason.code())),
        }
    }
    let json = serde_json::to_vec(&body).expect("texts and numbers are always valid JSON");
    let json_type = HeaderValue::from_static("application/json");
    (StatusCode::ACCEPTED, [(CONTENT_TYPE, json_type)], json).into_response()
}
