//! Sizes of the dedup state, and what they cost in RAM.

use std::sync::Arc;

use tally_model::ids::{Shard, Shards};
use tally_model::rules::DedupRule;

use super::store::{MemoryStore, PAGE_IDS, SegmentStore};

/// A head may grow to this share of the ids held, so that its RAM for each id held stays the same:
/// with the default filters, two bytes an id pay for all.
pub(super) const HEAD_SHARE: u64 = 96;
/// Head sizes are 7 times a power of two: exactly what fits into a hash table before it doubles.
pub(super) const HEAD_UNIT: u64 = 7;

/// Sizes and surroundings of one [`DedupState`](super::DedupState).
#[derive(Clone, Debug)]
pub struct DedupOptions {
    /// The shard whose ids it keeps.
    pub shard: Shard,
    /// The deployment start on whose behalf it writes; part of each segment's name.
    pub generation: u32,
    /// Where frozen ids are kept.
    pub store: Arc<dyn SegmentStore>,
    /// The size of a head when few ids are held; also the size of the smallest segments.
    pub head_ids_min: u64,
    /// The size that a head never passes, however many ids are held.
    pub head_ids_max: u64,
    /// Bits of a filter for each id: 10 let about 1 % of absent ids through, 12 about 0.5 %.
    pub filter_bits_per_id: u64,
    /// So many segments of like size are merged into one; at least 2.
    pub merge_fan_in: usize,
    /// No merge makes a segment of more ids.
    pub segment_ids_max: u64,
}

impl Default for DedupOptions {
    /// Shard 0, in memory.
    fn default() -> Self {
        Self {
            shard: Shard(0),
            generation: 0,
            store: Arc::new(MemoryStore),
            head_ids_min: 7 << 8,
            head_ids_max: 7 << 15,
            filter_bits_per_id: 12,
            merge_fan_in: 4,
            segment_ids_max: 1 << 24,
        }
    }
}

/// The ids that are expected would need more RAM than there is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "dedup state of {ids} ids needs {needed_bytes} bytes of RAM; the budget is {budget_bytes} bytes"
)]
pub struct OverBudget {
    /// Ids expected in a whole window.
    pub ids: u64,
    /// What they need.
    pub needed_bytes: u64,
    /// What was allowed.
    pub budget_bytes: u64,
}

impl DedupOptions {
    /// RAM that `shards` states with these sizes take together while they hold `ids` ids, in bytes:
    /// filters, page indexes, full heads, one bucket being merged, and what the store takes for
    /// each id ([`DirectoryStore::RAM_BYTES_PER_ID`](super::DirectoryStore::RAM_BYTES_PER_ID),
    /// [`MemoryStore::RAM_BYTES_PER_ID`]).
    #[must_use]
    pub fn ram_bytes(&self, rule: DedupRule, shards: Shards, ids: u64, store_per_id: u64) -> u64 {
        let shards = u64::from(shards.count());
        let buckets = rule.span().unsigned_abs() + 1;
        let filters = ids.saturating_mul(self.filter_bits_per_id) / 8;
        let page_indexes = ids / super::filter::count(PAGE_IDS) * 16;
        let in_store = ids.saturating_mul(store_per_id);
        let settled = filters.saturating_add(page_indexes).saturating_add(in_store);
        let in_merges = settled / buckets;
        // A slot has 16 bytes and one of control; a table is 7/8 full at most.
        let head_ids = self.head_ids(ids / shards);
        let heads = shards.saturating_mul(head_ids / 7 * 8 * 17);
        settled.saturating_add(in_merges).saturating_add(heads)
    }

    /// The same as [`ram_bytes`](Self::ram_bytes), refused if it is more than `budget_bytes`.
    ///
    /// # Errors
    /// [`OverBudget`]: choose a shorter window, more RAM or a store on disk.
    pub fn check_budget(
        &self,
        rule: DedupRule,
        shards: Shards,
        ids: u64,
        store_per_id: u64,
        budget_bytes: u64,
    ) -> Result<u64, OverBudget> {
        let needed_bytes = self.ram_bytes(rule, shards, ids, store_per_id);
        if needed_bytes > budget_bytes {
            return Err(OverBudget { ids, needed_bytes, budget_bytes });
        }
        Ok(needed_bytes)
    }

    /// How many ids a head may take while the state holds `held`.
    pub(super) fn head_ids(&self, held: u64) -> u64 {
        let least = self.head_ids_min.max(HEAD_UNIT);
        let share = (held / HEAD_SHARE).clamp(least, self.head_ids_max.max(least));
        HEAD_UNIT << (share / HEAD_UNIT).ilog2()
    }
}
