//! Another process that acts between any two store calls of ours.

use std::collections::VecDeque;

use super::*;
use crate::meta::KeyValue;

/// A store in which, before each of our calls, another process may register some types.
#[derive(Debug)]
struct Shared {
    store: Arc<MemoryMeta>,
    /// What the other process registers before our next calls, in order.
    others: Mutex<VecDeque<Vec<NewType>>>,
}

impl Shared {
    fn let_others_act(&self) {
        let types = self.others.lock().unwrap().pop_front().unwrap_or_default();
        match types.as_slice() {
            [] => {}
            [one] => drop(registry(&self.store).register(one.clone()).unwrap()),
            many => drop(registry(&self.store).register_many(many).unwrap()),
        }
    }
}

impl MetaStore for Shared {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.let_others_act();
        self.store.get(table, key)
    }

    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        self.let_others_act();
        self.store.get_many(table, keys)
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError> {
        self.let_others_act();
        self.store.scan(table, after, limit)
    }

    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.let_others_act();
        self.store.put_if(table, key, expected, value)
    }

    fn insert_many(&self, table: Table, rows: &[KeyValue]) -> Result<Vec<CasOutcome>, StoreError> {
        self.let_others_act();
        self.store.insert_many(table, rows)
    }

    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        self.let_others_act();
        self.store.delete_if(table, key, expected)
    }
}

fn types() -> impl Strategy<Value = Vec<NewType>> {
    prop::collection::vec((0_u8..8).prop_map(|name| named(&format!("t{name}"))), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// The registry always loads, so no name has two slots; slots stay without holes; and each of
    /// our names is registered.
    #[test]
    fn whoever_acts_in_between_no_name_gets_two_slots(
        ours in prop::collection::vec(types(), 1..5),
        others in prop::collection::vec(types(), 0..30),
    ) {
        let store = Arc::new(MemoryMeta::default());
        let shared = Shared { store: Arc::clone(&store), others: Mutex::new(others.into()) };
        let ours_here = Registry::open(Arc::new(shared)).unwrap();
        for types in ours {
            let results = match types.as_slice() {
                [one] => vec![ours_here.register(one.clone())],
                many => ours_here.register_many(many).unwrap(),
            };
            prop_assert!(results.iter().all(Result::is_ok), "{results:?}");
            let registry = registry(&store);
            let snapshot = registry.snapshot();
            prop_assert_eq!(snapshot.width(), snapshot.entries().len());
            for new in &types {
                prop_assert!(snapshot.get(&new.name).is_some(), "{} is missing", new.name);
            }
        }
    }
}
