//! One open database, shared by both faces, and opened again after a failed write.

use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use ::redb::{
    CommitError, Durability, Error, ReadTransaction, ReadableDatabase, SetDurabilityError,
    StorageError, TableError, TransactionError, WriteTransaction,
};

use super::OpenError;
use crate::error::StoreError;

/// Opens the file once more.
pub(super) type Opener = Box<dyn Fn() -> Result<::redb::Database, OpenError> + Send + Sync>;

/// An open database.
///
/// After a write that failed, on a full disk for instance, redb lets no further write in until the
/// file was closed and opened again. So the next call does that, and a store whose disk has room
/// again goes on without a restart of the process.
pub(crate) struct Database {
    opener: Opener,
    /// `None` = to be opened again.
    open: RwLock<Option<::redb::Database>>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").finish_non_exhaustive()
    }
}

/// What becomes of a write transaction.
pub(crate) enum Ending<T> {
    /// Its changes are made durable.
    Commit(T),
    /// It changed nothing.
    Abort(T),
}

/// Why a transaction did not go through.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It changed nothing.
    Before(Error),
    /// Its commit failed: it is in the file or it is not.
    AtCommit(Error),
    /// What was read or given is no good.
    Row(StoreError),
}

impl Database {
    pub(super) fn open(opener: Opener) -> Result<Self, OpenError> {
        let open = RwLock::new(Some(opener()?));
        Ok(Self { opener, open })
    }

    /// Runs `work` on one snapshot.
    pub(crate) fn read<T>(
        &self,
        action: &'static str,
        work: impl FnOnce(&ReadTransaction) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        self.run(action, |database| work(&database.begin_read()?))
    }

    /// Runs `work` in the one write transaction there can be, and makes its changes durable.
    pub(crate) fn write<T>(
        &self,
        action: &'static str,
        work: impl FnOnce(&WriteTransaction) -> Result<Ending<T>, Trouble>,
    ) -> Result<T, StoreError> {
        self.run(action, |database| {
            let mut transaction = database.begin_write()?;
            transaction.set_durability(Durability::Immediate)?;
            match work(&transaction)? {
                Ending::Commit(done) => {
                    transaction.commit()?;
                    Ok(done)
                }
                Ending::Abort(done) => {
                    transaction.abort()?;
                    Ok(done)
                }
            }
        })
    }

    fn run<T>(
        &self,
        action: &'static str,
        work: impl FnOnce(&::redb::Database) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        let open = self.opened(action)?;
        let Some(database) = open.as_ref() else {
            return Err(StoreError::unavailable(action, "another call has just closed the file"));
        };
        let trouble = match work(database) {
            Ok(done) => return Ok(done),
            Err(trouble) => trouble,
        };
        drop(open);
        if trouble.needs_reopening() {
            *self.open.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Err(trouble.into_error(action))
    }

    /// The open database, opened again if need be.
    fn opened(
        &self,
        action: &'static str,
    ) -> Result<RwLockReadGuard<'_, Option<::redb::Database>>, StoreError> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if open.is_some() {
            return Ok(open);
        }
        drop(open);
        let mut closed = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if closed.is_none() {
            let database =
                (self.opener)().map_err(|error| StoreError::unavailable(action, error))?;
            // Whoever made the write that failed reports it; on a full disk this comes with each.
            tracing::debug!("the store was opened again after a failed write");
            *closed = Some(database);
        }
        drop(closed);
        Ok(self.open.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Trouble {
    const fn needs_reopening(&self) -> bool {
        match self {
            Self::AtCommit(_) => true,
            Self::Before(error) => matches!(
                error,
                Error::Io(_) | Error::Backend(_) | Error::PreviousIo | Error::DatabaseClosed
            ),
            Self::Row(_) => false,
        }
    }

    fn into_error(self, action: &'static str) -> StoreError {
        match self {
            Self::Before(Error::Corrupted(what)) => {
                StoreError::corrupt(format!("the file ({what})"))
            }
            Self::Before(error) => StoreError::unavailable(action, error),
            Self::AtCommit(error) => StoreError::unknown(action, error),
            Self::Row(error) => error,
        }
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Row(error)
    }
}

impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Self {
        Self::Before(error.into())
    }
}

impl From<TableError> for Trouble {
    fn from(error: TableError) -> Self {
        Self::Before(error.into())
    }
}

impl From<TransactionError> for Trouble {
    fn from(error: TransactionError) -> Self {
        Self::Before(error.into())
    }
}

impl From<SetDurabilityError> for Trouble {
    fn from(error: SetDurabilityError) -> Self {
        Self::Before(error.into())
    }
}

impl From<CommitError> for Trouble {
    fn from(error: CommitError) -> Self {
        Self::AtCommit(error.into())
    }
}
