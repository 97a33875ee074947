//! The file itself: opening, refusing, surviving.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use ::redb::backends::FileBackend;
use ::redb::{Builder, StorageBackend};
use tempfile::TempDir;

use super::*;
use crate::counts::contract::row;
use crate::counts::{CountsStore, PutCondition, PutOutcome, put_resolved};
use crate::error::StoreError;
use crate::meta::{CasOutcome, MetaStore};

/// Makes stores in folders that live as long as this does.
#[derive(Default)]
pub(crate) struct Files {
    folders: RefCell<Vec<TempDir>>,
}

impl Files {
    /// A fresh, empty store in a folder of its own.
    pub(crate) fn fresh(&self) -> RedbStore {
        RedbStore::open(&self.fresh_path()).expect("opens")
    }

    fn fresh_path(&self) -> PathBuf {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store.redb");
        self.folders.borrow_mut().push(folder);
        path
    }
}

fn text_of(error: &OpenError) -> String {
    error.to_string()
}

#[test]
fn what_is_put_survives_closing() {
    let files = Files::default();
    let path = files.fresh_path();
    let put = row(0, 1, &[1, 2, 3]);
    {
        let store = RedbStore::open(&path).unwrap();
        store.counts().put_many(&[(put.clone(), PutCondition::Below)]);
        store.meta().put_if("t", b"k", None, b"v").unwrap();
    }
    let store = RedbStore::open(&path).unwrap();
    assert_eq!(store.counts().rows(&[put.small.bucket]).unwrap(), [Some(put)]);
    assert_eq!(store.meta().get("t", b"k").unwrap(), Some(b"v".to_vec()));
}

#[test]
fn a_copy_taken_without_closing_holds_everything_acknowledged() {
    let files = Files::default();
    let (path, copy) = (files.fresh_path(), files.fresh_path());
    let store = RedbStore::open(&path).unwrap();
    let counts = store.counts();
    let puts: Vec<_> =
        (0..200).map(|minute| (row(minute * 60_000, 1, &[7; 40]), PutCondition::Below)).collect();
    for outcome in counts.put_many(&puts) {
        assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    }
    // What a crash leaves: the file as it is while the store is open.
    fs::copy(&path, &copy).unwrap();
    let after = RedbStore::open(&copy).unwrap().counts();
    let buckets: Vec<_> = puts.iter().map(|(row, _)| row.small.bucket).collect();
    let kept: Vec<_> = after.rows(&buckets).unwrap().into_iter().flatten().collect();
    assert_eq!(kept.len(), puts.len());
}

#[test]
fn an_open_store_is_locked_and_free_again_after_its_last_face_is_gone() {
    let files = Files::default();
    let path = files.fresh_path();
    let store = RedbStore::open(&path).unwrap();
    let face = store.meta();
    drop(store);
    let error = RedbStore::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    let text = text_of(&error);
    assert!(
        text.contains(&path.display().to_string()) && text.contains("another process"),
        "{text}"
    );
    drop(face);
    RedbStore::open(&path).unwrap();
}

#[test]
fn files_that_are_no_store_are_refused_and_left_as_they_are() {
    let files = Files::default();
    let foreign: [(&str, Vec<u8>); 3] = [
        ("text", b"not a database\n".to_vec()),
        ("zeros", vec![0; 100_000]),
        ("a long text", b"SQLite format 3\0".repeat(1_000)),
    ];
    for (name, bytes) in foreign {
        let path = files.fresh_path();
        fs::write(&path, &bytes).unwrap();
        let error = RedbStore::open(&path).unwrap_err();
        assert!(matches!(error, OpenError::Foreign { .. }), "{name}: {error:?}");
        assert!(text_of(&error).contains("not a store of Tally"), "{name}: {error}");
        assert_eq!(fs::read(&path).unwrap(), bytes, "{name}");
    }
}

#[test]
fn a_redb_file_of_another_program_is_refused() {
    let files = Files::default();
    let path = files.fresh_path();
    let theirs = ::redb::TableDefinition::<&str, u64>::new("theirs");
    {
        let database = ::redb::Database::create(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(theirs).unwrap().insert("a", 1).unwrap();
        transaction.commit().unwrap();
    }
    let error = RedbStore::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Foreign { .. }), "{error:?}");
    // Even one that calls a table as we do.
    let format = ::redb::TableDefinition::<&[u8], &[u8]>::new("format");
    {
        let database = ::redb::Database::create(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        let row: &[u8] = b"THEIRMAG\0\0\0\x01";
        transaction.open_table(format).unwrap().insert(b"format".as_slice(), row).unwrap();
        transaction.commit().unwrap();
    }
    let error = RedbStore::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::Foreign { .. }), "{error:?}");
}

