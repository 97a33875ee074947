//! Buckets: the half-open, UTC-aligned stretches of time that counts are kept for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Milliseconds of one minute.
pub const MINUTE_MS: i64 = 60_000;
/// Milliseconds of one hour.
pub const HOUR_MS: i64 = 60 * MINUTE_MS;
/// Milliseconds of one day.
pub const DAY_MS: i64 = 24 * HOUR_MS;

/// How long a bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Granularity {
    /// 60 seconds, kept for 60 days by default.
    Minute,
    /// 60 minutes, kept for 2 years by default.
    Hour,
    /// 24 hours, kept for ever.
    Day,
}

impl Granularity {
    /// All three, finest first.
    pub const ALL: [Self; 3] = [Self::Minute, Self::Hour, Self::Day];

    /// The width in milliseconds.
    #[must_use]
    pub const fn width_ms(self) -> i64 {
        match self {
            Self::Minute => MINUTE_MS,
            Self::Hour => HOUR_MS,
            Self::Day => DAY_MS,
        }
    }

    /// The next finer granularity; `None` for minutes.
    #[must_use]
    pub const fn finer(self) -> Option<Self> {
        match self {
            Self::Minute => None,
            Self::Hour => Some(Self::Minute),
            Self::Day => Some(Self::Hour),
        }
    }

    /// The word used in the API: `minute`, `hour` or `day`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    /// Rounds down to a bucket boundary; instants before 1970 round towards the past.
    ///
    /// # Units
    /// Milliseconds since the Unix epoch, UTC.
    #[must_use]
    pub const fn floor(self, at_ms: i64) -> i64 {
        at_ms - at_ms.rem_euclid(self.width_ms())
    }

    /// Rounds up to a bucket boundary.
    #[must_use]
    pub const fn ceil(self, at_ms: i64) -> i64 {
        let floor = self.floor(at_ms);
        if floor == at_ms { at_ms } else { floor + self.width_ms() }
    }
}

impl fmt::Display for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One bucket: `[start, start + width)`, aligned to UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    granularity: Granularity,
    start_ms: i64,
}

impl Bucket {
    /// The bucket of `granularity` that holds the instant `at_ms` (ms since the Unix epoch).
    #[must_use]
    pub const fn containing(granularity: Granularity, at_ms: i64) -> Self {
        Self { granularity, start_ms: granularity.floor(at_ms) }
    }

    /// The minute bucket that holds the instant `at_ms`.
    #[must_use]
    pub const fn minute(at_ms: i64) -> Self {
        Self::containing(Granularity::Minute, at_ms)
    }

    /// How long the bucket is.
    #[must_use]
    pub const fn granularity(self) -> Granularity {
        self.granularity
    }

    /// First instant inside, in ms since the Unix epoch.
    #[must_use]
    pub const fn start_ms(self) -> i64 {
        self.start_ms
    }

    /// First instant after it, in ms since the Unix epoch.
    #[must_use]
    pub const fn end_ms(self) -> i64 {
        self.start_ms + self.granularity.width_ms()
    }

    /// The buckets of the next finer granularity that make up this one, in order; empty for a
    /// minute.
    pub fn children(self) -> impl Iterator<Item = Self> {
        let finer = self.granularity.finer();
        let (width, end) = match finer {
            Some(finer) => (finer.width_ms(), self.end_ms()),
            None => (MINUTE_MS, self.start_ms),
        };
        let granularity = finer.unwrap_or(Granularity::Minute);
        let mut start_ms = self.start_ms;
        std::iter::from_fn(move || {
            (start_ms < end).then(|| {
                let child = Self { granularity, start_ms };
                start_ms += width;
                child
            })
        })
    }

    /// The period whose rows are stored together with this bucket's.
    #[must_use]
    pub fn period(self) -> Period {
        Period::containing(self.granularity, self.start_ms)
    }
}

/// The rows that are stored, listed and deleted together: the minutes of one day, the hours of
/// one month, the days of one year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Period {
    granularity: Granularity,
    start_ms: i64,
    end_ms: i64,
}

impl Period {
    /// The period of `granularity` that holds the instant `at_ms`.
    #[must_use]
    pub fn containing(granularity: Granularity, at_ms: i64) -> Self {
        let (start_ms, end_ms) = match granularity {
            Granularity::Minute => {
                let day = Granularity::Day.floor(at_ms);
                (day, day + DAY_MS)
            }
            Granularity::Hour => crate::time::month_of(at_ms),
            Granularity::Day => crate::time::year_of(at_ms),
        };
        Self { granularity, start_ms, end_ms }
    }

