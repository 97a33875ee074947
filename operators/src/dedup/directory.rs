//! Segments as files of one directory.
//!
//! Nothing is synced to disk: the checkpoint is what survives a crash, these files only spare it
//! the way. A file that the crash cut short is found out when it is opened or read through.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

mod format;

use self::format::{
    CRC_BYTES, FOOTER_BYTES, ID_BYTES, PAGE_BYTES, footer, page_checksum, pages_bytes, parse_footer,
};
use super::filter::{count, index};
use super::search::count_not_above;
use super::segment::SegmentHandle;
use super::store::{PAGE_IDS, SegmentData, SegmentError, SegmentName, SegmentStore, SegmentWriter};

const EXTENSION: &str = "ids";
/// What the files of retired segments may take: so many, each of so many bytes.
const SPARE_FILES_MAX: usize = 256;
const SPARE_BYTES_MAX: u64 = 256 * 1024;

/// Keeps each segment in a file of its own.
///
/// A bounded number of files is open at a time; a segment whose file was closed opens it again
/// when it is read. Let it be more than the segments in use (about 20 a shard) where the limit of
/// the operating system allows: each reopening costs a few microseconds.
#[derive(Debug)]
pub struct DirectoryStore {
    path: PathBuf,
    files: Arc<Files>,
}

/// What the store and its segments share.
#[derive(Debug)]
struct Files {
    open: OpenFiles,
    /// Files of retired segments, for use under another name. Making and removing hundreds of
    /// files a second is slow: ext4 walks over each inode that was freed in the last seconds.
    spare: Mutex<Vec<PathBuf>>,
}

impl DirectoryStore {
    /// Files that are open at a time, where nothing else is asked for: half of what a process may
    /// usually have.
    pub const OPEN_FILES_MAX: usize = 512;

    /// RAM that it takes for an id, in bytes: all ids are on disk.
    pub const RAM_BYTES_PER_ID: u64 = 0;

    /// Uses the directory at `path`, which is made if it is not there. At most `open_files_max`
    /// files are open at a time.
    ///
    /// # Errors
    /// [`SegmentError::Directory`] if it cannot be made.
    pub fn new(path: impl Into<PathBuf>, open_files_max: usize) -> Result<Self, SegmentError> {
        let path = path.into();
        fs::create_dir_all(&path)
            .map_err(|source| SegmentError::Directory { path: path.clone(), source })?;
        let open = OpenFiles { max: open_files_max.max(1), order: Mutex::default() };
        Ok(Self { path, files: Arc::new(Files { open, spare: Mutex::default() }) })
    }

    /// Opens a segment that was written before.
    ///
    /// # Errors
    /// [`SegmentError`] if it is not there, is cut short or of another format version. Its pages
    /// are checked when they are read.
    pub fn open(&self, name: SegmentName) -> Result<SegmentHandle, SegmentError> {
        let failed = |source| SegmentError::Io { name, act: "open", source };
        let path = self.file_path(name);
        let file = File::open(&path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let mut footer = [0; FOOTER_BYTES];
        let damaged = |page| SegmentError::Damaged { name, page };
        let footer_at = bytes.checked_sub(count(FOOTER_BYTES)).ok_or(damaged(0))?;
        file.read_exact_at(&mut footer, footer_at).map_err(failed)?;
        let ids = parse_footer(name, &footer)?;
        if footer_at != pages_bytes(ids) {
            return Err(damaged(index(ids).div_ceil(PAGE_IDS)));
        }
        Ok(SegmentHandle { name, data: Arc::new(self.data(name, ids, file)) })
    }

    fn file_path(&self, name: SegmentName) -> PathBuf {
        self.path.join(format!("{name}.{EXTENSION}"))
    }

    fn data(&self, name: SegmentName, ids: u64, file: File) -> FileSegment {
        let slot = Arc::new(FileSlot { path: self.file_path(name), file: Mutex::default() });
        self.files.open.keep(&slot, Arc::new(file));
        let files = Arc::clone(&self.files);
        FileSegment { name, ids, slot, files, retired: AtomicBool::new(false) }
    }

    /// Keeps a file from being used for another segment.
    fn no_spare(&self, path: &Path) {
        lock(&self.files.spare).retain(|spare| spare != path);
    }

    /// A file for a new segment: a spare one, with old content in it, or an empty one.
    fn file(&self, path: &Path) -> io::Result<File> {
        let spare = lock(&self.files.spare).pop();
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if let Some(spare) = spare
            && !path.try_exists()?
            && fs::rename(spare, path).is_ok()
        {
            return options.open(path);
        }
        options.create_new(true).open(path)
    }
}

impl SegmentStore for DirectoryStore {
    fn create(&self, name: SegmentName, ids: u64) -> Result<Box<dyn SegmentWriter>, SegmentError> {
        let failed = |source| SegmentError::Io { name, act: "write", source };
        let path = self.file_path(name);
        let file = self.file(&path).map_err(failed)?;
        let data = self.data(name, ids, file.try_clone().map_err(failed)?);
        // Whatever ends before it is finished goes with its file.
        data.retire();
        let file = BufWriter::with_capacity(16 * PAGE_BYTES, file);
        Ok(Box::new(FileWriter { file, data, page: Vec::with_capacity(PAGE_BYTES), pages: 0 }))
    }

