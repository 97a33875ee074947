//! Key and time of a line: the fields are found without building the rest.

use std::fmt;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tally_model::ids::EventId;
use tally_model::time::{MAX_MS, MIN_MS, parse_rfc3339};

use crate::failure::Failure;

/// Why a line is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refusal {
    /// Not one JSON object or array.
    Unreadable,
    /// A key field is missing, or null, or no text, number or boolean.
    Key,
    /// The time is missing or no instant.
    Time,
}

impl Refusal {
    /// Its name in statistics.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Key => "no_key",
            Self::Time => "no_time",
        }
    }
}

/// What a line says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// A UUID's own bytes; the first half of the key's SHA-256 for any other key.
    pub(super) id: EventId,
    /// `None` if no time was asked for.
    pub(super) at_ms: Option<i64>,
}

/// Reads key and time of lines.
#[derive(Debug)]
pub(super) struct Fields {
    /// First step of each path, the keys' before the time's.
    heads: Vec<String>,
    /// The further steps.
    tails: Vec<Vec<String>>,
    keys: usize,
}

/// Key fields and time together.
const FIELDS_MAX: usize = 8;

impl Fields {
    /// # Errors
    /// Exit 2 for a pointer that is none.
    pub(super) fn new(keys: &[String], time: Option<&str>) -> Result<Self, Failure> {
        if keys.len() >= FIELDS_MAX {
            return Err(Failure::usage(format!("at most {} --key", FIELDS_MAX - 1)));
        }
        let mut fields = Self { heads: Vec::new(), tails: Vec::new(), keys: keys.len() };
        for field in keys.iter().map(String::as_str).chain(time) {
            let mut steps = path(field)?;
            let tail = steps.split_off(1);
            fields.heads.append(&mut steps);
            fields.tails.push(tail);
        }
        Ok(fields)
    }

    /// # Errors
    /// [`Refusal`]: what is wrong with the line.
    pub(super) fn read(&self, line: &[u8]) -> Result<Identity, Refusal> {
        let text = std::str::from_utf8(line).map_err(|_not_text| Refusal::Unreadable)?;
        let mut found = [None; FIELDS_MAX];
        let found = &mut found[..self.heads.len()];
        pick(text, &self.heads, found).ok_or(Refusal::Unreadable)?;
        for (value, tail) in found.iter_mut().zip(&self.tails) {
            for step in tail {
                let mut inner = [None];
                *value = value.and_then(|value| {
                    pick(value.get(), std::slice::from_ref(step), &mut inner)?;
                    inner[0]
                });
            }
        }
        let (keys, time) = found.split_at(self.keys);
        let id = identify(keys).ok_or(Refusal::Key)?;
        let at_ms = match time {
            [] => None,
            [value, ..] => Some(value.and_then(instant).ok_or(Refusal::Time)?),
        };
        Ok(Identity { id, at_ms })
    }
}

/// The steps of a JSON pointer, or a field name as the only one.
fn path(field: &str) -> Result<Vec<String>, Failure> {
    let Some(rest) = field.strip_prefix('/') else {
        return Ok(vec![field.to_owned()]);
    };
    rest.split('/')
        .map(|step| {
            let unknown = step.replace("~0", "").replace("~1", "").contains('~');
            if unknown {
                return Err(Failure::usage(format!("{field} is no JSON pointer: ~ is ~0 or ~1")));
            }
            Ok(step.replace("~1", "/").replace("~0", "~"))
        })
        .collect()
}

/// The id of a record with these key fields.
fn identify(keys: &[Option<&RawValue>]) -> Option<EventId> {
    if let [only] = keys {
        let raw = (*only)?.get();
        if let Some(plain) = unescaped(raw) {
            return match EventId::parse(plain) {
                Ok(id) => Some(id),
                // Who forgets to make an id sends nothing or the nil UUID: no key for an event.
                Err(_) if plain.is_empty() || uuid::Uuid::try_parse(plain).is_ok() => None,
                Err(_) => digest(keys),
            };
        }
    }
    digest(keys)
}

/// Kind, length and bytes of each key, so that no two lists of keys read alike.
fn digest(keys: &[Option<&RawValue>]) -> Option<EventId> {
    let mut hash = Sha256::new();
    for key in keys {
        let raw = (*key)?.get();
        let owned: String;
        let (kind, text) = match raw.as_bytes().first()? {
            b'"' => match unescaped(raw) {
                Some(plain) => (b's', plain),
                None => {
                    owned = serde_json::from_str(raw).ok()?;
                    (b's', owned.as_str())
                }
            },
            b'{' | b'[' | b'n' => return None,
            _ => (b'v', raw),
        };
        hash.update([kind]);
        hash.update(u64::try_from(text.len()).ok()?.to_le_bytes());
        hash.update(text);
    }
    let (half, _rest) =
        hash.finalize().as_slice().split_first_chunk::<16>().map(|(a, b)| (*a, b.len()))?;
    Some(EventId(half))
}

/// The text of a JSON string that has no escapes.
fn unescaped(raw: &str) -> Option<&str> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    (!inner.contains('\\')).then_some(inner)
}

fn instant(value: &RawValue) -> Option<i64> {
    let raw = value.get();
    if raw.starts_with('"') {
        return match unescaped(raw) {
            Some(text) => parse_rfc3339(text).ok(),
            None => parse_rfc3339(&serde_json::from_str::<String>(raw).ok()?).ok(),
        };
    }
    raw.parse().ok().filter(|at_ms| (MIN_MS..=MAX_MS).contains(at_ms))
}

