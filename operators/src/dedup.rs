//! Exact deduplication over a sliding window, in flat memory.
//!
//! [`DedupState`] keeps the ids of one shard. Ids stand in time buckets by the receivedAt stamp of
//! their first copy; whether a later copy is a repeat is a function of the two stamps alone
//! ([`DedupRule`]). A bucket is dropped whole once no on-time record can repeat an id of it.
//!
//! Each bucket has a *head*, a hash set of recent ids, and *segments*: immutable sorted runs in a
//! [`SegmentStore`], each behind a blocked Bloom filter in RAM. A filter only ever saves a search:
//! a "maybe" is always looked up, and every first copy is inserted whatever the filters say.
//! Segments of like size are merged, a few pages for each chunk of records, so that their number
//! is a logarithm of the bucket's size and no call takes long.
//!
//! **What is certain.** Every [`Verdict::First`] and [`Verdict::Repeat`] is the truth about the
//! log. [`Verdict::PastWindow`] says that the truth can no longer be known here: the record came
//! so late that a bucket that decides it is gone, or its id had such a record before and the rule
//! depends on that one.
//!
//! Invariant D-1 of ARCHITECTURE.md.

mod directory;
mod filter;
mod id_set;
mod merge;
mod options;
mod search;
mod segment;
mod snapshot;
mod stats;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::fmt;

use tally_model::bucket::MINUTE_MS;
use tally_model::ids::MixedId;
use tally_model::rules::{DedupBucket, DedupRule, Timing};

use self::filter::{Probe, count};
use self::id_set::{IdSet, MergePolicy};
use self::segment::SegmentMaker;

pub use self::directory::DirectoryStore;
pub use self::options::{DedupOptions, OverBudget};
pub use self::segment::SegmentHandle;
pub use self::snapshot::{BucketSnapshot, DedupSnapshot, SetSnapshot};
pub use self::stats::{DedupCounters, DedupStats};
pub use self::store::{
    MemoryStore, PAGE_IDS, SegmentData, SegmentError, SegmentName, SegmentStore, SegmentWriter,
};

/// Records whose cache misses overlap: one bit of a word each.
const CHUNK: usize = 64;
/// Ids merged for each id inserted. An id is rewritten once a size tier and once when its bucket
/// is closed, six times or so; the rest is room to catch up.
const MERGED_PER_ID: u64 = 16;

/// What a record is, by its id and its receivedAt stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first copy of its event.
    First,
    /// A copy of an event that came before.
    Repeat,
    /// Too late to tell: what would decide it has been dropped.
    PastWindow,
}

/// What [`DedupState::advance`] let go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Time buckets.
    pub buckets: u64,
    /// Ids in them.
    pub ids: u64,
}

/// The ids of one shard. See the [module](self).
pub struct DedupState {
    rule: DedupRule,
    timing: Timing,
    options: DedupOptions,
    policy: MergePolicy,
    maker: SegmentMaker,
    /// In ascending order.
    buckets: Vec<TimeBucket>,
    /// Buckets before this one have been dropped.
    kept_from: DedupBucket,
    /// Whether a newer bucket was opened since the heads were last looked after.
    rolled: bool,
    held: u64,
    /// Ids that may be merged before the next record is taken.
    credit: u64,
    counters: DedupCounters,
    chunk: Chunk,
}

/// Room for the chunk at hand, kept to be used again.
#[derive(Default)]
struct Chunk {
    probes: Vec<Probe>,
    copies: Vec<DedupBucket>,
}

#[derive(Debug)]
struct TimeBucket {
    number: DedupBucket,
    /// Ids whose first copy is of this bucket.
    firsts: IdSet,
    /// Ids with a copy of this bucket that was past the window: it was the first one, or it
    /// repeated one of a bucket that is gone.
    undecided: IdSet,
}

