//! The decisions, as pure functions: which checkpoint to restore, what to retain, what to remove,
//! and which worker loads what.

use std::collections::{BTreeMap, BTreeSet};

use tally_model::ids::{Shard, Shards};
use tally_model::revision::Generation;

use crate::error::Damage;
use crate::layout::{CheckpointId, data_generation};
use crate::objects::ObjectName;

/// From which checkpoint to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// There is none: read the log from its oldest offset.
    Nothing,
    /// The newest whole one.
    Restore {
        /// What the examination gave.
        found: T,
        /// Newer ones that are damaged, newest first: say so.
        passed_over: Vec<(CheckpointId, Damage)>,
    },
    /// There are some, and all are damaged: refuse to start, rather than count anew silently.
    Refuse {
        /// Every one of them, newest first.
        found: Vec<(CheckpointId, Damage)>,
    },
}

/// Chooses the newest whole checkpoint. `examine` is asked newest first and no further than needed,
/// because it reads everything that a checkpoint names.
///
/// # Errors
/// The first error of `examine`: what could not be examined is not damaged.
pub fn choose<T, E>(
    checkpoints: &BTreeSet<CheckpointId>,
    mut examine: impl FnMut(CheckpointId) -> Result<Result<T, Damage>, E>,
) -> Result<Choice<T>, E> {
    let mut passed_over = Vec::new();
    for id in checkpoints.iter().rev() {
        match examine(*id)? {
            Ok(found) => return Ok(Choice::Restore { found, passed_over }),
            Err(damage) => passed_over.push((*id, damage)),
        }
    }
    if passed_over.is_empty() {
        Ok(Choice::Nothing)
    } else {
        Ok(Choice::Refuse { found: passed_over })
    }
}

/// What is known of a checkpoint without reading its data objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Its manifest can be read, and every object is there with the right length.
    Whole,
    /// Something is wrong with it, or was when it should have been restored.
    Damaged,
}

/// Which checkpoints to keep: the newest ones down to the `keep_last`th whole one. Damaged ones do
/// not count, so that they never push out the whole ones on which a start would have to fall back.
#[must_use]
pub fn retained(
    checkpoints: &BTreeMap<CheckpointId, Condition>,
    keep_last: usize,
) -> BTreeSet<CheckpointId> {
    let mut kept = BTreeSet::new();
    let mut whole = 0;
    for (id, condition) in checkpoints.iter().rev() {
        if whole == keep_last {
            break;
        }
        kept.insert(*id);
        whole += usize::from(*condition == Condition::Whole);
    }
    kept
}

/// The greatest generation above `own` among those seen: if there is one, this process has been
/// taken over and may neither write nor remove anything.
#[must_use]
pub fn taken_over_by(
    own: Generation,
    seen: impl IntoIterator<Item = Generation>,
) -> Option<Generation> {
    seen.into_iter().max().filter(|greatest| *greatest > own)
}

/// Whether a generation may collect: only once it has written a checkpoint of its own. Until then a
/// manifest of its predecessor may still be on its way; to remove what that names would leave it
/// incomplete, and where it is the first of all, every start from then on would be refused.
#[must_use]
pub fn may_collect(own: Generation, last: Option<CheckpointId>) -> bool {
    last.is_some_and(|last| last.generation == own)
}

/// Which of the `listed` data objects to remove: those of generations up to `own` that are not in
/// `kept`. A name that says no generation is not ours and stays.
///
/// `kept` is what the retained checkpoints and savepoints name, and what the running generation has
/// uploaded for a checkpoint still to come. The caller has found no generation above `own`.
#[must_use]
pub fn garbage<'a>(
    listed: impl IntoIterator<Item = &'a ObjectName>,
    own: Generation,
    kept: &BTreeSet<&ObjectName>,
) -> Vec<ObjectName> {
    let is_ours = |name: &ObjectName| data_generation(name).is_some_and(|of| of <= own);
    let removed = listed.into_iter().filter(|name| is_ours(name) && !kept.contains(name));
    removed.cloned().collect()
}

/// The shards that a worker loads, in ascending order: each shard is loaded by exactly one of the
/// `workers`, however many wrote the checkpoint.
pub fn shards_of(worker: usize, workers: usize, shards: Shards) -> impl Iterator<Item = Shard> {
    shards.all().filter(move |shard| shard.owner(workers) == worker)
}

#[cfg(test)]
mod tests;
