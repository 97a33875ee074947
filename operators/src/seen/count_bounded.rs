//! Keys bounded by their number.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::SeenStats;

/// Which key has to go when a new one needs its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The one that was added first. Being seen again does not prolong a key's stay.
    Fifo,
    /// The one that was not seen for longest. Being seen again, or asked for, renews a key, so one
    /// that is seen often enough stays for ever.
    Lru,
}

/// A set that is to hold nothing recognises nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a seen set needs room for at least one key")]
pub struct ZeroCapacity;

/// The last keys that were seen, at most a fixed number.
///
/// ```
/// use tally_operators::seen::{CountBounded, Policy};
///
/// let mut seen = CountBounded::new(2, Policy::Fifo)?;
/// let new: Vec<bool> = [1, 2, 1, 3, 1].map(|key| seen.insert(key)).to_vec();
/// assert_eq!(new, [true, true, false, true, true]);
/// # Ok::<(), tally_operators::seen::ZeroCapacity>(())
/// ```
#[derive(Clone, Debug)]
pub struct CountBounded {
    policy: Policy,
    capacity: usize,
    /// Finds a key's entry.
    index: HashTable<usize>,
    /// Keys as a ring in order of eviction. An evicted key's entry is taken by its successor, so
    /// index and order cannot differ in size.
    entries: Vec<Entry>,
    /// The entry to be evicted first; its predecessor is the one to go last.
    oldest: usize,
    hasher: RandomState,
    hits: u64,
    misses: u64,
    evictions: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u128,
    before: usize,
    after: usize,
}

impl CountBounded {
    /// An empty set with room for `capacity` keys.
    ///
    /// # Errors
    /// [`ZeroCapacity`] if there is no room at all.
    pub fn new(capacity: usize, policy: Policy) -> Result<Self, ZeroCapacity> {
        if capacity == 0 {
            return Err(ZeroCapacity);
        }
        Ok(Self {
            policy,
            capacity,
            index: HashTable::new(),
            entries: Vec::new(),
            oldest: 0,
            hasher: RandomState::default(),
            hits: 0,
            misses: 0,
            evictions: 0,
        })
    }

    /// Notes that `key` was seen. Returns whether it is new; the oldest key makes room for it.
    pub fn insert(&mut self, key: u128) -> bool {
        if self.contains(key) {
            return false;
        }
        let place = if self.entries.len() < self.capacity {
            self.push(key)
        } else {
            self.replace_oldest(key)
        };
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.index
            .insert_unique(hasher.hash_one(key), place, |at| hasher.hash_one(entries[*at].key));
        true
    }

    /// Whether `key` is there. Under [`Policy::Lru`] that renews it.
    pub fn contains(&mut self, key: u128) -> bool {
        let Some(place) = self.place(key) else {
            self.misses += 1;
            return false;
        };
        self.hits += 1;
        match self.policy {
            Policy::Fifo => {}
            Policy::Lru => self.renew(place),
        }
        true
    }

    /// How many keys it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether it holds no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// How many keys it has room for.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Keys in the order in which they will be evicted.
    pub fn in_order(&self) -> impl Iterator<Item = u128> {
        let mut at = self.oldest;
        (0..self.entries.len()).map(move |_| {
            let entry = self.entries[at];
            at = entry.after;
            entry.key
        })
    }

    /// Size, hits, misses, evictions.
    #[must_use]
    pub fn stats(&self) -> SeenStats {
        SeenStats {
            size: u64::try_from(self.len()).unwrap_or(u64::MAX),
            hits: self.hits,
            misses: self.misses,
            evictions: self.evictions,
        }
    }

    fn place(&self, key: u128) -> Option<usize> {
        let is_key = |at: &usize| self.entries[*at].key == key;
        self.index.find(self.hasher.hash_one(key), is_key).copied()
    }

    /// Adds an entry as the last to go.
    fn push(&mut self, key: u128) -> usize {
        let place = self.entries.len();
        self.entries.push(Entry { key, before: place, after: place });
        if place > 0 {
            self.link_last(place);
        }
        place
    }

    /// Gives the oldest entry to `key`, as the last to go: in a ring it already stands there.
    fn replace_oldest(&mut self, key: u128) -> usize {
        let place = self.oldest;
        let evicted = std::mem::replace(&mut self.entries[place].key, key);
        if let Ok(found) = self.index.find_entry(self.hasher.hash_one(evicted), |at| *at == place) {
            found.remove();
        }
        self.evictions += 1;
        self.oldest = self.entries[place].after;
        place
    }

