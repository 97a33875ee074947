//! Dirty hours that only rise, whoever writes them and whatever gets lost.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::faults::Fault;
use crate::meta::failing::FailingMeta;
use crate::meta::memory::MemoryMeta;
use crate::meta::scan_all;

type Hours = BTreeMap<i64, DirtyHour>;

const ALL: Range<i64> = i64::MIN..i64::MAX;

fn late(late: u64) -> DirtyHour {
    DirtyHour { late, positions: BTreeMap::from([(0, late)]), ..DirtyHour::default() }
}

#[test]
fn raising_takes_the_greater_of_each_field_and_adding_sums_the_counts() {
    let one = DirtyHour {
        late: 5,
        straggler: 1,
        past_window: 0,
        hole: true,
        superseded: false,
        positions: BTreeMap::from([(0, 10), (1, 3)]),
    };
    let other = DirtyHour {
        late: 2,
        straggler: 4,
        past_window: 7,
        hole: false,
        superseded: true,
        positions: BTreeMap::from([(0, 8), (2, 1)]),
    };
    let positions = BTreeMap::from([(0, 10), (1, 3), (2, 1)]);
    let (mut raised, mut added) = (one.clone(), one);
    raised.raise(&other);
    added.add(&other);
    let flags = DirtyHour { hole: true, superseded: true, positions, ..DirtyHour::default() };
    let want =
        |late, straggler, past_window| DirtyHour { late, straggler, past_window, ..flags.clone() };
    assert_eq!(raised, want(5, 4, 7));
    assert_eq!(added, want(7, 5, 7));
    assert!(!added.is_clean());
    assert!(DirtyHour::default().is_clean());
}

#[test]
fn hours_are_listed_by_time_from_before_the_epoch_on_and_only_those_that_start_in_the_range() {
    let store = MemoryMeta::default();
    let hours: Hours = [-2, -1, 0, 3].map(|hour| (hour * HOUR_MS, late(1))).into();
    raise(&store, &hours).unwrap();
    // (range in hours and ms, starts found in hours)
    let cases: [(Range<i64>, &[i64]); 7] = [
        (ALL, &[-2, -1, 0, 3]),
        (-2 * HOUR_MS..0, &[-2, -1]),
        (-2 * HOUR_MS + 1..1, &[-1, 0]),
        (1..3 * HOUR_MS, &[]),
        (3 * HOUR_MS..3 * HOUR_MS + 1, &[3]),
        (HOUR_MS..HOUR_MS, &[]),
        (Range { start: HOUR_MS, end: 0 }, &[]),
    ];
    for (range, want) in cases {
        let found: Vec<i64> =
            list(&store, range.clone()).unwrap().keys().map(|start| start / HOUR_MS).collect();
        assert_eq!(found, want, "{range:?}");
    }
}

#[test]
fn more_hours_than_a_page_holds_are_all_listed() {
    let store = MemoryMeta::default();
    let hours: Hours = (0..2_500).map(|hour| (hour * HOUR_MS, late(1))).collect();
    raise(&store, &hours).unwrap();
    assert_eq!(list(&store, ALL).unwrap(), hours);
    let some = list(&store, 7 * HOUR_MS..2_007 * HOUR_MS).unwrap();
    assert_eq!(some.len(), 2_000);
}

#[test]
fn nothing_is_written_for_what_stands_already_or_for_hours_without_a_note() {
    let store = FailingMeta::new(MemoryMeta::default());
    raise(&store, &Hours::from([(0, late(5)), (HOUR_MS, DirtyHour::default())])).unwrap();
    assert_eq!(scan_all(store.inner(), DIRTY, None).unwrap().len(), 1);
    store.script_writes([Some(Fault::Refused)]);
    raise(&store, &Hours::from([(0, late(4)), (HOUR_MS, DirtyHour::default())])).unwrap();
    raise(&store, &Hours::new()).unwrap();
    assert!(raise(&store, &Hours::from([(0, late(6))])).is_err(), "the first write since");
}

#[test]
fn hours_without_a_row_come_in_one_commit() {
    let store = FailingMeta::new(MemoryMeta::default());
    // A second write would be refused.
    store.script_writes([None, Some(Fault::Refused)]);
    let hours: Hours = (0..100).map(|hour| (hour * HOUR_MS, late(1))).collect();
    raise(&store, &hours).unwrap();
    assert_eq!(list(&store, ALL).unwrap(), hours);
}

#[test]
fn lost_answers_are_settled_by_reading_again() {
    for fault in [Fault::AppliedThenLost, Fault::LostBeforeApplied] {
        let store = FailingMeta::new(MemoryMeta::default());
        store.script_writes([Some(fault), Some(fault)]);
        let hours = Hours::from([(0, late(5)), (HOUR_MS, late(6))]);
        raise(&store, &hours).unwrap();
        assert_eq!(list(&store, ALL).unwrap(), hours, "{fault:?}");
    }
}

