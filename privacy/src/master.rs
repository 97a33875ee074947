//! The master key: wraps every other secret before it is stored.

use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aes_gcm::{Aes256Gcm, KeyInit};
use zeroize::Zeroizing;

use crate::aead::{self, NONCE_BYTES, TAG_BYTES};
use crate::random::{self, NoRandomness};

const KEY_BYTES: usize = 32;
/// The digits and a line end.
const FILE_BYTES_MAX: usize = 2 * KEY_BYTES + 2;
/// What wrapping adds to a secret.
pub(crate) const WRAPPING_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// The key under which secrets are stored, and the only one that is not stored with them.
///
/// Clones share one copy in memory, which is wiped when the last of them goes. A master key wraps
/// at most 2^32 secrets, because nonces are drawn at random: one per user, so four billion users.
#[derive(Clone)]
pub struct MasterKey {
    cipher: Arc<Aes256Gcm>,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(hidden)")
    }
}

/// Why there is no master key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MasterKeyError {
    /// The file system refused: look at the path and its permissions.
    #[error("cannot {action} the master key file {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The key file.
        path: PathBuf,
        /// What the file system reported.
        #[source]
        source: io::Error,
    },
    /// Others may have read the key: restrict the file, and think about who had access.
    #[error(
        "the master key file {} is open to others (mode {mode:04o}); run: chmod 600 {}",
        path.display(), path.display()
    )]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds something else: restore it from a backup. A new key would open nothing that
    /// was stored under the old one.
    #[error(
        "the master key file {} must hold 64 hexadecimal digits but {found}; restore it from a \
         backup, a new key cannot read what is stored",
        path.display()
    )]
    Malformed {
        /// The key file.
        path: PathBuf,
        /// What it holds instead.
        found: String,
    },
    /// No key can be made.
    #[error("cannot make a master key")]
    Random(#[source] NoRandomness),
}

/// A wrapped secret does not unwrap: it was wrapped under another master key or for another
/// purpose, or it is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret was wrapped under another master key, or it is damaged")]
pub struct UnwrapError;

impl MasterKey {
    /// The master key with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        let bytes = Zeroizing::new(bytes);
        Self { cipher: Arc::new(Aes256Gcm::new((&*bytes).into())) }
    }

    /// Reads the key file at `path`, or makes one with mode 0600 if there is none.
    ///
    /// A new file appears whole or not at all, durable and never in place of another: of two
    /// processes that start at once both get the key of the one that came first.
    ///
    /// # Errors
    /// [`MasterKeyError`].
    pub fn load_or_create(path: &Path) -> Result<Self, MasterKeyError> {
        match File::open(path) {
            Ok(file) => load(file, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(path),
            Err(source) => Err(io_error("open", path, source)),
        }
    }

    /// Wraps `secret` for the purpose `label`: without the same label it does not unwrap.
    ///
    /// `nonce` is drawn from a cryptographic generator for this call alone.
    ///
    /// # Panics
    /// If the secret is over 64 GiB.
    #[must_use]
    pub fn wrap(&self, label: &[u8], secret: &[u8], nonce: [u8; NONCE_BYTES]) -> Vec<u8> {
        let mut wrapped = Vec::new();
        aead::seal(&self.cipher, label, nonce, secret, &mut wrapped)
            .expect("secrets are far below the limit of the cipher");
        wrapped
    }

    /// The secret that was wrapped for the purpose `label`.
    ///
    /// # Errors
    /// [`UnwrapError`].
    pub fn unwrap(&self, label: &[u8], wrapped: &[u8]) -> Result<Zeroizing<Vec<u8>>, UnwrapError> {
        match aead::open(&self.cipher, label, wrapped) {
            Ok(secret) => Ok(Zeroizing::new(secret)),
            Err(aead::Unopened::Short | aead::Unopened::Forged) => Err(UnwrapError),
        }
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> MasterKeyError {
    MasterKeyError::Io { action, path: path.to_owned(), source }
}

fn load(mut file: File, path: &Path) -> Result<MasterKey, MasterKeyError> {
    let metadata = file.metadata().map_err(|source| io_error("inspect", path, source))?;
    let mode = metadata.mode() & 0o7777;
    if metadata.is_file() && mode & 0o077 != 0 {
        return Err(MasterKeyError::Exposed { path: path.to_owned(), mode });
    }
    // One byte more than allowed, so that a longer file is noticed.
    let mut text = Zeroizing::new([0; FILE_BYTES_MAX + 1]);
    let bytes = read_up_to(&mut file, text.as_mut_slice())
        .map_err(|source| io_error("read", path, source))?;
    let (text, _unread) = text.split_at(bytes);
    let malformed = |found| MasterKeyError::Malformed { path: path.to_owned(), found };
    let digits = text.trim_ascii_end();
    if digits.len() != 2 * KEY_BYTES || bytes > FILE_BYTES_MAX {
        return Err(malformed(format!("is {} bytes long", metadata.len())));
    }
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let value = pair.iter().try_fold(0, |value, digit| Some(value << 4 | hex_value(*digit)?));
        *byte = value.ok_or_else(|| malformed("holds something else".to_owned()))?;
    }
    Ok(MasterKey::from_bytes(*key))
}

/// Fills `buffer` as far as the file goes; returns how far. Unlike a vector that grows, this leaves
/// no copies behind.
fn read_up_to(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    loop {
        match file.read(buffer.get_mut(filled..).unwrap_or_default()) {
            Ok(0) => return Ok(filled),
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

const fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn create(path: &Path) -> Result<MasterKey, MasterKeyError> {
    let key = random::bytes::<KEY_BYTES>().map_err(MasterKeyError::Random)?;
    let mut text = Zeroizing::new(String::with_capacity(2 * KEY_BYTES + 1));
    for byte in key.iter() {
        write!(text, "{byte:02x}").expect("a string takes any text");
    }
    text.push('\n');

    // Written whole under a name of its own, then linked: a link never replaces a file, and a crash
    // leaves no half of a key behind.
    let suffix = u64::from_le_bytes(*random::bytes().map_err(MasterKeyError::Random)?);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{suffix:016x}"));
    let fresh = path.with_file_name(name);
    let written = write_private(&fresh, text.as_bytes())
        .map_err(|source| io_error("write", &fresh, source))
        .and_then(|()| match fs::hard_link(&fresh, path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(io_error("create", path, source)),
        });
    let removed = fs::remove_file(&fresh);
    let is_ours = written?;
    removed.map_err(|source| io_error("remove the temporary copy of", &fresh, source))?;
    sync_folder(path).map_err(|source| io_error("make durable", path, source))?;
    if is_ours {
        return Ok(MasterKey::from_bytes(*key));
    }
    let file = File::open(path).map_err(|source| io_error("open", path, source))?;
    load(file, path)
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests;
