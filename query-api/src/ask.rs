//! What is asked: query parameters, read strictly.
//!
//! Nothing is guessed, rounded or dropped: a parameter that is unknown, repeated or outside its
//! allowed values is an error that says what is allowed, and all errors of a request are told at
//! once.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use tally_model::bucket::{DAY_MS, Granularity, HOUR_MS};
use tally_model::range::{Availability, Run, TimeRange};
use tally_model::time::{MAX_MS, MIN_MS, format_rfc3339, parse_rfc3339};
use tally_model::types::TypeId;

use crate::problem::{ParameterError, Problem};

/// How many results a top answer has when `k` is not given.
pub const K_DEFAULT: usize = 10;
/// The greatest `k`: more types than slots do not exist.
pub const K_MAX: usize = TypeId::CAP as usize;
/// The longest range that can be asked for: 20 years.
pub const RANGE_MAX_MS: i64 = 7_305 * DAY_MS;
/// The most points of a series.
pub const POINTS_MAX: i64 = 10_000;
/// The most hours that dirty hours are listed of.
pub const LATE_HOURS_MAX: i64 = 10_000;

/// Decoded `name=value` pairs of a query string, in the order sent.
pub type Pairs = [(String, String)];

/// A format that answers are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/json`.
    Json,
    /// `text/csv`, with a header line.
    Csv,
}

impl Format {
    /// The word used for `format=`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Csv => "csv",
        }
    }
}

/// A range as asked for, and as answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedRange {
    /// `start` as sent, ms since the Unix epoch.
    pub requested_start_ms: i64,
    /// `end` as sent, ms since the Unix epoch.
    pub requested_end_ms: i64,
    /// The same, or wider by `snap=true`.
    pub range: TimeRange,
}

/// `GET /v1/stats/top`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopAsk {
    /// From when to when.
    pub asked: AskedRange,
    /// How many results at most.
    pub k: usize,
    /// `format=`, if given.
    pub format: Option<Format>,
}

/// `GET /v1/stats/series`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesAsk {
    /// From when to when, on bounds of `granularity`.
    pub asked: AskedRange,
    /// Name of the event type.
    pub event_type: String,
    /// Width of a point.
    pub granularity: Granularity,
    /// `format=`, if given.
    pub format: Option<Format>,
}

/// `GET /v1/late-hours`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateAsk {
    /// From when to when, on whole hours.
    pub asked: AskedRange,
    /// `format=`, if given.
    pub format: Option<Format>,
}

impl TopAsk {
    /// Reads the parameters `start`, `end`, `k`, `snap` and `format`.
    ///
    /// # Errors
    /// A problem that names every bad parameter.
    pub fn parse(pairs: &Pairs) -> Result<Self, Problem> {
        let mut fields = Fields::read(pairs, &["start", "end", "k", "snap", "format"]);
        let asked = fields.range(Granularity::Minute);
        let k = fields.k();
        let format = fields.format();
        fields.finish(asked.map(|asked| Self { asked, k, format }))
    }
}

impl SeriesAsk {
    /// Reads the parameters `type`, `start`, `end`, `granularity`, `snap` and `format`.
    ///
    /// # Errors
    /// A problem that names every bad parameter.
    pub fn parse(pairs: &Pairs) -> Result<Self, Problem> {
        let allowed = ["type", "start", "end", "granularity", "snap", "format"];
        let mut fields = Fields::read(pairs, &allowed);
        let event_type = fields.required("type").map(str::to_owned);
        let granularity = fields.granularity();
        // Without a usable granularity the bounds are still checked, as if for minutes.
        let asked = fields.range(granularity.unwrap_or(Granularity::Minute));
        if let (Some(asked), Some(granularity)) = (&asked, granularity) {
            fields.points(asked.range, granularity);
        }
        let format = fields.format();
        let series =
            asked.zip(event_type).zip(granularity).map(|((asked, event_type), granularity)| Self {
                asked,
                event_type,
                granularity,
                format,
            });
        fields.finish(series)
    }

