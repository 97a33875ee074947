//! From the bytes of a request body to events, each of them readable or malformed for one reason.
//!
//! One pass. The grammar is checked for the whole body; every known field of an event is taken as
//! the slice of text that it is and then read on its own, so that nothing in one event can make a
//! neighbour unreadable. Unknown fields are skipped: unfamiliar is not malformed. Nothing here
//! recurses on nested input.

mod fields;
mod visit;

use std::borrow::Cow;
use std::fmt;

use serde_json::value::RawValue;
use tally_model::ids::EventId;
use tally_model::reasons::RejectReason;

use crate::limits::Limits;
use visit::{Elements, Envelope, parse_element};

/// One element of `events`.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedEvent<'a> {
    /// The eventId as sent, for the answer; `None` if there was none or it is no string.
    pub sent_id: Option<Cow<'a, str>>,
    /// The event, or why it is malformed.
    pub event: Result<SentEvent<'a>, RejectReason>,
}

/// A well-formed event, as the client sent it. Its debug form shows the id alone.
#[derive(Clone, PartialEq)]
pub struct SentEvent<'a> {
    /// The event id.
    pub id: EventId,
    /// The name of its type in Unicode NFC.
    pub event_type: Cow<'a, str>,
    /// Whose event it is; never empty.
    pub user_id: Cow<'a, str>,
    /// The client's clock, ms since the Unix epoch.
    pub event_time_ms: i64,
    /// eventTime as it was written, without the quotes.
    pub event_time_text: Cow<'a, str>,
    /// JSON text of the properties as sent, any JSON value; empty if there were none.
    pub properties: &'a str,
    /// Optional device id.
    pub device_id: Option<Cow<'a, str>>,
    /// Optional session id.
    pub session_id: Option<Cow<'a, str>>,
    /// What it says about consent.
    pub consent: SentConsent,
}

impl fmt::Debug for SentEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentEvent").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What an event says about the use of its data for analytics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentConsent {
    /// Nothing.
    Unstated,
    /// `"consent":{"analytics":true}`.
    Granted,
    /// `false`, or a `consent` that cannot be read: only a clear yes is a yes.
    Denied,
}

/// Why a whole request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes are not UTF-8.
    #[error("the body is not UTF-8 from byte {valid_bytes} on")]
    NotUtf8 {
        /// How many bytes at the start are.
        valid_bytes: usize,
    },
    /// Not one JSON document, or something follows it.
    #[error("the body is not a JSON document: line {line}, column {column}")]
    Syntax {
        /// Where, from 1.
        line: usize,
        /// Where in the line, from 1.
        column: usize,
    },
    /// JSON, but no object with a list `events`.
    #[error("the body must be an object whose field `events` is a list")]
    Envelope,
    /// `events` stands twice: neither is picked.
    #[error("the field `events` stands more than once")]
    DuplicateEvents,
    /// No events.
    #[error("the field `events` is missing or empty")]
    Empty,
    /// More events than the limit.
    #[error("{events} events are over the limit of {events_max} a request")]
    TooMany {
        /// How many there are.
        events: usize,
        /// The limit.
        events_max: usize,
    },
}

/// Reads a request body.
///
/// # Errors
/// [`BatchError`] for a fault of the whole request. A malformed event is none: it stands in the
/// result with its reason, at the place where it was sent.
pub fn parse_batch<'a>(
    body: &'a [u8],
    limits: &Limits,
) -> Result<Vec<ParsedEvent<'a>>, BatchError> {
    let text = std::str::from_utf8(body)
        .map_err(|error| BatchError::NotUtf8 { valid_bytes: error.valid_up_to() })?;
    // Elements are read as objects at once. Only a body with another kind of element (or a real
    // fault) comes to the second attempt, which first takes each element as text.
    let envelope = Envelope::read(text, limits, Elements::Objects)
        .or_else(|_error| Envelope::read(text, limits, Elements::Any))
        .map_err(|error| {
            if error.is_data() {
                BatchError::Envelope
            } else {
                BatchError::Syntax { line: error.line(), column: error.column() }
            }
        })?;
    if envelope.lists > 1 {
        return Err(BatchError::DuplicateEvents);
    }
    if envelope.count > limits.events {
        return Err(BatchError::TooMany { events: envelope.count, events_max: limits.events });
    }
    if envelope.count == 0 {
        return Err(BatchError::Empty);
    }
    Ok(envelope.events)
}

/// Reads one event that stands alone, such as a line of a file.
///
/// # Errors
/// [`BatchError::Syntax`] unless `text` is one JSON document.
pub fn parse_event<'a>(text: &'a str, limits: &Limits) -> Result<ParsedEvent<'a>, BatchError> {
    let element: &'a RawValue = serde_json::from_str(text)
        .map_err(|error| BatchError::Syntax { line: error.line(), column: error.column() })?;
    Ok(parse_element(element, limits))
}

#[cfg(test)]
mod tests;
