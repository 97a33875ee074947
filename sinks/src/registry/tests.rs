//! Slots are given away once, whatever races, fails or is cut short.

use std::sync::Barrier;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::faults::Fault;
use crate::meta::CasOutcome;
use crate::meta::failing::FailingMeta;
use crate::meta::memory::MemoryMeta;
use crate::redb::tests::Files;

fn registry(store: &Arc<impl MetaStore + 'static>) -> Registry {
    Registry::open(Arc::new(Arc::clone(store))).unwrap()
}

fn named(name: &str) -> NewType {
    NewType::named(name.to_owned())
}

fn register(registry: &Registry, name: &str) -> TypeId {
    match registry.register(named(name)).unwrap() {
        Registered::Created(entry) | Registered::Same(entry) => entry.type_id,
    }
}

/// Names by slot, slot 0 left out.
fn slots(registry: &Registry) -> Vec<(u16, String)> {
    registry.refresh().unwrap();
    let snapshot = registry.snapshot();
    let entries = snapshot.entries().iter().skip(1);
    entries.map(|entry| (entry.type_id.0, entry.name.clone())).collect()
}

fn want(names: &[&str]) -> Vec<(u16, String)> {
    (1..).zip(names).map(|(slot, name)| (slot, (*name).to_owned())).collect()
}

#[test]
fn an_empty_registry_has_slot_0_only() {
    let registry = registry(&Arc::new(MemoryMeta::default()));
    let snapshot = registry.snapshot();
    assert_eq!(snapshot.width(), 1);
    assert_eq!(snapshot.entries().len(), 1);
    assert_eq!(snapshot.get("__other").unwrap().type_id, TypeId::OTHER);
    assert_eq!(snapshot.by_id(TypeId::OTHER).unwrap().name, "__other");
    assert!(!registry.refresh().unwrap());
}

#[test]
fn types_get_slots_in_order_and_are_found_by_name_and_slot() {
    let store = Arc::new(MemoryMeta::default());
    let registry = registry(&store);
    for (slot, name) in [(1, "click"), (2, "view"), (1, "click"), (3, "café")] {
        assert_eq!(register(&registry, name), TypeId(slot), "{name}");
    }
    let snapshot = registry.snapshot();
    assert_eq!(snapshot.width(), 4);
    assert_eq!(snapshot.by_id(TypeId(2)).unwrap().name, "view");
    assert_eq!(snapshot.by_id(TypeId(4)), None);
    assert_eq!(snapshot.get("Click"), None, "case matters");
    assert_eq!(register(&registry, "cafe\u{301}"), TypeId(3), "one name in NFC");
}

#[test]
fn registering_again_is_the_same_or_a_conflict_by_its_fields() {
    let registry = registry(&Arc::new(MemoryMeta::default()));
    let full = NewType {
        name: "buy".to_owned(),
        schema: Some(json!({"type": "object"})),
        owner: Some("shop".to_owned()),
        pii_flag: true,
    };
    let Registered::Created(entry) = registry.register(full.clone()).unwrap() else { panic!() };
    assert_eq!((entry.schema_version, entry.status), (1, TypeStatus::Active));
    registry.set_status("buy", TypeStatus::Deprecated).unwrap();
    let Registered::Same(again) = registry.register(full.clone()).unwrap() else { panic!() };
    assert_eq!(again.status, TypeStatus::Deprecated, "the status is not part of the body");
    let others = [
        named("buy"),
        NewType { schema: None, ..full.clone() },
        NewType { owner: None, ..full.clone() },
        NewType { pii_flag: false, ..full.clone() },
    ];
    for other in others {
        let error = registry.register(other.clone()).unwrap_err();
        assert!(matches!(error, RegistryError::Conflict { .. }), "{other:?}: {error}");
    }
    let null = NewType { schema: Some(json!(null)), ..named("view") };
    registry.register(null).unwrap();
    assert!(matches!(registry.register(named("view")), Ok(Registered::Same(_))), "null = none");
}

