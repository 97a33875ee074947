//! The sink operator: hands finished epochs over to the writer.
//!
//! Routing: minutes stay where their vectors were gathered. Time: rows and horizons are handed over
//! once both inputs have passed their epoch, rows first, epochs in order. Holds: rows of epochs
//! that are not yet complete.

use std::collections::BTreeMap;
use std::sync::Arc;

use differential_dataflow::VecCollection;
use tally_model::vector::CountVector;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

use crate::Epoch;
use crate::global::MinuteVector;
use crate::horizon::Horizon;
use crate::shared::Shared;

/// What one epoch brings.
#[derive(Default)]
struct Finished {
    rows: Vec<MinuteVector>,
    horizon: Option<Horizon>,
}

/// Delivers every vector that is inserted, and the horizon after the rows of its epoch.
///
/// # Panics
/// If a horizon arrives under no epoch (invariant T-1: operators send only under a capability).
pub(crate) fn sink<'scope>(
    vectors: VecCollection<'scope, Epoch, MinuteVector, isize>,
    horizons: StreamVec<'scope, Epoch, Horizon>,
    shared: Arc<Shared>,
) {
    let scope = horizons.scope();
    let worker = scope.index();
    let mut builder = OperatorBuilder::new("Sink".to_owned(), scope);
    let mut vectors = builder.new_input(vectors.inner, Pipeline);
    let mut horizons = builder.new_input(horizons, Pipeline);
    builder.build(move |_no_capabilities| {
        let mut open: BTreeMap<Epoch, Finished> = BTreeMap::new();
        move |frontiers| {
            vectors.for_each(|_, updates| {
                for (row, epoch, difference) in updates.drain(..) {
                    // A retraction alone means that the minute is retired: nothing to write.
                    if difference > 0 {
                        open.entry(epoch).or_default().rows.push(row);
                    }
                }
            });
            horizons.for_each(|stamp, horizons| {
                let epoch = *stamp.least().expect("T-1: operators send only under a capability");
                open.entry(epoch).or_default().horizon = horizons.pop();
            });
            while let Some(oldest) = open.first_entry()
                && frontiers.iter().all(|frontier| !frontier.less_equal(oldest.key()))
            {
                let Finished { rows, horizon } = oldest.remove();
                let rows = rows.into_iter();
                let rows = rows.map(|(minute, counts)| (minute, CountVector::from_counts(counts)));
                shared.outbox.deliver(worker, rows, horizon);
            }
        }
    });
}
