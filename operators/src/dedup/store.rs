//! The seam behind which frozen ids are kept, and its memory version.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tally_model::ids::Shard;

use super::filter::count;
use super::search::count_not_above;
use super::segment::SegmentHandle;

/// How many ids one page of a segment holds: with its checksum it fills 4 KiB.
pub const PAGE_IDS: usize = 255;

/// The name of a segment, never used twice in a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentName {
    /// The deployment start that wrote the segment.
    pub generation: u32,
    /// The shard whose ids it holds.
    pub shard: Shard,
    /// Counts the segments of the shard.
    pub sequence: u64,
}

impl SegmentName {
    /// Reads what [`Display`](fmt::Display) wrote; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (generation, rest) = text.strip_prefix('g')?.split_once("-s")?;
        let (shard, sequence) = rest.split_once('-')?;
        let name = Self {
            generation: generation.parse().ok()?,
            shard: Shard(shard.parse().ok()?),
            sequence: sequence.parse().ok()?,
        };
        (name.to_string() == text).then_some(name)
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, shard: Shard(shard), sequence } = self;
        write!(f, "g{generation:07}-s{shard:04}-{sequence:010}")
    }
}

/// Why a segment could not be written or read; one variant for each thing to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The store refused: mend it (space, permissions), then restore from the last checkpoint.
    #[error("could not {act} segment {name}")]
    Io {
        /// The segment.
        name: SegmentName,
        /// `write`, `read` or `open`.
        act: &'static str,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The bytes are not those that were written: take the segment from a checkpoint again.
    #[error("segment {name} is damaged at page {page}")]
    Damaged {
        /// The segment.
        name: SegmentName,
        /// The page, counted from 0; the page after the last one stands for the footer.
        page: usize,
    },
    /// The segment was written by a newer release: use that one.
    #[error("segment {name} has format version {version}, which this release cannot read")]
    Version {
        /// The segment.
        name: SegmentName,
        /// The version that it carries.
        version: u32,
    },
    /// The directory itself cannot be used: mend it, then start again.
    #[error("could not use the segment directory {}", path.display())]
    Directory {
        /// The directory.
        path: std::path::PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
}

/// Makes segments. Contract: what a finished segment answers is exactly what was appended; the
/// storage of an unfinished or retired one is free again once the last handle is dropped.
pub trait SegmentStore: fmt::Debug + Send + Sync {
    /// Begins a segment of `ids` ids.
    ///
    /// # Errors
    /// [`SegmentError::Io`] if there is no room for it or the name is taken.
    fn create(&self, name: SegmentName, ids: u64) -> Result<Box<dyn SegmentWriter>, SegmentError>;

    /// Makes a segment of what [`SegmentData::export`] gave, in place of any of that name.
    ///
    /// # Errors
    /// [`SegmentError::Io`] if there is no room for it; [`SegmentError::Damaged`] and
    /// [`SegmentError::Version`] if the content is not what a store of this kind exports.
    fn import(&self, name: SegmentName, content: &[u8]) -> Result<SegmentHandle, SegmentError>;

    /// Opens the segment of that name if an earlier process has left it here with exactly the
    /// content that `is_it` accepts; `None` if it is not here or something else is.
    ///
    /// # Errors
    /// [`SegmentError::Io`] if it cannot be told.
    fn adopt(
        &self,
        name: SegmentName,
        is_it: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<SegmentHandle>, SegmentError>;

    /// Removes the segments that are not in `names`: what an earlier process left behind. Returns
    /// how many were removed.
    ///
    /// # Errors
    /// [`SegmentError::Directory`] if they cannot be listed or removed.
    fn keep_only(&self, names: &BTreeSet<SegmentName>) -> Result<u64, SegmentError>;
}

/// A segment that is being written.
pub trait SegmentWriter: fmt::Debug + Send {
    /// Appends ids, in ascending order over all calls.
    ///
    /// # Errors
    /// [`SegmentError::Io`] if they cannot be written.
    fn append(&mut self, ids: &[u128]) -> Result<(), SegmentError>;

    /// Ends the segment and opens it for reading.
    ///
    /// # Errors
    /// [`SegmentError::Io`] if what was appended cannot be written.
    fn finish(self: Box<Self>) -> Result<Arc<dyn SegmentData>, SegmentError>;
}

/// A finished segment: sorted ids in pages of [`PAGE_IDS`], the last one maybe shorter.
pub trait SegmentData: fmt::Debug + Send + Sync {
    /// How many ids it holds.
    fn ids(&self) -> u64;

    /// Whether `id` stands on `page`; the search starts at place `guess` of the page.
    ///
    /// # Errors
    /// [`SegmentError`] if the page cannot be read or is not what was written.
    fn page_contains(&self, page: usize, guess: usize, id: u128) -> Result<bool, SegmentError>;

    /// Appends the ids of `page` to `ids`.
    ///
    /// # Errors
    /// [`SegmentError`] if the page cannot be read or is not what was written.
    fn read_page(&self, page: usize, ids: &mut Vec<u128>) -> Result<(), SegmentError>;

    /// The whole segment as bytes, for [`SegmentStore::import`]. Possible for as long as there is a
    /// handle.
    ///
    /// # Errors
    /// [`SegmentError::Io`] if it cannot be read.
    fn export(&self) -> Result<Vec<u8>, SegmentError>;

    /// Bytes of RAM that the ids take.
    fn ram_bytes(&self) -> u64;

    /// Bytes of disk that the segment takes.
    fn disk_bytes(&self) -> u64;

    /// Says that nobody will ask for the segment by name again: its storage goes with its last
    /// handle. A snapshot that still holds a handle can be uploaded to its end.
    fn retire(&self);
}

/// Keeps segments in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryStore;

impl MemoryStore {
    /// RAM that it takes for an id, in bytes.
    pub const RAM_BYTES_PER_ID: u64 = 16;
}

#[derive(Debug)]
struct MemorySegment {
    ids: Vec<u128>,
}

impl SegmentStore for MemoryStore {
    fn create(&self, _name: SegmentName, ids: u64) -> Result<Box<dyn SegmentWriter>, SegmentError> {
        Ok(Box::new(MemorySegment { ids: Vec::with_capacity(super::filter::index(ids)) }))
    }

    fn import(&self, name: SegmentName, content: &[u8]) -> Result<SegmentHandle, SegmentError> {
        let (ids, rest) = content.as_chunks::<{ size_of::<u128>() }>();
        if !rest.is_empty() {
            return Err(SegmentError::Damaged { name, page: ids.len() / PAGE_IDS });
        }
        let ids = ids.iter().map(|id| u128::from_le_bytes(*id)).collect();
        Ok(SegmentHandle { name, data: Arc::new(MemorySegment { ids }) })
    }

    fn adopt(
        &self,
        _name: SegmentName,
        _is_it: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<SegmentHandle>, SegmentError> {
        Ok(None)
    }

    fn keep_only(&self, _names: &BTreeSet<SegmentName>) -> Result<u64, SegmentError> {
        Ok(0)
    }
}

impl SegmentWriter for MemorySegment {
    fn append(&mut self, ids: &[u128]) -> Result<(), SegmentError> {
        self.ids.extend_from_slice(ids);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Arc<dyn SegmentData>, SegmentError> {
        Ok(Arc::new(*self))
    }
}

impl MemorySegment {
    fn page(&self, page: usize) -> &[u128] {
        let from = self.ids.len().min(page.saturating_mul(PAGE_IDS));
        let to = self.ids.len().min(from + PAGE_IDS);
        &self.ids[from..to]
    }
}

impl SegmentData for MemorySegment {
    fn ids(&self) -> u64 {
        count(self.ids.len())
    }

    fn page_contains(&self, page: usize, guess: usize, id: u128) -> Result<bool, SegmentError> {
        let ids = self.page(page);
        let not_above = count_not_above(ids, guess, id);
        Ok(not_above > 0 && ids[not_above - 1] == id)
    }

    fn read_page(&self, page: usize, ids: &mut Vec<u128>) -> Result<(), SegmentError> {
        ids.extend_from_slice(self.page(page));
        Ok(())
    }

    fn export(&self) -> Result<Vec<u8>, SegmentError> {
        Ok(self.ids.iter().flat_map(|id| id.to_le_bytes()).collect())
    }

    fn ram_bytes(&self) -> u64 {
        count(self.ids.capacity() * size_of::<u128>())
    }

    fn disk_bytes(&self) -> u64 {
        0
    }

    fn retire(&self) {}
}
