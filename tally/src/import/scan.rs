//! A first look at a file: is it sorted, when does it begin, which types are in it.

use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;
use tally_collector::ingest::EVENT_AGE_MAX_MS;
use tally_model::bucket::Granularity;
use tally_model::time::parse_rfc3339;
use tally_model::types::{TypeId, normal_name};
use tally_sinks::marks;
use tally_sinks::registry::{NewType, Registered};

use super::lines::Lines;
use crate::deployment::Deployment;
use crate::failure::{Exit, Failure};

/// What a first look at a file finds.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) lines: u64,
    pub(super) is_sorted: bool,
    first_ms: Option<i64>,
    /// Names of event types in order of first appearance.
    types: Vec<String>,
}

impl Scan {
    pub(super) fn read(mut lines: Lines) -> Result<Self, Failure> {
        let mut scan = Self { lines: 0, is_sorted: true, first_ms: None, types: Vec::new() };
        let mut known = HashSet::new();
        let mut last_ms = i64::MIN;
        while let Some(line) = lines.next()? {
            scan.lines += 1;
            let peek = Peek::of(line.text.unwrap_or(""));
            if let Some(time_ms) = peek.time_ms {
                scan.is_sorted &= last_ms <= time_ms;
                last_ms = time_ms;
                scan.first_ms = Some(scan.first_ms.map_or(time_ms, |first| first.min(time_ms)));
            }
            if let Some(name) = peek.event_type
                && !known.contains(name.as_ref())
            {
                known.insert(name.clone().into_owned());
                scan.types.push(name.into_owned());
            }
        }
        Ok(scan)
    }

    /// Registers the file's types, all or none. Names that no registry takes stay out: their events
    /// are rejected with their reason.
    ///
    /// # Errors
    /// Exit 5 if there are more new types than free slots.
    pub(super) fn register(
        &self,
        deployment: &Deployment,
        type_bytes: usize,
    ) -> Result<u64, Failure> {
        let known = deployment.registry.snapshot();
        let new: Vec<NewType> = self
            .types
            .iter()
            .filter_map(|name| normal_name(name, type_bytes).ok())
            .filter(|name| known.get(name).is_none())
            .map(|name| NewType::named(name.into_owned()))
            .collect();
        let free = usize::from(TypeId::CAP).saturating_sub(known.width());
        if new.len() > free {
            return Err(Failure::refused(format!(
                "the file has {} new event types and the registry {free} free slots; with \
                 --no-register they are counted as __other",
                new.len()
            )));
        }
        let mut created = 0;
        for outcome in deployment.registry.register_many(&new)? {
            match outcome.map_err(|error| Failure::new(Exit::Refused, error))? {
                Registered::Created(_) => created += 1,
                // Two spellings of one name.
                Registered::Same(_) => {}
            }
        }
        Ok(created)
    }

    /// The first event's minute, or the 90 days that events may be old, whichever is later.
    pub(super) fn set_origin(&self, deployment: &Deployment) -> Result<(), Failure> {
        let now_ms = deployment.clock.now_ms();
        let first_ms = self.first_ms.unwrap_or(now_ms).clamp(now_ms - EVENT_AGE_MAX_MS, now_ms);
        let minute_ms = Granularity::Minute.floor(first_ms);
        marks::set_origin_if_absent(deployment.meta.as_ref(), minute_ms)?;
        marks::lower_origin(deployment.meta.as_ref(), minute_ms)?;
        Ok(())
    }
}

/// The two fields that ordering and registering need.
#[derive(Debug, Default)]
pub(super) struct Peek<'a> {
    event_type: Option<Cow<'a, str>>,
    pub(super) time_ms: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PeekFields<'a> {
    #[serde(borrow, default)]
    event_type: Option<&'a RawValue>,
    #[serde(borrow, default)]
    event_time: Option<&'a RawValue>,
}

impl<'a> Peek<'a> {
    /// Reads what is readable; everything else is judged when the line is prepared.
    pub(super) fn of(line: &'a str) -> Self {
        let Ok(fields) = serde_json::from_str::<PeekFields<'a>>(line) else {
            return Self::default();
        };
        let text = |value: &'a RawValue| serde_json::from_str::<String>(value.get()).ok();
        let time_ms = fields.event_time.and_then(|value| match text(value) {
            Some(written) => parse_rfc3339(&written).ok(),
            None => value.get().parse().ok(),
        });
        Self { event_type: fields.event_type.and_then(text).map(Into::into), time_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peek_finds_what_is_readable_and_nothing_else() {
        let cases = [
            (r#"{"eventType":"a","eventTime":"1970-01-01T00:00:01Z"}"#, Some("a"), Some(1_000)),
            (r#"{"eventTime":1000,"eventType":"b","x":[1]}"#, Some("b"), Some(1_000)),
            (r#"{"eventType":7,"eventTime":"soon"}"#, None, None),
            (r#"{"eventType":"a","eventType":"b"}"#, None, None),
            ("{broken", None, None),
            ("", None, None),
        ];
        for (line, event_type, time_ms) in cases {
            let peek = Peek::of(line);
            assert_eq!((peek.event_type.as_deref(), peek.time_ms), (event_type, time_ms), "{line}");
        }
    }
}
