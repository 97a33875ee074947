//! What became of the records of a log.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use tally_model::reasons::InvalidReason;

/// What became of the records read. `records` is the sum of all others and of what is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records read.
    pub records: u64,
    /// Events counted.
    pub counted: u64,
    /// Copies of events that came before.
    pub repeats: u64,
    /// Events that were late by their own stamps.
    pub late: u64,
    /// Events that were on time by their stamps but read after their minute was retired.
    pub straggler: u64,
    /// Events too late to tell whether they were repeats.
    pub past_window: u64,
    /// Control records of collectors.
    pub control: u64,
    /// Skipped records by reason, in the order of [`InvalidReason::ALL`].
    pub(crate) invalid: [u64; INVALID_REASONS],
}

/// Length of [`InvalidReason::ALL`].
pub(crate) const INVALID_REASONS: usize = InvalidReason::ALL.len();

impl Totals {
    /// Records skipped for `reason`.
    #[must_use]
    pub fn invalid(&self, reason: InvalidReason) -> u64 {
        self.invalid[place(reason)]
    }

    /// Notes a record skipped for `reason`.
    pub(crate) fn skip(&mut self, reason: InvalidReason) {
        self.invalid[place(reason)] += 1;
    }
}

impl Totals {
    /// The totals by the names under which a checkpoint keeps them, without zeros.
    pub(crate) fn by_name(&self) -> BTreeMap<String, u64> {
        let mut copy = *self;
        let named = copy.named().map(|(name, total)| (name, *total));
        named.into_iter().filter(|(_, total)| *total > 0).collect()
    }

    /// What a checkpoint keeps. Names that only a newer release knows are left out.
    pub(crate) fn from_names(names: &BTreeMap<String, u64>) -> Self {
        let mut totals = Self::default();
        for (name, total) in totals.named() {
            *total = names.get(&name).copied().unwrap_or(0);
        }
        totals
    }

    fn named(&mut self) -> [(String, &mut u64); 7 + INVALID_REASONS] {
        let [empty, garbage, version, foreign] = &mut self.invalid;
        let invalid = |reason: InvalidReason| format!("invalid_{}", reason.code());
        [
            ("records".to_owned(), &mut self.records),
            ("counted".to_owned(), &mut self.counted),
            ("repeats".to_owned(), &mut self.repeats),
            ("late".to_owned(), &mut self.late),
            ("straggler".to_owned(), &mut self.straggler),
            ("past_window".to_owned(), &mut self.past_window),
            ("control".to_owned(), &mut self.control),
            (invalid(InvalidReason::Empty), empty),
            (invalid(InvalidReason::Garbage), garbage),
            (invalid(InvalidReason::Version), version),
            (invalid(InvalidReason::Foreign), foreign),
        ]
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.counted += other.counted;
        self.repeats += other.repeats;
        self.late += other.late;
        self.straggler += other.straggler;
        self.past_window += other.past_window;
        self.control += other.control;
        for (total, by) in self.invalid.iter_mut().zip(other.invalid) {
            *total += by;
        }
    }
}

fn place(reason: InvalidReason) -> usize {
    match reason {
        InvalidReason::Empty => 0,
        InvalidReason::Garbage => 1,
        InvalidReason::Version => 2,
        InvalidReason::Foreign => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_the_same_after_a_checkpoint_and_add_up_field_by_field() {
        let mut totals = Totals::default();
        for (number, (_, total)) in (1..).zip(totals.named()) {
            *total = number;
        }
        assert_eq!(totals.by_name().len(), 7 + INVALID_REASONS);
        assert_eq!(Totals::from_names(&totals.by_name()), totals);
        let mut twice = totals;
        twice += totals;
        let doubled = totals.by_name().into_iter().map(|(name, total)| (name, 2 * total));
        assert_eq!(twice.by_name(), doubled.collect());
        let unknown = [("of a newer release".to_owned(), 7)].into();
        assert_eq!(Totals::from_names(&unknown), Totals::default());
    }
}
