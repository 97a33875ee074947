//! Objects as files of a directory.
//!
//! An object is written to a file under `.tmp`, synced, linked to its name (a link never replaces
//! what is there) and its folder synced: after a power cut it is whole or not there.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Act, Created, Listed, ObjectError, ObjectName, ObjectStore};

/// Where unfinished files lie. Names of objects never begin with a dot.
const TEMPORARY: &str = ".tmp";

/// Tells temporary files of one process apart, whichever store made them.
static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// Keeps each object in a file, named as the object, below one directory.
///
/// The file system has to know hard links.
#[derive(Debug)]
pub struct LocalObjects {
    root: PathBuf,
}

impl LocalObjects {
    /// Uses the directory `root`, which is made if it is not there. Several processes may use one
    /// directory.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        make_folders(&root.join(TEMPORARY))?;
        Ok(Self { root })
    }

    /// Removes the unfinished files that crashes left behind. Only for a process that knows to be
    /// the only writer: another one's create would fail, though nothing would be lost.
    ///
    /// # Errors
    /// If the directory cannot be read or a file not be removed.
    pub fn remove_unfinished(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join(TEMPORARY))? {
            remove(&entry?.path())?;
        }
        Ok(())
    }

    fn path(&self, name: &ObjectName) -> PathBuf {
        self.root.join(name.as_str())
    }

    fn try_create(&self, name: &ObjectName, bytes: &[u8]) -> io::Result<Created> {
        let path = self.path(name);
        let folder = path.parent().unwrap_or(&self.root);
        make_folders(folder)?;
        let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
        let temporary = self.root.join(TEMPORARY).join(format!("{}-{number}", process::id()));
        // A file of this name can only be left over from a process before.
        remove(&temporary)?;
        let linked = write_new(&temporary, bytes).and_then(|()| fs::hard_link(&temporary, &path));
        let removed = remove(&temporary);
        let created = match linked {
            Ok(()) => Created::New,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Created::Exists,
            Err(error) => return Err(error),
        };
        removed?;
        // Also where it existed: whoever linked it may not have come to this line.
        sync_folder(folder)?;
        Ok(created)
    }

    fn try_list(&self, prefix: &str) -> io::Result<Vec<Listed>> {
        let mut found = Vec::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in read_folder(&folder)? {
                let entry = entry?;
                let path = entry.path();
                let relative = path.strip_prefix(&self.root).ok().and_then(Path::to_str);
                let Some(name) = relative.and_then(|name| ObjectName::parse(name).ok()) else {
                    continue;
                };
                let metadata = match entry.metadata() {
                    Ok(metadata) => metadata,
                    // Deleted meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                };
                let inside = format!("{name}/");
                if metadata.is_file() && prefix.starts_with(&inside) {
                    // Not the same as an empty folder: what belongs there is out of reach.
                    let what = format!("{} is no folder", path.display());
                    return Err(io::Error::new(io::ErrorKind::NotADirectory, what));
                }
                if metadata.is_dir() && (inside.starts_with(prefix) || prefix.starts_with(&inside))
                {
                    folders.push(path);
                } else if metadata.is_file() && name.as_str().starts_with(prefix) {
                    found.push(Listed { name, bytes: metadata.len() });
                }
            }
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    fn try_delete(&self, names: &[ObjectName]) -> io::Result<()> {
        let mut folders = BTreeSet::new();
        for name in names {
            let path = self.path(name);
            remove(&path)?;
            folders.extend(path.parent().filter(|folder| folder.is_dir()).map(Path::to_owned));
        }
        folders.iter().try_for_each(|folder| sync_folder(folder))
    }
}

impl ObjectStore for LocalObjects {
    fn create(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, ObjectError> {
        self.try_create(name, bytes).map_err(|source| {
            let (act, object) = (Act::Create, name.to_string());
            // It may have failed after the link was made.
            match self.path(name).try_exists() {
                Ok(false) => ObjectError::Unavailable { act, name: object, source },
                Ok(true) | Err(_) => ObjectError::Unknown { act, name: object, source },
            }
        })
    }

    fn read(&self, name: &ObjectName) -> Result<Option<Vec<u8>>, ObjectError> {
        match fs::read(self.path(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => {
                Err(ObjectError::Unavailable { act: Act::Read, name: name.to_string(), source })
            }
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, ObjectError> {
        self.try_list(prefix).map_err(|source| ObjectError::Unavailable {
            act: Act::List,
            name: prefix.to_owned(),
            source,
        })
    }

    fn delete(&self, names: &[ObjectName]) -> Result<(), ObjectError> {
        self.try_delete(names).map_err(|source| ObjectError::Unknown {
            act: Act::Delete,
            name: names.first().map_or_else(String::new, ToString::to_string),
            source,
        })
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Makes a folder and those above it, each durable in the one above.
fn make_folders(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
    if let Some(above) = above {
        make_folders(above)?;
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    sync_folder(above.unwrap_or(Path::new(".")))
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The entries of a folder; none if it is gone.
fn read_folder(folder: &Path) -> io::Result<Vec<io::Result<fs::DirEntry>>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
