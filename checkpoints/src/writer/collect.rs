//! Removing what no checkpoint needs any more.

use std::collections::{BTreeMap, BTreeSet};

use super::Writer;
use crate::decide::{Condition, garbage, may_collect, retained};
use crate::error::CheckpointError;
use crate::layout::{self, CheckpointId, DATA, GENERATIONS};
use crate::manifest::Manifest;
use crate::objects::ObjectName;
use crate::reader::{self, Found};

/// What a collection has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Checkpoints.
    pub checkpoints: u64,
    /// Data objects.
    pub objects: u64,
    /// Bytes of the data objects.
    pub bytes: u64,
    /// Savepoints that are damaged. What they name cannot be known, so no data object is removed
    /// until somebody removes them or puts them back: tell the operator.
    pub held_back_by: Vec<ObjectName>,
}

impl Writer {
    /// Removes checkpoints that are not retained, then data objects that nothing names. A crash at
    /// any moment leaves only something to collect later. Removes nothing before this generation
    /// has written a checkpoint, see [`may_collect`].
    ///
    /// # Errors
    /// [`CheckpointError::TakenOver`] before anything is removed; [`CheckpointError::Foreign`] and
    /// [`CheckpointError::Version`] if a manifest is not for this deployment or release;
    /// [`CheckpointError::Objects`]: part of the garbage may be removed.
    pub fn collect(&mut self) -> Result<Collected, CheckpointError> {
        if !may_collect(self.options.generation, self.last) {
            return Ok(Collected::default());
        }
        let found = reader::list(self.objects.as_ref(), &self.options.deployment)?;
        let listed: BTreeMap<ObjectName, u64> =
            self.objects.list(DATA)?.into_iter().map(|of| (of.name, of.bytes)).collect();
        let old_marks = self.marks_of_generations_before()?;
        // Last before anything is removed: whoever starts now finds what this one retains.
        self.refuse_if_taken_over()?;

        let kept_ids = self.retained(&found, &listed);
        let is_kept = |id: Option<CheckpointId>| id.is_none_or(|id| kept_ids.contains(&id));
        let (kept, dropped): (Vec<&Found>, Vec<&Found>) =
            found.iter().partition(|found| is_kept(layout::manifest_id(&found.name)));
        let mut collected = Collected::default();
        for found in &kept {
            if found.savepoint.is_some() && found.manifest.is_err() {
                collected.held_back_by.push(found.name.clone());
            }
        }
        let names: Vec<_> = dropped.iter().map(|found| found.name.clone()).collect();
        if !names.is_empty() {
            self.objects.delete(&names)?;
            collected.checkpoints = count(names.len());
        }
        if !collected.held_back_by.is_empty() {
            return Ok(collected);
        }
        let manifests = kept.iter().filter_map(|found| found.manifest.as_ref().ok());
        let named = manifests.flat_map(Manifest::objects).map(|of| &of.name);
        let in_use: BTreeSet<&ObjectName> = named.chain(self.segments.keys()).collect();
        let mut names = garbage(listed.keys(), self.options.generation, &in_use);
        collected.objects = count(names.len());
        collected.bytes = names.iter().filter_map(|name| listed.get(name)).sum();
        names.extend(old_marks);
        if !names.is_empty() {
            self.objects.delete(&names)?;
        }
        Ok(collected)
    }

    /// The checkpoints to keep, of those found.
    fn retained(
        &self,
        found: &[Found],
        listed: &BTreeMap<ObjectName, u64>,
    ) -> BTreeSet<CheckpointId> {
        let condition = |id: CheckpointId, found: &Found| match &found.manifest {
            Ok(manifest)
                if !self.unusable.contains(&id)
                    && manifest.objects().all(|of| listed.get(&of.name) == Some(&of.bytes)) =>
            {
                Condition::Whole
            }
            Ok(_) | Err(_) => Condition::Damaged,
        };
        let checkpoints = found.iter().filter_map(|found| {
            let id = layout::manifest_id(&found.name)?;
            Some((id, condition(id, found)))
        });
        retained(&checkpoints.collect(), self.options.keep_last.max(2))
    }

    fn marks_of_generations_before(&self) -> Result<Vec<ObjectName>, CheckpointError> {
        let own = self.options.generation;
        let mut names: Vec<_> =
            self.objects.list(GENERATIONS)?.into_iter().map(|of| of.name).collect();
        names.retain(|name| layout::seen_generation(name).is_some_and(|of| of < own));
        Ok(names)
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
