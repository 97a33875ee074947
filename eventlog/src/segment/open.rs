//! Opening a log's folder: is it one, is it whole, and where does it end.
//!
//! Invariant L-3 of ARCHITECTURE.md.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{
    FORMAT_FILE, FileKind, LOCK_FILE, Wrap, create_expendable, create_whole, index_path, io_error,
    open_for_writing, segment_path, sync_dir,
};
use super::format::{Place, SegmentHeader, VERSION};
use super::index::SegmentIndex;
use super::journal::{Journal, Listed, Segment};
use super::scan::{Fault, Scanned, later_commit_exists, scan};
use super::writer::Tail;
use crate::convert::{to_index, to_usize};
use crate::{LogError, Offset, Partition};

/// First line of the format file.
const TITLE: &str = "tally segment log";
/// Number of a log's first segment.
const FIRST: u64 = 1;

/// A log's folder, opened.
pub(super) struct Opened {
    pub(super) journal: Journal,
    pub(super) tail: Tail,
    pub(super) lock: Arc<File>,
}

/// Opens the log in `dir`, or makes one if there is nothing.
pub(super) fn open(dir: &Path, partitions: Partition, wrap: &Wrap) -> Result<Opened, LogError> {
    create_dir(dir)?;
    // Before the lock file is made: nothing is written into a folder that is not ours.
    Names::read(dir)?;
    let lock = Arc::new(lock(dir)?);
    let mut names = Names::read(dir)?;
    if names.has_format {
        check_format(&dir.join(FORMAT_FILE), partitions)?;
        names.check_segments(dir)?;
    } else {
        create(dir, partitions, wrap)?;
        names = Names::read(dir)?;
    }
    names.remove_leftovers(dir)?;
    let (listed, tail) = load(dir, &names.segments, &names.indexes, partitions, wrap)?;
    Ok(Opened { journal: Journal::new(dir, listed), tail, lock })
}

fn create_dir(dir: &Path) -> Result<(), LogError> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(io_error("create", dir))?;
    match dir.parent() {
        Some(parent) if parent != Path::new("") => {
            sync_dir(parent).map_err(io_error("sync", parent))
        }
        Some(_) | None => Ok(()),
    }
}

fn lock(dir: &Path) -> Result<File, LogError> {
    let path = dir.join(LOCK_FILE);
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LogError::Foreign {
            path: dir.to_owned(),
            what: "it is open already: stop the other process, or use another folder".to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(io_error("lock", &path)(source)),
    }
}

/// What lies in the folder.
#[derive(Debug, Default)]
struct Names {
    has_format: bool,
    segments: BTreeSet<u64>,
    indexes: BTreeSet<u64>,
    temporary: Vec<PathBuf>,
}

impl Names {
    /// # Errors
    /// [`LogError::Foreign`] if something else than a log lies there.
    fn read(dir: &Path) -> Result<Self, LogError> {
        let mut names = Self::default();
        let mut stranger = None;
        for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
            let name = entry.map_err(io_error("list", dir))?.file_name();
            match name.to_str().and_then(FileKind::of) {
                Some(FileKind::Format) => names.has_format = true,
                Some(FileKind::Lock) => {}
                Some(FileKind::Segment(sequence)) => _ = names.segments.insert(sequence),
                Some(FileKind::Index(sequence)) => _ = names.indexes.insert(sequence),
                Some(FileKind::Temporary) => names.temporary.push(dir.join(name)),
                None => stranger = Some(name),
            }
        }
        // A folder with a format file is a log, whatever somebody has put beside it. Without one it
        // is a log only if a crash cut its creation short, which leaves the first segment at most.
        let is_begun = names.segments.iter().all(|sequence| *sequence == FIRST);
        let what = match stranger {
            _ if names.has_format => return Ok(names),
            Some(name) => {
                format!("it holds {} and no {FORMAT_FILE}: choose an empty folder", name.display())
            }
            None if is_begun && names.indexes.is_empty() => return Ok(names),
            None => format!("its {FORMAT_FILE} is missing: put it back from a copy of the folder"),
        };
        Err(LogError::Foreign { path: dir.to_owned(), what })
    }

    /// Deletes what a crash left of files being made, and of segments being deleted.
    fn remove_leftovers(&self, dir: &Path) -> Result<(), LogError> {
        let orphans = self.indexes.difference(&self.segments);
        let orphans = orphans.map(|sequence| index_path(dir, *sequence));
        for path in self.temporary.iter().cloned().chain(orphans) {
            fs::remove_file(&path).map_err(io_error("delete", &path))?;
        }
        Ok(())
    }

    /// Every segment from the oldest to the last is there. The last has no index yet: an index is
    /// written after the next segment was made.
    fn check_segments(&self, dir: &Path) -> Result<(), LogError> {
        let first = self.segments.first().copied().unwrap_or(FIRST);
        let missing = (first..).find(|sequence| !self.segments.contains(sequence));
        let missing = missing.unwrap_or(first);
        let is_last = self.segments.last().is_some_and(|last| missing > *last);
        if is_last && !self.indexes.contains(&(missing - 1)) {
            return Ok(());
        }
        Err(LogError::Damaged {
            path: segment_path(dir, missing),
            position: 0,
            what: "the segment is missing",
        })
    }
}

