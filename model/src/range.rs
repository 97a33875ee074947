//! Range decomposition: which buckets answer a question about `[start, end)`.
//!
//! Invariant Q-1 of ARCHITECTURE.md.

#[cfg(test)]
mod tests;

use crate::bucket::{Bucket, Granularity};
use crate::time::{MAX_MS, MIN_MS, format_rfc3339};

/// A half-open range on minute boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    start_ms: i64,
    end_ms: i64,
}

/// A range that cannot be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Nothing lies in it.
    #[error("the start must lie before the end")]
    Empty,
    /// A bound is finer than a minute.
    #[error(
        "the {bound} is not a whole minute; the nearest are {} and {}",
        format_rfc3339(*.below_ms),
        format_rfc3339(*.above_ms)
    )]
    Unaligned {
        /// Which bound: `start` or `end`.
        bound: &'static str,
        /// The minute boundary before it, ms since the Unix epoch.
        below_ms: i64,
        /// The minute boundary after it, ms since the Unix epoch.
        above_ms: i64,
    },
    /// A bound is an instant that no record can carry.
    #[error("the {bound} lies outside the years 1 to 9999")]
    OutOfRange {
        /// Which bound: `start` or `end`.
        bound: &'static str,
    },
}

impl TimeRange {
    /// The range `[start_ms, end_ms)` in ms since the Unix epoch.
    ///
    /// # Errors
    /// [`RangeError`] if it is empty, a bound is finer than a minute, or a bound lies outside the
    /// years that records can carry.
    pub const fn new(start_ms: i64, end_ms: i64) -> Result<Self, RangeError> {
        if start_ms >= end_ms {
            return Err(RangeError::Empty);
        }
        if start_ms < MIN_MS {
            return Err(RangeError::OutOfRange { bound: "start" });
        }
        if end_ms > MAX_MS + 1 {
            return Err(RangeError::OutOfRange { bound: "end" });
        }
        let minute = Granularity::Minute;
        if minute.floor(start_ms) != start_ms {
            return Err(RangeError::Unaligned {
                bound: "start",
                below_ms: minute.floor(start_ms),
                above_ms: minute.ceil(start_ms),
            });
        }
        if minute.floor(end_ms) != end_ms {
            return Err(RangeError::Unaligned {
                bound: "end",
                below_ms: minute.floor(end_ms),
                above_ms: minute.ceil(end_ms),
            });
        }
        Ok(Self { start_ms, end_ms })
    }

    /// First instant inside, ms since the Unix epoch.
    #[must_use]
    pub const fn start_ms(self) -> i64 {
        self.start_ms
    }

    /// First instant after it, ms since the Unix epoch.
    #[must_use]
    pub const fn end_ms(self) -> i64 {
        self.end_ms
    }

    /// The fewest aligned buckets that cover the range exactly; where the rows of an edge are past
    /// retention, the edge widens to hours or days.
    #[must_use]
    pub fn plan(self, availability: &Availability) -> Plan {
        let window = Self {
            start_ms: availability.widen(self.start_ms, Granularity::floor),
            end_ms: availability.widen(self.end_ms, Granularity::ceil),
        };
        Plan { requested: self, window, runs: runs(window) }
    }
}

/// From when on the finer rows are kept, by the calendar: both bounds are starts of UTC days, and
/// hours are kept at least as long as minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Availability {
    /// First instant that still has minute rows, ms since the Unix epoch.
    pub minutes_from_ms: i64,
    /// First instant that still has hour rows, ms since the Unix epoch.
    pub hours_from_ms: i64,
}

impl Availability {
    /// Everything is kept.
    pub const ALL: Self = Self { minutes_from_ms: i64::MIN, hours_from_ms: i64::MIN };

    /// What is kept at `now_ms` with these retentions in days.
    #[must_use]
    pub const fn at(now_ms: i64, minutes_days: i64, hours_days: i64) -> Self {
        Self {
            minutes_from_ms: crate::time::days_before(now_ms, minutes_days),
            hours_from_ms: crate::time::days_before(now_ms, hours_days),
        }
    }

    /// The finest granularity whose rows are kept around a bound.
    const fn finest_at(&self, at_ms: i64) -> Granularity {
        // An hour is cut into minutes only if all of them are kept, a day into hours likewise.
        // Retention is cut at day starts, so the start of the hour (or day) decides for the whole.
        if Granularity::Hour.floor(at_ms) >= self.minutes_from_ms {
            Granularity::Minute
        } else if Granularity::Day.floor(at_ms) >= self.hours_from_ms {
            Granularity::Hour
        } else {
            Granularity::Day
        }
    }

    fn widen(&self, at_ms: i64, round: fn(Granularity, i64) -> i64) -> i64 {
        round(self.finest_at(at_ms), at_ms)
    }
}

/// Consecutive buckets of one granularity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Granularity of the buckets.
    pub granularity: Granularity,
    /// Start of the first, ms since the Unix epoch.
    pub start_ms: i64,
    /// End of the last, ms since the Unix epoch.
    pub end_ms: i64,
}

impl Run {
    /// The buckets in order.
    pub fn buckets(self) -> impl Iterator<Item = Bucket> {
        let step = usize::try_from(self.granularity.width_ms()).unwrap_or(usize::MAX);
        (self.start_ms..self.end_ms)
            .step_by(step)
            .map(move |start| Bucket::containing(self.granularity, start))
    }
}

/// How a range is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What was asked for.
    pub requested: TimeRange,
    /// What is answered: `requested`, or wider where retention took the finer rows.
    pub window: TimeRange,
    /// Runs of buckets that follow each other without gap; at most five, minutes outside.
    pub runs: Vec<Run>,
}

impl Plan {
    /// Whether retention widened the range.
    #[must_use]
    pub fn widened(&self) -> bool {
        self.window != self.requested
    }

    /// All buckets in order of time.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> {
        self.runs.iter().flat_map(|run| run.buckets())
    }

    /// The coarsest resolution at which the window's bounds are exact.
    #[must_use]
    pub fn finest(&self) -> Granularity {
        self.runs.iter().map(|run| run.granularity).min().unwrap_or(Granularity::Day)
    }
}

/// Minutes up to the first hour, hours up to the first day, days, hours, minutes: each bucket is
/// the largest aligned one that fits, which is the fewest.
fn runs(window: TimeRange) -> Vec<Run> {
    let (start, end) = (window.start_ms, window.end_ms);
    let [hour_from, hour_to] = [Granularity::Hour.ceil(start), Granularity::Hour.floor(end)];
    let [day_from, day_to] = [Granularity::Day.ceil(start), Granularity::Day.floor(end)];
    let mut runs = Vec::with_capacity(5);
    let mut push = |granularity, start_ms, end_ms| {
        if start_ms < end_ms {
            runs.push(Run { granularity, start_ms, end_ms });
        }
    };
    if hour_from >= hour_to {
        push(Granularity::Minute, start, end);
    } else {
        push(Granularity::Minute, start, hour_from);
        if day_from >= day_to {
            push(Granularity::Hour, hour_from, hour_to);
        } else {
            push(Granularity::Hour, hour_from, day_from);
            push(Granularity::Day, day_from, day_to);
            push(Granularity::Hour, day_to, hour_to);
        }
        push(Granularity::Minute, hour_to, end);
    }
    runs
}
