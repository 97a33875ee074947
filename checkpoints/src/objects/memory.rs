//! Objects in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Created, Listed, ObjectError, ObjectName, ObjectStore};

/// Keeps objects in memory: for tests, and to see what a store would hold.
#[derive(Debug, Default)]
pub struct MemoryObjects {
    objects: Mutex<BTreeMap<ObjectName, Vec<u8>>>,
}

impl MemoryObjects {
    /// Every call leaves the map whole, so a panic elsewhere spoils nothing.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Vec<u8>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts other bytes in the place of an object, as a failing disk would: for tests.
    pub fn damage(&self, name: &ObjectName, change: impl FnOnce(&mut Vec<u8>)) {
        self.lock().entry(name.clone()).and_modify(change);
    }
}

impl ObjectStore for MemoryObjects {
    fn create(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, ObjectError> {
        let mut objects = self.lock();
        if objects.contains_key(name) {
            return Ok(Created::Exists);
        }
        objects.insert(name.clone(), bytes.to_vec());
        Ok(Created::New)
    }

    fn read(&self, name: &ObjectName) -> Result<Option<Vec<u8>>, ObjectError> {
        Ok(self.lock().get(name).cloned())
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, ObjectError> {
        let objects = self.lock();
        let found = objects.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        let listed = found.map(|(name, content)| Listed {
            name: name.clone(),
            bytes: u64::try_from(content.len()).unwrap_or(u64::MAX),
        });
        Ok(listed.collect())
    }

    fn delete(&self, names: &[ObjectName]) -> Result<(), ObjectError> {
        let mut objects = self.lock();
        for name in names {
            objects.remove(name);
        }
        Ok(())
    }
}