/// Finds members of an object by name, or elements of an array by number; of members with one
/// name the last one counts. `None` if the text is neither.
fn pick<'a>(text: &'a str, names: &[String], found: &mut [Option<&'a RawValue>]) -> Option<()> {
    let mut reader = serde_json::Deserializer::from_str(text);
    Pick { names, found }.deserialize(&mut reader).ok()?;
    reader.end().ok()
}

struct Pick<'n, 'f, 'a> {
    names: &'n [String],
    found: &'f mut [Option<&'a RawValue>],
}

impl<'a> Pick<'_, '_, 'a> {
    fn keep(&mut self, name: &str, value: &'a RawValue) {
        for (wanted, place) in self.names.iter().zip(self.found.iter_mut()) {
            if wanted == name {
                *place = Some(value);
            }
        }
    }
}

impl<'a> DeserializeSeed<'a> for Pick<'_, '_, 'a> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Pick<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(index) = map.next_key_seed(Name { names: self.names })? {
            match index {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(index) => {
                    let value = map.next_value()?;
                    // Several paths may begin with the same step.
                    self.keep(&self.names[index], value);
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut number = 0_u64;
        while let Some(value) = seq.next_element()? {
            self.keep(&number.to_string(), value);
            number += 1;
        }
        Ok(())
    }
}

/// Tells which of the names a member has, without keeping it.
struct Name<'n> {
    names: &'n [String],
}

impl<'a> DeserializeSeed<'a> for Name<'_> {
    type Value = Option<usize>;

    fn deserialize<D: serde::Deserializer<'a>>(
        self,
        deserializer: D,
    ) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.names.iter().position(|wanted| wanted == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &[&str], line: &str) -> Result<Identity, Refusal> {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        Fields::new(&keys, Some("t")).ok().unwrap().read(line.as_bytes())
    }

    fn id(keys: &[&str], line: &str) -> EventId {
        read(keys, line).unwrap().id
    }

    #[test]
    fn every_spelling_of_a_uuid_is_one_key_and_all_else_is_compared_exactly() {
        let first = id(&["k"], r#"{"k":"0b7cfd0e-2c5c-4b8e-9d2a-0a3f8f1a2b3c","t":0}"#);
        let spellings = [
            r#"{"t":1,"x":{"k":1},"k":"0B7CFD0E2C5C4B8E9D2A0A3F8F1A2B3C"}"#,
            r#"{"k":0,"k":"{0b7cfd0e-2c5c-4b8e-9d2a-0a3f8f1a2b3c}","t":1}"#,
        ];
        assert!(spellings.iter().all(|line| id(&["k"], line) == first));
        let texts = [r#""a""#, r#""A""#, r#""a ""#, "1", r#""1""#, "1.0", "true", r#""true""#];
        let ids: std::collections::BTreeSet<_> =
            texts.iter().map(|text| id(&["k"], &format!(r#"{{"k":{text},"t":0}}"#))).collect();
        assert_eq!(ids.len(), texts.len());
        assert_eq!(id(&["k"], r#"{"k":"\u0061","t":0}"#), id(&["k"], r#"{"k":"a","t":0}"#));
    }

    #[test]
    fn several_keys_count_together_and_do_not_run_into_each_other() {
        let line = |a: &str, b: &str| format!(r#"{{"a":"{a}","n":{{"b":["{b}"]}},"t":5}}"#);
        let keys = ["/a", "/n/b/0"];
        assert_ne!(id(&keys, &line("ab", "c")), id(&keys, &line("a", "bc")));
        assert_ne!(id(&keys, &line("x", "y")), id(&keys, &line("x", "z")));
        assert_eq!(id(&keys, &line("x", "y")), id(&keys, &line("x", "y")));
        let nested = Fields::new(&["/e/id".to_owned()], Some("/e/at")).ok().unwrap();
        let read = |line: &str| nested.read(line.as_bytes());
        assert_eq!(read(r#"{"e":{"id":1,"at":7}}"#).unwrap().at_ms, Some(7));
        assert_eq!(read(r#"{"e":{"id":1}}"#), Err(Refusal::Time));
        assert_eq!(read(r#"{"e":[1]}"#), Err(Refusal::Key));
    }

    #[test]
    fn a_line_without_key_or_time_is_refused_with_its_reason() {
        let cases = [
            ("{", Refusal::Unreadable),
            ("3", Refusal::Unreadable),
            (r#"{"k":"a","t":0} {}"#, Refusal::Unreadable),
            (r#"{"t":0}"#, Refusal::Key),
            (r#"{"k":null,"t":0}"#, Refusal::Key),
            (r#"{"k":"","t":0}"#, Refusal::Key),
            (r#"{"k":{},"t":0}"#, Refusal::Key),
            (r#"{"k":"00000000-0000-0000-0000-000000000000","t":0}"#, Refusal::Key),
            (r#"{"k":"a"}"#, Refusal::Time),
            (r#"{"k":"a","t":"2026-01-01T00:00:00"}"#, Refusal::Time),
            (r#"{"k":"a","t":1e3}"#, Refusal::Time),
            (r#"{"k":"a","t":9999999999999999}"#, Refusal::Time),
        ];
        for (line, want) in cases {
            assert_eq!(read(&["k"], line), Err(want), "{line}");
        }
        let at = |line| read(&["k"], line).unwrap().at_ms;
        assert_eq!(at(r#"{"k":1,"t":"1970-01-01T01:00:00.5+01:00"}"#), Some(500));
        assert_eq!(at(r#"{"k":1,"t":-7}"#), Some(-7));
    }
}
