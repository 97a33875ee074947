//! Marks that only move forward, whoever pushes.

use proptest::prelude::*;

use super::*;
use crate::faults::Fault;
use crate::meta::failing::FailingMeta;
use crate::meta::memory::MemoryMeta;

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

#[test]
fn a_new_deployment_has_no_marks() {
    assert_eq!(read(&MemoryMeta::default()).unwrap(), Marks::default());
}

#[test]
fn marks_rise_and_never_fall() {
    let store = MemoryMeta::default();
    let first = generation(1);
    // (retired asked, readable asked, retired in force, readable in force)
    let cases = [
        (None, Some(60), None, Some(60)),
        (Some(-60), None, Some(-60), Some(60)),
        (Some(-120), Some(0), Some(-60), Some(60)),
        (Some(60), Some(120), Some(60), Some(120)),
        (None, None, Some(60), Some(120)),
    ];
    for (retired, readable, retired_up_to_ms, readable_up_to_ms) in cases {
        let want =
            Marks { origin_ms: None, retired_up_to_ms, readable_up_to_ms, generation: Some(first) };
        let told = advance(&store, first, retired, readable).unwrap();
        assert_eq!(told, Advance::Published(want));
        assert_eq!(read(&store).unwrap(), want);
    }
}

#[test]
fn a_later_start_fences_an_earlier_one_by_publishing_even_if_nothing_moves() {
    let store = MemoryMeta::default();
    let (first, second) = (generation(1), generation(2));
    assert!(matches!(advance(&store, first, Some(60), None), Ok(Advance::Published(_))));
    assert!(matches!(advance(&store, second, None, None), Ok(Advance::Published(_))));
    let before = read(&store).unwrap();
    let told = advance(&store, first, Some(120), Some(120)).unwrap();
    assert_eq!(told, Advance::Fenced { newer: second });
    assert_eq!(read(&store).unwrap(), before);
}

#[test]
fn the_origin_is_set_once_and_lowered_only_on_purpose() {
    let store = MemoryMeta::default();
    assert_eq!(set_origin_if_absent(&store, 600).unwrap().origin_ms, Some(600));
    assert_eq!(set_origin_if_absent(&store, 60).unwrap().origin_ms, Some(600));
    assert_eq!(lower_origin(&store, 1_200).unwrap().origin_ms, Some(600));
    assert_eq!(lower_origin(&store, -60).unwrap().origin_ms, Some(-60));
    assert!(matches!(advance(&store, generation(1), Some(0), None), Ok(Advance::Published(_))));
    assert_eq!(read(&store).unwrap().origin_ms, Some(-60), "advancing leaves it");
    assert_eq!(lower_origin(&MemoryMeta::default(), 7).unwrap().origin_ms, Some(7));
}

#[test]
fn generations_grow_from_one_and_lost_claims_are_skipped() {
    let store = FailingMeta::new(MemoryMeta::default());
    assert_eq!(claim_generation(&store, 5).unwrap(), generation(1));
    assert_eq!(claim_generation(&store, 4).unwrap(), generation(2));
    store.script_writes([Some(Fault::AppliedThenLost), Some(Fault::LostBeforeApplied)]);
    assert_eq!(claim_generation(&store, 6).unwrap(), generation(5));
    store.script_writes([Some(Fault::Refused)]);
    assert!(matches!(claim_generation(&store, 7), Err(GenerationError::Store(_))));
    assert!(matches!(advance(&store, generation(5), None, None), Ok(Advance::Published(_))));
    assert_eq!(claim_generation(&store, 8).unwrap(), generation(6));
}

#[test]
fn a_store_that_loses_every_answer_does_not_use_the_numbers_up() {
    let store = FailingMeta::new(MemoryMeta::default());
    store.script_writes([Some(Fault::AppliedThenLost); 100]);
    assert!(matches!(claim_generation(&store, 1), Err(GenerationError::Store(_))));
    let claimed = scan_all(store.inner(), GENERATIONS, None).unwrap();
    assert_eq!(claimed.len(), 4, "the first claim and three more");
}

#[test]
fn racing_starts_never_share_a_generation() {
    let store = MemoryMeta::default();
    let claim = || (0..50).map(|_start| claim_generation(&store, 0).unwrap()).collect::<Vec<_>>();
    let mut all: Vec<Generation> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_thread| scope.spawn(claim)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    assert_eq!(all, (1..=200).map(generation).collect::<Vec<_>>());
}

#[test]
fn the_last_generation_is_the_last() {
    let store = MemoryMeta::default();
    let last = Generation::MAX;
    assert!(matches!(advance(&store, last, None, None), Ok(Advance::Published(_))));
    assert!(matches!(claim_generation(&store, 0), Err(GenerationError::UsedUp)));
}