    /// Moves an entry to where it is the last to go.
    fn renew(&mut self, place: usize) {
        if place == self.oldest {
            self.oldest = self.entries[place].after;
            return;
        }
        let Entry { before, after, .. } = self.entries[place];
        self.entries[before].after = after;
        self.entries[after].before = before;
        self.link_last(place);
    }

    /// Links an entry that stands alone in before the oldest.
    fn link_last(&mut self, place: usize) {
        let after = self.oldest;
        let before = self.entries[after].before;
        self.entries[place].before = before;
        self.entries[place].after = after;
        self.entries[before].after = place;
        self.entries[after].before = place;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// B129: FIFO, and the counter says so.
    #[test]
    fn the_first_added_is_evicted_first_and_counted() {
        let mut seen = CountBounded::new(3, Policy::Fifo).unwrap();
        for key in [1, 2, 3, 4] {
            assert!(seen.insert(key));
        }
        assert_eq!([1, 2, 3, 4].map(|key| seen.contains(key)), [false, true, true, true]);
        assert_eq!(seen.stats(), SeenStats { size: 3, hits: 3, misses: 5, evictions: 1 });
    }

    /// B129: capacity 1 and 0.
    #[test]
    fn room_for_one_key_is_enough_and_room_for_none_is_refused() {
        for policy in [Policy::Fifo, Policy::Lru] {
            let mut seen = CountBounded::new(1, policy).unwrap();
            assert_eq!(
                [7, 7, 8, 8, 7].map(|key| seen.insert(key)),
                [true, false, true, false, true]
            );
            assert_eq!(seen.len(), 1);
            assert_eq!(CountBounded::new(0, policy).err(), Some(ZeroCapacity));
        }
    }

    /// B130: both structures keep to the capacity.
    #[test]
    fn index_and_order_stay_equal_over_a_million_keys() {
        for policy in [Policy::Fifo, Policy::Lru] {
            let mut seen = CountBounded::new(2_048, policy).unwrap();
            for key in 0..1_000_000 {
                assert!(seen.insert(key));
                assert_eq!(seen.index.len(), seen.entries.len());
                assert!(seen.len() <= 2_048);
            }
            assert_eq!(seen.stats().evictions, 997_952);
            assert!(seen.index.capacity() <= 4 * 2_048 && seen.entries.capacity() <= 2_048);
        }
    }

    /// B132: by count.
    #[test]
    fn seeing_a_key_again_renews_it_under_lru_only() {
        for (policy, stays) in [(Policy::Fifo, false), (Policy::Lru, true)] {
            let mut seen = CountBounded::new(10, policy).unwrap();
            assert!(seen.insert(u128::MAX));
            // Seen again after each five others: half of what the set has room for.
            let repeats: Vec<bool> = (0..20)
                .map(|round| {
                    (0..5).for_each(|key| assert!(seen.insert(round * 5 + key)));
                    !seen.insert(u128::MAX)
                })
                .collect();
            assert!(repeats[0]);
            assert_eq!(repeats.iter().all(|repeat| *repeat), stays, "{policy:?}");
        }
    }

    proptest! {
        /// The set does what a list of keys in order of eviction does.
        #[test]
        fn the_set_agrees_with_a_plain_list(
            capacity in 1_usize..6,
            lru: bool,
            acts in prop::collection::vec((any::<bool>(), 0_u128..10), 0..200),
        ) {
            let policy = if lru { Policy::Lru } else { Policy::Fifo };
            let mut seen = CountBounded::new(capacity, policy).unwrap();
            let mut list = VecDeque::new();
            for (insert, key) in acts {
                let known = list.contains(&key);
                if known && lru {
                    list.retain(|held| *held != key);
                    list.push_back(key);
                }
                if insert {
                    prop_assert_eq!(seen.insert(key), !known);
                    if !known {
                        list.push_back(key);
                    }
                    if list.len() > capacity {
                        list.pop_front();
                    }
                } else {
                    prop_assert_eq!(seen.contains(key), known);
                }
                prop_assert_eq!(seen.in_order().collect::<Vec<_>>(), Vec::from(list.clone()));
                prop_assert_eq!(seen.len(), list.len());
                let found = list.iter().all(|held| seen.place(*held).is_some());
                prop_assert!(found, "each key of the order is in the index");
            }
        }
    }
}