#[test]
fn names_that_are_none_are_refused_and_take_no_slot() {
    let registry = registry(&Arc::new(MemoryMeta::default()));
    for bad in ["", " ", " a", "a ", "a\u{7}", "__other", &"a".repeat(NAME_BYTES_MAX + 1)] {
        let error = registry.register(named(bad)).unwrap_err();
        assert!(matches!(error, RegistryError::BadName(_)), "{bad:?}");
        let error = registry.set_status(bad, TypeStatus::Active).unwrap_err();
        assert!(matches!(error, RegistryError::BadName(_)), "{bad:?}");
    }
    assert_eq!(registry.snapshot().width(), 1);
}

#[test]
fn a_status_changes_alone_and_for_known_names_only() {
    let store = Arc::new(MemoryMeta::default());
    let (here, elsewhere) = (registry(&store), registry(&store));
    register(&here, "click");
    let before = here.snapshot().get("click").unwrap().clone();
    let after = here.set_status("click", TypeStatus::Deprecated).unwrap();
    assert_eq!(after, TypeEntry { status: TypeStatus::Deprecated, ..before });
    assert_eq!(here.snapshot().get("click"), Some(&after));
    assert!(elsewhere.refresh().unwrap());
    assert_eq!(elsewhere.snapshot().get("click"), Some(&after));
    assert_eq!(here.snapshot().version(), elsewhere.snapshot().version());
    let error = here.set_status("clack", TypeStatus::Active).unwrap_err();
    assert!(matches!(error, RegistryError::Unknown { .. }), "{error}");
}

#[test]
fn the_version_changes_with_every_change_and_with_nothing_else() {
    let registry = registry(&Arc::new(MemoryMeta::default()));
    let mut seen = vec![registry.snapshot().version()];
    let mut see = |changed: bool| {
        let version = registry.snapshot().version();
        assert_eq!(seen.contains(&version), !changed, "{seen:?}");
        assert!(version < 1 << 53);
        seen.push(version);
    };
    register(&registry, "a");
    see(true);
    register(&registry, "a");
    see(false);
    register(&registry, "b");
    see(true);
    registry.set_status("a", TypeStatus::Deprecated).unwrap();
    see(true);
    registry.refresh().unwrap();
    see(false);
    registry.set_status("a", TypeStatus::Active).unwrap();
    see(false);
    let versions = ["a", "b"].map(|name| {
        let registry = self::registry(&Arc::new(MemoryMeta::default()));
        register(&registry, name);
        registry.snapshot().version()
    });
    assert_ne!(versions[0], versions[1], "names of one length");
}

#[test]
fn many_types_keep_their_order_and_each_has_its_result() {
    let store = Arc::new(MemoryMeta::default());
    let registry = registry(&store);
    register(&registry, "old");
    let types = ["b", "old", "a", " bad", "b", "c"].map(named);
    let mut types = types.to_vec();
    types.push(NewType { pii_flag: true, ..named("a") });
    let results = registry.register_many(&types).unwrap();
    let told: Vec<String> = results
        .into_iter()
        .map(|result| match result {
            Ok(Registered::Created(entry)) => format!("created {}", entry.type_id),
            Ok(Registered::Same(entry)) => format!("same {}", entry.type_id),
            Err(RegistryError::Conflict { type_id, .. }) => format!("conflict {type_id}"),
            Err(RegistryError::BadName(_)) => "bad name".to_owned(),
            Err(other) => other.to_string(),
        })
        .collect();
    let wanted =
        ["created 2", "same 1", "created 3", "bad name", "same 2", "created 4", "conflict 3"];
    assert_eq!(told, wanted);
    assert_eq!(slots(&registry), want(&["old", "b", "a", "c"]));
}

#[test]
fn the_last_slot_is_given_away_and_then_the_registry_is_full() {
    let registry = registry(&Arc::new(MemoryMeta::default()));
    let cap = usize::from(TypeId::CAP);
    let types: Vec<NewType> = (1..cap + 2).map(|number| named(&format!("t{number:05}"))).collect();
    let results = registry.register_many(&types).unwrap();
    let (made, rest) = results.split_at(cap - 1);
    for (slot, result) in (1..).zip(made) {
        let Ok(Registered::Created(entry)) = result else { panic!("{result:?}") };
        assert_eq!(entry.type_id, TypeId(slot));
    }
    for result in rest {
        assert!(matches!(result, Err(RegistryError::Full { .. })), "{result:?}");
    }
    assert_eq!(registry.snapshot().width(), cap);
    assert!(matches!(registry.register(named("one more")), Err(RegistryError::Full { .. })));
    assert_eq!(register(&registry, "t00001"), TypeId(1), "known names are still known");
}

