//! The state folder: a checkpoint that is replaced whole, and the segments that it names.
//!
//! `checkpoint` is magic, length of the header, header (JSON), the ids of the heads (16 bytes each,
//! little-endian, in the order in which the header counts them) and the SHA-256 of all of it. A
//! segment that the last checkpoint names is kept, whatever the states have merged since, until
//! the next checkpoint is safe; segments that it does not name are removed at the next start.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tally_model::rules::DedupBucket;
use tally_operators::dedup::{
    BucketSnapshot, DedupCounters, DedupSnapshot, DirectoryStore, SegmentName, SegmentStore,
    SetSnapshot,
};

use super::args::Rules;
use super::outputs::Marks;
use super::report::Totals;
use super::watermark::Watermark;
use crate::deployment::{random, write_whole};
use crate::failure::Failure;

const MAGIC: [u8; 8] = *b"tallydd\x01";
const DIGEST_BYTES: usize = 32;
const FILE: &str = "checkpoint";
const SEGMENTS: &str = "segments";
const LOCK: &str = "lock";
/// Segments that are synced at the same time.
const SYNCS_AT_A_TIME: usize = 16;

/// How far a run has come.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Run {
    /// The input file; `None` for a stream.
    pub(super) source: Option<PathBuf>,
    /// Whether its end was reached.
    pub(super) is_finished: bool,
    /// What is taken for the present while a file is read, so that a second reading judges alike.
    pub(super) now_ms: i64,
    /// Bytes of the input's plain text that were taken.
    pub(super) position: u64,
    /// The last line that was taken, to know the file again.
    pub(super) anchor: Anchor,
    pub(super) totals: Totals,
    pub(super) watermark: Watermark,
    pub(super) marks: Marks,
}

/// A line that stands at a known place of the input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Anchor {
    /// Bytes from its start to the position; 0 if no line was taken.
    pub(super) bytes: u64,
    /// SHA-256 of the line without its end.
    pub(super) digest: [u8; DIGEST_BYTES],
}

impl Anchor {
    pub(super) fn of(line: &[u8], bytes: u64) -> Self {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        Self { bytes, digest: Sha256::digest(text).into() }
    }
}

