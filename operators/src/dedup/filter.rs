//! The blocked Bloom filter that stands in front of one segment.

use tally_model::ids::MixedId;

const WORDS: usize = 8;
const BLOCK_BITS: u64 = 512;
/// Each half of a block (four words) has one word for an id, and three bits in that word.
const HALF: usize = WORDS / 2;

/// One cache line of bits. The alignment is what makes a probe cost one cache miss.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Block([u64; WORDS]);

/// Where an id stands in a filter of any size: computed once, used for every segment.
///
/// The block comes from the high half of the mixed id, the bits inside it from the low half
/// without its lowest ten bits, which the ids of one shard have partly in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    high: u64,
    words: [usize; 2],
    masks: [u64; 2],
}

impl Probe {
    pub(super) fn of(id: u128) -> Self {
        let [low, high] = MixedId(id).halves();
        let bit = |shift: u32| 1_u64 << ((low >> shift) & 63);
        let word = |shift: u32| usize::from(low.to_le_bytes()[7] >> shift) & (HALF - 1);
        Self {
            high,
            words: [word(4), word(6)],
            masks: [bit(10) | bit(16) | bit(22), bit(28) | bit(34) | bit(40)],
        }
    }
}

/// A set of ids that may say "maybe" for an id it does not hold, never "no" for one that it holds.
///
/// Blocks are in the order of the ids, so a filter filled from sorted ids is written from front to
/// back.
#[derive(Debug)]
pub(super) struct Filter {
    blocks: Vec<Block>,
}

impl Filter {
    /// An empty filter of `bits_per_id` bits for each of `ids` ids.
    pub(super) fn for_ids(ids: u64, bits_per_id: u64) -> Self {
        let blocks = ids.saturating_mul(bits_per_id).div_ceil(BLOCK_BITS).max(1);
        Self { blocks: vec![Block::default(); index(blocks)] }
    }

    pub(super) fn insert(&mut self, id: u128) {
        let probe = Probe::of(id);
        let at = self.block_index(&probe);
        let words = &mut self.blocks[at].0;
        words[probe.words[0]] |= probe.masks[0];
        words[HALF + probe.words[1]] |= probe.masks[1];
    }

    /// Bit `i` of the answer is set iff the filter may hold the id of `probes[i]` (at most 64).
    ///
    /// The first loop touches one line for each id and nothing in it waits for an earlier load, so
    /// the cache misses of a whole chunk overlap. It lets about one id in ten through to the
    /// second test, whose line is then in the cache.
    pub(super) fn maybe(&self, probes: &[Probe]) -> u64 {
        let mut maybe = 0_u64;
        for (i, probe) in probes.iter().enumerate() {
            let word = self.blocks[self.block_index(probe)].0[probe.words[0]];
            maybe |= u64::from(word & probe.masks[0] == probe.masks[0]) << i;
        }
        let mut left = maybe;
        while left != 0 {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            let probe = &probes[index(u64::from(bit.trailing_zeros()))];
            let word = self.blocks[self.block_index(probe)].0[HALF + probe.words[1]];
            if word & probe.masks[1] != probe.masks[1] {
                maybe ^= bit;
            }
        }
        maybe
    }

    pub(super) fn ram_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }

    /// How many bits there are.
    pub(super) fn bits(&self) -> u64 {
        count(self.blocks.len()) * BLOCK_BITS
    }

    /// How many bits are set; counts them.
    pub(super) fn bits_set(&self) -> u64 {
        self.blocks.iter().flat_map(|block| block.0).map(|word| u64::from(word.count_ones())).sum()
    }

    /// The high half scaled to the number of blocks.
    fn block_index(&self, probe: &Probe) -> usize {
        scale(probe.high, self.blocks.len())
    }
}

/// `high` as a fraction of 2^64, of `len`: below `len`, and monotone in `high`.
pub(super) fn scale(high: u64, len: usize) -> usize {
    let (_fraction, whole) = high.carrying_mul(count(len), 0);
    index(whole)
}

/// A length as a number that is written down.
pub(super) fn count(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// A number as an index. Beyond the address space it is out of every range.
pub(super) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dedup::testing::ids;

    fn maybes(filter: &Filter, asked: &[u128]) -> usize {
        let mut maybes = 0;
        for chunk in asked.chunks(64) {
            let probes: Vec<_> = chunk.iter().map(|id| Probe::of(*id)).collect();
            maybes += filter.maybe(&probes).count_ones() as usize;
        }
        maybes
    }

    #[test]
    fn a_filter_never_forgets_and_errs_for_at_most_one_stranger_in_eighty() {
        let held = ids(1, 100_000);
        let strangers = ids(2, 200_000);
        for (bits, strangers_max) in [(10, 2_500), (12, 1_300), (16, 500)] {
            let mut filter = Filter::for_ids(100_000, bits);
            held.iter().for_each(|id| filter.insert(*id));
            assert_eq!(maybes(&filter, &held), held.len(), "{bits} bits");
            let maybe = maybes(&filter, &strangers);
            assert!(maybe < strangers_max, "{maybe} of 200,000 at {bits} bits an id");
        }
    }

    #[test]
    fn a_filter_with_ten_times_its_ids_still_forgets_none() {
        let held = ids(1, 50_000);
        let mut filter = Filter::for_ids(5_000, 12);
        held.iter().for_each(|id| filter.insert(*id));
        assert_eq!(maybes(&filter, &held), held.len());
    }

    #[test]
    fn the_ids_of_one_shard_spread_over_all_blocks_and_bits() {
        for shards in [64, 1000, 1024] {
            let of_shard_3 =
                |id: &u128| (u64::try_from(*id & u128::from(u64::MAX)).unwrap()) % shards == 3;
            let mut all: Vec<_> = ids(9, 4_000_000).into_iter().filter(of_shard_3).collect();
            let strangers = all.split_off(all.len() / 2);
            let mut filter = Filter::for_ids(count(all.len()), 10);
            all.iter().for_each(|id| filter.insert(*id));
            let maybe = maybes(&filter, &strangers);
            assert!(maybe * 50 < strangers.len(), "{maybe} of {} in {shards}", strangers.len());
        }
    }
}
