use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

fn id(number: u32, epoch: u64) -> CheckpointId {
    CheckpointId { generation: generation(number), epoch }
}

fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}

fn choice(checkpoints: &[(CheckpointId, bool)]) -> Choice<CheckpointId> {
    let ids = checkpoints.iter().map(|(id, _)| *id).collect();
    let examine = |id| {
        let whole = checkpoints.iter().any(|(other, whole)| *other == id && *whole);
        Ok::<_, Infallible>(if whole { Ok(id) } else { Err(Damage::Manifest) })
    };
    let Ok(choice) = choose(&ids, examine);
    choice
}

#[test]
fn the_newest_whole_checkpoint_is_chosen() {
    let damaged = |ids: &[CheckpointId]| ids.iter().map(|id| (*id, Damage::Manifest)).collect();
    let (a, b, c) = (id(1, 900), id(1, 1000), id(2, 5));
    let restore = |found, passed_over: &[CheckpointId]| Choice::Restore {
        found,
        passed_over: damaged(passed_over),
    };
    let cases = [
        ("none", vec![], Choice::Nothing),
        ("one", vec![(a, true)], restore(a, &[])),
        (
            "a later generation is newer than a later epoch",
            vec![(c, true), (b, true)],
            restore(c, &[]),
        ),
        ("a damaged newest one is passed over", vec![(a, true), (b, false)], restore(a, &[b])),
        ("two damaged", vec![(a, true), (b, false), (c, false)], restore(a, &[c, b])),
        ("an old damaged one matters not", vec![(a, false), (b, true)], restore(b, &[])),
        ("all damaged", vec![(a, false), (b, false)], Choice::Refuse { found: damaged(&[b, a]) }),
    ];
    for (case, checkpoints, want) in cases {
        assert_eq!(choice(&checkpoints), want, "{case}");
    }
}

#[test]
fn what_could_not_be_examined_is_not_passed_over() {
    let ids = [id(1, 1), id(1, 2)].into();
    let mut asked = 0;
    let choice: Result<Choice<()>, &str> = choose(&ids, |_| {
        asked += 1;
        Err("the store is away")
    });
    assert_eq!((choice, asked), (Err("the store is away"), 1));
}

#[test]
fn retained_cases() {
    use Condition::{Damaged, Whole};
    let (a, b, c, d) = (id(1, 1), id(1, 2), id(2, 1), id(2, 2));
    let damaged_between = vec![(a, Whole), (b, Whole), (c, Damaged), (d, Whole)];
    let cases = [
        ("fewer than asked for", vec![(a, Whole)], vec![a]),
        ("the last two", vec![(a, Whole), (b, Whole), (c, Whole)], vec![b, c]),
        ("damaged ones do not count", damaged_between, vec![b, c, d]),
        ("nothing is whole", vec![(a, Damaged), (b, Damaged), (c, Damaged)], vec![a, b, c]),
    ];
    for (case, checkpoints, want) in cases {
        let kept = retained(&checkpoints.into_iter().collect(), 2);
        assert_eq!(kept, want.into_iter().collect(), "{case}");
    }
}

#[test]
fn a_generation_collects_once_it_has_a_checkpoint_of_its_own() {
    let cases = [(None, false), (Some(id(3, 9)), false), (Some(id(4, 1)), true)];
    for (last, want) in cases {
        assert_eq!(may_collect(generation(4), last), want, "{last:?}");
    }
}

#[test]
fn only_what_is_unnamed_and_of_this_generation_or_before_is_garbage() {
    let own = generation(4);
    let kept = name("data/g0000003-s0001-0000000001");
    let listed = [
        "data/g0000003-e00000000000000000007-s0000",
        "data/g0000003-s0001-0000000001",
        "data/g0000004-s0001-0000000002",
        "data/g0000005-s0001-0000000003",
        "data/readme",
    ]
    .map(name);
    let removed = garbage(&listed, own, &[&kept].into());
    assert_eq!(removed, [listed[0].clone(), listed[2].clone()]);
}

#[test]
fn a_greater_generation_takes_over() {
    let seen =
        |numbers: &[u32]| taken_over_by(generation(4), numbers.iter().copied().map(generation));
    assert_eq!(seen(&[]), None);
    assert_eq!(seen(&[1, 4, 3]), None);
    assert_eq!(seen(&[5, 4, 7]), Some(generation(7)));
}

proptest! {
    /// B60, B61: no shard is copied and none is lost, whatever the number of workers.
    #[test]
    fn each_shard_is_loaded_by_exactly_one_worker(shards in 1..=Shards::MAX, workers in 1_usize..40) {
        let shards = Shards::new(shards).unwrap();
        let mut loaded: Vec<_> =
            (0..workers).flat_map(|worker| shards_of(worker, workers, shards)).collect();
        loaded.sort_unstable();
        prop_assert_eq!(loaded, shards.all().collect::<Vec<_>>());
    }

    #[test]
    fn the_choice_is_the_greatest_whole_one(
        checkpoints in prop::collection::btree_map((0_u32..4, 0_u64..6), any::<bool>(), 0..12),
    ) {
        let checkpoints: Vec<_> =
            checkpoints.into_iter().map(|((g, epoch), whole)| (id(g, epoch), whole)).collect();
        let newest = checkpoints.iter().filter(|(_, whole)| *whole).map(|(id, _)| *id).max();
        let above = |limit: Option<CheckpointId>| {
            checkpoints.iter().filter(|(id, _)| Some(*id) > limit).count()
        };
        match choice(&checkpoints) {
            Choice::Nothing => prop_assert!(checkpoints.is_empty()),
            Choice::Restore { found, passed_over } => {
                prop_assert_eq!(Some(found), newest);
                prop_assert_eq!(passed_over.len(), above(newest));
            }
            Choice::Refuse { found } => {
                prop_assert_eq!(newest, None);
                prop_assert_eq!(found.len(), checkpoints.len());
            }
        }
    }

    /// Whatever is damaged later, a start still finds the newest whole ones.
    #[test]
    fn the_newest_whole_checkpoints_are_retained(
        checkpoints in prop::collection::btree_map((0_u32..4, 0_u64..6), any::<bool>(), 0..16),
        keep_last in 1_usize..5,
    ) {
        let condition = |whole| if whole { Condition::Whole } else { Condition::Damaged };
        let checkpoints: BTreeMap<_, _> = checkpoints
            .into_iter()
            .map(|((g, epoch), whole)| (id(g, epoch), condition(whole)))
            .collect();
        let kept = retained(&checkpoints, keep_last);
        let whole = checkpoints.iter().rev().filter(|(_, of)| **of == Condition::Whole);
        let newest: Vec<_> = whole.map(|(id, _)| *id).take(keep_last).collect();
        prop_assert!(newest.iter().all(|id| kept.contains(id)));
        if newest.len() < keep_last {
            prop_assert_eq!(kept.len(), checkpoints.len());
        }
    }
}
