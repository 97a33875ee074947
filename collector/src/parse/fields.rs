//! Reading the fields of one event, each on its own.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use tally_model::ids::EventId;
use tally_model::reasons::RejectReason;
use tally_model::time::parse_rfc3339;
use tally_model::types::normal_name;

use super::visit::Key;
use super::{SentConsent, SentEvent};
use crate::limits::Limits;

/// The fields of an event as slices of the body; the first of each name.
#[derive(Default)]
pub(super) struct RawEvent<'a> {
    pub(super) event_id: Option<&'a RawValue>,
    pub(super) event_type: Option<&'a RawValue>,
    pub(super) user_id: Option<&'a RawValue>,
    pub(super) event_time: Option<&'a RawValue>,
    pub(super) properties: Option<&'a RawValue>,
    pub(super) consent: Option<&'a RawValue>,
    pub(super) device_id: Option<&'a RawValue>,
    pub(super) session_id: Option<&'a RawValue>,
    pub(super) has_duplicate: bool,
}

impl<'a> RawEvent<'a> {
    /// The event, or the first of its faults in the order in which they are documented.
    pub(super) fn read(
        &self,
        sent_id: Option<&str>,
        limits: &Limits,
    ) -> Result<SentEvent<'a>, RejectReason> {
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
pub(super) fn text(value: &RawValue) -> Option<Cow<'_, str>> {
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
pub(super) fn is_deeper(json: &str, depth_max: usize) -> bool {
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
