//! Walking the JSON of a body: which field is where. Nothing here recurses on nested input.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;
use tally_model::reasons::RejectReason;

use super::ParsedEvent;
use super::fields::{RawEvent, text};
use crate::limits::Limits;

pub(super) fn parse_element<'a>(element: &'a RawValue, limits: &Limits) -> ParsedEvent<'a> {
    // The grammar was checked, so the only failure left is an element that is no object.
    serde_json::Deserializer::from_str(element.get())
        .deserialize_map(EventVisitor { limits })
        .unwrap_or(ParsedEvent { sent_id: None, event: Err(RejectReason::NotAnObject) })
}

#[derive(Clone, Copy)]
pub(super) enum Elements {
    Objects,
    Any,
}

/// The outer object.
#[derive(Default)]
pub(super) struct Envelope<'a> {
    pub(super) events: Vec<ParsedEvent<'a>>,
    /// Elements seen, also those past the limit, which are not kept.
    pub(super) count: usize,
    /// How often the field `events` stands there.
    pub(super) lists: usize,
}

impl<'a> Envelope<'a> {
    pub(super) fn read(
        text: &'a str,
        limits: &Limits,
        elements: Elements,
    ) -> serde_json::Result<Self> {
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
pub(super) enum Key {
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
