//! The naive model of what a count is. Every path of the system is held against it; it is the only
//! definition that tests use, and it is written to be read, not to be fast.
//!
//! The count of (minute, slot) at a position of the log is the number of ids whose *first copy*
//! lies before that position and has its eventTime in the minute. First copy means log order,
//! within the dedup window by [`DedupRule`].

use std::collections::{BTreeMap, HashMap};

use crate::bucket::Bucket;
use crate::ids::EventId;
use crate::rules::{DedupBucket, DedupRule, Timing};
use crate::types::TypeId;

/// One record of the log, as far as counting goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    /// The event id.
    pub id: EventId,
    /// The slot stamped on the record.
    pub slot: TypeId,
    /// Client clock after clamping, ms since the Unix epoch.
    pub event_time_ms: i64,
    /// Server clock, ms since the Unix epoch.
    pub received_at_ms: i64,
}

/// The truth about a log that was read from its start.
#[derive(Clone, Debug)]
pub struct Truth {
    rule: DedupRule,
    timing: Timing,
    first_seen: HashMap<EventId, DedupBucket>,
    counts: BTreeMap<(Bucket, TypeId), u64>,
    late: BTreeMap<(Bucket, TypeId), u64>,
    repeats: u64,
}

impl Truth {
    /// The truth about an empty log.
    #[must_use]
    pub fn new(rule: DedupRule, timing: Timing) -> Self {
        Self {
            rule,
            timing,
            first_seen: HashMap::new(),
            counts: BTreeMap::new(),
            late: BTreeMap::new(),
            repeats: 0,
        }
    }

    /// Takes the next record in log order. Returns whether it was a first copy.
    pub fn append(&mut self, event: &LoggedEvent) -> bool {
        let copy = self.rule.bucket(event.received_at_ms);
        if let Some(first) = self.first_seen.get(&event.id)
            && self.rule.is_repeat(*first, copy)
        {
            self.repeats += 1;
            return false;
        }
        self.first_seen.insert(event.id, copy);
        let minute = Bucket::minute(event.event_time_ms);
        *self.counts.entry((minute, event.slot)).or_default() += 1;
        if self.timing.is_late(minute, event.received_at_ms) {
            *self.late.entry((minute, event.slot)).or_default() += 1;
        }
        true
    }

    /// Counts by (minute, slot): what a recount must find. Cells without an event are absent.
    #[must_use]
    pub const fn counts(&self) -> &BTreeMap<(Bucket, TypeId), u64> {
        &self.counts
    }