    fn import(&self, name: SegmentName, content: &[u8]) -> Result<SegmentHandle, SegmentError> {
        let path = self.file_path(name);
        self.no_spare(&path);
        fs::write(path, content).map_err(|source| SegmentError::Io {
            name,
            act: "write",
            source,
        })?;
        self.open(name)
    }

    fn adopt(
        &self,
        name: SegmentName,
        is_it: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<SegmentHandle>, SegmentError> {
        let path = self.file_path(name);
        self.no_spare(&path);
        match fs::read(path) {
            Ok(content) if is_it(&content) => self.open(name).map(Some),
            Ok(_other) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(SegmentError::Io { name, act: "read", source }),
        }
    }

    fn keep_only(&self, names: &BTreeSet<SegmentName>) -> Result<u64, SegmentError> {
        let failed = |source| SegmentError::Directory { path: self.path.clone(), source };
        let mut removed = 0;
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let is_segment = path.extension().is_some_and(|extension| extension == EXTENSION);
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let name = stem.filter(|_| is_segment).and_then(SegmentName::parse);
            if name.is_some_and(|name| !names.contains(&name)) {
                fs::remove_file(&path).map_err(failed)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

#[derive(Debug)]
struct FileWriter {
    file: BufWriter<File>,
    data: FileSegment,
    /// Ids of the page at hand.
    page: Vec<u8>,
    pages: usize,
}

impl FileWriter {
    fn end_page(&mut self) -> io::Result<()> {
        let checksum = page_checksum(self.data.name, self.pages, &self.page);
        self.page.extend_from_slice(&checksum.to_le_bytes());
        if self.page.len() == PAGE_IDS * ID_BYTES + CRC_BYTES {
            self.page.resize(PAGE_BYTES, 0);
        }
        self.file.write_all(&self.page)?;
        self.page.clear();
        self.pages += 1;
        Ok(())
    }

    fn write(&mut self, ids: &[u128]) -> io::Result<()> {
        for id in ids {
            self.page.extend_from_slice(&id.to_le_bytes());
            if self.page.len() == PAGE_IDS * ID_BYTES {
                self.end_page()?;
            }
        }
        Ok(())
    }

    fn write_end(&mut self) -> io::Result<()> {
        if !self.page.is_empty() {
            self.end_page()?;
        }
        self.file.write_all(&footer(self.data.name, self.data.ids))?;
        self.file.flush()?;
        self.file.get_ref().set_len(self.data.disk_bytes())
    }
}

impl SegmentWriter for FileWriter {
    fn append(&mut self, ids: &[u128]) -> Result<(), SegmentError> {
        let name = self.data.name;
        self.write(ids).map_err(|source| SegmentError::Io { name, act: "write", source })
    }

    fn finish(mut self: Box<Self>) -> Result<Arc<dyn SegmentData>, SegmentError> {
        let name = self.data.name;
        self.write_end().map_err(|source| SegmentError::Io { name, act: "write", source })?;
        self.data.retired.store(false, Ordering::Release);
        Ok(Arc::new(self.data))
    }
}

#[derive(Debug)]
struct FileSegment {
    name: SegmentName,
    ids: u64,
    slot: Arc<FileSlot>,
    files: Arc<Files>,
    retired: AtomicBool,
}

impl FileSegment {
    /// Reads a page into `bytes` and checks it. Returns its ids, 16 bytes each.
    fn read<'a>(
        &self,
        page: usize,
        bytes: &'a mut [u8; PAGE_BYTES],
    ) -> Result<&'a [u8], SegmentError> {
        let name = self.name;
        let before = page.saturating_mul(PAGE_IDS);
        let ids = index(self.ids).saturating_sub(before).min(PAGE_IDS);
        let length = ids * ID_BYTES;
        let bytes = &mut bytes[..length + CRC_BYTES];
        let read = self
            .files
            .open
            .file(&self.slot)
            .and_then(|file| file.read_exact_at(bytes, count(page) * count(PAGE_BYTES)));
        match read {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(SegmentError::Damaged { name, page });
            }
            Err(source) => return Err(SegmentError::Io { name, act: "read", source }),
        }
        let (ids, checksum) = bytes.split_at(length);
        if checksum != page_checksum(name, page, ids).to_le_bytes() {
            return Err(SegmentError::Damaged { name, page });
        }
        Ok(ids)
    }
}

/// The ids that stand in `bytes`.
fn decode(bytes: &[u8]) -> impl Iterator<Item = u128> {
    let (ids, _rest) = bytes.as_chunks::<ID_BYTES>();
    ids.iter().map(|id| u128::from_le_bytes(*id))
}

impl SegmentData for FileSegment {
    fn ids(&self) -> u64 {
        self.ids
    }