/// What a checkpoint holds beside the ids.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Header {
    rules: Rules,
    /// Key of the bijection that ids are mixed with.
    key: [u8; 16],
    run: Run,
    shards: Vec<ShardRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ShardRecord {
    kept_from: i64,
    next_sequence: u64,
    counters: [u64; 8],
    buckets: Vec<(i64, SetRecord, SetRecord)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SetRecord {
    head_ids: usize,
    segments: Vec<String>,
}

/// What an earlier run left.
pub(super) struct Earlier {
    pub(super) rules: Rules,
    pub(super) run: Run,
}

/// A state folder, locked as long as this lives.
pub(super) struct StateFolder {
    path: PathBuf,
    store: Arc<DirectoryStore>,
    key: [u8; 16],
    /// The snapshots behind the checkpoint on disk. Never dropped with the folder: dropping them
    /// would remove the files of segments that were merged since and that the checkpoint names.
    saved: ManuallyDrop<Vec<DedupSnapshot>>,
    /// Segments that the checkpoint on disk names.
    safe: BTreeSet<SegmentName>,
    _lock: File,
}

impl StateFolder {
    /// Opens the folder, makes it if it is missing, and removes what a crash left.
    ///
    /// # Errors
    /// Exit 5 if another process has it, if it is no state folder, or if it is damaged.
    pub(super) fn open(path: &Path) -> Result<(Self, Option<Earlier>), Failure> {
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot make the state folder {}", path.display()))?;
        let file = path.join(FILE);
        let is_new = !file.try_exists()?;
        if is_new {
            check_unused(path)?;
        }
        let lock = lock(path)?;
        let store =
            Arc::new(DirectoryStore::new(path.join(SEGMENTS), DirectoryStore::OPEN_FILES_MAX)?);
        let mut folder = Self {
            path: path.to_owned(),
            store,
            key: random()?,
            saved: ManuallyDrop::default(),
            safe: BTreeSet::new(),
            _lock: lock,
        };
        let earlier = if is_new {
            None
        } else {
            let bytes =
                std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            Some(folder.load(&bytes)?)
        };
        folder.store.keep_only(&folder.safe)?;
        Ok((folder, earlier))
    }

    pub(super) fn key(&self) -> [u8; 16] {
        self.key
    }

    pub(super) fn store(&self) -> Arc<dyn SegmentStore> {
        Arc::<DirectoryStore>::clone(&self.store)
    }

    /// The states of the checkpoint, one a shard; none in a new folder.
    pub(super) fn snapshots(&self) -> &[DedupSnapshot] {
        &self.saved
    }

    /// Makes a checkpoint. Whatever interrupts it, the one before stays whole.
    pub(super) fn save(
        &mut self,
        rules: &Rules,
        run: &Run,
        snapshots: Vec<DedupSnapshot>,
    ) -> Result<(), Failure> {
        let names: BTreeSet<SegmentName> = segments(&snapshots).collect();
        let segments = self.path.join(SEGMENTS);
        let new: Vec<SegmentName> = names.difference(&self.safe).copied().collect();
        sync_files(&segments, &new)?;
        File::open(&segments)?.sync_all()?;
        let mut heads = Vec::new();
        let header = Header {
            rules: rules.clone(),
            key: self.key,
            run: run.clone(),
            shards: snapshots
                .iter()
                .map(|snapshot| ShardRecord::of(snapshot, &mut heads))
                .collect(),
        };
        write_whole(&self.path.join(FILE), &encode(&header, &heads)?, 0o600)?;
        let before = std::mem::replace(&mut self.saved, ManuallyDrop::new(snapshots));
        drop(ManuallyDrop::into_inner(before));
        self.safe = names;
        Ok(())
    }

    fn load(&mut self, bytes: &[u8]) -> Result<Earlier, Failure> {
        let damaged = || {
            Failure::refused(format!(
                "{} is damaged, or was written by another release; without it nothing is known \
                 about what was seen",
                self.path.join(FILE).display()
            ))
        };
        let (header, heads) = decode(bytes).ok_or_else(damaged)?;
        let mut heads = heads.iter().copied();
        let mut snapshots = Vec::with_capacity(header.shards.len());
        for shard in &header.shards {
            snapshots.push(shard.snapshot(&mut heads, &self.store)?.ok_or_else(damaged)?);
        }
        self.key = header.key;
        self.safe = segments(&snapshots).collect();
        self.saved = ManuallyDrop::new(snapshots);
        Ok(Earlier { rules: header.rules, run: header.run })
    }
}

/// Syncs segments to disk, several at a time: a file system makes one commit of them.
fn sync_files(folder: &Path, names: &[SegmentName]) -> Result<(), Failure> {
    let sync = |names: &[SegmentName]| {
        names.iter().try_for_each(|name| {
            let file = folder.join(format!("{name}.ids"));
            File::open(&file)
                .and_then(|file| file.sync_all())
                .with_context(|| format!("cannot make {} safe", file.display()))
        })
    };
    let share = names.len().div_ceil(SYNCS_AT_A_TIME).max(1);
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            names.chunks(share).map(|names| scope.spawn(move || sync(names))).collect();
        threads.into_iter().try_for_each(|thread| {
            let outcome = thread.join();
            outcome.unwrap_or_else(|_panic| Err(anyhow::anyhow!("syncing segments panicked")))
        })
    })?;
    Ok(())
}

fn segments(snapshots: &[DedupSnapshot]) -> impl Iterator<Item = SegmentName> {
    let buckets = snapshots.iter().flat_map(|snapshot| &snapshot.buckets);
    let sets = buckets.flat_map(|bucket| [&bucket.firsts, &bucket.undecided]);
    sets.flat_map(|set| &set.segments).map(|handle| handle.name)
}

