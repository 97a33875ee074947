//! Files of the data folder: made whole, kept by a power cut, open in one process.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;

use crate::failure::Failure;

/// Takes the folder for this process.
///
/// # Errors
/// Exit 5 while another process has it.
pub(super) fn lock(dir: &Path) -> Result<File, Failure> {
    let path = dir.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot write to the data folder {}", dir.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::refused(format!(
            "another process has the data folder {} open; stop it first, or talk to it with --url \
             and --token",
            dir.display()
        ))),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))?
        }
    }
}

/// Makes a folder so that a power cut right after cannot take it away with all that is in it.
pub(super) fn make_folder(dir: &Path) -> std::io::Result<()> {
    let missing = dir.ancestors().take_while(|folder| !folder.exists());
    let missing: Vec<&Path> = missing.filter(|folder| !folder.as_os_str().is_empty()).collect();
    std::fs::create_dir_all(dir)?;
    // The folder itself too when it was there: an earlier start may have been cut short here.
    for made in missing.into_iter().chain([dir]) {
        File::open(parent(made))?.sync_all()?;
    }
    Ok(())
}

/// The folder that a file or folder lies in.
fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow::anyhow!("the operating system gives no random bytes: {error}"))?;
    Ok(bytes)
}

/// Writes a small file so that it is there whole or not at all, also after a crash.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        // A file that somebody left there would keep its own mode.
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = File::options().create_new(true).write(true).mode(mode).open(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)?;
        File::open(parent(path))?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}
