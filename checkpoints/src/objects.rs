//! The seam to the storage: objects that are created once, read whole, listed and deleted.
//!
//! [`LocalObjects`] keeps them in a directory, [`MemoryObjects`] in memory, and [`FaultyObjects`]
//! fails on order. Calls block until they are done; an async client stays behind the seam.

mod faulty;
mod local;
mod memory;

use std::fmt;
use std::io;

pub use faulty::{Act, Fault, FaultyObjects};
pub use local::LocalObjects;
pub use memory::MemoryObjects;

/// The name of an object: parts of lowercase letters, digits, `.`, `_` and `-`, separated by `/`;
/// no part begins with a dot. Ordered as bytes, which is the order of a listing.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectName(String);

/// The text is no name of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no name of an object")]
pub struct BadObjectName {
    /// The text.
    pub text: String,
}

impl ObjectName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`BadObjectName`] if it breaks the rules, which keep it inside any folder or bucket.
    pub fn parse(text: &str) -> Result<Self, BadObjectName> {
        let fits = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
        };
        let is_part =
            |part: &str| !part.is_empty() && !part.starts_with('.') && part.bytes().all(fits);
        if text.len() <= 255 && text.split('/').all(is_part) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadObjectName { text: text.to_owned() })
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What became of a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The object is there now, whole and durable.
    New,
    /// An object of that name was there before, and is as it was.
    Exists,
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: ObjectName,
    /// Its length.
    pub bytes: u64,
}

/// Why the storage did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// It did not happen: try again later.
    #[error("could not {act} {name}")]
    Unavailable {
        /// What was tried.
        act: Act,
        /// With which object, or with objects that begin how.
        name: String,
        /// What the storage said.
        #[source]
        source: io::Error,
    },
    /// It may have happened or may still: read before repeating.
    #[error("could not learn whether {act} of {name} was done")]
    Unknown {
        /// What was tried.
        act: Act,
        /// With which object.
        name: String,
        /// What the storage said.
        #[source]
        source: io::Error,
    },
}

/// Where checkpoints lie. Contract, the same test for every implementation: an object is there
/// whole or not at all, never changes, and is found by the next listing, also by other processes.
pub trait ObjectStore: fmt::Debug + Send + Sync {
    /// Creates an object unless one of that name exists. Durable once it returns, in both cases.
    ///
    /// # Errors
    /// [`ObjectError`]; with [`ObjectError::Unknown`] the object may be there, and is then whole.
    fn create(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, ObjectError>;

    /// The content of an object; `None` if there is none of that name.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    fn read(&self, name: &ObjectName) -> Result<Option<Vec<u8>>, ObjectError>;

    /// All objects whose names begin with `prefix`, a folder name with its slash, by name.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`].
    fn list(&self, prefix: &str) -> Result<Vec<Listed>, ObjectError>;

    /// Deletes objects, in this order; one that is not there counts as deleted. Durable.
    ///
    /// # Errors
    /// [`ObjectError`]; some of the objects may be deleted then.
    fn delete(&self, names: &[ObjectName]) -> Result<(), ObjectError>;
}

impl<S: ObjectStore + ?Sized> ObjectStore for std::sync::Arc<S> {
    fn create(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, ObjectError> {
        (**self).create(name, bytes)
    }

    fn read(&self, name: &ObjectName) -> Result<Option<Vec<u8>>, ObjectError> {
        (**self).read(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, ObjectError> {
        (**self).list(prefix)
    }

    fn delete(&self, names: &[ObjectName]) -> Result<(), ObjectError> {
        (**self).delete(names)
    }
}

#[cfg(test)]
mod tests;
