use proptest::prelude::*;
use tally_model::bucket::MINUTE_MS;

use super::*;

const A: TypeId = TypeId(1);
const B: TypeId = TypeId(3);

fn list(deltas: &Deltas) -> Vec<(i64, u16, i64)> {
    deltas.iter().map(|(start_ms, slot, by)| (start_ms / MINUTE_MS, slot.0, by)).collect()
}

fn closed(windows: &mut OpenWindows, up_to_minute: i64) -> Vec<(i64, u16, i64)> {
    let mut out = Deltas::default();
    windows.close(up_to_minute * MINUTE_MS, &mut out);
    list(&out)
}

fn restated(windows: &mut OpenWindows) -> Vec<(i64, u16, i64)> {
    let mut out = Deltas::default();
    windows.restate(&mut out);
    list(&out)
}

#[test]
fn a_minute_goes_out_whole_when_it_closes_and_then_by_differences() {
    let mut windows = OpenWindows::default();
    for slot in [A, B, A] {
        assert!(windows.add(0, slot));
    }
    assert!(windows.add(MINUTE_MS, A));
    assert_eq!(closed(&mut windows, 0), []);
    assert_eq!(restated(&mut windows), [], "an open minute is never restated");
    assert_eq!(closed(&mut windows, 1), [(0, 1, 2), (0, 3, 1)]);
    assert_eq!(closed(&mut windows, 1), []);
    assert!(windows.add(0, B));
    assert_eq!(closed(&mut windows, 1), [], "a later arrival waits for the restatement");
    assert_eq!(restated(&mut windows), [(0, 3, 1)]);
    assert_eq!(restated(&mut windows), []);
}

#[test]
fn the_first_event_of_a_minute_may_come_after_it_was_closed() {
    let mut windows = OpenWindows::default();
    assert_eq!(closed(&mut windows, 5), []);
    assert!(windows.add(2 * MINUTE_MS, A));
    assert_eq!(restated(&mut windows), [(2, 1, 1)]);
}

#[test]
fn retiring_emits_what_is_pending_then_takes_everything_back() {
    let mut windows = OpenWindows::default();
    windows.add(0, A);
    closed(&mut windows, 1);
    windows.add(0, A);
    windows.add(0, B);
    let (mut out, mut taken_back) = (Deltas::default(), Deltas::default());
    windows.retire(MINUTE_MS, &mut out, &mut taken_back);
    assert_eq!(list(&out), [(0, 1, 1), (0, 3, 1)]);
    assert_eq!(list(&taken_back), [(0, 1, -2), (0, 3, -1)]);
    assert!(!windows.add(0, A), "a retired minute takes nothing more");
    assert!(windows.add(MINUTE_MS, A));
    assert_eq!(windows.len(), 2, "its counts are kept until its row is stored");
    windows.forget(2 * MINUTE_MS);
    assert_eq!(windows.len(), 1, "what is not retired is not forgotten");
    assert!(!windows.add(0, A));
}

#[test]
fn a_retired_minute_whose_row_was_not_stored_goes_out_again_after_a_restart() {
    let mut windows = OpenWindows::default();
    windows.add(0, A);
    windows.retire(MINUTE_MS, &mut Deltas::default(), &mut Deltas::default());
    let mut windows = OpenWindows::restore(windows.snapshot());
    assert!(!windows.add(0, A), "it is still retired");
    let (mut out, mut taken_back) = (Deltas::default(), Deltas::default());
    windows.retire(MINUTE_MS, &mut out, &mut taken_back);
    assert_eq!((list(&out), list(&taken_back)), (vec![(0, 1, 1)], vec![(0, 1, -1)]));
    windows.forget(MINUTE_MS);
    assert!(windows.is_empty());
}

#[test]
fn two_shards_leave_as_one_difference() {
    let (mut one, mut two) = (OpenWindows::default(), OpenWindows::default());
    one.add(0, A);
    two.add(0, A);
    two.add(0, B);
    let mut out = Deltas::default();
    one.close(MINUTE_MS, &mut out);
    two.close(MINUTE_MS, &mut out);
    assert_eq!(list(&out), [(0, 1, 2), (0, 3, 1)]);
}

#[derive(Clone, Debug)]
enum Step {
    Add(i64, u16),
    Close(i64),
    Restate,
    Retire(i64),
    Forget(i64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_i64..6, 0_u16..4).prop_map(|(minute, slot)| Step::Add(minute, slot)),
        2 => (0_i64..7).prop_map(Step::Close),
        1 => Just(Step::Restate),
        1 => (0_i64..4).prop_map(Step::Retire),
        1 => (0_i64..5).prop_map(Step::Forget),
        1 => Just(Step::Restart),
    ]
}

/// What stands downstream: the sum of everything that was emitted.
#[derive(Default)]
struct Downstream(BTreeMap<(i64, u16), i64>);

impl Downstream {
    fn apply(&mut self, deltas: &Deltas) {
        for (start_ms, slot, by) in deltas.iter() {
            *self.0.entry((start_ms / MINUTE_MS, slot.0)).or_default() += by;
        }
        self.0.retain(|_, sum| *sum != 0);
    }
}

proptest! {
    /// Whatever happens in whatever order: after a restatement everything closed stands downstream
    /// exactly as counted, and a retired minute's last state is complete before it is taken back.
    #[test]
    fn what_stands_downstream_is_what_was_counted(steps in prop::collection::vec(step(), 0..80)) {
        let mut windows = OpenWindows::default();
        let mut counted: BTreeMap<(i64, u16), i64> = BTreeMap::new();
        let mut downstream = Downstream::default();
        let (mut retired, mut taken_back_up_to) = (0, 0);
        for step in steps {
            let (mut out, mut taken_back) = (Deltas::default(), Deltas::default());
            match step {
                Step::Add(minute, slot) => {
                    let taken = windows.add(minute * MINUTE_MS, TypeId(slot));
                    prop_assert_eq!(taken, minute >= retired);
                    if taken {
                        *counted.entry((minute, slot)).or_default() += 1;
                    }
                }
                Step::Close(up_to) => windows.close(up_to * MINUTE_MS, &mut out),
                Step::Restate => windows.restate(&mut out),
                Step::Retire(up_to) => {
                    retired = retired.max(up_to);
                    taken_back_up_to = taken_back_up_to.max(up_to);
                    windows.retire(up_to * MINUTE_MS, &mut out, &mut taken_back);
                }
                Step::Forget(up_to) => {
                    windows.forget(up_to * MINUTE_MS);
                    counted.retain(|(minute, _), _| *minute >= up_to.min(taken_back_up_to));
                }
                Step::Restart => {
                    taken_back_up_to = 0;
                    windows = OpenWindows::restore(windows.snapshot());
                    downstream = Downstream::default();
                }
            }
            downstream.apply(&out);
            for (start_ms, slot, by) in taken_back.iter() {
                let cell = (start_ms / MINUTE_MS, slot.0);
                prop_assert_eq!(counted.get(&cell).copied(), Some(-by));
                prop_assert_eq!(downstream.0.get(&cell).copied(), Some(-by));
            }
            downstream.apply(&taken_back);
        }
        let mut out = Deltas::default();
        windows.close(100 * MINUTE_MS, &mut out);
        windows.restate(&mut out);
        downstream.apply(&out);
        counted.retain(|(minute, _), _| *minute >= taken_back_up_to);
        prop_assert_eq!(downstream.0, counted);
    }
}
