//! A store that fails on order.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::{Created, Listed, ObjectError, ObjectName, ObjectStore};

/// What a caller asks of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// [`ObjectStore::create`].
    Create,
    /// [`ObjectStore::read`].
    Read,
    /// [`ObjectStore::list`].
    List,
    /// [`ObjectStore::delete`].
    Delete,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Read => "read",
            Self::List => "list",
            Self::Delete => "delete",
        })
    }
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing happens, and the store says so.
    Refused,
    /// It happens, but the answer is lost.
    AppliedThenLost,
    /// Nothing happens, and nobody can tell.
    TimedOut,
}

/// Asked before each call: what is to be done to which object, and how it shall fail.
type Plan = Box<dyn FnMut(Act, &str) -> Option<Fault> + Send>;

/// Wraps a store and fails as a plan says.
pub struct FaultyObjects<S> {
    inner: S,
    plan: Mutex<Plan>,
}

impl<S: fmt::Debug> fmt::Debug for FaultyObjects<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyObjects").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: ObjectStore> FaultyObjects<S> {
    /// Asks `plan` before each call, with what is to be done to which object (for a listing: the
    /// prefix; for a deletion: the first name). It may do things of its own, such as what another
    /// process does between two calls of this one.
    pub fn new(inner: S, plan: impl FnMut(Act, &str) -> Option<Fault> + Send + 'static) -> Self {
        Self { inner, plan: Mutex::new(Box::new(plan)) }
    }

    fn run<T>(
        &self,
        act: Act,
        name: &str,
        call: impl FnOnce() -> Result<T, ObjectError>,
    ) -> Result<T, ObjectError> {
        let fault = (self.plan.lock().unwrap_or_else(PoisonError::into_inner))(act, name);
        let source = || io::Error::other("a fault on order");
        let name = || name.to_owned();
        let changes = matches!(act, Act::Create | Act::Delete);
        match fault {
            None => call(),
            Some(Fault::AppliedThenLost) if changes => {
                call()?;
                Err(ObjectError::Unknown { act, name: name(), source: source() })
            }
            Some(Fault::TimedOut) if changes => {
                Err(ObjectError::Unknown { act, name: name(), source: source() })
            }
            Some(Fault::Refused | Fault::AppliedThenLost | Fault::TimedOut) => {
                Err(ObjectError::Unavailable { act, name: name(), source: source() })
            }
        }
    }
}

impl<S: ObjectStore> ObjectStore for FaultyObjects<S> {
    fn create(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, ObjectError> {
        self.run(Act::Create, name.as_str(), || self.inner.create(name, bytes))
    }

    fn read(&self, name: &ObjectName) -> Result<Option<Vec<u8>>, ObjectError> {
        self.run(Act::Read, name.as_str(), || self.inner.read(name))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, ObjectError> {
        self.run(Act::List, prefix, || self.inner.list(prefix))
    }

    fn delete(&self, names: &[ObjectName]) -> Result<(), ObjectError> {
        let first = names.first().map_or("", ObjectName::as_str);
        self.run(Act::Delete, first, || self.inner.delete(names))
    }
}
