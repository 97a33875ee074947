//! Answers from sums: the pure half of answering.

mod arrow;
mod count;
mod csv;
#[cfg(test)]
mod tests;

use serde::Serialize;
use sha2::{Digest, Sha256};
use tally_model::bucket::{DAY_MS, Granularity, HOUR_MS, MINUTE_MS};
use tally_model::range::TimeRange;
use tally_model::time::format_rfc3339;
use tally_model::types::TypeId;
use tally_model::vector::{CountVector, VectorError};
use utoipa::ToSchema;

use crate::ask::{AskedRange, Format};
use crate::manifest::short;
use crate::resolve::{Facts, Resolved};
use crate::spans::{ListedSpan, Spans};

pub use arrow::{ArrowError, series_arrow, top_arrow};
pub use count::Count;
pub use csv::{series_csv, top_csv};

/// Buckets younger than this may still change by late events.
const FINAL_AFTER_MS: i64 = DAY_MS;

/// The range that an answer is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// First instant counted.
    pub start: String,
    /// First instant not counted any more.
    pub end: String,
    /// `start` as asked for.
    pub requested_start: String,
    /// `end` as asked for.
    pub requested_end: String,
    /// The finest granularity that was needed to hit the bounds.
    #[schema(value_type = String, pattern = "^(minute|hour|day)$")]
    pub resolution: Granularity,
    /// Whether more is counted than was asked for: by `snap=true`, or because the finer rows of
    /// an edge are past retention.
    pub widened: bool,
}

impl Window {
    /// The window of `answered`, the range whose rows are read.
    #[must_use]
    pub fn new(asked: &AskedRange, answered: TimeRange, resolution: Granularity) -> Self {
        let requested = (asked.requested_start_ms, asked.requested_end_ms);
        Self {
            start: format_rfc3339(answered.start_ms()),
            end: format_rfc3339(answered.end_ms()),
            requested_start: format_rfc3339(requested.0),
            requested_end: format_rfc3339(requested.1),
            resolution,
            widened: requested != (answered.start_ms(), answered.end_ms()),
        }
    }
}

/// What every answer says beside its counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// The range.
    pub window: Window,
    /// Whether the counts are final as far as anybody knows: nothing in the window is younger than
    /// 24 hours, missing, not closed, stale or dirty.
    pub complete: bool,
    /// Whether the counts are those of the whole window: false when buckets have no row, or when
    /// events of it are known that are not counted.
    pub exact: bool,
    /// When the youngest content that was read was written; null if nothing was.
    pub as_of: Option<String>,
    /// Changes with the revision of any row read.
    pub digest: String,
    /// Everything before it can be read.
    pub readable_until: Option<String>,
    /// Everything before it is old enough to be final.
    pub final_until: Option<String>,
    /// First minute that this deployment knows anything about.
    pub data_from: Option<String>,
    /// Rows that the counts were made from.
    pub buckets_read: u64,
    /// Periods whose manifests were consulted.
    pub manifest_reads: u64,
    /// Stretches that should have a row and have none, the first 100.
    pub missing: Vec<ListedSpan>,
    /// Minutes in all such stretches.
    pub missing_minutes: i64,
    /// Stretches that have no row yet, the first 100.
    pub not_closed: Vec<ListedSpan>,
    /// Minutes in all such stretches.
    pub not_closed_minutes: i64,
    /// Stretches whose rows were folded before their minutes were restated, the first 100.
    pub stale: Vec<ListedSpan>,
    /// Minutes in all such stretches.
    pub stale_minutes: i64,
    /// Stretches of whole hours that the window touches and whose counts lack something, late
    /// events for one; the first 100.
    pub dirty: Vec<ListedSpan>,
    /// Hours in all such stretches.
    pub dirty_hours: i64,
    /// Only where the token lacks the raw scope: counts of an event type in a UTC hour below this
    /// are left out of everything that is shown, the total too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suppressed_below: Option<u64>,
}

/// Whether counts can be relied on. Every condition that takes that away is gathered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completeness {
    /// Nothing in the range is younger than 24 hours, missing, not closed, stale or dirty.
    pub complete: bool,
    /// Every bucket of the range has its row, or lies before the origin, and none is stale or
    /// dirty.
    pub exact: bool,
}

impl Completeness {
    /// The state of a range that ends at `end_ms`. It is `whole` when nothing in it is missing,
    /// not closed, stale or dirty.
    #[must_use]
    pub const fn of(facts: &Facts, end_ms: i64, whole: bool) -> Self {
        let old_enough = end_ms <= final_before_ms(facts);
        Self { complete: old_enough && whole, exact: whole }
    }
}

