//! Query parameters, read one by one; whatever is wrong with them is gathered.

use std::collections::BTreeMap;

use tally_model::bucket::{Granularity, HOUR_MS, MINUTE_MS};
use tally_model::range::TimeRange;
use tally_model::time::{MAX_MS, MIN_MS, format_rfc3339, parse_rfc3339};

use super::{
    AskedRange, Format, K_DEFAULT, K_MAX, LATE_HOURS_MAX, POINTS_MAX, Pairs, RANGE_MAX_MS, Rules,
};
use crate::problem::{ParameterError, Problem};

/// Parameters by name, and what was found wrong so far.
pub(super) struct Fields<'a> {
    values: BTreeMap<&'a str, &'a str>,
    errors: Vec<ParameterError>,
}

impl<'a> Fields<'a> {
    pub(super) fn read(pairs: &'a Pairs, allowed: &[&str]) -> Self {
        let mut fields = Self { values: BTreeMap::new(), errors: Vec::new() };
        for (name, value) in pairs {
            if name == "region" {
                fields.fail(name, "reserved: every answer is about all regions");
            } else if !allowed.contains(&name.as_str()) {
                let message = format!("unknown parameter; allowed are {}", allowed.join(", "));
                fields.fail(name, message);
            } else if fields.values.insert(name, value).is_some() {
                fields.fail(name, "given more than once");
            }
        }
        fields
    }

    fn fail(&mut self, parameter: &str, message: impl Into<String>) {
        self.errors.push(error(parameter, message));
    }

    pub(super) fn finish<T>(self, value: Option<T>) -> Result<T, Problem> {
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            Some(_) | None => Err(Problem::parameters(self.errors)),
        }
    }

    pub(super) fn required(&mut self, name: &str) -> Option<&'a str> {
        let value = self.values.get(name).copied();
        if value.is_none() {
            self.fail(name, "required");
        }
        value
    }

    fn instant(&mut self, name: &str) -> Option<i64> {
        let text = self.required(name)?;
        match instant(text) {
            Ok(at_ms) => Some(at_ms),
            Err(message) => {
                self.fail(name, message);
                None
            }
        }
    }

    /// `start` and `end`, on bounds of `granularity`.
    pub(super) fn range(&mut self, granularity: Granularity) -> Option<AskedRange> {
        let snap = self.snap();
        let (start, end) = (self.instant("start"), self.instant("end"));
        let (requested_start_ms, requested_end_ms) = start.zip(end)?;
        if requested_start_ms >= requested_end_ms {
            self.fail("start", "must lie before end");
            return None;
        }
        if requested_end_ms - requested_start_ms > RANGE_MAX_MS {
            self.fail("end", "lies more than 20 years (7305 days) after start");
            return None;
        }
        let bounds = if snap {
            (granularity.floor(requested_start_ms), granularity.ceil(requested_end_ms))
        } else {
            let aligned_start = self.aligned("start", requested_start_ms, granularity);
            let aligned_end = self.aligned("end", requested_end_ms, granularity);
            if !(aligned_start && aligned_end) {
                return None;
            }
            (requested_start_ms, requested_end_ms)
        };
        match TimeRange::new(bounds.0, bounds.1) {
            Ok(range) => Some(AskedRange { requested_start_ms, requested_end_ms, range }),
            Err(why) => {
                self.fail("start", why.to_string());
                None
            }
        }
    }

    fn aligned(&mut self, name: &str, at_ms: i64, granularity: Granularity) -> bool {
        let [below, above] = [granularity.floor(at_ms), granularity.ceil(at_ms)];
        if below == above {
            return true;
        }
        let message = format!(
            "not on a whole {granularity}; the nearest are {} and {}; snap=true widens the range \
             to whole {granularity}s",
            format_rfc3339(below),
            format_rfc3339(above),
        );
        self.fail(name, message);
        false
    }

    fn snap(&mut self) -> bool {
        match self.values.get("snap").copied() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => {
                self.fail("snap", "must be true or false");
                false
            }
        }
    }

    pub(super) fn k(&mut self) -> usize {
        let Some(text) = self.values.get("k").copied() else {
            return K_DEFAULT;
        };
        // The digits are looked at first because integers also parse with a sign.
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(k) if digits && (1..=K_MAX).contains(&k) => k,
            Ok(_) | Err(_) => {
                self.fail("k", format!("must be an integer from 1 to {K_MAX}"));
                K_DEFAULT
            }
        }
    }

    pub(super) fn granularity(&mut self, rules: Rules) -> Option<Granularity> {
        let text = self.required("granularity")?;
        let granularity = Granularity::ALL.into_iter().find(|one| one.name() == text);
        match granularity {
            None => self.fail("granularity", "must be minute, hour or day"),
            Some(one) if one < rules.finest => {
                self.fail("granularity", "must be hour or day without the scope stats:raw");
                return None;
            }
            Some(_) => {}
        }
        granularity
    }

    pub(super) fn width(&mut self, asked: Option<AskedRange>, rules: Rules) {
        let short = asked.is_some_and(|AskedRange { range, .. }| {
            range.end_ms() - range.start_ms() < rules.width_min_ms
        });
        if short {
            let minutes = rules.width_min_ms / MINUTE_MS;
            let message = format!(
                "without the scope stats:raw the shortest range is {minutes} minutes; snap=true \
                 widens bounds to whole hours"
            );
            self.fail("end", message);
        }
    }

    pub(super) fn points(&mut self, range: TimeRange, granularity: Granularity) {
        let points = (range.end_ms() - range.start_ms()) / granularity.width_ms();
        if points > POINTS_MAX {
            let message = format!(
                "the range has {points} points of one {granularity}, more than {POINTS_MAX}; ask \
                 for a shorter range or a coarser granularity"
            );
            self.fail("granularity", message);
        }
    }

    pub(super) fn hours(&mut self, range: TimeRange) {
        let hours = (range.end_ms() - range.start_ms()) / HOUR_MS;
        if hours > LATE_HOURS_MAX {
            let message = format!(
                "the range has {hours} hours, more than {LATE_HOURS_MAX}; ask for a shorter range"
            );
            self.fail("end", message);
        }
    }

    pub(super) fn format(&mut self, offered: &[Format]) -> Option<Format> {
        let text = self.values.get("format").copied()?;
        let format = offered.iter().copied().find(|one| one.name() == text);
        if format.is_none() {
            let names: Vec<&str> = offered.iter().map(|one| one.name()).collect();
            self.fail("format", format!("must be one of {}", names.join(", ")));
        }
        format
    }
}

pub(super) fn error(parameter: &str, message: impl Into<String>) -> ParameterError {
    ParameterError { parameter: parameter.to_owned(), message: message.into() }
}

/// RFC 3339 with an offset, or whole milliseconds since the Unix epoch.
fn instant(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return parse_rfc3339(text).map_err(|why| why.to_string());
    }
    text.parse()
        .ok()
        .filter(|at_ms| (MIN_MS..=MAX_MS).contains(at_ms))
        .ok_or_else(|| "milliseconds since the epoch outside the years 1 to 9999".to_owned())
}
