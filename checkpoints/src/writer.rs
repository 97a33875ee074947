//! Writing checkpoints and collecting what no checkpoint needs any more.
//!
//! One process writes: the greatest generation. A process of a smaller one that wakes up sees the
//! mark that its successor left, and neither writes a manifest nor removes anything. If it saw no
//! mark because the successor started in that very moment, it still does no harm: it removes only
//! what was garbage before, and a manifest of its own is either whole, and then a true checkpoint,
//! or incomplete and older than a whole one of the successor, which collects only after it has
//! written one.
//!
//! Invariant P-2 of ARCHITECTURE.md.

mod collect;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use tally_model::ids::{Shard, Shards};
use tally_model::revision::Generation;

use crate::decide::taken_over_by;
use crate::error::CheckpointError;
use crate::layout::{self, CheckpointId, DATA, GENERATIONS, MANIFESTS, SAVEPOINTS, SavepointName};
use crate::manifest::{Cut, DataObject, Manifest, ShardEntry, Totals};
use crate::objects::{Created, ObjectError, ObjectName, ObjectStore};
use crate::reader::{self, Origin, Restored};

pub use collect::Collected;

/// What a writer has to know.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// The deployment; a manifest of another one is refused.
    pub deployment: String,
    /// The generation that this process claimed, which no other process has.
    pub generation: Generation,
    /// How many shards the deployment has.
    pub shards: Shards,
    /// How many whole checkpoints are kept besides savepoints; [`WriterOptions::KEEP_LAST`] is a
    /// good number. At least 2 are kept, so that there is one to fall back on.
    pub keep_last: usize,
}

impl WriterOptions {
    /// Keeps three: the newest, and two to fall back on.
    pub const KEEP_LAST: usize = 3;
}

/// Writes the checkpoints of one generation, one after the other.
#[derive(Debug)]
pub struct Writer {
    objects: Arc<dyn ObjectStore>,
    options: WriterOptions,
    /// The last checkpoint written, before that the one restored.
    last: Option<CheckpointId>,
    /// Checkpoints that could not be restored: they do not count as retained ones.
    unusable: BTreeSet<CheckpointId>,
    /// Segments in the store that the running state may still name: those of `last`, and what was
    /// uploaded since for checkpoints that did not come about.
    segments: BTreeMap<ObjectName, DataObject>,
    last_epoch: Option<u64>,
}

/// One shard, frozen at a cut.
#[derive(Clone, Debug)]
pub struct ShardPart<'a> {
    /// Which one.
    pub shard: Shard,
    /// Its state apart from segments, as the caller encodes it.
    pub state: &'a [u8],
    /// The names of all its segments. A name begins with `g`, seven digits of the generation that
    /// made the segment, and `-`; it is never used for other content.
    pub segments: &'a [String],
    /// What became of its records.
    pub totals: Totals,
}

/// What a checkpoint has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uploaded {
    /// Data objects written.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A checkpoint in the making. Dropping it abandons the checkpoint; what was uploaded of it is
/// collected later, except for segments, which the next one names.
#[derive(Debug)]
pub struct Pending<'w> {
    writer: &'w mut Writer,
    cut: Cut,
    /// Lengths of the data objects that the store had when the checkpoint was begun.
    stored: BTreeMap<ObjectName, u64>,
    shards: BTreeMap<Shard, ShardEntry>,
    uploaded: Uploaded,
}

impl Writer {
    /// Marks the generation as started, which stops those before it, and then finds the checkpoint
    /// to start from; in the other order, a predecessor could collect it meanwhile. `None` if there
    /// is none at all: read the log from its oldest offset.
    ///
    /// # Errors
    /// [`CheckpointError::TakenOver`] if a greater generation has started;
    /// [`CheckpointError::Shards`] if the checkpoint has another number of shards; what
    /// [`reader::restore`] says. It can be repeated after each of them.
    pub fn open(
        objects: Arc<dyn ObjectStore>,
        options: WriterOptions,
        origin: &Origin,
    ) -> Result<(Self, Option<Restored>), CheckpointError> {
        let mut writer = Self {
            objects,
            options,
            last: None,
            unusable: BTreeSet::new(),
            segments: BTreeMap::new(),
            last_epoch: None,
        };
        writer.refuse_if_taken_over()?;
        let (objects, options) = (writer.objects.as_ref(), &writer.options);
        put_once(objects, &layout::generation(options.generation), &[])?;
        let restored = reader::restore(objects, &options.deployment, origin)?;
        if let Some(restored) = &restored {
            let (base, own) = (restored.manifest(), options.shards.count());
            if base.shards.len() != usize::from(own) {
                let found = u16::try_from(base.shards.len()).unwrap_or(u16::MAX);
                return Err(CheckpointError::Shards { id: base.id(), found, own });
            }
            writer.unusable = restored.passed_over().iter().map(|(id, _)| *id).collect();
            writer.go_on_from(base);
        }
        Ok((writer, restored))
    }