/// Makes the first segment, then the format file, which makes the folder a log.
fn create(dir: &Path, partitions: Partition, wrap: &Wrap) -> Result<(), LogError> {
    let header = SegmentHeader { sequence: FIRST, bases: vec![0; to_index(partitions)] };
    let path = segment_path(dir, FIRST);
    // A segment that is there already is the rest of a creation cut short: it can hold no records,
    // because appending begins when the format file is there.
    if path.exists() {
        let bytes = fs::metadata(&path).map_err(io_error("look at", &path))?.len();
        let found = read_header(&path, partitions);
        if bytes != SegmentHeader::bytes(partitions) || found.is_none() {
            return Err(LogError::Foreign {
                path: dir.to_owned(),
                what: format!(
                    "it holds a segment and no {FORMAT_FILE}: put that back from a copy of the folder, or choose an empty folder"
                ),
            });
        }
    }
    create_whole(&path, &header.encode(), wrap).map_err(io_error("create", &path))?;
    let path = dir.join(FORMAT_FILE);
    let text = format!("{TITLE}\nversion {VERSION}\npartitions {partitions}\n");
    create_whole(&path, text.as_bytes(), wrap).map_err(io_error("create", &path))?;
    Ok(())
}

fn check_format(path: &Path, partitions: Partition) -> Result<(), LogError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
        Err(error) => return Err(io_error("read", path)(error)),
    };
    let mut lines = text.lines();
    let title = lines.next();
    let mut number = |name: &str| -> Option<u32> {
        lines.next()?.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()
    };
    let (version, found) = (number("version"), number("partitions"));
    let what = match (title, version, found) {
        (Some(TITLE), Some(VERSION), Some(found)) if found == partitions => return Ok(()),
        (Some(TITLE), Some(VERSION), Some(found)) => format!(
            "it has {found} partitions and the settings ask for {partitions}; the number is fixed when a log is made: set it to {found}"
        ),
        (Some(TITLE), Some(version), _) if version != VERSION => format!(
            "it was written in version {version} of the format and this program reads version {VERSION}: use the program that wrote it"
        ),
        _ => "it does not describe a log: choose an empty folder, or put the file back from a copy"
            .to_owned(),
    };
    Err(LogError::Foreign { path: path.to_owned(), what })
}

/// Opens the segments, oldest first.
fn load(
    dir: &Path,
    sequences: &BTreeSet<u64>,
    indexes: &BTreeSet<u64>,
    partitions: Partition,
    wrap: &Wrap,
) -> Result<(VecDeque<Listed>, Tail), LogError> {
    let mut listed: VecDeque<Listed> = VecDeque::new();
    let mut tail = None;
    for &sequence in sequences {
        let path = segment_path(dir, sequence);
        let header = read_header(&path, partitions)
            .filter(|header| header.sequence == sequence)
            .ok_or_else(|| {
                damaged(&path, 0, "the segment's header does not match its checksum or its name")
            })?;
        if let Some(before) = listed.back()
            && before.index.ends != header.bases
        {
            return Err(damaged(&path, 0, "the segment does not continue the one before it"));
        }
        let index = if sequences.last() == Some(&sequence) {
            let index = recover(&path, &header)?;
            tail = Some(open_tail(&path, &header, &index, wrap)?);
            index
        } else {
            load_closed(dir, &path, &header, indexes.contains(&sequence))?
        };
        let segment = Arc::new(Segment::new(dir, header, index.segment_bytes));
        listed.push_back(Listed { segment, index });
    }
    let tail = tail.expect("there is at least one segment");
    Ok((listed, tail))
}