#[test]
fn a_row_that_is_no_marks_is_reported() {
    for bad in [&b"{"[..], b"{\"generation\":1048576}", b"{\"unknown\":1}"] {
        let store = MemoryMeta::default();
        store.put_if(MARKS, MARKS_KEY, None, bad).unwrap();
        assert!(matches!(read(&store), Err(StoreError::Corrupt { .. })));
        assert!(matches!(
            advance(&store, generation(1), None, None),
            Err(StoreError::Corrupt { .. })
        ));
    }
}

/// One step of one of two deployments: which start, and its marks.
fn step() -> impl Strategy<Value = (u32, Option<i64>, Option<i64>)> {
    let mark = || prop::option::of(-3_i64..4);
    (1_u32..4, mark(), mark())
}

fn fault() -> impl Strategy<Value = Option<Fault>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(Fault::Refused)),
        1 => Just(Some(Fault::AppliedThenLost)),
        1 => Just(Some(Fault::LostBeforeApplied)),
    ]
}

proptest! {
    /// However the steps of several starts interleave and whatever gets lost: no mark and no
    /// generation ever falls, what was published holds, and a fenced start changes nothing.
    #[test]
    fn no_interleaving_moves_a_mark_backwards(
        steps in prop::collection::vec(step(), 1..40),
        faults in prop::collection::vec(fault(), 0..60),
    ) {
        let store = FailingMeta::new(MemoryMeta::default());
        store.script_writes(faults);
        let mut before = Marks::default();
        for (number, retired, readable) in steps {
            let told = advance(&store, generation(number), retired, readable);
            let after = read(store.inner()).unwrap();
            prop_assert!(after.retired_up_to_ms >= before.retired_up_to_ms);
            prop_assert!(after.readable_up_to_ms >= before.readable_up_to_ms);
            prop_assert!(after.generation >= before.generation);
            match told {
                Ok(Advance::Published(marks)) => {
                    prop_assert_eq!(marks, after);
                    prop_assert_eq!(after.generation, Some(generation(number)));
                    prop_assert_eq!(after.retired_up_to_ms, before.retired_up_to_ms.max(retired));
                    prop_assert_eq!(after.readable_up_to_ms, before.readable_up_to_ms.max(readable));
                }
                Ok(Advance::Fenced { newer }) => {
                    prop_assert!(newer > generation(number));
                    prop_assert_eq!(after, before);
                }
                Err(StoreError::Unavailable { .. } | StoreError::Unknown { .. }) => {}
                Err(other) => prop_assert!(false, "{other}"),
            }
            before = after;
        }
    }
}

#[test]
fn two_starts_that_race_from_threads_never_move_a_mark_backwards() {
    let store = MemoryMeta::default();
    let run = |number: u32| {
        let mut fenced = 0;
        for at_ms in 0..200_i64 {
            match advance(&store, generation(number), Some(at_ms), Some(2 * at_ms)).unwrap() {
                Advance::Published(marks) => {
                    assert_eq!(fenced, 0, "once fenced, always fenced");
                    assert!(marks.retired_up_to_ms >= Some(at_ms));
                }
                Advance::Fenced { newer } => {
                    assert!(newer > generation(number));
                    fenced += 1;
                }
            }
        }
        fenced
    };
    std::thread::scope(|scope| {
        let (first, second) = (scope.spawn(|| run(1)), scope.spawn(|| run(2)));
        let mut last = read(&store).unwrap();
        loop {
            let ended = first.is_finished() && second.is_finished();
            let now = read(&store).unwrap();
            assert!(now.retired_up_to_ms >= last.retired_up_to_ms);
            assert!(now.readable_up_to_ms >= last.readable_up_to_ms);
            assert!(now.generation >= last.generation);
            last = now;
            if ended {
                break;
            }
        }
        assert_eq!(second.join().unwrap(), 0, "nothing fences the last start");
        let want = (Some(199), Some(398), Some(generation(2)));
        assert_eq!((last.retired_up_to_ms, last.readable_up_to_ms, last.generation), want);
    });
}

#[test]
fn forgotten_progress_leaves_origin_and_generation() {
    let store = MemoryMeta::default();
    set_origin_if_absent(&store, 5).unwrap();
    let generation = claim_generation(&store, 0).unwrap();
    let Advance::Published(_) = advance(&store, generation, Some(60), Some(120)).unwrap() else {
        panic!("nobody else has published");
    };
    forget_progress(&store).unwrap();
    let want = Marks { origin_ms: Some(5), generation: Some(generation), ..Marks::default() };
    assert_eq!(read(&store).unwrap(), want);
    assert!(claim_generation(&store, 0).unwrap() > generation);
}