impl ShardRecord {
    fn of(snapshot: &DedupSnapshot, heads: &mut Vec<u128>) -> Self {
        let mut set = |set: &SetSnapshot| {
            heads.extend_from_slice(&set.head);
            let segments = set.segments.iter().map(|handle| handle.name.to_string()).collect();
            SetRecord { head_ids: set.head.len(), segments }
        };
        let buckets = snapshot.buckets.iter();
        let counters = snapshot.counters;
        Self {
            kept_from: snapshot.kept_from.0,
            next_sequence: snapshot.next_sequence,
            counters: [
                counters.records,
                counters.repeats,
                counters.past_window,
                counters.evicted_ids,
                counters.filter_probes,
                counters.segment_searches,
                counters.vain_searches,
                counters.merged_ids,
            ],
            buckets: buckets
                .map(|bucket| (bucket.number.0, set(&bucket.firsts), set(&bucket.undecided)))
                .collect(),
        }
    }

    /// `None` if the record contradicts itself.
    fn snapshot(
        &self,
        heads: &mut impl Iterator<Item = u128>,
        store: &DirectoryStore,
    ) -> Result<Option<DedupSnapshot>, Failure> {
        let [
            records,
            repeats,
            past_window,
            evicted_ids,
            filter_probes,
            segment_searches,
            vain_searches,
            merged_ids,
        ] = self.counters;
        let mut snapshot = DedupSnapshot {
            kept_from: DedupBucket(self.kept_from),
            next_sequence: self.next_sequence,
            counters: DedupCounters {
                records,
                repeats,
                past_window,
                evicted_ids,
                filter_probes,
                segment_searches,
                vain_searches,
                merged_ids,
            },
            buckets: Vec::with_capacity(self.buckets.len()),
        };
        for (number, firsts, undecided) in &self.buckets {
            let number = DedupBucket(*number);
            let Some(firsts) = firsts.snapshot(heads, store)? else { return Ok(None) };
            let Some(undecided) = undecided.snapshot(heads, store)? else { return Ok(None) };
            snapshot.buckets.push(BucketSnapshot { number, firsts, undecided });
        }
        Ok(Some(snapshot))
    }
}

impl SetRecord {
    fn snapshot(
        &self,
        heads: &mut impl Iterator<Item = u128>,
        store: &DirectoryStore,
    ) -> Result<Option<SetSnapshot>, Failure> {
        let head: Vec<u128> = heads.by_ref().take(self.head_ids).collect();
        let mut segments = Vec::with_capacity(self.segments.len());
        for name in &self.segments {
            let Some(name) = SegmentName::parse(name) else { return Ok(None) };
            segments.push(store.open(name)?);
        }
        Ok((head.len() == self.head_ids).then_some(SetSnapshot { head, segments }))
    }
}

fn encode(header: &Header, heads: &[u128]) -> Result<Vec<u8>, Failure> {
    let header = serde_json::to_vec(header)?;
    let mut bytes = Vec::with_capacity(header.len() + heads.len() * 16 + 64);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&u64::try_from(header.len())?.to_le_bytes());
    bytes.extend_from_slice(&header);
    heads.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    Ok(bytes)
}

/// `None` if these are not the bytes of a checkpoint.
fn decode(bytes: &[u8]) -> Option<(Header, Vec<u128>)> {
    let (content, digest) = bytes.split_last_chunk::<DIGEST_BYTES>()?;
    if Sha256::digest(content).as_slice() != digest {
        return None;
    }
    let (length, rest) = content.strip_prefix(&MAGIC)?.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (header, heads) = rest.split_at_checked(length)?;
    let (heads, rest) = heads.as_chunks::<16>();
    if !rest.is_empty() {
        return None;
    }
    let heads = heads.iter().map(|id| u128::from_le_bytes(*id)).collect();
    Some((serde_json::from_slice(header).ok()?, heads))
}

/// Refuses a folder that holds other things.
fn check_unused(path: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        let is_ours = name == LOCK || name == SEGMENTS || name == format!("{FILE}.new").as_str();
        if !is_ours {
            return Err(Failure::refused(format!(
                "{} holds {} and no checkpoint: it is no state folder",
                path.display(),
                Path::new(&name).display()
            )));
        }
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File, Failure> {
    let name = path.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&name)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::refused(format!(
            "another process has the state folder {} open",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", name.display()))?
        }
    }
}