impl fmt::Debug for DedupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupState")
            .field("rule", &self.rule)
            .field("options", &self.options)
            .field("kept_from", &self.kept_from)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl DedupState {
    /// A state that holds nothing.
    #[must_use]
    pub fn new(rule: DedupRule, timing: Timing, options: DedupOptions) -> Self {
        let maker = SegmentMaker {
            store: std::sync::Arc::clone(&options.store),
            bits_per_id: options.filter_bits_per_id,
            generation: options.generation,
            shard: options.shard,
            next_sequence: 0,
        };
        Self {
            rule,
            timing,
            policy: MergePolicy {
                fan_in: options.merge_fan_in.max(2),
                segment_ids_max: options.segment_ids_max,
            },
            maker,
            options,
            buckets: Vec::new(),
            kept_from: DedupBucket(i64::MIN),
            rolled: false,
            held: 0,
            credit: 0,
            counters: DedupCounters::default(),
            chunk: Chunk::default(),
        }
    }

    /// Takes records of this shard in log order, as (id, receivedAt in ms since the Unix epoch).
    /// Replaces the content of `verdicts` by one verdict for each.
    ///
    /// # Errors
    /// [`SegmentError`] if a segment cannot be read or written. The state has then taken some of
    /// the records: drop it and restore.
    pub fn observe(
        &mut self,
        records: &[(MixedId, i64)],
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), SegmentError> {
        verdicts.clear();
        verdicts.reserve(records.len());
        let mut chunk = std::mem::take(&mut self.chunk);
        for records in records.chunks(CHUNK) {
            self.observe_chunk(records, &mut chunk, verdicts)?;
        }
        self.chunk = chunk;
        Ok(())
    }

    /// Takes one record. Many are faster together.
    ///
    /// # Errors
    /// As [`observe`](Self::observe).
    pub fn observe_one(
        &mut self,
        id: MixedId,
        received_at_ms: i64,
    ) -> Result<Verdict, SegmentError> {
        let mut verdicts = Vec::new();
        self.observe(&[(id, received_at_ms)], &mut verdicts)?;
        Ok(verdicts[0])
    }

    /// Drops the buckets that no on-time record needs once the watermark is `watermark_ms`. A
    /// watermark below an earlier one changes nothing.
    pub fn advance(&mut self, watermark_ms: i64) -> Dropped {
        let kept_from = first_kept(self.rule, &self.timing, watermark_ms);
        self.kept_from = self.kept_from.max(kept_from);
        let gone = self.buckets.partition_point(|bucket| bucket.number < self.kept_from);
        let mut dropped = Dropped::default();
        for bucket in self.buckets.drain(..gone) {
            dropped.buckets += 1;
            dropped.ids += bucket.len();
            bucket.firsts.retire();
            bucket.undecided.retire();
        }
        self.held -= dropped.ids;
        self.counters.evicted_ids += dropped.ids;
        dropped
    }

    /// What the state has done and what it takes. Costs a walk over the segments.
    #[must_use]
    pub fn stats(&self) -> DedupStats {
        let mut stats = DedupStats {
            counters: self.counters,
            buckets: count(self.buckets.len()),
            ids: self.held,
            ram_bytes: count(size_of::<Self>() + self.buckets.capacity() * size_of::<TimeBucket>()),
            ..DedupStats::default()
        };
        for set in self.buckets.iter().flat_map(TimeBucket::sets) {
            stats.head_ids += count(set.head().len());
            stats.segments += count(set.segments().len());
            stats.merges += count(set.merges().len());
            stats.ram_bytes += set.ram_bytes();
            for segment in set.segments() {
                stats.disk_bytes += segment.handle.data.disk_bytes();
                stats.filter_bits += segment.filter_bits();
                stats.filter_bits_set += segment.filter_bits_set();
            }
        }
        stats
    }

    /// First asks every filter about every record, so that cache misses overlap, then decides the
    /// records one after the other. Segments change only between chunks.
    fn observe_chunk(
        &mut self,
        records: &[(MixedId, i64)],
        chunk: &mut Chunk,
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), SegmentError> {
        chunk.probes.clear();
        chunk.probes.extend(records.iter().map(|(id, _)| Probe::of(id.0)));
        chunk.copies.clear();
        chunk.copies.extend(records.iter().map(|(_, at_ms)| self.rule.bucket(*at_ms)));
        let Some(least) = chunk.copies.iter().min() else {
            return Ok(());
        };
        let oldest = self.rule.oldest_deciding(*least);
        let mut maybe = 0;
        let mut filters = 0;
        for bucket in self.buckets.iter_mut().rev().take_while(|bucket| bucket.number >= oldest) {
            maybe |= bucket.firsts.probe(&chunk.probes) | bucket.undecided.probe(&chunk.probes);
            filters += bucket.firsts.segments().len() + bucket.undecided.segments().len();
        }
        let held_before = self.held;
        let mut bit = 1;
        for ((id, _), copy) in records.iter().zip(&chunk.copies) {
            let verdict = self.decide(id.0, *copy, maybe & bit)?;
            match verdict {
                Verdict::First => self.insert(id.0, *copy, |bucket| &mut bucket.firsts),
                Verdict::PastWindow => {
                    self.counters.past_window += 1;
                    self.insert(id.0, *copy, |bucket| &mut bucket.undecided);
                }
                Verdict::Repeat => self.counters.repeats += 1,
            }
            verdicts.push(verdict);
            bit <<= 1;
        }
        self.counters.records += count(records.len());
        self.counters.filter_probes += count(filters * records.len());
        self.tend(self.held - held_before)
    }

    /// `maybe` is the record's bit of the chunk, or zero if no filter knows the id.
    fn decide(&mut self, id: u128, copy: DedupBucket, maybe: u64) -> Result<Verdict, SegmentError> {
        let oldest = self.rule.oldest_deciding(copy);
        let mut undecided = oldest < self.kept_from;
        let deciding = self.buckets.iter().rev().take_while(|bucket| bucket.number >= oldest);
        for bucket in deciding.clone() {
            // Whichever of its two meanings an undecided copy has, it makes a repeat of a copy
            // that is not of a later bucket.
            let repeats_undecided = bucket.number >= copy;
            if bucket.firsts.head_contains(id) {
                return Ok(Verdict::Repeat);
            }
            if bucket.undecided.head_contains(id) {
                if repeats_undecided {
                    return Ok(Verdict::Repeat);
                }
                undecided = true;
            }
        }
        if maybe != 0 {
            let mut searches = 0;
            let mut found = false;
            for bucket in deciding {
                let decisive = bucket.firsts.segments_contain(id, maybe, &mut searches)?;
                let doubtful =
                    !decisive && bucket.undecided.segments_contain(id, maybe, &mut searches)?;
                if decisive || (doubtful && bucket.number >= copy) {
                    found = true;
                    break;
                }
                undecided |= doubtful;
            }
            self.counters.segment_searches += searches;
            self.counters.vain_searches += searches - u64::from(found);
            if found {
                return Ok(Verdict::Repeat);
            }
        }
        Ok(if undecided { Verdict::PastWindow } else { Verdict::First })
    }

    /// Adds an id that is not there, unless its bucket has been dropped.
    fn insert(
        &mut self,
        id: u128,
        copy: DedupBucket,
        set: impl FnOnce(&mut TimeBucket) -> &mut IdSet,
    ) {
        if copy < self.kept_from {
            return;
        }
        let place = self.buckets.partition_point(|bucket| bucket.number < copy);
        if self.buckets.get(place).is_none_or(|bucket| bucket.number != copy) {
            self.rolled |= place == self.buckets.len();
            self.buckets.insert(place, TimeBucket::new(copy));
        }
        set(&mut self.buckets[place]).insert(id);
        self.held += 1;
    }

    /// Freezes heads that are full or no longer the newest, and merges on in proportion to what
    /// was inserted.
    fn tend(&mut self, inserted: u64) -> Result<(), SegmentError> {
        if inserted == 0 {
            return Ok(());
        }
        let head_ids = self.options.head_ids(self.held);
        let rolled = std::mem::take(&mut self.rolled);
        let newest = self.buckets.last().map(|bucket| bucket.number);
        for bucket in &mut self.buckets {
            let closed = rolled && Some(bucket.number) != newest;
            for set in bucket.sets_mut() {
                if closed {
                    set.close(&mut self.maker)?;
                } else if count(set.head().len() + CHUNK) > head_ids {
                    set.freeze(&mut self.maker)?;
                } else {
                    continue;
                }
                set.plan(self.policy, &mut self.maker)?;
            }
        }
        self.credit += inserted * MERGED_PER_ID;
        while self.credit > 0 {
            let sets = self.buckets.iter_mut().flat_map(TimeBucket::sets_mut);
            let waiting = sets.filter_map(|set| set.least_left().map(|left| (left, set)));
            let Some((_, nearest)) = waiting.min_by_key(|(left, _)| *left) else {
                self.credit = 0;
                break;
            };
            let merged = nearest.merge_step(self.policy, &mut self.maker)?;
            self.counters.merged_ids += merged;
            self.credit = self.credit.saturating_sub(merged);
        }
        Ok(())
    }
}

impl TimeBucket {
    fn new(number: DedupBucket) -> Self {
        Self { number, firsts: IdSet::default(), undecided: IdSet::default() }
    }

    fn len(&self) -> u64 {
        self.firsts.len() + self.undecided.len()
    }

    fn sets(&self) -> [&IdSet; 2] {
        [&self.firsts, &self.undecided]
    }

    fn sets_mut(&mut self) -> [&mut IdSet; 2] {
        [&mut self.firsts, &mut self.undecided]
    }
}

/// The least bucket that is not droppable by [`DedupRule::is_droppable`], without a walk.
fn first_kept(rule: DedupRule, timing: &Timing, watermark_ms: i64) -> DedupBucket {
    let before_ms = watermark_ms.saturating_sub(timing.retire_after_ms()).saturating_sub(1);
    // Records of the minutes that end by then have all come.
    let complete_ms = before_ms.saturating_sub(before_ms.rem_euclid(MINUTE_MS));
    DedupBucket(complete_ms.div_euclid(rule.width_ms()).saturating_sub(rule.span()))
}