    /// The buckets of the points.
    #[must_use]
    pub const fn run(&self) -> Run {
        let range = self.asked.range;
        Run { granularity: self.granularity, start_ms: range.start_ms(), end_ms: range.end_ms() }
    }

    /// Checks that points this fine are still kept at the start of the range.
    ///
    /// # Errors
    /// A problem that names the finest granularity there is.
    pub fn check_kept(&self, availability: &Availability) -> Result<(), Problem> {
        let start_ms = self.asked.range.start_ms();
        let kept_from_ms = |granularity| match granularity {
            Granularity::Minute => availability.minutes_from_ms,
            Granularity::Hour => availability.hours_from_ms,
            Granularity::Day => i64::MIN,
        };
        let finest = Granularity::ALL
            .into_iter()
            .find(|granularity| kept_from_ms(*granularity) <= start_ms)
            .unwrap_or(Granularity::Day);
        if finest <= self.granularity {
            return Ok(());
        }
        let message = format!(
            "{asked} rows are kept from {from} on; the finest granularity for this start is {finest}",
            asked = self.granularity,
            from = format_rfc3339(kept_from_ms(self.granularity)),
        );
        Err(Problem::parameters(vec![error("granularity", message)]))
    }
}

impl LateAsk {
    /// Reads the parameters `start`, `end`, `snap` and `format`.
    ///
    /// # Errors
    /// A problem that names every bad parameter.
    pub fn parse(pairs: &Pairs) -> Result<Self, Problem> {
        let mut fields = Fields::read(pairs, &["start", "end", "snap", "format"]);
        let asked = fields.range(Granularity::Hour);
        if let Some(asked) = &asked {
            fields.hours(asked.range);
        }
        let format = fields.format();
        fields.finish(asked.map(|asked| Self { asked, format }))
    }
}

/// Parameters by name, and what was found wrong so far.
struct Fields<'a> {
    values: BTreeMap<&'a str, &'a str>,
    errors: Vec<ParameterError>,
}

impl<'a> Fields<'a> {
    fn read(pairs: &'a Pairs, allowed: &[&str]) -> Self {
        let mut fields = Self { values: BTreeMap::new(), errors: Vec::new() };
        for (name, value) in pairs {
            if !allowed.contains(&name.as_str()) {
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

    fn finish<T>(self, value: Option<T>) -> Result<T, Problem> {
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            Some(_) | None => Err(Problem::parameters(self.errors)),
        }
    }

    fn required(&mut self, name: &str) -> Option<&'a str> {
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
    fn range(&mut self, granularity: Granularity) -> Option<AskedRange> {
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

    fn k(&mut self) -> usize {
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

    fn granularity(&mut self) -> Option<Granularity> {
        let text = self.required("granularity")?;
        let granularity = Granularity::ALL.into_iter().find(|one| one.name() == text);
        if granularity.is_none() {
            self.fail("granularity", "must be minute, hour or day");
        }
        granularity
    }

    fn points(&mut self, range: TimeRange, granularity: Granularity) {
        let points = (range.end_ms() - range.start_ms()) / granularity.width_ms();
        if points > POINTS_MAX {
            let message = format!(
                "the range has {points} points of one {granularity}, more than {POINTS_MAX}; ask \
                 for a shorter range or a coarser granularity"
            );
            self.fail("granularity", message);
        }
    }

    fn hours(&mut self, range: TimeRange) {
        let hours = (range.end_ms() - range.start_ms()) / HOUR_MS;
        if hours > LATE_HOURS_MAX {
            let message = format!(
                "the range has {hours} hours, more than {LATE_HOURS_MAX}; ask for a shorter range"
            );
            self.fail("end", message);
        }
    }

    fn format(&mut self) -> Option<Format> {
        let text = self.values.get("format").copied()?;
        let format = [Format::Json, Format::Csv].into_iter().find(|one| one.name() == text);
        if format.is_none() {
            self.fail("format", "must be json or csv");
        }
        format
    }
}

fn error(parameter: &str, message: impl Into<String>) -> ParameterError {
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