#[test]
fn an_hour_that_starts_between_two_hours_is_refused_and_nothing_is_stored() {
    let store = MemoryMeta::default();
    let hours = Hours::from([(0, late(1)), (60_000, late(1))]);
    assert!(matches!(raise(&store, &hours), Err(StoreError::Unstorable { .. })));
    assert!(list(&store, ALL).unwrap().is_empty());
}

#[test]
fn rows_that_are_no_dirty_hours_are_reported() {
    let bad: [(&[u8], &[u8]); 3] =
        [(b"short", b"{}"), (&ordered(1), b"{}"), (&ordered(0), b"{\"late\":1}")];
    for (key, value) in bad {
        let store = MemoryMeta::default();
        store.put_if(DIRTY, key, None, value).unwrap();
        assert!(matches!(list(&store, ALL), Err(StoreError::Corrupt { .. })), "{key:02x?}");
    }
}

#[test]
fn a_stored_row_reads_back_as_it_is_written_today() {
    let store = MemoryMeta::default();
    let golden = br#"{"late":3,"straggler":2,"pastWindow":1,"hole":true,"superseded":false,"positions":{"0":17,"11":4}}"#;
    store.put_if(DIRTY, &ordered(HOUR_MS), None, golden).unwrap();
    let hours = list(&store, ALL).unwrap();
    assert_eq!(hours[&HOUR_MS].positions, BTreeMap::from([(0, 17), (11, 4)]));
    assert_eq!(encode(&hours[&HOUR_MS]).unwrap(), golden);
}

fn hour() -> impl Strategy<Value = DirtyHour> {
    let counts = (0_u64..4, 0_u64..4, 0_u64..4);
    let positions = prop::collection::btree_map(0_u32..3, 0_u64..5, 0..3);
    (counts, any::<bool>(), any::<bool>(), positions).prop_map(
        |((late, straggler, past_window), hole, superseded, positions)| DirtyHour {
            late,
            straggler,
            past_window,
            hole,
            superseded,
            positions,
        },
    )
}

fn hours() -> impl Strategy<Value = Hours> {
    prop::collection::btree_map((-3_i64..3).prop_map(|hour| hour * HOUR_MS), hour(), 0..5)
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(Fault::Refused)),
        1 => Just(Some(Fault::AppliedThenLost)),
        1 => Just(Some(Fault::LostBeforeApplied)),
    ]
}

/// The field-wise maximum of everything raised.
fn greatest<'a>(raised: impl IntoIterator<Item = &'a Hours>) -> Hours {
    let mut greatest = Hours::new();
    for (start_ms, hour) in raised.into_iter().flatten().filter(|(_, hour)| !hour.is_clean()) {
        greatest.entry(*start_ms).or_default().raise(hour);
    }
    greatest
}

/// Whether raising to `high` after `low` leaves `high`.
fn covers(high: &Hours, low: &Hours) -> bool {
    greatest([high, low]) == *high
}

proptest! {
    /// Whatever gets lost on the way: what is stored never falls, never passes the maximum of what
    /// was given, holds all that was acknowledged, and a repeat of everything is that maximum.
    #[test]
    fn raises_add_up_to_the_greatest_of_each_field(
        given in prop::collection::vec(hours(), 1..12),
        faults in prop::collection::vec(fault(), 0..30),
    ) {
        let store = FailingMeta::new(MemoryMeta::default());
        store.script_writes(faults);
        let want = greatest(&given);
        let mut before = Hours::new();
        for hours in &given {
            let told = raise(&store, hours);
            let after = list(store.inner(), ALL).unwrap();
            prop_assert!(covers(&after, &before), "nothing falls");
            prop_assert!(covers(&want, &after), "nothing is made up");
            match told {
                Ok(()) => prop_assert!(covers(&after, &greatest([hours]))),
                Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. }) => {}
                Err(other) => prop_assert!(false, "{other}"),
            }
            before = after;
        }
        for hours in &given {
            raise(store.inner(), hours).unwrap();
        }
        prop_assert_eq!(list(store.inner(), ALL).unwrap(), want);
    }

    /// Several writers at once come to the same end.
    #[test]
    fn racing_raises_add_up_to_the_greatest_of_each_field(
        given in prop::collection::vec(prop::collection::vec(hours(), 1..6), 2..4),
    ) {
        let store = MemoryMeta::default();
        std::thread::scope(|scope| {
            for writer in &given {
                scope.spawn(|| writer.iter().for_each(|hours| raise(&store, hours).unwrap()));
            }
        });
        prop_assert_eq!(list(&store, ALL).unwrap(), greatest(given.iter().flatten()));
    }
}
