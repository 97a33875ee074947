//! One immutable run of ids: its data behind the store, its filter and page index in RAM.

use std::sync::Arc;

use tally_model::ids::{MixedId, Shard};

use super::filter::{Filter, Probe, count, scale};
use super::search::{count_not_above, place_between};
use super::store::{PAGE_IDS, SegmentData, SegmentError, SegmentName, SegmentStore, SegmentWriter};

/// A finished segment by name, with its data.
#[derive(Clone, Debug)]
pub struct SegmentHandle {
    /// Its name.
    pub name: SegmentName,
    /// Its ids.
    pub data: Arc<dyn SegmentData>,
}

impl SegmentHandle {
    /// How many pages it has.
    #[must_use]
    pub fn pages(&self) -> usize {
        super::filter::index(self.data.ids()).div_ceil(PAGE_IDS)
    }
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) handle: SegmentHandle,
    /// First id of each page.
    fences: Vec<u128>,
    filter: Filter,
    filter_bits_set: u64,
    /// What the filter said about the chunk at hand: bit `i` for its record `i`.
    pub(super) maybe: u64,
    /// Whether a merge is reading it.
    pub(super) merging: bool,
}

impl Segment {
    /// Reads a segment through and builds its filter from its ids, never from saved bits: a filter
    /// that was saved with other bit positions would forget its members.
    pub(super) fn rebuild(handle: SegmentHandle, bits_per_id: u64) -> Result<Self, SegmentError> {
        let ids = handle.data.ids();
        let mut filter = Filter::for_ids(ids, bits_per_id);
        let mut fences = Vec::with_capacity(handle.pages());
        let mut page_ids = Vec::with_capacity(PAGE_IDS);
        let mut last = None;
        let mut found = 0;
        for page in 0..handle.pages() {
            page_ids.clear();
            handle.data.read_page(page, &mut page_ids)?;
            let ascending = page_ids.is_sorted_by(|a, b| a < b) && last < page_ids.first().copied();
            if !ascending {
                return Err(SegmentError::Damaged { name: handle.name, page });
            }
            last = page_ids.last().copied();
            fences.extend(page_ids.first());
            page_ids.iter().for_each(|id| filter.insert(*id));
            found += count(page_ids.len());
        }
        if found != ids {
            return Err(SegmentError::Damaged { name: handle.name, page: handle.pages() });
        }
        Ok(Self::new(handle, fences, filter))
    }

    fn new(handle: SegmentHandle, fences: Vec<u128>, filter: Filter) -> Self {
        let filter_bits_set = filter.bits_set();
        Self { handle, fences, filter, filter_bits_set, maybe: 0, merging: false }
    }

    pub(super) fn ids(&self) -> u64 {
        self.handle.data.ids()
    }

    /// Asks the filter about a chunk and remembers the answer.
    pub(super) fn probe(&mut self, probes: &[Probe]) -> u64 {
        self.maybe = self.filter.maybe(probes);
        self.maybe
    }

    /// Whether the segment holds `id`, whatever its filter says.
    pub(super) fn contains(&self, id: u128) -> Result<bool, SegmentError> {
        let guess = scale(MixedId(id).halves()[1], self.fences.len());
        let Some(page) = count_not_above(&self.fences, guess, id).checked_sub(1) else {
            return Ok(false);
        };
        let to = self.fences.get(page + 1).copied().unwrap_or(u128::MAX);
        let place = place_between(id, self.fences[page], to);
        self.handle.data.page_contains(page, place, id)
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        let index = self.fences.capacity() * size_of::<u128>();
        count(size_of::<Self>() + index + self.filter.ram_bytes()) + self.handle.data.ram_bytes()
    }

    pub(super) fn filter_bits(&self) -> u64 {
        self.filter.bits()
    }

    pub(super) fn filter_bits_set(&self) -> u64 {
        self.filter_bits_set
    }
}

/// Makes the segments of one shard.
#[derive(Debug)]
pub(super) struct SegmentMaker {
    pub(super) store: Arc<dyn SegmentStore>,
    pub(super) bits_per_id: u64,
    pub(super) generation: u32,
    pub(super) shard: Shard,
    pub(super) next_sequence: u64,
}

impl SegmentMaker {
    /// Begins a segment of exactly `ids` ids.
    pub(super) fn begin(&mut self, ids: u64) -> Result<SegmentBuilder, SegmentError> {
        let Self { generation, shard, next_sequence: sequence, .. } = *self;
        let name = SegmentName { generation, shard, sequence };
        self.next_sequence += 1;
        Ok(SegmentBuilder {
            name,
            writer: self.store.create(name, ids)?,
            fences: Vec::with_capacity(super::filter::index(ids).div_ceil(PAGE_IDS)),
            filter: Filter::for_ids(ids, self.bits_per_id),
            written: 0,
        })
    }
}

/// A segment in the making.
#[derive(Debug)]
pub(super) struct SegmentBuilder {
    name: SegmentName,
    writer: Box<dyn SegmentWriter>,
    fences: Vec<u128>,
    filter: Filter,
    written: usize,
}

impl SegmentBuilder {
    /// Appends ids, ascending over all calls.
    pub(super) fn append(&mut self, ids: &[u128]) -> Result<(), SegmentError> {
        let to_next_page = (PAGE_IDS - self.written % PAGE_IDS) % PAGE_IDS;
        self.fences.extend(ids.iter().skip(to_next_page).step_by(PAGE_IDS));
        ids.iter().for_each(|id| self.filter.insert(*id));
        self.written += ids.len();
        self.writer.append(ids)
    }

    pub(super) fn finish(self) -> Result<Segment, SegmentError> {
        let handle = SegmentHandle { name: self.name, data: self.writer.finish()? };
        Ok(Segment::new(handle, self.fences, self.filter))
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        count(self.fences.capacity() * size_of::<u128>() + self.filter.ram_bytes())
    }
}
