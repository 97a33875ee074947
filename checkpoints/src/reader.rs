//! Restoring, listing and verifying checkpoints.
//!
//! Invariant P-1 of ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use tally_model::ids::Shard;

use crate::decide::{Choice, choose};
use crate::error::{CheckpointError, Damage};
use crate::layout::{self, CheckpointId, MANIFESTS, SAVEPOINTS, SavepointName};
use crate::manifest::{DataObject, DecodeError, Manifest, Totals};
use crate::objects::{ObjectError, ObjectName, ObjectStore};

/// Which checkpoint to start from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The newest whole one, if there is any.
    #[default]
    Newest,
    /// This one, whatever newer ones there are.
    Checkpoint(CheckpointId),
    /// The savepoint of this name.
    Savepoint(SavepointName),
}

/// A checkpoint whose every object was read and found to be what was written. Shared by the
/// workers, who take their shards out of it.
#[derive(Debug)]
pub struct Restored {
    manifest: Manifest,
    passed_over: Vec<(CheckpointId, Damage)>,
    taken: Mutex<BTreeSet<Shard>>,
}

/// What a worker loads of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredShard {
    /// The state as it was put.
    pub state: Vec<u8>,
    /// Its segments, in the order in which they were put; read them with [`Restored::segment`].
    pub segments: Vec<DataObject>,
    /// What became of its records up to the cut.
    pub totals: Totals,
}

impl Restored {
    fn new(manifest: Manifest, passed_over: Vec<(CheckpointId, Damage)>) -> Self {
        Self { manifest, passed_over, taken: Mutex::default() }
    }

    /// The checkpoint's manifest.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Newer checkpoints that are damaged, newest first. Their records will be read again; tell
    /// the operator.
    #[must_use]
    pub fn passed_over(&self) -> &[(CheckpointId, Damage)] {
        &self.passed_over
    }

    /// Hands out a shard, once (invariant P-1). Checks the bytes again: they are read again.
    ///
    /// # Errors
    /// [`CheckpointError::Taken`] if it was handed out before or does not exist; what
    /// [`Restored::segment`] says.
    pub fn take(
        &self,
        objects: &dyn ObjectStore,
        shard: Shard,
    ) -> Result<RestoredShard, CheckpointError> {
        let entry = self.manifest.shards.get(usize::from(shard.0));
        let is_first = || self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(shard);
        let Some(entry) = entry.filter(|_| is_first()) else {
            return Err(CheckpointError::Taken { shard, id: self.manifest.id() });
        };
        Ok(RestoredShard {
            state: self.segment(objects, &entry.state)?,
            segments: entry.segments.clone(),
            totals: entry.totals.clone(),
        })
    }

    /// Reads one object of the checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] if it was lost or damaged since it was verified: drop
    /// everything loaded and restore anew. [`CheckpointError::Objects`] if the store failed.
    pub fn segment(
        &self,
        objects: &dyn ObjectStore,
        object: &DataObject,
    ) -> Result<Vec<u8>, CheckpointError> {
        read_object(objects, object)?.map_err(|damage| CheckpointError::Damaged {
            name: layout::manifest(self.manifest.id()),
            damage,
        })
    }
}

/// Finds a checkpoint and verifies everything that it names, one object in memory at a time. `None`
/// if the newest is asked for and there is none at all: read the log from its oldest offset.
/// Changes nothing, so it can be repeated. [`Writer::open`](crate::writer::Writer::open) calls it
/// after it has stopped the generations before; alone it serves those who only look.
///
/// # Errors
/// [`CheckpointError::NothingUsable`] if there are checkpoints but all are damaged;
/// [`CheckpointError::Damaged`] and [`CheckpointError::NotFound`] of one that was asked for by
/// name; [`CheckpointError::Foreign`] and [`CheckpointError::Version`] if it is not for this
/// deployment or release; [`CheckpointError::Objects`] if the store failed.
pub fn restore(
    objects: &dyn ObjectStore,
    deployment: &str,
    origin: &Origin,
) -> Result<Option<Restored>, CheckpointError> {
    match origin {
        Origin::Newest => restore_newest(objects, deployment),
        Origin::Checkpoint(id) => {
            restore_named(objects, deployment, &layout::manifest(*id)).map(Some)
        }
        Origin::Savepoint(name) => {
            restore_named(objects, deployment, &layout::savepoint(name)).map(Some)
        }
    }
}

fn restore_newest(
    objects: &dyn ObjectStore,
    deployment: &str,
) -> Result<Option<Restored>, CheckpointError> {
    let listed = objects.list(MANIFESTS)?;
    let ids = listed.iter().filter_map(|listed| layout::manifest_id(&listed.name)).collect();
    let choice = choose(&ids, |id| examine(objects, deployment, &layout::manifest(id)))?;
    match choice {
        Choice::Nothing => Ok(None),
        Choice::Restore { found, passed_over } => Ok(Some(Restored::new(found, passed_over))),
        Choice::Refuse { found } => Err(CheckpointError::NothingUsable { found }),
    }
}