    /// Begins the checkpoint of a cut.
    ///
    /// # Errors
    /// [`CheckpointError::TakenOver`]; [`CheckpointError::Epoch`] if the epoch does not come after
    /// the last one; [`CheckpointError::Objects`].
    pub fn begin(&mut self, cut: Cut) -> Result<Pending<'_>, CheckpointError> {
        if let Some(last) = self.last_epoch.filter(|last| *last >= cut.epoch) {
            return Err(CheckpointError::Epoch { epoch: cut.epoch, last });
        }
        self.refuse_if_taken_over()?;
        let stored = self.objects.list(DATA)?;
        self.last_epoch = Some(cut.epoch);
        Ok(Pending {
            writer: self,
            cut,
            stored: stored.into_iter().map(|listed| (listed.name, listed.bytes)).collect(),
            shards: BTreeMap::new(),
            uploaded: Uploaded::default(),
        })
    }

    /// Keeps the last checkpoint as a savepoint, see [`keep_as_savepoint`].
    ///
    /// # Errors
    /// As [`keep_as_savepoint`], and [`CheckpointError::TakenOver`].
    pub fn keep(&self, name: &SavepointName) -> Result<(), CheckpointError> {
        let last = self.last.unwrap_or_default();
        let kept = keep_as_savepoint(self.objects.as_ref(), last, name);
        if matches!(kept, Err(CheckpointError::NotFound { .. })) {
            // Only a later start can have removed it.
            self.refuse_if_taken_over()?;
        }
        kept
    }

    /// The last checkpoint written, before that the one restored.
    #[must_use]
    pub const fn last(&self) -> Option<CheckpointId> {
        self.last
    }

    fn go_on_from(&mut self, manifest: &Manifest) {
        let segments = manifest.shards.iter().flat_map(|entry| &entry.segments);
        self.segments = segments.map(|object| (object.name.clone(), object.clone())).collect();
        self.last = Some(manifest.id());
    }

    fn refuse_if_taken_over(&self) -> Result<(), CheckpointError> {
        let own = self.options.generation;
        let mut listed = self.objects.list(GENERATIONS)?;
        listed.append(&mut self.objects.list(MANIFESTS)?);
        let seen = listed.iter().filter_map(|listed| layout::seen_generation(&listed.name));
        match taken_over_by(own, seen) {
            None => Ok(()),
            Some(greater) => Err(CheckpointError::TakenOver { own, greater }),
        }
    }
}

impl Pending<'_> {
    /// Uploads one shard. `read` is asked for the content of each segment that the store does not
    /// have yet.
    ///
    /// # Errors
    /// [`CheckpointError::Objects`]: abandon this checkpoint, the next one will do;
    /// [`CheckpointError::SegmentSource`], [`CheckpointError::SegmentName`],
    /// [`CheckpointError::Parts`] and [`CheckpointError::Conflict`] as they say.
    pub fn put(
        &mut self,
        part: ShardPart<'_>,
        read: &mut dyn FnMut(&str) -> io::Result<Vec<u8>>,
    ) -> Result<(), CheckpointError> {
        let shard = part.shard;
        if shard.0 >= self.writer.options.shards.count() || self.shards.contains_key(&shard) {
            return Err(self.wrong(shard));
        }
        let mut segments = Vec::with_capacity(part.segments.len());
        for name in part.segments {
            segments.push(self.put_segment(name, read)?);
        }
        let state = self.upload(layout::state(self.id(), shard), part.state)?;
        self.shards.insert(shard, ShardEntry { shard, state, segments, totals: part.totals });
        Ok(())
    }

    /// Writes the manifest, after which the checkpoint counts.
    ///
    /// # Errors
    /// [`CheckpointError::Parts`] if a shard is missing; [`CheckpointError::TakenOver`];
    /// [`CheckpointError::Objects`], also if it is unknown whether the manifest was written, which
    /// is no danger.
    pub fn finish(self) -> Result<(CheckpointId, Uploaded), CheckpointError> {
        let missing = self.writer.options.shards.all().find(|of| !self.shards.contains_key(of));
        if let Some(shard) = missing {
            return Err(self.wrong(shard));
        }
        let id = self.id();
        let Self { writer, cut, shards, uploaded, .. } = self;
        let manifest = Manifest {
            deployment: writer.options.deployment.clone(),
            generation: id.generation,
            cut,
            shards: shards.into_values().collect(),
        };
        let bytes = manifest.encode();
        writer.refuse_if_taken_over()?;
        put_once(writer.objects.as_ref(), &layout::manifest(id), &bytes)?;
        writer.go_on_from(&manifest);
        Ok((id, uploaded))
    }

    fn id(&self) -> CheckpointId {
        CheckpointId { generation: self.writer.options.generation, epoch: self.cut.epoch }
    }

    fn wrong(&self, shard: Shard) -> CheckpointError {
        let shards = self.writer.options.shards.count();
        CheckpointError::Parts { id: self.id(), shards, shard }
    }

    /// The entry of a segment, which is uploaded unless the store has it. Whether it has is seen in
    /// the store, not only remembered: what went missing there is simply uploaded again.
    fn put_segment(
        &mut self,
        name: &str,
        read: &mut dyn FnMut(&str) -> io::Result<Vec<u8>>,
    ) -> Result<DataObject, CheckpointError> {
        let own = self.writer.options.generation;
        let object = layout::segment(name)
            .filter(|object| layout::data_generation(object).is_some_and(|of| of <= own))
            .ok_or_else(|| CheckpointError::SegmentName { name: name.to_owned(), own })?;
        if let Some(known) = self.writer.segments.get(&object)
            && self.stored.get(&object) == Some(&known.bytes)
        {
            return Ok(known.clone());
        }
        let content = read(name)
            .map_err(|source| CheckpointError::SegmentSource { name: name.to_owned(), source })?;
        let entry = self.upload(object, &content)?;
        self.stored.insert(entry.name.clone(), entry.bytes);
        self.writer.segments.insert(entry.name.clone(), entry.clone());
        Ok(entry)
    }

    fn upload(&mut self, name: ObjectName, content: &[u8]) -> Result<DataObject, CheckpointError> {
        put_once(self.writer.objects.as_ref(), &name, content)?;
        let entry = DataObject::of(name, content);
        self.uploaded.objects += 1;
        self.uploaded.bytes += entry.bytes;
        Ok(entry)
    }
}

