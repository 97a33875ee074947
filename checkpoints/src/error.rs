//! What can go wrong with a checkpoint, one variant for each thing to do about it.

use std::io;

use tally_model::ids::Shard;
use tally_model::revision::Generation;

use crate::layout::{CheckpointId, SavepointName};
use crate::objects::{ObjectError, ObjectName};

/// Why a checkpoint could not be written, read or collected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The object store did not answer as it should: go on counting, try again with the next
    /// checkpoint, and say so.
    #[error("the object store failed")]
    Objects(#[from] ObjectError),
    /// A later start of the deployment exists: stop for good (exit 5). Nothing was removed.
    #[error("generation {own} was taken over by generation {greater}")]
    TakenOver {
        /// The generation of this process.
        own: Generation,
        /// The greatest one that was found.
        greater: Generation,
    },
    /// There are checkpoints, but every one of them is damaged: refuse to start (exit 5).
    #[error(
        "every checkpoint is damaged ({}); put the objects back from a copy of the store, or start \
         from a savepoint, or remove all under manifests/ to read the log from its oldest offset",
        list(found)
    )]
    NothingUsable {
        /// Every checkpoint and what is wrong with it, newest first.
        found: Vec<(CheckpointId, Damage)>,
    },
    /// The checkpoint that was asked for by name is damaged: choose another (exit 5). Or one was
    /// lost or damaged while it was loaded: drop everything loaded and restore anew.
    #[error("{name} cannot be restored: {damage}")]
    Damaged {
        /// Its manifest.
        name: ObjectName,
        /// What is wrong with it.
        damage: Damage,
    },
    /// There is no checkpoint or savepoint of that name.
    #[error("there is no {name}")]
    NotFound {
        /// The object that was looked for.
        name: ObjectName,
    },
    /// Another deployment's checkpoints lie here: correct the configuration (exit 5).
    #[error("{name} belongs to deployment {found}, not to {own}")]
    Foreign {
        /// The manifest.
        name: ObjectName,
        /// Whose it is.
        found: String,
        /// The deployment of this process.
        own: String,
    },
    /// A newer release wrote the manifest: use that release (exit 5).
    #[error("{name} has format version {version}, which this release cannot read")]
    Version {
        /// The manifest.
        name: ObjectName,
        /// The version that it carries.
        version: u32,
    },
    /// An object of this name with other content exists: two processes believe to be the same
    /// generation, or something foreign writes here. Stop (exit 5).
    #[error("{name} exists already with other content")]
    Conflict {
        /// The object.
        name: ObjectName,
    },
    /// The name belongs to another checkpoint: choose another one, or remove that savepoint.
    #[error("savepoint {name} exists already")]
    SavepointExists {
        /// The name.
        name: SavepointName,
    },
    /// The caller named a segment that is not of this generation or one before.
    #[error("{name:?} is no segment name of generation {own} or one before")]
    SegmentName {
        /// The name.
        name: String,
        /// The generation of this process.
        own: Generation,
    },
    /// A segment could not be read for its upload: restore from the last checkpoint.
    #[error("could not read segment {name} for its upload")]
    SegmentSource {
        /// The segment.
        name: String,
        /// What the reader said.
        #[source]
        source: io::Error,
    },
    /// The parts put do not make a whole checkpoint: shards came twice, or not at all, or are
    /// unknown. A mistake of the caller; no manifest was written.
    #[error("checkpoint {id} needs each of its {shards} shards once: {shard:?} is wrong")]
    Parts {
        /// Which checkpoint.
        id: CheckpointId,
        /// How many shards the deployment has.
        shards: u16,
        /// The first shard that is missing, double or unknown.
        shard: Shard,
    },
    /// An epoch that is not above the last one of this generation. A mistake of the caller.
    #[error("epoch {epoch} does not come after epoch {last}")]
    Epoch {
        /// The epoch that was asked for.
        epoch: u64,
        /// The last one that was begun.
        last: u64,
    },
    /// The shard was handed out before, or is not in the checkpoint: invariant P-1, each shard is
    /// loaded by exactly one worker. A mistake of the caller; end the process.
    #[error("{shard:?} was loaded before or is not in checkpoint {id} (P-1)")]
    Taken {
        /// The shard.
        shard: Shard,
        /// The checkpoint.
        id: CheckpointId,
    },
    /// The checkpoint was made with another number of shards, which cannot change (exit 5).
    #[error("checkpoint {id} has {found} shards, the deployment has {own}")]
    Shards {
        /// The checkpoint.
        id: CheckpointId,
        /// Its number of shards.
        found: u16,
        /// The deployment's.
        own: u16,
    },
}

/// What is wrong with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The manifest is not what was written.
    #[error("its manifest is damaged")]
    Manifest,
    /// An object that the manifest names is not there.
    #[error("{0} is missing")]
    Missing(ObjectName),
    /// An object is not what was written.
    #[error("{0} is damaged")]
    Object(ObjectName),
}

fn list(found: &[(CheckpointId, Damage)]) -> String {
    let found: Vec<_> = found.iter().map(|(id, damage)| format!("{id}: {damage}")).collect();
    found.join("; ")
}
