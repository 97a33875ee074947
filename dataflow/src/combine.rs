//! The dedup operator with the local combine: the shell around [`LocalCounts`].
//!
//! Routing: batches meet at their shard's owner; reports go to all workers. Time: what goes out for
//! epoch `e` carries `e`, what is taken back for it `e + 1`, so that the last row of a minute is
//! seen before it goes. Emits: once both inputs have passed `e`, for each epoch with a report.
//! Holds: a capability for each such epoch, until it is settled, and frozen if it is a cut; none for
//! batches, which are taken in as they come.
//!
//! Invariant T-1 of ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::sync::Arc;

use tally_operators::watermark::WatermarkReport;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::vec::Broadcast;
use timely::progress::frontier::MutableAntichain;

use crate::Epoch;
use crate::error::CountError;
use crate::global::{Cell, Partial};
use crate::horizon::Horizon;
use crate::local::{LocalCounts, Settled};
use crate::reading::ShardBatch;
use crate::shared::Shared;

#[cfg(test)]
mod tests;

/// How often the dedup state's figures are shown, in ms.
const STATS_EVERY: Epoch = 1_000;

/// The reports of one epoch and the right to answer them.
struct Waiting {
    reports: Vec<WatermarkReport>,
    partials: Capability<Epoch>,
    horizons: Capability<Epoch>,
}

/// What leaves a worker: partial counts as differences, and what holds for all minutes.
pub(crate) struct Combined<'scope> {
    pub(crate) partials: StreamVec<'scope, Epoch, Partial>,
    pub(crate) horizons: StreamVec<'scope, Epoch, Horizon>,
}

/// Decides every event, counts it in its minute, and emits the minutes' counts by epoch.
///
/// # Panics
/// If a report arrives under no epoch (invariant T-1: sources send only under a capability).
pub(crate) fn combine<'scope>(
    batches: StreamVec<'scope, Epoch, ShardBatch>,
    reports: StreamVec<'scope, Epoch, WatermarkReport>,
    mut counts: LocalCounts,
    shared: Arc<Shared>,
) -> Combined<'scope> {
    let scope = batches.scope();
    let (worker, workers) = (scope.index(), scope.peers());
    let mut builder = OperatorBuilder::new("DedupCombine".to_owned(), scope);
    let by_owner = Exchange::new(move |batch: &ShardBatch| owner(batch, workers));
    let mut batches = builder.new_input(batches, by_owner);
    let mut reports = builder.new_input(reports.broadcast(), Pipeline);
    let (partials_out, partials) = builder.new_output();
    let (horizons_out, horizons) = builder.new_output();
    let mut partials_out = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(partials_out);
    let mut horizons_out = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(horizons_out);
    builder.build(move |_initial_capabilities| {
        let mut waiting: BTreeMap<Epoch, Waiting> = BTreeMap::new();
        let mut show_stats_at = 0;
        move |frontiers| {
            // In the order in which they were sent, whatever their stamps: log order decides which
            // copy of an event is the first.
            batches.for_each(|_, batches| {
                for batch in batches.drain(..) {
                    match counts.take(&batch) {
                        Ok(taken) => shared.parts.progress.add(worker, &taken),
                        Err(error) => shared.fail(CountError::Dedup(error)),
                    }
                }
            });
            reports.for_each(|stamp, reports| {
                let epoch = *stamp.least().expect("T-1: sources send only under a capability");
                let waiting = waiting.entry(epoch).or_insert_with(|| Waiting {
                    reports: Vec::new(),
                    partials: stamp.delayed(&epoch, 0),
                    horizons: stamp.delayed(&epoch, 1),
                });
                waiting.reports.append(reports);
            });
            let mut partials = partials_out.activate();
            let mut horizons = horizons_out.activate();
            while let Some(oldest) = waiting.first_entry()
                && has_passed(frontiers, *oldest.key())
            {
                let (epoch, held) = oldest.remove_entry();
                if let Some(stored_up_to_ms) = shared.parts.progress.retired_up_to_ms() {
                    counts.forget(stored_up_to_ms);
                }
                let settled = counts.settle(epoch, held.reports);
                shared.parts.progress.show_watermark(settled.watermark_ms);
                // The capability is still held: sources go on only once every worker was here.
                if shared.cuts.announced() == Some(epoch) {
                    shared.cuts.take_worker(worker, counts.freeze());
                }
                if epoch >= show_stats_at {
                    show_stats_at = epoch + STATS_EVERY;
                    shared.parts.progress.show_dedup(worker, counts.dedup_stats());
                }
                horizons.session(&held.horizons).give(settled.horizon);
                partials.session(&held.partials).give_iterator(added(&settled, epoch));
                let later = epoch + 1;
                let held_later = held.partials.delayed(&later);
                partials.session(&held_later).give_iterator(taken_back(&settled, later));
            }
        }
    });
    Combined { partials, horizons }
}

/// The worker that keeps a batch's shard.
fn owner(batch: &ShardBatch, workers: usize) -> u64 {
    u64::try_from(batch.shard.owner(workers)).unwrap_or(u64::MAX)
}

fn has_passed(frontiers: &[MutableAntichain<Epoch>], epoch: Epoch) -> bool {
    frontiers.iter().all(|frontier| !frontier.less_equal(&epoch))
}

fn added(settled: &Settled, epoch: Epoch) -> impl Iterator<Item = Partial> {
    let counts = settled.added.iter().map(|(start_ms, slot, by)| (Cell::of(start_ms, slot), by));
    let markers = settled.marked.iter().map(|start_ms| (Cell::marker(*start_ms), 1));
    counts.chain(markers).map(move |(cell, by)| (cell, epoch, by))
}

fn taken_back(settled: &Settled, epoch: Epoch) -> impl Iterator<Item = Partial> {
    let counts =
        settled.taken_back.iter().map(|(start_ms, slot, by)| (Cell::of(start_ms, slot), by));
    let markers = settled.unmarked.iter().map(|start_ms| (Cell::marker(*start_ms), -1));
    counts.chain(markers).map(move |(cell, by)| (cell, epoch, by))
}
