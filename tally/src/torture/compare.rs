//! Comparing what was counted with what the model says. Pure; every difference is said in words.

use std::collections::BTreeMap;

use serde_json::Value;
use tally_model::bucket::Bucket;
use tally_model::time::format_rfc3339;
use tally_model::types::TypeId;
use tally_model::vector::CountVector;

/// Counts by (minute, slot); cells without an event are absent.
pub(super) type Cells = BTreeMap<(Bucket, TypeId), u64>;
/// The stored vectors by minute, every minute of a range; `None` = it has no row.
pub(super) type Stored = BTreeMap<Bucket, Option<CountVector>>;

/// What became of the records of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) records: u64,
    pub(super) counted: u64,
    pub(super) repeats: u64,
    pub(super) late: u64,
    pub(super) straggler: u64,
    pub(super) past_window: u64,
    pub(super) control: u64,
    pub(super) invalid: u64,
}

impl Totals {
    /// The totals in the report of `tally worker --bounded -o json`.
    pub(super) fn of_report(report: &Value) -> Option<Self> {
        let total = |name: &str| report.get(name)?.as_u64();
        let invalid = report.get("invalid")?.as_object()?;
        Some(Self {
            records: total("records")?,
            counted: total("counted")?,
            repeats: total("repeats")?,
            late: total("late")?,
            straggler: total("straggler")?,
            past_window: total("pastWindow")?,
            control: total("control")?,
            invalid: invalid.values().filter_map(Value::as_u64).sum(),
        })
    }

