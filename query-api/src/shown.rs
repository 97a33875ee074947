//! What a token may see: exact counts, or only counts that are not small.
//!
//! A token without the raw scope sees cells: the counts of one event type in one UTC hour. Cells
//! below a threshold are dropped before anything is added. An hour's cells stand in its row, or in
//! the sum of its minutes; those of a day are added up by the rollup ([`tally_sinks::suppressed`]),
//! and where that sum is missing the day is read by its hours. So an answer is a sum of cells that
//! may be shown, whatever rows it was made from, and so is the difference of any two answers.
//!
//! Invariant Q-4 of ARCHITECTURE.md.

use std::collections::BTreeMap;

use tally_model::bucket::{Bucket, Granularity};
use tally_model::range::{Run, TimeRange};
use tally_model::time::format_rfc3339;
use tally_model::vector::{CountVector, VectorError};
use tally_sinks::suppressed::{SuppressedDay, shown};

use crate::answer::final_until_ms;
use crate::ask::Rules;
use crate::problem::{Code, Problem};
use crate::resolve::{Facts, Part, Resolved, Version};

/// What the holder of a token may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Everything.
    Raw,
    /// Cells of at least so many events.
    Shown {
        /// The smallest count that is shown.
        below: u64,
    },
}

impl View {
    /// What may be asked for with it. `width_min_ms` is the shortest range of suppressed answers.
    #[must_use]
    pub const fn rules(self, width_min_ms: i64) -> Rules {
        match self {
            Self::Raw => Rules::RAW,
            Self::Shown { .. } => Rules { finest: Granularity::Hour, width_min_ms },
        }
    }

    /// The threshold; `None` if everything is shown.
    #[must_use]
    pub const fn below(self) -> Option<u64> {
        match self {
            Self::Raw => None,
            Self::Shown { below } => Some(below),
        }
    }

    /// Checks that a range may be shown already: a cell that still grows would be told by its
    /// differences from minute to minute.
    ///
    /// # Errors
    /// A problem that says how far the token may ask.
    pub fn check_final(self, range: TimeRange, facts: &Facts) -> Result<(), Problem> {
        if self == Self::Raw {
            return Ok(());
        }
        let until_ms = final_until_ms(facts).map(|until_ms| Granularity::Hour.floor(until_ms));
        if until_ms.is_some_and(|until_ms| range.end_ms() <= until_ms) {
            return Ok(());
        }
        let message = match until_ms {
            Some(until_ms) => format!(
                "without the scope stats:raw only final counts are shown, now those before {}",
                format_rfc3339(until_ms)
            ),
            None => "without the scope stats:raw only final counts are shown, and none is yet"
                .to_owned(),
        };
        Err(Problem::field(Code::NotFinal, "end", message))
    }
}

/// The days of a question whose suppressed sums are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownDays {
    days: BTreeMap<Bucket, SuppressedDay>,
}

impl ShownDays {
    /// These days.
    #[must_use]
    pub fn new(days: impl IntoIterator<Item = SuppressedDay>) -> Self {
        Self { days: days.into_iter().map(|day| (day.day, day)).collect() }
    }

    /// The same buckets, but days without a suppressed sum by their hours.
    #[must_use]
    pub fn split(&self, runs: &[Run]) -> Vec<Run> {
        let mut split: Vec<Run> = Vec::new();
        for bucket in runs.iter().flat_map(|run| run.buckets()) {
            let granularity = match bucket.granularity() {
                Granularity::Day if !self.days.contains_key(&bucket) => Granularity::Hour,
                other => other,
            };
            let (start_ms, end_ms) = (bucket.start_ms(), bucket.end_ms());
            match split.last_mut() {
                Some(last) if last.granularity == granularity => last.end_ms = end_ms,
                Some(_) | None => split.push(Run { granularity, start_ms, end_ms }),
            }
        }
        split
    }

    /// Puts the suppressed sum in place of each day's own row.
    #[must_use]
    pub fn mark(&self, mut resolved: Resolved) -> Resolved {
        for part in &mut resolved.parts {
            if let Some(SuppressedDay { digest, below, .. }) = self.days.get(&part.bucket) {
                part.version = Version::Shown { digest: *digest, below: *below };
            }
        }
        resolved
    }
}

/// The cells of vectors that come in any order.
#[derive(Debug)]
pub struct Cells {
    view: View,
    /// Sums of the minutes of hours that came in parts.
    parts: BTreeMap<Bucket, CountVector>,
}

impl Cells {
    /// No cells yet.
    #[must_use]
    pub const fn new(view: View) -> Self {
        Self { view, parts: BTreeMap::new() }
    }

    /// Hands what may be shown of a part to `add`, now or at the end.
    ///
    /// # Errors
    /// [`VectorError::Overflow`].
    ///
    /// # Panics
    /// On a day's own row where cells are to be shown: [`ShownDays`] lets none through.
    pub fn add(
        &mut self,
        part: &Part,
        vector: &CountVector,
        add: impl FnOnce(Bucket, &CountVector) -> Result<(), VectorError>,
    ) -> Result<(), VectorError> {
        let View::Shown { below } = self.view else {
            return add(part.bucket, vector);
        };
        match (part.version, part.bucket.granularity()) {
            (Version::Shown { .. }, _) => add(part.bucket, vector),
            (_, Granularity::Hour) => add(part.bucket, &shown(vector, below)),
            (_, Granularity::Minute) => {
                let hour = Bucket::containing(Granularity::Hour, part.bucket.start_ms());
                self.parts.entry(hour).or_default().add(vector)
            }
            (_, Granularity::Day) => {
                unreachable!("Q-4: a day is shown by its suppressed sum or by its hours")
            }
        }
    }

    /// Hands over the hours that came in parts.
    ///
    /// # Errors
    /// [`VectorError::Overflow`].
    pub fn finish(
        self,
        mut add: impl FnMut(Bucket, &CountVector) -> Result<(), VectorError>,
    ) -> Result<(), VectorError> {
        let View::Shown { below } = self.view else {
            return Ok(());
        };
        self.parts.iter().try_for_each(|(hour, vector)| add(*hour, &shown(vector, below)))
    }
}
