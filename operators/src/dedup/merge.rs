//! Merging several segments into one, a page at a time.

use super::filter::count;
use super::segment::{Segment, SegmentBuilder, SegmentHandle, SegmentMaker};
use super::store::{PAGE_IDS, SegmentError, SegmentName};

/// A merge under way. Its inputs stay in use until it is done; dropped before that, it leaves
/// nothing behind.
#[derive(Debug)]
pub(super) struct Merge {
    inputs: Vec<Input>,
    output: SegmentBuilder,
    window: Vec<u128>,
    /// Ids not yet merged.
    pub(super) left: u64,
}

#[derive(Debug)]
struct Input {
    handle: SegmentHandle,
    next_page: usize,
    /// Ids read and not yet merged, from `at` on.
    read: Vec<u128>,
    at: usize,
}

impl Input {
    /// Reads a page unless unmerged ids are at hand.
    fn fill(&mut self) -> Result<(), SegmentError> {
        if self.at == self.read.len() && self.next_page < self.handle.pages() {
            self.read.clear();
            self.at = 0;
            self.handle.data.read_page(self.next_page, &mut self.read)?;
            self.next_page += 1;
        }
        Ok(())
    }

    /// The greatest id up to which everything has been read.
    fn known_to(&self) -> u128 {
        let more = self.next_page < self.handle.pages();
        self.read.last().copied().filter(|_| more).unwrap_or(u128::MAX)
    }
}

impl Merge {
    /// Begins to merge `inputs`, whose ids are all different.
    pub(super) fn begin<'a>(
        inputs: impl Iterator<Item = &'a Segment>,
        maker: &mut SegmentMaker,
    ) -> Result<Self, SegmentError> {
        let input = |segment: &Segment| Input {
            handle: segment.handle.clone(),
            next_page: 0,
            read: Vec::with_capacity(PAGE_IDS),
            at: 0,
        };
        let inputs: Vec<_> = inputs.map(input).collect();
        let left = inputs.iter().map(|input| input.handle.data.ids()).sum();
        Ok(Self { inputs, output: maker.begin(left)?, window: Vec::new(), left })
    }

    /// Merges on: at most one page of each input. Returns how many ids that were.
    ///
    /// Everything up to the least of the inputs' read ends is sorted as one window: the standard
    /// sort finds the runs in it, and merges them without a branch for each id.
    pub(super) fn step(&mut self) -> Result<u64, SegmentError> {
        for input in &mut self.inputs {
            input.fill()?;
        }
        let end = self.inputs.iter().map(Input::known_to).min().unwrap_or(u128::MAX);
        self.window.clear();
        for input in &mut self.inputs {
            let unmerged = &input.read[input.at..];
            let taken = unmerged.partition_point(|id| *id <= end);
            self.window.extend_from_slice(&unmerged[..taken]);
            input.at += taken;
        }
        self.window.sort();
        self.output.append(&self.window)?;
        let merged = count(self.window.len());
        self.left -= merged;
        Ok(merged)
    }

    /// Ends a merge that has no ids left: the segment, and the names of those that it replaces.
    pub(super) fn finish(self) -> Result<(Segment, Vec<SegmentName>), SegmentError> {
        let replaced = self.inputs.iter().map(|input| input.handle.name).collect();
        Ok((self.output.finish()?, replaced))
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        let pages = 2 * self.inputs.len() * PAGE_IDS * size_of::<u128>();
        count(pages) + self.output.ram_bytes()
    }
}