fn restore_named(
    objects: &dyn ObjectStore,
    deployment: &str,
    name: &ObjectName,
) -> Result<Restored, CheckpointError> {
    match examine(objects, deployment, name)? {
        Ok(manifest) => Ok(Restored::new(manifest, Vec::new())),
        Err(Damage::Missing(missing)) if missing == *name => {
            Err(CheckpointError::NotFound { name: missing })
        }
        Err(damage) => Err(CheckpointError::Damaged { name: name.clone(), damage }),
    }
}

/// Reads a checkpoint and everything that it names.
fn examine(
    objects: &dyn ObjectStore,
    deployment: &str,
    name: &ObjectName,
) -> Result<Result<Manifest, Damage>, CheckpointError> {
    let manifest = match read_manifest(objects, deployment, name)? {
        Ok(manifest) => manifest,
        Err(damage) => return Ok(Err(damage)),
    };
    for object in manifest.objects() {
        if let Err(damage) = read_object(objects, object)? {
            return Ok(Err(damage));
        }
    }
    Ok(Ok(manifest))
}

pub(crate) fn read_manifest(
    objects: &dyn ObjectStore,
    deployment: &str,
    name: &ObjectName,
) -> Result<Result<Manifest, Damage>, CheckpointError> {
    let Some(bytes) = objects.read(name)? else {
        return Ok(Err(Damage::Missing(name.clone())));
    };
    let manifest = match Manifest::decode(&bytes) {
        Ok(manifest) => manifest,
        Err(DecodeError::Damaged) => return Ok(Err(Damage::Manifest)),
        Err(DecodeError::Version(version)) => {
            return Err(CheckpointError::Version { name: name.clone(), version });
        }
    };
    if manifest.deployment != deployment {
        return Err(CheckpointError::Foreign {
            name: name.clone(),
            found: manifest.deployment,
            own: deployment.to_owned(),
        });
    }
    // A manifest under another's name was put there by a hand or a faulty disk.
    let is_misplaced = layout::manifest_id(name).is_some_and(|id| id != manifest.id());
    Ok(if is_misplaced { Err(Damage::Manifest) } else { Ok(manifest) })
}

fn read_object(
    objects: &dyn ObjectStore,
    object: &DataObject,
) -> Result<Result<Vec<u8>, Damage>, ObjectError> {
    Ok(match objects.read(&object.name)? {
        None => Err(Damage::Missing(object.name.clone())),
        Some(content) if object.is(&content) => Ok(content),
        Some(_other) => Err(Damage::Object(object.name.clone())),
    })
}

/// One checkpoint or savepoint of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The object of its manifest.
    pub name: ObjectName,
    /// The savepoint's name, if it is one.
    pub savepoint: Option<SavepointName>,
    /// Its manifest, unless that is damaged.
    pub manifest: Result<Manifest, Damage>,
}

/// Every checkpoint from the oldest to the newest, then every savepoint by name. Reads manifests
/// only.
///
/// # Errors
/// [`CheckpointError::Foreign`], [`CheckpointError::Version`] and [`CheckpointError::Objects`].
pub fn list(objects: &dyn ObjectStore, deployment: &str) -> Result<Vec<Found>, CheckpointError> {
    let mut listed = objects.list(MANIFESTS)?;
    listed.retain(|listed| layout::manifest_id(&listed.name).is_some());
    let mut savepoints = objects.list(SAVEPOINTS)?;
    savepoints.retain(|listed| layout::savepoint_name(&listed.name).is_some());
    listed.append(&mut savepoints);
    let mut found = Vec::with_capacity(listed.len());
    for name in listed.into_iter().map(|listed| listed.name) {
        let manifest = read_manifest(objects, deployment, &name)?;
        // Collected since it was listed.
        if !matches!(manifest, Err(Damage::Missing(_))) {
            found.push(Found { savepoint: layout::savepoint_name(&name), name, manifest });
        }
    }
    Ok(found)
}

/// A checkpoint or savepoint with all that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// What was verified.
    pub found: Found,
    /// Everything that is wrong, in the manifest's order; empty if it can be restored.
    pub damage: Vec<Damage>,
}

/// Reads everything that any checkpoint or savepoint names, each object once.
///
/// # Errors
/// As [`list`].
pub fn verify(
    objects: &dyn ObjectStore,
    deployment: &str,
) -> Result<Vec<Verified>, CheckpointError> {
    let mut verdicts: BTreeMap<DataObject, Option<Damage>> = BTreeMap::new();
    let mut verified = Vec::new();
    for found in list(objects, deployment)? {
        let mut damage = Vec::new();
        match &found.manifest {
            Err(of_manifest) => damage.push(of_manifest.clone()),
            Ok(manifest) => {
                for object in manifest.objects() {
                    if !verdicts.contains_key(object) {
                        let verdict = read_object(objects, object)?.err();
                        verdicts.insert(object.clone(), verdict);
                    }
                    damage.extend(verdicts.get(object).cloned().flatten());
                }
            }
        }
        verified.push(Verified { found, damage });
    }
    Ok(verified)
}
