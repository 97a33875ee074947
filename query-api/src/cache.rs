//! Vectors in memory, bounded by bytes.

use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tally_model::bucket::Bucket;
use tally_model::vector::CountVector;

use crate::resolve::{Part, Version};

/// What an entry costs beside its counts: key, pointers, table slot and allocation.
const ENTRY_BYTES: usize = 160;

type Vectors = HashMap<(Bucket, Version), Arc<CountVector>, RandomState>;

/// Vectors by bucket and version.
///
/// Two generations: new and used entries go into the young one; when that holds half of the
/// budget it becomes the old one, and what the old one still held is forgotten. So an entry stays
/// as long as it is used once in about half a budget of others, at the price of one table look-up,
/// and nothing is ever scanned.
#[derive(Debug)]
pub(crate) struct VectorCache {
    generations: Mutex<Generations>,
    young_bytes_max: usize,
}

#[derive(Debug, Default)]
struct Generations {
    young: Vectors,
    young_bytes: usize,
    old: Vectors,
    old_bytes: usize,
}

impl VectorCache {
    /// A cache of at most about `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { generations: Mutex::default(), young_bytes_max: bytes_max / 2 }
    }

    /// The vectors of `parts`, `None` where it lacks one; in the order given.
    pub(crate) fn get_all(&self, parts: &[Part]) -> Vec<Option<Arc<CountVector>>> {
        let mut generations = self.lock();
        parts
            .iter()
            .map(|part| generations.get((part.bucket, part.version), self.young_bytes_max))
            .collect()
    }

    pub(crate) fn insert(&self, part: &Part, vector: Arc<CountVector>) {
        self.lock().insert((part.bucket, part.version), vector, self.young_bytes_max);
    }

    /// Bytes held now.
    pub(crate) fn bytes(&self) -> usize {
        let generations = self.lock();
        generations.young_bytes + generations.old_bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn get(&mut self, key: (Bucket, Version), young_max: usize) -> Option<Arc<CountVector>> {
        if let Some(vector) = self.young.get(&key) {
            return Some(Arc::clone(vector));
        }
        let vector = self.old.remove(&key)?;
        self.old_bytes -= entry_bytes(&vector);
        self.insert(key, Arc::clone(&vector), young_max);
        Some(vector)
    }

    fn insert(&mut self, key: (Bucket, Version), vector: Arc<CountVector>, young_max: usize) {
        let bytes = entry_bytes(&vector);
        if self.young_bytes + bytes > young_max {
            self.old = std::mem::take(&mut self.young);
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
        if bytes > young_max {
            return;
        }
        self.young_bytes += bytes;
        if let Some(replaced) = self.young.insert(key, vector) {
            self.young_bytes -= entry_bytes(&replaced);
        }
    }
}

fn entry_bytes(vector: &CountVector) -> usize {
    vector.width() * size_of::<u64>() + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use tally_model::bucket::MINUTE_MS;
    use tally_model::revision::Revision;

    fn part(minute: i64) -> Part {
        Part {
            bucket: Bucket::minute(minute * MINUTE_MS),
            version: Version::Row(Revision::recomputed(1).unwrap()),
            width: 100,
        }
    }

    #[test]
    fn bytes_stay_within_the_budget_and_what_is_used_stays() {
        let cache = VectorCache::new(100_000);
        for minute in 0..1_000 {
            cache.insert(&part(minute), Arc::new(CountVector::from_counts(vec![7; 100])));
            assert!(cache.get_all(&[part(0)])[0].is_some(), "minute 0 is used all the time");
            assert!(cache.bytes() <= 100_000, "{} bytes", cache.bytes());
        }
        assert!(cache.get_all(&[part(1)])[0].is_none(), "minute 1 was used once, long ago");
        assert!(cache.get_all(&[part(999)])[0].is_some());
    }

    #[test]
    fn another_revision_of_a_bucket_is_another_entry() {
        let cache = VectorCache::new(100_000);
        cache.insert(&part(0), Arc::new(CountVector::from_counts(vec![1])));
        let newer = Part { version: Version::Row(Revision::recomputed(2).unwrap()), ..part(0) };
        assert!(cache.get_all(&[newer])[0].is_none());
    }

    #[test]
    fn a_budget_of_nothing_keeps_nothing() {
        let cache = VectorCache::new(0);
        cache.insert(&part(0), Arc::new(CountVector::from_counts(vec![1])));
        assert_eq!(cache.bytes(), 0);
    }
}