fn open_tail(
    path: &Path,
    header: &SegmentHeader,
    index: &SegmentIndex,
    wrap: &Wrap,
) -> Result<Tail, LogError> {
    let file = open_for_writing(path).map_err(io_error("open", path))?;
    Ok(Tail {
        file: wrap(file),
        end: Place { sequence: header.sequence, position: index.segment_bytes },
        first_append_ms: index.first_append_ms,
        next: index.ends.clone(),
    })
}

/// The header of a segment; `None` if it is unreadable or damaged.
fn read_header(path: &Path, partitions: Partition) -> Option<SegmentHeader> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; to_usize(SegmentHeader::bytes(partitions))];
    File::open(path).ok()?.read_exact_at(&mut bytes, 0).ok()?;
    SegmentHeader::decode(&bytes, partitions)
}

/// The index of a closed segment, from its index file or else from the segment itself.
fn load_closed(
    dir: &Path,
    path: &Path,
    header: &SegmentHeader,
    has_index: bool,
) -> Result<SegmentIndex, LogError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    let file_bytes = file.metadata().map_err(io_error("look at", path))?.len();
    let index_path = index_path(dir, header.sequence);
    let partitions = to_partitions(&header.bases);
    let index = has_index
        .then(|| fs::read(&index_path).ok())
        .flatten()
        .and_then(|bytes| SegmentIndex::decode(&bytes, header.sequence, partitions));
    if let Some(index) = index {
        if index.segment_bytes == file_bytes {
            return Ok(index);
        }
        return Err(damaged(
            path,
            file_bytes,
            "the segment has not the length that its index says",
        ));
    }
    tracing::info!(path = %path.display(), "making the index of a segment");
    let Scanned { index, fault } = scan(&file, path, header, file_bytes)?;
    if let Some(fault) = fault {
        return Err(damaged(path, index.segment_bytes, fault.what()));
    }
    create_expendable(&index_path, &index.encode(header.sequence))
        .map_err(io_error("create", &index_path))?;
    Ok(index)
}

/// Checks the last segment and cuts off the torn end of a write that was never confirmed.
fn recover(path: &Path, header: &SegmentHeader) -> Result<SegmentIndex, LogError> {
    let file = open_for_writing(path).map_err(io_error("open", path))?;
    let file_bytes = file.metadata().map_err(io_error("look at", path))?.len();
    let Scanned { index, fault } = scan(&file, path, header, file_bytes)?;
    let good_bytes = index.segment_bytes;
    if let Some(fault) = fault {
        let is_damage = fault == Fault::Offsets
            || later_commit_exists(&file, header.sequence, good_bytes, file_bytes)
                .map_err(io_error("read", path))?;
        if is_damage {
            return Err(damaged(path, good_bytes, fault.what()));
        }
        tracing::warn!(
            path = %path.display(),
            bytes = file_bytes - good_bytes,
            "cutting off a write that a crash left unfinished; nothing of it was confirmed"
        );
        file.set_len(good_bytes).map_err(io_error("cut", path))?;
    }
    // Also without a cut: after a crash of the process alone, the last blocks may be good but not
    // yet durable, and readers are about to see them.
    file.sync_all().map_err(io_error("sync", path))?;
    Ok(index)
}

fn damaged(path: &Path, position: u64, what: &'static str) -> LogError {
    LogError::Damaged { path: path.to_owned(), position, what }
}

fn to_partitions(bases: &[Offset]) -> Partition {
    Partition::try_from(bases.len()).expect("partitions are 32 bits")
}
