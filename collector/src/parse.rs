//! From the bytes of a request body to events, each of them readable or malformed for one reason.
//!
//! One pass. The grammar is checked for the whole body; every known field of an event is taken as
//! the slice of text that it is and then read on its own, so that nothing in one event can make a
//! neighbour unreadable. Unknown fields are skipped: unfamiliar is not malformed. Nothing here
//! recurses on nested input.

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;
use tally_model::ids::EventId;
use tally_model::reasons::RejectReason;
use tally_model::time::parse_rfc3339;
use tally_model::types::normal_name;

use crate::limits::Limits;

/// One element of `events`.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedEvent<'a> {
    /// The eventId as sent, for the answer; `None` if there was none or it is no string.
    pub sent_id: Option<Cow<'a, str>>,
    /// The event, or why it is malformed.
    pub event: Result<SentEvent<'a>, RejectReason>,
}

/// A well-formed event, as the client sent it.
#[derive(Clone, Debug, PartialEq)]
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

fn parse_element<'a>(element: &'a RawValue, limits: &Limits) -> ParsedEvent<'a> {
    // The grammar was checked, so the only failure left is an element that is no object.
    serde_json::Deserializer::from_str(element.get())
        .deserialize_map(EventVisitor { limits })
        .unwrap_or(ParsedEvent { sent_id: None, event: Err(RejectReason::NotAnObject) })
}

#[derive(Clone, Copy)]
enum Elements {
    Objects,
    Any,
}

/// The outer object.
#[derive(Default)]
struct Envelope<'a> {
    events: Vec<ParsedEvent<'a>>,
    /// Elements seen, also those past the limit, which are not kept.
    count: usize,
    /// How often the field `events` stands there.
    lists: usize,
}

impl<'a> Envelope<'a> {
    fn read(text: &'a str, limits: &Limits, elements: Elements) -> serde_json::Result<Self> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let envelope = deserializer.deserialize_map(EnvelopeVisitor { limits, elements })?;
        deserializer.end()?;
        Ok(envelope)
    }
}

struct EnvelopeVisitor<'l> {
    limits: &'l Limits,
    elements: Elements,
}

impl<'de> Visitor<'de> for EnvelopeVisitor<'_> {
    type Value = Envelope<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut envelope = Envelope::default();
        while let Some(key) = map.next_key::<Key>()? {
            if key == Key::Events {
                envelope.lists += 1;
                map.next_value_seed(ListSeed {
                    limits: self.limits,
                    elements: self.elements,
                    envelope: &mut envelope,
                })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(envelope)
    }
}

struct ListSeed<'l, 'e, 'de> {
    limits: &'l Limits,
    elements: Elements,
    envelope: &'e mut Envelope<'de>,
}

impl<'de> DeserializeSeed<'de> for ListSeed<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { limits, elements, envelope } = self;
        loop {
            if envelope.count >= limits.events || envelope.lists > 1 {
                if list.next_element::<IgnoredAny>()?.is_none() {
                    return Ok(());
                }
            } else {
                let event = match elements {
                    Elements::Objects => list.next_element_seed(EventVisitor { limits })?,
                    Elements::Any => list
                        .next_element::<&'de RawValue>()?
                        .map(|element| parse_element(element, limits)),
                };
                let Some(event) = event else { return Ok(()) };
                envelope.events.push(event);
            }
            envelope.count += 1;
        }
    }
}

/// The fields that this program knows. Keys are compared after their escapes are resolved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    Events,
    EventId,
    EventType,
    UserId,
    EventTime,
    Properties,
    Consent,
    DeviceId,
    SessionId,
    Analytics,
    Unknown,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // As bytes, because a key with half a surrogate pair is valid JSON but no string.
        deserializer.deserialize_bytes(KeyVisitor)
    }
}

struct KeyVisitor;

impl Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_bytes<E>(self, name: &[u8]) -> Result<Key, E> {
        Ok(match name {
            b"events" => Key::Events,
            b"eventId" => Key::EventId,
            b"eventType" => Key::EventType,
            b"userId" => Key::UserId,
            b"eventTime" => Key::EventTime,
            b"properties" => Key::Properties,
            b"consent" => Key::Consent,
            b"deviceId" => Key::DeviceId,
            b"sessionId" => Key::SessionId,
            b"analytics" => Key::Analytics,
            _ => Key::Unknown,
        })
    }
}

/// The fields of an event as slices of the body; the first of each name.
#[derive(Default)]
struct RawEvent<'a> {
    event_id: Option<&'a RawValue>,
    event_type: Option<&'a RawValue>,
    user_id: Option<&'a RawValue>,
    event_time: Option<&'a RawValue>,
    properties: Option<&'a RawValue>,
    consent: Option<&'a RawValue>,
    device_id: Option<&'a RawValue>,
    session_id: Option<&'a RawValue>,
    has_duplicate: bool,
}

struct EventVisitor<'l> {
    limits: &'l Limits,
}