    fn page_contains(&self, page: usize, guess: usize, id: u128) -> Result<bool, SegmentError> {
        let mut bytes = [0; PAGE_BYTES];
        let mut ids = [u128::MAX; PAGE_IDS];
        let mut length = 0;
        for (place, id) in ids.iter_mut().zip(decode(self.read(page, &mut bytes)?)) {
            *place = id;
            length += 1;
        }
        let not_above = count_not_above(&ids[..length], guess, id);
        Ok(not_above > 0 && ids[not_above - 1] == id)
    }

    fn read_page(&self, page: usize, ids: &mut Vec<u128>) -> Result<(), SegmentError> {
        let mut bytes = [0; PAGE_BYTES];
        ids.extend(decode(self.read(page, &mut bytes)?));
        Ok(())
    }

    fn export(&self) -> Result<Vec<u8>, SegmentError> {
        let mut content = vec![0; index(self.disk_bytes())];
        let read = self.files.open.file(&self.slot);
        read.and_then(|file| file.read_exact_at(&mut content, 0))
            .map_err(|source| SegmentError::Io { name: self.name, act: "read", source })?;
        Ok(content)
    }

    fn ram_bytes(&self) -> u64 {
        count(size_of::<Self>() + size_of::<FileSlot>())
    }

    fn disk_bytes(&self) -> u64 {
        pages_bytes(self.ids) + count(FOOTER_BYTES)
    }

    fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }
}

impl Drop for FileSegment {
    fn drop(&mut self) {
        if !self.retired.load(Ordering::Acquire) {
            return;
        }
        if self.disk_bytes() <= SPARE_BYTES_MAX {
            let mut spare = lock(&self.files.spare);
            if spare.len() < SPARE_FILES_MAX {
                spare.push(self.slot.path.clone());
                return;
            }
        }
        // A file that cannot be removed now is removed by `keep_only` at the next start.
        drop(fs::remove_file(&self.slot.path));
    }
}

/// A file that is open or can be opened again.
#[derive(Debug)]
struct FileSlot {
    path: PathBuf,
    file: Mutex<Option<Arc<File>>>,
}

/// Closes the file that was opened first when there are too many.
#[derive(Debug)]
struct OpenFiles {
    max: usize,
    /// Slots in the order in which their files were opened.
    order: Mutex<VecDeque<Weak<FileSlot>>>,
}

impl OpenFiles {
    fn file(&self, slot: &Arc<FileSlot>) -> io::Result<Arc<File>> {
        if let Some(file) = lock(&slot.file).as_ref() {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(File::open(&slot.path)?);
        self.keep(slot, Arc::clone(&file));
        Ok(file)
    }

    fn keep(&self, slot: &Arc<FileSlot>, file: Arc<File>) {
        *lock(&slot.file) = Some(file);
        let mut order = lock(&self.order);
        order.push_back(Arc::downgrade(slot));
        // The slot of a segment that is gone counts too; when it comes to the front, it is shed.
        let closed = if order.len() > self.max { order.pop_front() } else { None };
        drop(order);
        if let Some(slot) = closed.and_then(|slot| slot.upgrade()) {
            *lock(&slot.file) = None;
        }
    }
}

/// A lock whose content is whole at every moment, so that a panic elsewhere spoils nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
