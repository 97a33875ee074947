//! Stages two and three: partial counts by type become whole vectors by minute.
//!
//! Differential dataflow does all of it. Partials are a collection of (type, minute) whose
//! multiplicity is the count. An insertion of a vector is a row to put; a later difference shows as
//! a retraction and an insertion; a retired minute's partials are taken back, which leaves a
//! retraction alone.
//!
//! Invariant C-1 of ARCHITECTURE.md.

use std::hash::{Hash, Hasher};

use differential_dataflow::operators::CountTotal;
use differential_dataflow::{AsCollection, VecCollection};
use serde::{Deserialize, Serialize};
use tally_model::types::TypeId;
use timely::dataflow::StreamVec;

use crate::Epoch;

/// One event type in one minute, or the minute's marker.
///
/// Hashed, and so routed, by type alone: a type's counts of all minutes meet on one worker. The
/// hash has a fixed seed, so that every worker of every process routes alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// Start of the minute, in ms since the Unix epoch.
    start_ms: i64,
    /// `None` is the marker, which makes a row of a minute without any event.
    slot: Option<TypeId>,
}

impl Cell {
    pub(crate) const fn of(start_ms: i64, slot: TypeId) -> Self {
        Self { start_ms, slot: Some(slot) }
    }

    pub(crate) const fn marker(start_ms: i64) -> Self {
        Self { start_ms, slot: None }
    }
}

impl Hash for Cell {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.slot.hash(state);
    }
}

/// A difference of a partial count.
pub(crate) type Partial = (Cell, Epoch, i64);
/// A minute, by its start, and its whole vector, index = slot.
pub(crate) type MinuteVector = (i64, Vec<u64>);

/// Adds partials up by type, then gathers whole vectors by minute.
///
/// # Panics
/// If a count is negative (invariant C-1: what is taken back was added before).
pub(crate) fn vectors<'scope>(
    partials: StreamVec<'scope, Epoch, Partial>,
) -> VecCollection<'scope, Epoch, MinuteVector, isize> {
    partials
        .as_collection()
        .count_total()
        .map(|(cell, count)| (cell.start_ms, (cell.slot, count)))
        .reduce_named("MinuteVectors", |_minute, cells, vectors| {
            let mut vector = Vec::new();
            for ((slot, count), _) in cells {
                if let Some(slot) = slot {
                    let index = usize::from(slot.0);
                    vector.resize(vector.len().max(index + 1), 0);
                    vector[index] =
                        u64::try_from(*count).expect("C-1: only what was added is taken back");
                }
            }
            vectors.push((vector, 1));
        })
}

#[cfg(test)]
mod tests {
    use differential_dataflow::Hashable;

    use super::*;

    #[test]
    fn a_type_is_routed_alike_in_every_minute_process_and_release() {
        let hash = |cell: Cell| cell.hashed();
        assert_eq!(hash(Cell::of(0, TypeId(3))), hash(Cell::of(60_000, TypeId(3))));
        let of_slots = [0, 1, 2, 3999].map(|slot| hash(Cell::of(0, TypeId(slot))));
        assert_eq!(
            of_slots,
            [
                6_347_099_672_307_910_234,
                4_641_390_590_350_134_814,
                11_038_122_963_047_264_357,
                13_801_757_237_473_038_229,
            ]
        );
        assert_eq!(
            [0_i64, 60_000, -60_000].map(|minute| minute.hashed()),
            [12_660_643_674_261_709_305, 6_117_556_519_809_099_473, 6_002_462_474_077_395_860,]
        );
    }
}
