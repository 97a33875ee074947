//! Files of a log's folder: their names, and making them so that a crash leaves all or nothing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::LogError;

/// The file that says what the folder is.
pub(super) const FORMAT_FILE: &str = "log.format";
/// The file that is locked while a log is open.
pub(super) const LOCK_FILE: &str = "log.lock";
const SEGMENT_SUFFIX: &str = ".log";
const INDEX_SUFFIX: &str = ".index";
const TEMPORARY_SUFFIX: &str = ".tmp";

/// What a name in the folder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// [`FORMAT_FILE`].
    Format,
    /// [`LOCK_FILE`].
    Lock,
    /// The segment of this number.
    Segment(u64),
    /// The index of this segment.
    Index(u64),
    /// Left by a crash while a file was made: nothing refers to it.
    Temporary,
}

impl FileKind {
    /// What `name` stands for; `None` if it is not a log's.
    pub(super) fn of(name: &str) -> Option<Self> {
        let number = |suffix| -> Option<u64> {
            let digits: &str = name.strip_suffix(suffix)?;
            let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
            if is_number { digits.parse().ok() } else { None }
        };
        match name {
            FORMAT_FILE => Some(Self::Format),
            LOCK_FILE => Some(Self::Lock),
            _ if name.ends_with(TEMPORARY_SUFFIX) => {
                Self::of(name.strip_suffix(TEMPORARY_SUFFIX)?).map(|_| Self::Temporary)
            }
            _ => number(SEGMENT_SUFFIX)
                .map(Self::Segment)
                .or_else(|| number(INDEX_SUFFIX).map(Self::Index)),
        }
    }
}

/// The path of a segment.
pub(super) fn segment_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{sequence:020}{SEGMENT_SUFFIX}"))
}

/// The path of a closed segment's index.
pub(super) fn index_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{sequence:020}{INDEX_SUFFIX}"))
}

/// The name under which a file is made before it gets its own.
pub(super) fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY_SUFFIX);
    PathBuf::from(name)
}

/// For `map_err`: what was tried on which file.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    move |source| LogError::Io { action, path: path.to_owned(), source }
}

/// A segment file as the writer needs it; the tests' implementation fails on demand.
pub(super) trait SegmentFile: Send {
    /// Writes all of `bytes` at `position`.
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;
    /// Makes everything written durable, the file's length included.
    fn sync_data(&self) -> io::Result<()>;
    /// Cuts the file.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
}

impl SegmentFile for File {
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, position)
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        Self::set_len(self, bytes)
    }
}

/// Makes the writer's view of a file; the tests put their own in between.
pub(super) type Wrap = Box<dyn Fn(File) -> Box<dyn SegmentFile> + Send>;

/// Opens a file that exists for the writer.
pub(super) fn open_for_writing(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Makes the file `path` with these bytes, durable and under its name only when it is whole.
pub(super) fn create_whole(
    path: &Path,
    bytes: &[u8],
    wrap: &Wrap,
) -> io::Result<Box<dyn SegmentFile>> {
    let temporary = temporary_path(path);
    let file = wrap(File::create(&temporary)?);
    file.write_all_at(bytes, 0)?;
    file.sync_data()?;
    fs::rename(&temporary, path)?;
    if let Some(dir) = path.parent() {
        // The file is there but may vanish again: not to be taken for "no room, try later".
        sync_dir(dir).map_err(io::Error::other)?;
    }
    Ok(file)
}

/// Makes or replaces a file that can be made anew from others, so it need not be durable.
pub(super) fn create_expendable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary_path(path);
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, path)
}

/// Makes the names in a folder durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let dir = Path::new("");
        let name = |path: PathBuf| path.to_str().expect("ascii").to_owned();
        let cases = [
            (FORMAT_FILE.to_owned(), Some(FileKind::Format)),
            (LOCK_FILE.to_owned(), Some(FileKind::Lock)),
            (name(segment_path(dir, 12)), Some(FileKind::Segment(12))),
            (name(index_path(dir, u64::MAX)), Some(FileKind::Index(u64::MAX))),
            (name(temporary_path(&segment_path(dir, 12))), Some(FileKind::Temporary)),
            (name(temporary_path(Path::new(FORMAT_FILE))), Some(FileKind::Temporary)),
            ("12.log".to_owned(), None),
            ("notes.tmp".to_owned(), None),
            ("0000000000000000001x.log".to_owned(), None),
            ("+0000000000000000001.log".to_owned(), None),
            ("counts.redb".to_owned(), None),
        ];
        for (name, kind) in cases {
            assert_eq!(FileKind::of(&name), kind, "{name}");
        }
    }
}