/// Two processes: each with its own registry over one store.
#[test]
fn two_processes_that_race_for_names_and_slots_agree() {
    let files = Files::default();
    let stores: [Arc<dyn MetaStore>; 2] =
        [Arc::new(files.fresh().meta()), Arc::new(MemoryMeta::default())];
    for store in stores {
        let start = Barrier::new(2);
        let run = |own: &str| {
            let registry = Registry::open(Arc::clone(&store)).unwrap();
            let mut created = 0;
            for round in 0..20 {
                start.wait();
                // One name that both want, one that only this one wants, and a batch of both kinds.
                for name in [format!("both {round}"), format!("{own} {round}")] {
                    created += usize::from(is_created(&registry.register(named(&name))));
                }
                let names = [format!("batch both {round}"), format!("batch {own} {round}")];
                let results = registry.register_many(&names.map(|name| named(&name))).unwrap();
                created += results.iter().filter(|result| is_created(result)).count();
            }
            created
        };
        let created = std::thread::scope(|scope| {
            let (one, two) = (scope.spawn(|| run("one")), scope.spawn(|| run("two")));
            one.join().unwrap() + two.join().unwrap()
        });
        let registry = Registry::open(store).unwrap();
        let names: Vec<String> = slots(&registry).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names.len(), 20 * 6, "each name once: duplicates would not even load");
        assert_eq!(created, names.len(), "each was created by exactly one");
    }
}

fn is_created(result: &Result<Registered, RegistryError>) -> bool {
    matches!(result, Ok(Registered::Created(_)))
}

mod interleaved;

#[test]
fn a_crash_between_claim_and_slot_heals_with_the_next_registration() {
    let store = Arc::new(MemoryMeta::default());
    // What a crash after the first step leaves.
    store.put_if(NAMES, b"lost", None, &1_u16.to_be_bytes()).unwrap();
    let registry = registry(&store);
    assert_eq!(registry.snapshot().get("lost"), None, "a claim is no type");
    assert_eq!(register(&registry, "other"), TypeId(1), "others are not held up");
    assert_eq!(register(&registry, "lost"), TypeId(2), "its claim moves off the taken slot");
    assert_eq!(slots(&registry), want(&["other", "lost"]));
}

#[test]
fn a_registration_whose_answer_was_lost_is_told_as_created() {
    let faults = [None, Some(Fault::AppliedThenLost), Some(Fault::LostBeforeApplied)];
    for claim in faults {
        for slot in faults {
            let store = Arc::new(FailingMeta::new(MemoryMeta::default()));
            let registry = registry(&store);
            store.script_writes([claim]);
            if claim == Some(Fault::LostBeforeApplied) {
                store.script_writes([None]);
            }
            store.script_writes([slot]);
            let told = registry.register(named("a"));
            assert!(is_created(&told), "{claim:?}, {slot:?}: {told:?}");
            assert_eq!(slots(&registry), want(&["a"]), "{claim:?}, {slot:?}");
        }
    }
}

#[test]
fn a_batch_cut_short_is_taken_over_with_its_slots() {
    let store = Arc::new(FailingMeta::new(MemoryMeta::default()));
    let registry = registry(&store);
    let names = ["a", "b", "c"];
    // The claims are made, then the store fails.
    store.script_writes([None, Some(Fault::Refused)]);
    assert!(registry.register_many(&names.map(named)).is_err());
    assert_eq!(slots(&registry), []);
    let results = registry.register_many(&["c", "d", "a"].map(named)).unwrap();
    assert!(results.iter().all(is_created), "{results:?}");
    let taken = |slot, name: &str| (slot, name.to_owned());
    assert_eq!(slots(&registry), [taken(1, "a"), taken(2, "d"), taken(3, "c")]);
    assert_eq!(register(&registry, "b"), TypeId(4), "its slot went to another");
}