impl<'de> DeserializeSeed<'de> for EventVisitor<'_> {
    type Value = ParsedEvent<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EventVisitor<'_> {
    type Value = ParsedEvent<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut raw = RawEvent::default();
        while let Some(key) = map.next_key::<Key>()? {
            let field = match key {
                Key::EventId => &mut raw.event_id,
                Key::EventType => &mut raw.event_type,
                Key::UserId => &mut raw.user_id,
                Key::EventTime => &mut raw.event_time,
                Key::Properties => &mut raw.properties,
                Key::Consent => &mut raw.consent,
                Key::DeviceId => &mut raw.device_id,
                Key::SessionId => &mut raw.session_id,
                Key::Events | Key::Analytics | Key::Unknown => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            let value = map.next_value::<&'de RawValue>()?;
            if field.is_some() {
                raw.has_duplicate = true;
            } else {
                *field = Some(value);
            }
        }
        let sent_id = raw.event_id.and_then(text);
        let event = raw.read(sent_id.as_deref(), self.limits);
        Ok(ParsedEvent { sent_id, event })
    }
}

impl<'a> RawEvent<'a> {
    /// The event, or the first of its faults in the order in which they are documented.
    fn read(&self, sent_id: Option<&str>, limits: &Limits) -> Result<SentEvent<'a>, RejectReason> {
        if self.has_duplicate {
            return Err(RejectReason::DuplicateField);
        }
        let id =
            sent_id.and_then(|sent| EventId::parse(sent).ok()).ok_or(RejectReason::BadEventId)?;
        let event_type = self
            .event_type
            .and_then(text)
            .and_then(|name| type_name(name, limits.type_bytes))
            .ok_or(RejectReason::BadType)?;
        let user_id = self
            .user_id
            .and_then(text)
            .filter(|user| (1..=limits.user_id_bytes).contains(&user.len()))
            .ok_or(RejectReason::BadUserId)?;
        let (event_time_ms, event_time_text) =
            self.event_time.and_then(event_time).ok_or(RejectReason::BadEventTime)?;
        let properties = self.properties.map_or("", RawValue::get);
        let properties = if properties == "null" { "" } else { properties };
        if is_deeper(properties, limits.depth) {
            return Err(RejectReason::TooDeep);
        }
        Ok(SentEvent {
            id,
            event_type,
            user_id,
            event_time_ms,
            event_time_text,
            properties,
            device_id: self.device_id.and_then(optional_id),
            session_id: self.session_id.and_then(optional_id),
            consent: self.consent.map_or(SentConsent::Unstated, consent),
        })
    }
}

/// The string that a JSON value is; `None` for any other value and for half a surrogate pair.
fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    let inner = value.get().strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str::<String>(value.get()).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

fn type_name(name: Cow<'_, str>, bytes_max: usize) -> Option<Cow<'_, str>> {
    match name {
        Cow::Borrowed(name) => normal_name(name, bytes_max).ok(),
        Cow::Owned(name) => normal_name(&name, bytes_max).ok().map(|name| name.into_owned().into()),
    }
}

/// RFC 3339 as a string, or a JSON integer of epoch milliseconds. Nothing is guessed: no other
/// unit, no fraction, no exponent, no digits in a string.
fn event_time(value: &RawValue) -> Option<(i64, Cow<'_, str>)> {
    if let Some(written) = text(value) {
        return Some((parse_rfc3339(&written).ok()?, written));
    }
    let written = value.get();
    Some((written.parse().ok()?, Cow::Borrowed(written)))
}

/// An id that may be missing. There is no reason under which to reject an unusual one, so another
/// JSON value than a string is kept as its text.
fn optional_id(value: &RawValue) -> Option<Cow<'_, str>> {
    match value.get() {
        "null" => None,
        other => Some(text(value).unwrap_or(Cow::Borrowed(other))),
    }
}

fn consent(value: &RawValue) -> SentConsent {
    if value.get() == "null" {
        return SentConsent::Unstated;
    }
    serde_json::Deserializer::from_str(value.get())
        .deserialize_map(ConsentVisitor)
        .unwrap_or(SentConsent::Denied)
}

struct ConsentVisitor;

impl<'de> Visitor<'de> for ConsentVisitor {
    type Value = SentConsent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SentConsent, A::Error> {
        let mut consent = SentConsent::Unstated;
        while let Some(key) = map.next_key::<Key>()? {
            if key != Key::Analytics {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            consent = match (map.next_value::<&'de RawValue>()?.get(), consent) {
                ("true", SentConsent::Unstated | SentConsent::Granted) => SentConsent::Granted,
                _ => SentConsent::Denied,
            };
        }
        Ok(consent)
    }
}

/// Whether JSON text nests deeper than `depth_max`. A loop over bytes: depth costs no stack.
fn is_deeper(json: &str, depth_max: usize) -> bool {
    // Nearly all properties have few brackets at all, and counting them is ten times as fast.
    if json.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count() <= depth_max {
        return false;
    }
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => {
                bytes.next();
            }
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > depth_max {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests;
