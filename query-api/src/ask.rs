//! What is asked: query parameters, read strictly.
//!
//! Nothing is guessed, rounded or dropped: a parameter that is unknown, repeated or outside its
//! allowed values is an error that says what is allowed, and all errors of a request are told at
//! once.

mod fields;
#[cfg(test)]
mod tests;

use tally_model::bucket::{DAY_MS, Granularity};
use tally_model::range::{Availability, Run, TimeRange};
use tally_model::time::format_rfc3339;
use tally_model::types::TypeId;

use self::fields::{Fields, error};
use crate::problem::Problem;

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
    /// A stream of Arrow record batches.
    Arrow,
}

impl Format {
    /// The formats of counts.
    pub const OF_COUNTS: &[Self] = &[Self::Json, Self::Csv, Self::Arrow];
    /// The formats of other lists.
    pub const OF_LISTS: &[Self] = &[Self::Json, Self::Csv];

    /// The word used for `format=`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Csv => "csv",
            Self::Arrow => "arrow",
        }
    }

    /// The value of `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Csv => "text/csv; charset=utf-8; header=present",
            Self::Arrow => "application/vnd.apache.arrow.stream",
        }
    }
}

/// What may be asked for, beside what everybody may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Bounds lie on buckets of this granularity, and points are not narrower.
    pub finest: Granularity,
    /// The shortest range, ms.
    pub width_min_ms: i64,
}

impl Rules {
    /// Those of who may see exact counts.
    pub const RAW: Self = Self { finest: Granularity::Minute, width_min_ms: 0 };
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
    pub fn parse(pairs: &Pairs, rules: Rules) -> Result<Self, Problem> {
        let mut fields = Fields::read(pairs, &["start", "end", "k", "snap", "format"]);
        let asked = fields.range(rules.finest);
        fields.width(asked, rules);
        let k = fields.k();
        let format = fields.format(Format::OF_COUNTS);
        fields.finish(asked.map(|asked| Self { asked, k, format }))
    }
}

impl SeriesAsk {
    /// Reads the parameters `type`, `start`, `end`, `granularity`, `snap` and `format`.
    ///
    /// # Errors
    /// A problem that names every bad parameter.
    pub fn parse(pairs: &Pairs, rules: Rules) -> Result<Self, Problem> {
        let allowed = ["type", "start", "end", "granularity", "snap", "format"];
        let mut fields = Fields::read(pairs, &allowed);
        let event_type = fields.required("type").map(str::to_owned);
        let granularity = fields.granularity(rules);
        // Without a usable granularity the bounds are still checked, as if for the finest.
        let asked = fields.range(granularity.unwrap_or(rules.finest));
        fields.width(asked, rules);
        if let (Some(asked), Some(granularity)) = (&asked, granularity) {
            fields.points(asked.range, granularity);
        }
        let format = fields.format(Format::OF_COUNTS);
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
        let format = fields.format(Format::OF_LISTS);
        fields.finish(asked.map(|asked| Self { asked, format }))
    }
}