#[test]
fn a_slot_that_was_left_out_is_the_next_to_be_given_away() {
    let store = Arc::new(MemoryMeta::default());
    store.put_if(NAMES, b"far", None, &5_u16.to_be_bytes()).unwrap();
    let registry = registry(&store);
    assert_eq!(register(&registry, "far"), TypeId(5), "a free claim is kept");
    let snapshot = registry.snapshot();
    assert_eq!((snapshot.width(), snapshot.entries().len()), (6, 2));
    assert_eq!(snapshot.by_id(TypeId(3)), None);
    for slot in [1, 2, 3, 4, 6] {
        assert_eq!(register(&registry, &format!("t{slot}")), TypeId(slot));
    }
}

#[test]
fn rows_that_are_no_types_are_reported() {
    let entry = |slot: u16, name: &str| encode(&named(name).entry(TypeId(slot))).unwrap();
    let cases = [
        ("no JSON", vec![(1, b"{".to_vec())]),
        ("another slot's row", vec![(2, entry(1, "a"))]),
        ("slot 0", vec![(0, entry(0, "a"))]),
        ("one name twice", vec![(1, entry(1, "a")), (2, entry(2, "a"))]),
    ];
    for (name, rows) in cases {
        let store = Arc::new(MemoryMeta::default());
        for (slot, row) in rows {
            let slot: u16 = slot;
            let outcome = store.put_if(TYPES, &slot.to_be_bytes(), None, &row).unwrap();
            assert_eq!(outcome, CasOutcome::Applied);
        }
        let error = Registry::open(store).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{name}: {error}");
    }
}

#[test]
fn version_1_of_an_entry_is_this_json() {
    let text = r#"{"typeId":7,"name":"buy","schemaVersion":1,"schema":{"type":"object"},"owner":"shop","piiFlag":true,"status":"deprecated"}"#;
    let entry = decode(&7_u16.to_be_bytes(), text.as_bytes()).unwrap();
    assert_eq!(entry.status, TypeStatus::Deprecated);
    assert_eq!(encode(&entry).unwrap(), text.as_bytes());
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
    /// Whatever fails in two processes that register few names over and over, singly or in batches:
    /// the store always loads (so no name has two slots), no name ever changes its slot, and once
    /// nothing fails any more every name gets one.
    #[test]
    fn no_failure_gives_a_name_two_slots(
        calls in prop::collection::vec(
            (0_usize..2, prop::collection::vec(0_u8..6, 1..4)), 1..15),
        faults in prop::collection::vec(fault(), 0..60),
    ) {
        let store = Arc::new(FailingMeta::new(MemoryMeta::default()));
        let processes = [registry(&store), registry(&store)];
        store.script_writes(faults);
        let mut known: Vec<(u16, String)> = Vec::new();
        let mut created = std::collections::BTreeSet::new();
        for (process, names) in calls {
            let types: Vec<NewType> =
                names.iter().map(|name| named(&format!("t{name}"))).collect();
            let results = match types.as_slice() {
                [one] => vec![processes[process].register(one.clone())],
                many => match processes[process].register_many(many) {
                    Ok(results) => results,
                    Err(error) => vec![Err(error.into())],
                },
            };
            for result in results {
                match result {
                    Ok(Registered::Created(entry)) => {
                        prop_assert!(created.insert(entry.name.clone()), "{} twice", entry.name);
                    }
                    Ok(Registered::Same(_)) | Err(RegistryError::Store(_)) => {}
                    Err(other) => prop_assert!(false, "{other}"),
                }
            }
            let now = slots(&registry(&store));
            for row in &known {
                prop_assert!(now.contains(row), "{row:?} is gone from {now:?}");
            }
            known = now;
        }
        let registry = registry(&store);
        let types: Vec<NewType> = (0..6).map(|name| named(&format!("t{name}"))).collect();
        // Steps of the script may be left over: repeat until they are used up.
        while registry.register_many(&types).is_err() {}
        prop_assert_eq!(slots(&registry).len(), 6);
    }
}