    /// Counts by (minute, slot) without the late events: what streaming must find where no record
    /// was a straggler or past the dedup window.
    #[must_use]
    pub fn streaming_counts(&self) -> BTreeMap<(Bucket, TypeId), u64> {
        let late_of = |cell| self.late.get(cell).copied().unwrap_or(0);
        self.counts
            .iter()
            .map(|(cell, count)| (*cell, count - late_of(cell)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// How many first copies were late by their stamps.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late.values().sum()
    }

    /// How many records were copies of an event already taken.
    #[must_use]
    pub const fn repeats(&self) -> u64 {
        self.repeats
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bucket::{DAY_MS, HOUR_MS, MINUTE_MS};

    fn event(id: u8, slot: u16, event_time_ms: i64, received_at_ms: i64) -> LoggedEvent {
        LoggedEvent { id: EventId([id; 16]), slot: TypeId(slot), event_time_ms, received_at_ms }
    }

    /// What each append said, and the truth at the end of the log.
    fn read(log: &[LoggedEvent]) -> (Vec<bool>, Truth) {
        let mut truth = Truth::new(DedupRule::DEFAULT, Timing::DEFAULT);
        let first_copies = log.iter().map(|event| truth.append(event)).collect();
        (first_copies, truth)
    }

    fn cell(minute_ms: i64, slot: u16) -> (Bucket, TypeId) {
        (Bucket::minute(minute_ms), TypeId(slot))
    }

    #[test]
    fn a_repeat_counts_as_nothing_whatever_it_says() {
        // The second copy has another type and another minute: the first in log order stands.
        let log =
            [event(1, 3, 0, 10), event(1, 4, MINUTE_MS, MINUTE_MS), event(2, 3, 59_999, 60_000)];
        let (first_copies, truth) = read(&log);
        assert_eq!(first_copies, [true, false, true]);
        assert_eq!(truth.counts(), &BTreeMap::from([(cell(0, 3), 2)]));
        assert_eq!((truth.repeats(), truth.late()), (1, 0));
    }

    #[test]
    fn copies_are_repeats_up_to_the_last_bucket_of_the_window() {
        // First copies at the start and at the end of the same dedup bucket, repeated at the same
        // instants seven and eight buckets later.
        let [early, late] = [0, DAY_MS - 1];
        for (first, copy, repeats) in [
            (early, 8 * DAY_MS - 1, 1),
            (late, 8 * DAY_MS - 1, 1),
            (early, 8 * DAY_MS, 0),
            (late, 8 * DAY_MS, 0),
        ] {
            let (_, truth) = read(&[event(1, 1, first, first), event(1, 1, copy, copy)]);
            assert_eq!(truth.repeats(), repeats, "{first} {copy}");
        }
    }

    #[test]
    fn a_repeat_does_not_prolong_the_window() {
        let log = [0, 7, 8].map(|day| event(1, 1, day * DAY_MS, day * DAY_MS));
        assert_eq!(read(&log).0, [true, false, true]);
    }

    #[test]
    fn a_copy_past_the_window_is_a_new_event_with_a_window_of_its_own() {
        let log = [0, 8, 15, 16].map(|day| event(1, 1, day * DAY_MS, day * DAY_MS));
        assert_eq!(read(&log).0, [true, true, false, true]);
    }

    #[test]
    fn a_copy_with_an_earlier_stamp_is_a_repeat() {
        let log = [event(1, 1, 0, 20 * DAY_MS), event(1, 1, 0, 0)];
        assert_eq!(read(&log).0, [true, false]);
    }

    #[test]
    fn a_late_event_is_in_the_truth_but_not_in_streaming() {
        let bound = MINUTE_MS + 17 * MINUTE_MS;
        let log = [event(1, 1, 0, bound), event(2, 1, 0, bound + 1), event(3, 2, 0, HOUR_MS)];
        let (_, truth) = read(&log);
        assert_eq!(truth.counts(), &BTreeMap::from([(cell(0, 1), 2), (cell(0, 2), 1)]));
        assert_eq!(truth.streaming_counts(), BTreeMap::from([(cell(0, 1), 1)]));
        assert_eq!(truth.late(), 2);
    }

    #[test]
    fn a_late_first_copy_makes_an_on_time_one_a_repeat() {
        let log = [event(1, 1, 0, HOUR_MS), event(1, 1, HOUR_MS, HOUR_MS)];
        let (_, truth) = read(&log);
        assert_eq!((truth.repeats(), truth.late()), (1, 1));
        assert!(truth.streaming_counts().is_empty());
    }

    /// The definition once more, read off the whole log: a record counts iff no record that counts
    /// before it has its id and is near enough.
    fn counts_by_definition(log: &[LoggedEvent]) -> Vec<bool> {
        let rule = DedupRule::DEFAULT;
        let mut counts: Vec<bool> = Vec::new();
        for event in log {
            let copy = rule.bucket(event.received_at_ms);
            let repeat = log.iter().zip(&counts).any(|(first, counted)| {
                *counted
                    && first.id == event.id
                    && rule.is_repeat(rule.bucket(first.received_at_ms), copy)
            });
            counts.push(!repeat);
        }
        counts
    }

    proptest! {
        /// Remembering the last first copy of an id is enough, and every record is counted once.
        #[test]
        fn every_record_is_counted_or_a_repeat(
            log in prop::collection::vec((0_u8..4, 0_u16..3, 0..30 * DAY_MS, 0..DAY_MS), 0..60),
        ) {
            let log: Vec<_> = log
                .into_iter()
                .map(|(id, slot, received, age)| event(id, slot, received - age, received))
                .collect();
            let (first_copies, truth) = read(&log);
            prop_assert_eq!(&first_copies, &counts_by_definition(&log));
            let counted: u64 = truth.counts().values().sum();
            let streamed: u64 = truth.streaming_counts().values().sum();
            prop_assert_eq!(counted + truth.repeats(), u64::try_from(log.len()).unwrap());
            prop_assert_eq!(streamed + truth.late(), counted);
        }
    }
}
