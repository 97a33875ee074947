//! An object store with faults on order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tally_checkpoints::objects::{Act, Created, Listed, ObjectError, ObjectName, ObjectStore};

use super::{OBJECTS_AWAY, Plan, Point};

/// Names of data objects begin so.
const DATA: &str = "data/";
/// Names of manifests begin so.
const MANIFESTS: &str = "manifests/";

/// An object store that fails as the plan says. It knows a checkpoint by the names of its objects:
/// some data objects, then one manifest.
#[derive(Debug)]
pub(super) struct CrashingObjects {
    inner: Arc<dyn ObjectStore>,
    plan: Arc<Plan>,
    /// Data objects created since the last manifest.
    since_manifest: AtomicU32,
}

impl CrashingObjects {
    pub(super) fn new(inner: Arc<dyn ObjectStore>, plan: Arc<Plan>) -> Self {
        Self { inner, plan, since_manifest: AtomicU32::new(0) }
    }

    fn here(&self, act: Act, name: impl ToString) -> Result<(), ObjectError> {
        if !self.plan.is_away(OBJECTS_AWAY) {
            return Ok(());
        }
        let source = std::io::Error::other("the object store is away on order");
        Err(ObjectError::Unavailable { act, name: name.to_string(), source })
    }
}

impl ObjectStore for CrashingObjects {
    fn create(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, ObjectError> {
        self.here(Act::Create, name)?;
        if name.as_str().starts_with(DATA) {
            if self.since_manifest.fetch_add(1, Ordering::SeqCst) == 0 {
                self.plan.reach(Point::BeforeUpload);
            }
            let created = self.inner.create(name, bytes)?;
            self.plan.reach(Point::BetweenObjects);
            Ok(created)
        } else if name.as_str().starts_with(MANIFESTS) {
            self.plan.reach(Point::BeforeManifest);
            let created = self.inner.create(name, bytes)?;
            self.since_manifest.store(0, Ordering::SeqCst);
            self.plan.reach(Point::AfterManifest);
            Ok(created)
        } else {
            self.inner.create(name, bytes)
        }
    }

    fn read(&self, name: &ObjectName) -> Result<Option<Vec<u8>>, ObjectError> {
        self.here(Act::Read, name)?;
        let bytes = self.inner.read(name)?;
        if name.as_str().starts_with(DATA) {
            self.plan.reach(Point::DuringRestore);
        }
        Ok(bytes)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, ObjectError> {
        self.here(Act::List, prefix)?;
        self.inner.list(prefix)
    }

    fn delete(&self, names: &[ObjectName]) -> Result<(), ObjectError> {
        self.here(Act::Delete, names.first().map_or("", ObjectName::as_str))?;
        if !names.is_empty() && self.plan.is_last(Point::DuringCollection) {
            let (gone, _left) = names.split_at(names.len().div_ceil(2));
            self.inner.delete(gone)?;
            self.plan.crash(Point::DuringCollection);
        }
        self.inner.delete(names)
    }
}
