//! The dedup states of all shards, fed in batches.

use std::sync::Arc;

use tally_model::ids::{EventId, IdMixer, MixedId, Shards};
use tally_operators::dedup::{
    DedupOptions, DedupSnapshot, DedupState, DedupStats, SegmentError, SegmentStore, Verdict,
};

use super::args::Rules;
use crate::failure::Failure;

/// Exactly what the pipeline's workers keep, on one thread.
pub(super) struct Table {
    mixer: IdMixer,
    shards: Shards,
    states: Vec<DedupState>,
    routed: Vec<Routed>,
    of_shard: Vec<Verdict>,
}

/// What a shard has to decide of the batch at hand.
#[derive(Clone, Default)]
struct Routed {
    records: Vec<(MixedId, i64)>,
    /// Their places in the batch.
    places: Vec<usize>,
}

impl Table {
    /// A table that goes on from `snapshots`, one a shard; from none it starts empty.
    ///
    /// # Errors
    /// A segment that is not what was written: exit 1.
    pub(super) fn new(
        rules: &Rules,
        key: [u8; 16],
        store: &Arc<dyn SegmentStore>,
        snapshots: &[DedupSnapshot],
    ) -> Result<Self, Failure> {
        let shards = Shards::DEFAULT;
        let rule = rules.dedup()?;
        let mut states = Vec::with_capacity(usize::from(shards.count()));
        for shard in shards.all() {
            let options =
                DedupOptions { shard, store: Arc::clone(store), ..DedupOptions::default() };
            states.push(match snapshots.get(usize::from(shard.0)) {
                Some(snapshot) => DedupState::restore(rule, rules.timing(), options, snapshot)?,
                None => DedupState::new(rule, rules.timing(), options),
            });
        }
        Ok(Self {
            mixer: IdMixer::new(key),
            routed: vec![Routed::default(); states.len()],
            shards,
            states,
            of_shard: Vec::new(),
        })
    }

    /// Replaces the content of `verdicts` by one for each record, (id, time) in the order of the
    /// input.
    ///
    /// # Errors
    /// As [`DedupState::observe`]: the table can then only be dropped.
    pub(super) fn observe(
        &mut self,
        records: &[(EventId, i64)],
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), SegmentError> {
        let mut blocks: Vec<[u8; 16]> = records.iter().map(|(id, _)| id.0).collect();
        self.mixer.mix_blocks(&mut blocks);
        for (place, ((_, at_ms), block)) in records.iter().zip(blocks).enumerate() {
            let mixed = MixedId(u128::from_le_bytes(block));
            let routed = &mut self.routed[usize::from(mixed.shard(self.shards).0)];
            routed.records.push((mixed, *at_ms));
            routed.places.push(place);
        }
        verdicts.clear();
        verdicts.resize(records.len(), Verdict::First);
        for (state, Routed { records, places }) in self.states.iter_mut().zip(&mut self.routed) {
            state.observe(records, &mut self.of_shard)?;
            for (place, verdict) in places.iter().zip(&self.of_shard) {
                verdicts[*place] = *verdict;
            }
            records.clear();
            places.clear();
        }
        Ok(())
    }

    /// Forgets what nothing can repeat any more.
    pub(super) fn advance(&mut self, watermark_ms: i64) {
        for state in &mut self.states {
            state.advance(watermark_ms);
        }
    }

    pub(super) fn snapshots(&self) -> Vec<DedupSnapshot> {
        self.states.iter().map(DedupState::snapshot).collect()
    }

    pub(super) fn stats(&self) -> DedupStats {
        let mut total = DedupStats::default();
        for state in &self.states {
            total += state.stats();
        }
        total
    }
}