    fn by_cause(&self) -> [(&'static str, u64); 8] {
        [
            ("records", self.records),
            ("counted events", self.counted),
            ("repeats", self.repeats),
            ("late events", self.late),
            ("stragglers", self.straggler),
            ("events past the dedup window", self.past_window),
            ("control records", self.control),
            ("invalid records", self.invalid),
        ]
    }
}

/// Compares totals by cause. Of the events that should have counted, `excused` may be stragglers.
pub(super) fn totals(want: &Totals, got: &Totals, excused: u64) -> Vec<String> {
    let want = Totals {
        counted: want.counted.saturating_sub(excused),
        straggler: want.straggler + excused,
        ..*want
    };
    let pairs = want.by_cause().into_iter().zip(got.by_cause());
    pairs
        .filter(|((_, want), (_, got))| want != got)
        .map(|((cause, want), (_, got))| format!("{got} {cause} instead of {want}"))
        .collect()
}

/// Compares every cell. All minutes of `stored` must have a row, and every minute of `want` must be
/// among them. Of all events together, `excused` may be missing.
pub(super) fn cells(
    want: &Cells,
    stored: &Stored,
    excused: u64,
    name: impl Fn(TypeId) -> String,
) -> Vec<String> {
    let mut differences = Vec::new();
    let mut got = Cells::new();
    for (minute, vector) in stored {
        let Some(vector) = vector else {
            differences.push(format!("{} has no row", format_rfc3339(minute.start_ms())));
            continue;
        };
        let slots = (0..).map(TypeId).zip(vector.counts());
        got.extend(slots.filter(|(_, n)| **n > 0).map(|(slot, n)| ((*minute, slot), *n)));
    }
    let mut missing = 0;
    let mut fewer = Vec::new();
    let keys: std::collections::BTreeSet<_> = want.keys().chain(got.keys()).collect();
    for cell @ (minute, slot) in keys {
        let [want, got] = [want, &got].map(|cells| cells.get(cell).copied().unwrap_or(0));
        let say = || {
            let minute = format_rfc3339(minute.start_ms());
            format!("{minute} {} has {got} instead of {want}", name(*slot))
        };
        if got > want {
            differences.push(say());
        } else if got < want {
            missing += want - got;
            fewer.push(say());
        }
    }
    if missing != excused {
        differences.extend(fewer);
    }
    differences
}

/// Compares the published counts of late events by the hour of their eventTime, in ms since the
/// Unix epoch.
pub(super) fn late_hours(want: &BTreeMap<i64, u64>, got: &BTreeMap<i64, u64>) -> Vec<String> {
    let hours: std::collections::BTreeSet<i64> = want.keys().chain(got.keys()).copied().collect();
    let of = |counts: &BTreeMap<i64, u64>, hour| counts.get(&hour).copied().unwrap_or(0);
    hours
        .into_iter()
        .map(|hour| (hour, of(want, hour), of(got, hour)))
        .filter(|(_, want, got)| want != got)
        .map(|(hour, want, got)| {
            format!("the hour {} has {got} late events instead of {want}", format_rfc3339(hour))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_model::bucket::{HOUR_MS, MINUTE_MS};

    fn cell(minute: i64, slot: u16) -> (Bucket, TypeId) {
        (Bucket::minute(minute * MINUTE_MS), TypeId(slot))
    }

    fn row(counts: &[(u16, u64)]) -> Option<CountVector> {
        let mut vector = CountVector::default();
        for (slot, count) in counts {
            vector.set(TypeId(*slot), *count);
        }
        Some(vector)
    }

    fn compared(stored: [Option<CountVector>; 3], excused: u64) -> Vec<String> {
        let want = Cells::from([(cell(0, 1), 5), (cell(0, 2), 1), (cell(2, 1), 7)]);
        let minutes = [0, 1, 2].map(|minute| Bucket::minute(minute * MINUTE_MS));
        let stored = minutes.into_iter().zip(stored).collect();
        cells(&want, &stored, excused, |slot| format!("type {}", slot.0))
    }

    #[test]
    fn cells_differ_in_either_direction_and_quiet_minutes_need_a_row() {
        let [first, quiet, last] = [row(&[(1, 5), (2, 1)]), row(&[]), row(&[(1, 7)])];
        let none: [&str; 0] = [];
        assert_eq!(compared([first.clone(), quiet.clone(), last.clone()], 0), none);
        assert_eq!(
            compared([row(&[(1, 4), (2, 1), (3, 9)]), None, last.clone()], 0),
            [
                "1970-01-01T00:01:00Z has no row",
                "1970-01-01T00:00:00Z type 3 has 9 instead of 0",
                "1970-01-01T00:00:00Z type 1 has 4 instead of 5",
            ]
        );
        assert_eq!(
            compared([first, quiet, None], 0),
            ["1970-01-01T00:02:00Z has no row", "1970-01-01T00:02:00Z type 1 has 0 instead of 7"]
        );
    }

    #[test]
    fn only_as_many_events_are_excused_as_were_stragglers() {
        let stored = || [row(&[(1, 4), (2, 1)]), row(&[]), row(&[(1, 7)])];
        assert_eq!(compared(stored(), 1).len(), 0);
        assert_eq!(compared(stored(), 2).len(), 1);
        assert_eq!(compared([row(&[(1, 6), (2, 1)]), row(&[]), row(&[(1, 7)])], 1).len(), 1);
    }

    #[test]
    fn totals_are_compared_cause_by_cause() {
        let want = Totals { records: 10, counted: 7, repeats: 2, late: 1, ..Totals::default() };
        assert!(totals(&want, &want, 0).is_empty());
        let got = Totals { counted: 6, straggler: 1, ..want };
        assert!(totals(&want, &got, 1).is_empty());
        assert_eq!(
            totals(&want, &got, 0),
            ["6 counted events instead of 7", "1 stragglers instead of 0"]
        );
    }

    #[test]
    fn totals_are_those_of_the_report() {
        let report = serde_json::json!({
            "records": 9, "counted": 1, "repeats": 2, "late": 1, "straggler": 0, "pastWindow": 1,
            "control": 1, "invalid": {"empty": 1, "garbage": 2, "version": 0, "foreign": 0},
        });
        let want = Totals {
            records: 9,
            counted: 1,
            repeats: 2,
            late: 1,
            straggler: 0,
            past_window: 1,
            control: 1,
            invalid: 3,
        };
        assert_eq!(Totals::of_report(&report), Some(want));
        assert_eq!(Totals::of_report(&Value::Null), None);
    }

    #[test]
    fn late_events_are_compared_hour_by_hour() {
        let want = BTreeMap::from([(0, 3), (HOUR_MS, 2)]);
        assert!(late_hours(&want, &want.clone()).is_empty());
        let got = BTreeMap::from([(0, 3), (2 * HOUR_MS, 2)]);
        assert_eq!(
            late_hours(&want, &got),
            [
                "the hour 1970-01-01T01:00:00Z has 0 late events instead of 2",
                "the hour 1970-01-01T02:00:00Z has 2 late events instead of 0",
            ]
        );
    }
}