/// The start of the first minute that is not older than 24 hours.
const fn final_before_ms(facts: &Facts) -> i64 {
    Granularity::Minute.floor(facts.now_ms - FINAL_AFTER_MS)
}

/// The end of what is old enough to be final; `None` while nothing is.
#[must_use]
pub fn final_until_ms(facts: &Facts) -> Option<i64> {
    facts.retired_up_to_ms.map(|retired| retired.min(final_before_ms(facts)))
}

impl Envelope {
    /// The envelope of an answer about `answered`, whose rows are `resolved`.
    #[must_use]
    pub fn new(window: Window, answered: TimeRange, facts: &Facts, resolved: &Resolved) -> Self {
        let whole = resolved.lacking().all(Spans::is_empty);
        let Completeness { complete, exact } = Completeness::of(facts, answered.end_ms(), whole);
        Self {
            window,
            complete,
            exact,
            as_of: resolved.written_at_ms.map(format_rfc3339),
            digest: hex(&resolved.digest()),
            readable_until: facts.readable_up_to_ms.map(format_rfc3339),
            final_until: final_until_ms(facts).map(format_rfc3339),
            data_from: facts.origin_ms.map(format_rfc3339),
            buckets_read: resolved.rows,
            manifest_reads: resolved.manifest_reads,
            missing: resolved.missing.listed(),
            missing_minutes: resolved.missing.minutes(),
            not_closed: resolved.not_closed.listed(),
            not_closed_minutes: resolved.not_closed.minutes(),
            stale: resolved.stale.listed(),
            stale_minutes: resolved.stale.minutes(),
            dirty: resolved.dirty.listed(),
            dirty_hours: resolved.dirty.minutes() * MINUTE_MS / HOUR_MS,
            suppressed_below: None,
        }
    }

    /// A weak entity tag over everything that shapes the answer, `shape` (what was asked, beside
    /// the window) included. Left out is what merely passes with time: the marks.
    #[must_use]
    pub fn entity_tag(&self, shape: &[&str], format: Format, registry_version: u64) -> String {
        let mut digest = Sha256::new();
        let mut field = |text: &str| {
            // The length keeps two fields from reading like one.
            digest.update(text.len().to_le_bytes());
            digest.update(text);
        };
        let window = &self.window;
        for text in [&window.start, &window.end, &window.requested_start, &window.requested_end] {
            field(text);
        }
        field(window.resolution.name());
        field(&self.digest);
        field(if self.complete { "complete" } else { "" });
        field(if self.exact { "exact" } else { "" });
        for (spans, extent) in [
            (&self.missing, self.missing_minutes),
            (&self.not_closed, self.not_closed_minutes),
            (&self.stale, self.stale_minutes),
            (&self.dirty, self.dirty_hours),
        ] {
            field(&extent.to_string());
            for span in spans {
                field(&span.start);
                field(&span.end);
            }
        }
        field(self.data_from.as_deref().unwrap_or(""));
        field(&self.suppressed_below.map_or_else(String::new, |below| below.to_string()));
        field(format.name());
        field(&registry_version.to_string());
        for text in shape {
            field(text);
        }
        format!("W/\"{}\"", hex(&short(digest)))
    }
}

/// One event type of a top answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ranked {
    /// Its place, from 1.
    pub rank: usize,
    /// Its name.
    pub event_type: String,
    /// Its id.
    #[schema(value_type = u16)]
    pub type_id: TypeId,
    /// Its count in the window.
    pub count: Count,
}

/// The answer to `GET /v1/stats/top`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TopAnswer {
    /// Window, completeness and provenance.
    #[serde(flatten)]
    pub envelope: Envelope,
    /// Events of all types, `other` included.
    pub total: Count,
    /// Events whose type the registry did not know. They have no rank: they are no event type.
    pub other: Count,
    /// The types with the greatest counts, ties in UTF-8 byte order of the name. Types without any
    /// event in the window are left out.
    pub results: Vec<Ranked>,
}

/// The slot whose name is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} has counts but the registry does not know it")]
pub struct UnknownSlot {
    /// The slot.
    pub slot: TypeId,
}