#[test]
fn a_store_of_a_newer_version_is_refused_with_both_versions() {
    let files = Files::default();
    let path = files.fresh_path();
    RedbStore::open(&path).unwrap();
    let format = ::redb::TableDefinition::<&[u8], &[u8]>::new("format");
    {
        let database = ::redb::Database::create(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        let newer: &[u8] = b"TALLYSTO\0\0\0\x02";
        transaction.open_table(format).unwrap().insert(b"format".as_slice(), newer).unwrap();
        transaction.commit().unwrap();
    }
    let error = RedbStore::open(&path).unwrap_err();
    assert!(matches!(error, OpenError::TooNew { found: 2, known: 1, .. }), "{error:?}");
}

#[test]
fn a_start_cut_short_before_the_format_was_written_goes_on() {
    let files = Files::default();
    let (empty, bare) = (files.fresh_path(), files.fresh_path());
    fs::write(&empty, []).unwrap();
    drop(::redb::Database::create(&bare).unwrap());
    for path in [empty, bare] {
        let store = RedbStore::open(&path).unwrap();
        assert!(store.counts().is_empty().unwrap());
    }
}

/// A closed store with some rows, as bytes.
fn whole_file(files: &Files) -> Vec<u8> {
    let path = files.fresh_path();
    let rows: Vec<_> =
        (0..3_000_u32).map(|number| (number.to_be_bytes().to_vec(), vec![7; 200])).collect();
    RedbStore::open(&path).unwrap().meta().insert_many("t", &rows).unwrap();
    fs::read(&path).unwrap()
}

#[test]
fn a_file_that_lost_its_end_is_refused() {
    let files = Files::default();
    let whole = whole_file(&files);
    for kept in [1, 100, 4_096, 10_000, whole.len() / 2, whole.len() - 1] {
        let path = files.fresh_path();
        fs::write(&path, &whole[..kept]).unwrap();
        let error = RedbStore::open(&path).unwrap_err();
        assert!(
            matches!(error, OpenError::Damaged { .. } | OpenError::Foreign { .. }),
            "{kept} bytes kept: {error:?}"
        );
    }
}

#[test]
fn a_file_with_wrong_bytes_is_refused_unless_the_bytes_mean_nothing() {
    let files = Files::default();
    let whole = whole_file(&files);
    let path = files.fresh_path();
    let mut state = 1_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap()
    };
    let mut refused = 0;
    for trial in 0..200 {
        let mut bytes = whole.clone();
        for _wrong in 0..=trial % 20 {
            // Every other trial hits the header and the first pages.
            let end = if trial % 2 == 0 { bytes.len() } else { 8_192 };
            let at = random() % end;
            bytes[at] ^= 1 << (random() % 8);
        }
        fs::write(&path, bytes).unwrap();
        match RedbStore::open(&path) {
            Err(OpenError::Damaged { .. } | OpenError::Foreign { .. }) => refused += 1,
            Err(other) => panic!("trial {trial}: {other:?}"),
            Ok(store) => {
                let rows = store.meta().scan("t", None, 10_000).unwrap();
                assert_eq!(rows.len(), 3_000, "trial {trial}");
                assert!(rows.iter().all(|(_, value)| *value == [7; 200]), "trial {trial}");
            }
        }
    }
    assert!(refused > 50, "only {refused} of 200");
}

#[test]
fn what_the_system_forbids_is_told_with_the_path() {
    let files = Files::default();
    let path = files.fresh_path();
    for bad in [path.join("below-a-file-that-is-not-there"), path.parent().unwrap().to_owned()] {
        let error = RedbStore::open(&bad).unwrap_err();
        assert!(matches!(error, OpenError::Io { .. }), "{error:?}");
        assert!(text_of(&error).contains(&bad.display().to_string()), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_new_file_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let files = Files::default();
    let path = files.fresh_path();
    let _store = RedbStore::open(&path).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// A file whose disk can be full.
#[derive(Debug)]
struct Disk {
    file: FileBackend,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn room(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.room()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.file.write(offset, data)
    }
}

/// A store on a disk that is full while the flag is set.
fn on_disk(path: PathBuf, full: &Arc<AtomicBool>) -> RedbStore {
    let full = Arc::clone(full);
    let opener = move || {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let disk = Disk { file: FileBackend::new(file).unwrap(), full: Arc::clone(&full) };
        let database = Builder::new().create_with_backend(disk);
        let database = database
            .map_err(|error| OpenError::Damaged { path: path.clone(), source: error.into() })?;
        open::check_format(&path, &database)?;
        Ok(database)
    };
    RedbStore::open_with(opener).unwrap()
}

#[test]
fn a_store_whose_disk_was_full_goes_on_without_a_restart() {
    let files = Files::default();
    let full = Arc::new(AtomicBool::new(false));
    let store = on_disk(files.fresh_path(), &full);
    let (counts, meta) = (store.counts(), store.meta());
    let (before, during) = (row(0, 1, &[1; 600]), row(60_000, 1, &[2; 600]));
    assert_eq!(
        counts.put_many(&[(before.clone(), PutCondition::Below)]).remove(0).unwrap(),
        PutOutcome::Stored
    );
    full.store(true, Ordering::SeqCst);
    let put = [(during.clone(), PutCondition::Below)];
    for attempt in 0..3 {
        let outcome = put_resolved(&counts, &put).remove(0);
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, StoreError::Unknown { .. } | StoreError::Unavailable { .. }),
            "attempt {attempt}: {error:?}"
        );
    }
    assert!(meta.put_if("t", b"k", None, b"v").is_err());
    full.store(false, Ordering::SeqCst);
    let outcome = put_resolved(&counts, &put).remove(0).unwrap();
    assert!(matches!(outcome, PutOutcome::Stored | PutOutcome::AlreadyDone), "{outcome:?}");
    assert_eq!(meta.put_if("t", b"k", None, b"v").unwrap(), CasOutcome::Applied);
    let buckets = [before.small.bucket, during.small.bucket];
    assert_eq!(counts.rows(&buckets).unwrap(), [Some(before), Some(during)]);
}
