//! The ids of one time bucket: a hash set of the recent ones and segments of the others.

use hashbrown::HashTable;
use tally_model::ids::MixedId;

use super::filter::{Probe, count};
use super::merge::Merge;
use super::segment::{Segment, SegmentHandle, SegmentMaker};
use super::store::SegmentError;

/// When segments are merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergePolicy {
    /// So many segments of like size become one.
    pub(super) fan_in: usize,
    /// No merge makes a segment of more ids.
    pub(super) segment_ids_max: u64,
}

#[derive(Debug, Default)]
pub(super) struct IdSet {
    head: HashTable<u128>,
    segments: Vec<Segment>,
    /// Ids in segments.
    frozen: u64,
    merges: Vec<Merge>,
    /// Whether all segments are to become one as soon as no merge is under way.
    consolidate: bool,
}

/// The hash of a mixed id is its high half: it is uniform already.
fn hash(id: u128) -> u64 {
    MixedId(id).halves()[1]
}

impl IdSet {
    /// A set as it was when `head` and `segments` were taken from it.
    pub(super) fn restore(
        head: &[u128],
        segments: &[SegmentHandle],
        bits_per_id: u64,
    ) -> Result<Self, SegmentError> {
        let mut set = Self::default();
        head.iter().for_each(|id| set.insert(*id));
        for handle in segments {
            let segment = Segment::rebuild(handle.clone(), bits_per_id)?;
            set.frozen += segment.ids();
            set.segments.push(segment);
        }
        Ok(set)
    }

    pub(super) fn len(&self) -> u64 {
        count(self.head.len()) + self.frozen
    }

    pub(super) fn head(&self) -> &HashTable<u128> {
        &self.head
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub(super) fn merges(&self) -> &[Merge] {
        &self.merges
    }

    pub(super) fn head_contains(&self, id: u128) -> bool {
        !self.head.is_empty() && self.head.find(hash(id), |held| *held == id).is_some()
    }

    /// Adds an id that is not in the set.
    pub(super) fn insert(&mut self, id: u128) {
        self.head.insert_unique(hash(id), id, |held| hash(*held));
    }

    /// Asks all filters about a chunk. Bit `i` of the answer: a segment may hold `probes[i]`.
    pub(super) fn probe(&mut self, probes: &[Probe]) -> u64 {
        self.segments.iter_mut().fold(0, |maybe, segment| maybe | segment.probe(probes))
    }

    /// Whether a segment holds the record of the chunk that `bit` stands for. Counts the segments
    /// that had to be searched.
    pub(super) fn segments_contain(
        &self,
        id: u128,
        bit: u64,
        searches: &mut u64,
    ) -> Result<bool, SegmentError> {
        for segment in self.segments.iter().filter(|segment| segment.maybe & bit != 0) {
            *searches += 1;
            if segment.contains(id)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the head a segment.
    pub(super) fn freeze(&mut self, maker: &mut SegmentMaker) -> Result<(), SegmentError> {
        if self.head.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<u128> = self.head.drain().collect();
        ids.sort_unstable();
        let mut builder = maker.begin(count(ids.len()))?;
        builder.append(&ids)?;
        self.segments.push(builder.finish()?);
        self.frozen += count(ids.len());
        Ok(())
    }

    /// Freezes the head for good: its bucket is no longer the newest. Ids that still come are few;
    /// all segments become one.
    pub(super) fn close(&mut self, maker: &mut SegmentMaker) -> Result<(), SegmentError> {
        self.freeze(maker)?;
        self.head = HashTable::new();
        self.consolidate = self.segments.len() > 2;
        Ok(())
    }

    /// Begins the merges that `policy` asks for.
    pub(super) fn plan(
        &mut self,
        policy: MergePolicy,
        maker: &mut SegmentMaker,
    ) -> Result<(), SegmentError> {
        self.segments.sort_by_key(Segment::ids);
        if self.consolidate {
            if self.merges.is_empty() {
                self.consolidate = false;
                let mut total = 0;
                let small_enough = self.segments.iter().take_while(|segment| {
                    total += segment.ids();
                    total <= policy.segment_ids_max
                });
                let chosen: Vec<_> = (0..small_enough.count()).collect();
                if chosen.len() > 2 {
                    self.merge(&chosen, maker)?;
                }
            }
            return Ok(());
        }
        while let Some(chosen) = self.alike(policy) {
            self.merge(&chosen, maker)?;
        }
        Ok(())
    }

    /// The smallest `fan_in` idle segments of which none is more than `fan_in` times another. Where
    /// there are none, each `fan_in` segments span such a factor: their number is a logarithm.
    fn alike(&self, policy: MergePolicy) -> Option<Vec<usize>> {
        let idle: Vec<_> =
            (0..self.segments.len()).filter(|i| !self.segments[*i].merging).collect();
        let fits = |window: &&[usize]| {
            let ids = |i: &usize| self.segments[*i].ids();
            let (least, most) = (ids(&window[0]), ids(&window[window.len() - 1]));
            most <= least.saturating_mul(count(policy.fan_in))
                && window.iter().map(ids).sum::<u64>() <= policy.segment_ids_max
        };
        idle.windows(policy.fan_in).find(fits).map(<[usize]>::to_vec)
    }

    fn merge(&mut self, chosen: &[usize], maker: &mut SegmentMaker) -> Result<(), SegmentError> {
        let inputs = chosen.iter().map(|i| &self.segments[*i]);
        let merge = Merge::begin(inputs, maker)?;
        for i in chosen {
            self.segments[*i].merging = true;
        }
        self.merges.push(merge);
        Ok(())
    }

    /// Ids left in the merge that is nearest its end; `None` without a merge.
    pub(super) fn least_left(&self) -> Option<u64> {
        self.merges.iter().map(|merge| merge.left).min()
    }

    /// Does one step of the merge that is nearest its end. Returns how many ids that merged.
    pub(super) fn merge_step(
        &mut self,
        policy: MergePolicy,
        maker: &mut SegmentMaker,
    ) -> Result<u64, SegmentError> {
        let nearest = (0..self.merges.len()).min_by_key(|i| self.merges[*i].left);
        let Some(nearest) = nearest else {
            return Ok(0);
        };
        let merged = self.merges[nearest].step()?;
        if self.merges[nearest].left == 0 {
            let (output, replaced) = self.merges.swap_remove(nearest).finish()?;
            let is_replaced = |segment: &mut Segment| replaced.contains(&segment.handle.name);
            for input in self.segments.extract_if(.., is_replaced) {
                input.handle.data.retire();
            }
            self.segments.push(output);
            self.plan(policy, maker)?;
        }
        Ok(merged)
    }

    /// Gives the storage up.
    pub(super) fn retire(self) {
        for segment in &self.segments {
            segment.handle.data.retire();
        }
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        count(self.head.allocation_size())
            + self.segments.iter().map(Segment::ram_bytes).sum::<u64>()
            + self.merges.iter().map(Merge::ram_bytes).sum::<u64>()
    }
}