/// The `k` types with the greatest counts in `sum`, ties in UTF-8 byte order of the name.
///
/// # Errors
/// [`UnknownSlot`] if a slot that has counts has no name.
pub fn rank<'a>(
    sum: &CountVector,
    k: usize,
    name_of: impl Fn(TypeId) -> Option<&'a str>,
) -> Result<Vec<Ranked>, UnknownSlot> {
    let mut counted = Vec::with_capacity(sum.width());
    for (slot, count) in (0_u16..).zip(sum.counts()).skip(1).filter(|(_, count)| **count > 0) {
        let slot = TypeId(slot);
        counted.push((*count, name_of(slot).ok_or(UnknownSlot { slot })?, slot));
    }
    counted.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(other.1)));
    counted.truncate(k);
    let ranked = |(rank, (count, name, type_id)): (usize, (u64, &str, TypeId))| Ranked {
        rank,
        event_type: name.to_owned(),
        type_id,
        count: Count(count),
    };
    Ok((1..).zip(counted).map(ranked).collect())
}

/// One point of a series.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Point {
    /// First instant of its bucket.
    pub start: String,
    /// The type's count in it, as far as rows are there.
    pub count: Count,
    /// Like the answer's `complete`, for this bucket alone.
    pub complete: bool,
}

/// The answer to `GET /v1/stats/series`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeriesAnswer {
    /// Window, completeness and provenance.
    #[serde(flatten)]
    pub envelope: Envelope,
    /// Name of the event type.
    pub event_type: String,
    /// Its id.
    #[schema(value_type = u16)]
    pub type_id: TypeId,
    /// Width of a point.
    #[schema(value_type = String, pattern = "^(minute|hour|day)$")]
    pub granularity: Granularity,
    /// Sum of the points.
    pub total: Count,
    /// Every bucket of the window in order, those without events too.
    pub points: Vec<Point>,
}

/// Counts of one slot by point, while parts are added.
#[derive(Clone, Debug)]
pub struct PointSums {
    slot: TypeId,
    granularity: Granularity,
    start_ms: i64,
    counts: Vec<u64>,
}

impl PointSums {
    /// Zeros for every bucket of `granularity` in `range`, whose bounds are bounds of buckets.
    #[must_use]
    pub fn new(slot: TypeId, granularity: Granularity, range: TimeRange) -> Self {
        let points = (range.end_ms() - range.start_ms()) / granularity.width_ms();
        let points = usize::try_from(points).unwrap_or(0);
        Self { slot, granularity, start_ms: range.start_ms(), counts: vec![0; points] }
    }

    /// Adds the counts of a bucket that starts at `start_ms` and lies inside one point.
    ///
    /// # Errors
    /// [`VectorError::Overflow`].
    pub fn add(&mut self, start_ms: i64, vector: &CountVector) -> Result<(), VectorError> {
        let index = self.index(start_ms);
        if let Some(sum) = self.counts.get_mut(index) {
            let slot = usize::from(self.slot.0);
            *sum = sum.checked_add(vector.get(self.slot)).ok_or(VectorError::Overflow { slot })?;
        }
        Ok(())
    }

    /// The sum of all points.
    ///
    /// # Errors
    /// [`VectorError::Overflow`].
    pub fn total(&self) -> Result<u64, VectorError> {
        let slot = usize::from(self.slot.0);
        self.counts
            .iter()
            .try_fold(0_u64, |sum, count| sum.checked_add(*count))
            .ok_or(VectorError::Overflow { slot })
    }

    /// The points, each with its own completeness.
    #[must_use]
    pub fn points(&self, facts: &Facts, resolved: &Resolved) -> Vec<Point> {
        let mut whole = vec![true; self.counts.len()];
        for span in resolved.lacking().flat_map(Spans::spans) {
            // A dirty hour may begin before the first point and end after the last.
            let first = self.index(span.start_ms.max(self.start_ms));
            let end = self.index(span.end_ms - 1).saturating_add(1).min(whole.len());
            if let Some(touched) = whole.get_mut(first..end) {
                touched.fill(false);
            }
        }
        let width_ms = self.granularity.width_ms();
        let starts = (0..).map(|index: i64| self.start_ms + index * width_ms);
        starts
            .zip(self.counts.iter().zip(whole))
            .map(|(start_ms, (count, whole))| Point {
                start: format_rfc3339(start_ms),
                count: Count(*count),
                complete: Completeness::of(facts, start_ms + width_ms, whole).complete,
            })
            .collect()
    }

    fn index(&self, at_ms: i64) -> usize {
        let index = (at_ms - self.start_ms).div_euclid(self.granularity.width_ms());
        usize::try_from(index).unwrap_or(usize::MAX)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}
