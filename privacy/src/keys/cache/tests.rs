use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// All of these users are in one shard.
fn user(number: u8) -> UserIndex {
    let mut index = [0; 32];
    index[0] = number;
    UserIndex(index)
}

#[derive(Clone, Debug)]
enum Step {
    Get(u8),
    Admit(u8, i64),
    Revoke(u8, i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..12_u8).prop_map(Step::Get),
        3 => (0..12_u8, 0..6_i64).prop_map(|(user, at_ms)| Step::Admit(user, at_ms)),
        1 => (0..12_u8, 0..6_i64).prop_map(|(user, at_ms)| Step::Revoke(user, at_ms)),
    ]
}

proptest! {
    /// Against a cache that forgets nothing: what is there is what was admitted last and not revoked
    /// since, there is never too much, and the users who came last are always there.
    #[test]
    fn a_cache_forgets_only_what_it_may(steps in prop::collection::vec(step(), 0..200)) {
        const GENERATION: usize = 4;
        let cache = Cache::new(2 * SHARDS * GENERATION);
        let mut model: HashMap<u8, Arc<UserKeys>> = HashMap::new();
        let mut revoked: HashMap<u8, i64> = HashMap::new();
        let mut recent: Vec<u8> = Vec::new();
        for step in steps {
            let used = match step {
                Step::Get(number) => {
                    let got = cache.get(&user(number));
                    let want = model.get(&number);
                    let must_be_there = recent.iter().rev().take(GENERATION).any(|it| *it == number);
                    match (&got, want) {
                        (Some(got), Some(want)) => prop_assert!(Arc::ptr_eq(got, want)),
                        (Some(_), None) => prop_assert!(false, "user {number} was revoked"),
                        (None, Some(_)) => prop_assert!(!must_be_there, "user {number} was forgotten"),
                        (None, None) => {}
                    }
                    got.map(|_| number)
                }
                Step::Admit(number, at_ms) => {
                    let keys = Arc::new(UserKeys::new(at_ms, [0; 32], [0; 32]));
                    let is_dead = revoked.get(&number).is_some_and(|revoked| at_ms < *revoked);
                    let admitted = cache.admit(user(number), Arc::clone(&keys)).map(drop);
                    prop_assert_eq!(admitted, if is_dead { Err(KeyFault::Destroyed) } else { Ok(()) });
                    (!is_dead).then(|| {
                        model.insert(number, keys);
                        number
                    })
                }
                Step::Revoke(number, at_ms) => {
                    cache.revoke(&user(number), at_ms);
                    let latest = revoked.entry(number).or_insert(at_ms);
                    *latest = at_ms.max(*latest);
                    prop_assert_eq!(cache.revoked_at_ms(&user(number)), Some(*latest));
                    if model.get(&number).is_some_and(|keys| keys.created_at_ms() < at_ms) {
                        model.remove(&number);
                    }
                    None
                }
            };
            if let Some(number) = used {
                recent.retain(|it| *it != number);
                recent.push(number);
            }
            prop_assert!(cache.len() <= 2 * GENERATION);
        }
    }
}

#[test]
fn small_and_odd_sizes_are_rounded() {
    // (entries asked for, most users of one shard)
    for (entries, most) in [(0, 2), (127, 2), (128, 2), (255, 2), (256, 4), (1_000_000, 15_624)] {
        let cache = Cache::new(entries);
        assert_eq!(2 * cache.generation_max, most, "{entries}");
    }
}
