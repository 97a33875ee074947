//! The embedded store: one redb file that serves both seams.

mod open;
mod shared;

use std::path::Path;
use std::sync::Arc;

use crate::counts::redb::RedbCounts;
use crate::meta::redb::RedbMeta;

pub use self::open::OpenError;
pub(crate) use self::shared::{Database, Ending, Trouble};

#[cfg(test)]
pub(crate) mod tests;

/// An open store file. Cheap to clone; the file is closed with its last clone and face.
#[derive(Clone, Debug)]
pub struct RedbStore {
    database: Arc<Database>,
}

impl RedbStore {
    /// Opens the store at `path`, making it if there is no file. Reads the whole file once, to find
    /// damage, and repairs what a crash left undone.
    ///
    /// Blocks other processes from opening the file while any clone or face of it lives.
    ///
    /// # Errors
    /// [`OpenError`], whose message says what to do.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let path = path.to_owned();
        Self::open_with(move || open::open(&path))
    }

    /// Opens a store through `opener`, which is called again when a failed write has made the
    /// open database unusable.
    pub(crate) fn open_with(
        opener: impl Fn() -> Result<::redb::Database, OpenError> + Send + Sync + 'static,
    ) -> Result<Self, OpenError> {
        Ok(Self { database: Arc::new(Database::open(Box::new(opener))?) })
    }

    /// The file as a counts store.
    #[must_use]
    pub fn counts(&self) -> RedbCounts {
        RedbCounts::new(Arc::clone(&self.database))
    }

    /// The file as tables of bytes.
    #[must_use]
    pub fn meta(&self) -> RedbMeta {
        RedbMeta::new(Arc::clone(&self.database))
    }
}