    /// Granularity of the rows in it.
    #[must_use]
    pub const fn granularity(self) -> Granularity {
        self.granularity
    }

    /// First instant inside, in ms since the Unix epoch.
    #[must_use]
    pub const fn start_ms(self) -> i64 {
        self.start_ms
    }

    /// First instant after it, in ms since the Unix epoch.
    #[must_use]
    pub const fn end_ms(self) -> i64 {
        self.end_ms
    }

    /// The period that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self::containing(self.granularity, self.end_ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::strategies::{bucket, granularity, instant};
    use crate::time::parse_rfc3339;

    fn at(text: &str) -> i64 {
        parse_rfc3339(text).unwrap()
    }

    #[test]
    fn an_event_belongs_to_the_bucket_that_starts_with_it() {
        let boundary = at("2026-03-10T10:01:00Z");
        assert_eq!(Bucket::minute(boundary).start_ms(), boundary);
        assert_eq!(Bucket::minute(boundary - 1).end_ms(), boundary);
    }

    #[test]
    fn instants_before_1970_round_towards_the_past() {
        let cases = [
            (Granularity::Minute, -1, -MINUTE_MS),
            (Granularity::Minute, -MINUTE_MS, -MINUTE_MS),
            (Granularity::Hour, -1, -HOUR_MS),
            (Granularity::Day, -1, -DAY_MS),
            (Granularity::Day, -DAY_MS - 1, -2 * DAY_MS),
            (Granularity::Day, 0, 0),
        ];
        for (granularity, at_ms, start_ms) in cases {
            assert_eq!(Bucket::containing(granularity, at_ms).start_ms(), start_ms);
        }
    }

    #[test]
    fn rows_are_stored_by_day_month_and_year() {
        let instant = at("2024-02-29T13:14:15Z");
        let cases = [
            (Granularity::Minute, "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"),
            (Granularity::Hour, "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
            (Granularity::Day, "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
        ];
        for (granularity, start, end) in cases {
            let period = Period::containing(granularity, instant);
            assert_eq!((period.start_ms(), period.end_ms()), (at(start), at(end)));
            assert_eq!(period.granularity(), granularity);
        }
    }

    #[test]
    fn names_are_those_of_the_api() {
        for granularity in Granularity::ALL {
            let json = serde_json::to_string(&granularity).unwrap();
            assert_eq!(json, format!("\"{}\"", granularity.name()));
            assert_eq!(granularity.to_string(), granularity.name());
        }
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_instant_and_starts_at_a_whole_width(
            granularity in granularity(), at_ms in instant(),
        ) {
            let bucket = Bucket::containing(granularity, at_ms);
            prop_assert!((bucket.start_ms()..bucket.end_ms()).contains(&at_ms));
            prop_assert_eq!(bucket.start_ms() % granularity.width_ms(), 0);
            prop_assert_eq!(bucket.end_ms() - bucket.start_ms(), granularity.width_ms());
        }

        #[test]
        fn rounding_up_is_the_first_boundary_that_is_not_before(
            granularity in granularity(), at_ms in instant(),
        ) {
            let ceil = granularity.ceil(at_ms);
            prop_assert_eq!(granularity.floor(ceil), ceil);
            prop_assert!((0..granularity.width_ms()).contains(&(ceil - at_ms)));
        }

        #[test]
        fn children_make_up_their_bucket(bucket in bucket()) {
            let children: Vec<_> = bucket.children().collect();
            let count = match bucket.granularity() {
                Granularity::Minute => 0,
                Granularity::Hour => 60,
                Granularity::Day => 24,
            };
            prop_assert_eq!(children.len(), count);
            let mut next_ms = bucket.start_ms();
            for child in children {
                prop_assert_eq!(Some(child.granularity()), bucket.granularity().finer());
                prop_assert_eq!(child.start_ms(), next_ms);
                next_ms = child.end_ms();
            }
            prop_assert!(count == 0 || next_ms == bucket.end_ms());
        }

        /// Whole buckets, and a walk over periods always comes forward, at the last year too.
        #[test]
        fn periods_hold_whole_buckets_and_follow_each_other(bucket in bucket()) {
            let period = bucket.period();
            prop_assert!(period.start_ms() <= bucket.start_ms());
            prop_assert!(bucket.end_ms() <= period.end_ms());
            let next = period.next();
            prop_assert_eq!(next.start_ms(), period.end_ms());
            prop_assert!(next.end_ms() > next.start_ms());
        }
    }
}