/// Keeps a checkpoint under a name until [`remove_savepoint`]. Nobody may collect meanwhile: call it
/// from the process that writes, or when none does. Repeating it with the same checkpoint is
/// harmless.
///
/// # Errors
/// [`CheckpointError::SavepointExists`], [`CheckpointError::NotFound`] if there is no such
/// checkpoint, and [`CheckpointError::Objects`].
pub fn keep_as_savepoint(
    objects: &dyn ObjectStore,
    id: CheckpointId,
    name: &SavepointName,
) -> Result<(), CheckpointError> {
    let manifest = layout::manifest(id);
    let Some(bytes) = objects.read(&manifest)? else {
        return Err(CheckpointError::NotFound { name: manifest });
    };
    match put_once(objects, &layout::savepoint(name), &bytes) {
        Err(CheckpointError::Conflict { .. }) => {
            Err(CheckpointError::SavepointExists { name: name.clone() })
        }
        other => other,
    }
}

/// Removes a savepoint; whatever only it named is collected later.
///
/// # Errors
/// [`CheckpointError::NotFound`] and [`CheckpointError::Objects`].
pub fn remove_savepoint(
    objects: &dyn ObjectStore,
    name: &SavepointName,
) -> Result<(), CheckpointError> {
    let name = layout::savepoint(name);
    if objects.read(&name)?.is_none() {
        return Err(CheckpointError::NotFound { name });
    }
    Ok(objects.delete(&[name])?)
}

/// Removes every checkpoint and savepoint, manifests first. Only for a deployment that has counted
/// nothing: from then on the log is read from its oldest offset.
///
/// # Errors
/// [`CheckpointError::Objects`]; it can be repeated.
pub fn forget(objects: &dyn ObjectStore) -> Result<(), CheckpointError> {
    for prefix in [MANIFESTS, SAVEPOINTS, DATA] {
        let names: Vec<_> = objects.list(prefix)?.into_iter().map(|listed| listed.name).collect();
        if !names.is_empty() {
            objects.delete(&names)?;
        }
    }
    Ok(())
}

/// Creates an object, where an earlier attempt may have done so already.
fn put_once(
    objects: &dyn ObjectStore,
    name: &ObjectName,
    content: &[u8],
) -> Result<(), CheckpointError> {
    let unknown = match objects.create(name, content) {
        Ok(Created::New) => return Ok(()),
        Ok(Created::Exists) => None,
        Err(error @ ObjectError::Unknown { .. }) => Some(error),
        Err(error @ ObjectError::Unavailable { .. }) => return Err(error.into()),
    };
    match (objects.read(name)?, unknown) {
        (Some(stored), _) if stored == content => Ok(()),
        (None, Some(unknown)) => Err(unknown.into()),
        (Some(_) | None, _) => Err(CheckpointError::Conflict { name: name.clone() }),
    }
}
