use std::fs;

use tally_model::ids::Shard;
use tempfile::TempDir;

use super::*;
use crate::dedup::store::MemoryStore;
use crate::dedup::testing::ids;

const NAME: SegmentName = SegmentName { generation: 3, shard: Shard(5), sequence: 42 };

fn store(dir: &TempDir) -> DirectoryStore {
    DirectoryStore::new(dir.path(), DirectoryStore::OPEN_FILES_MAX).unwrap()
}

fn sorted_ids(count: usize) -> Vec<u128> {
    let mut ids = ids(1, count);
    ids.sort_unstable();
    ids
}

fn write(store: &dyn SegmentStore, name: SegmentName, ids: &[u128]) -> Arc<dyn SegmentData> {
    let mut writer = store.create(name, count(ids.len())).unwrap();
    // In pieces that are no multiple of a page.
    for piece in ids.chunks(100) {
        writer.append(piece).unwrap();
    }
    writer.finish().unwrap()
}

fn read(data: &dyn SegmentData) -> Result<Vec<u128>, SegmentError> {
    let mut ids = Vec::new();
    for page in 0..index(data.ids()).div_ceil(PAGE_IDS) {
        data.read_page(page, &mut ids)?;
    }
    Ok(ids)
}

fn file_names(dir: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(dir.path()).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// What every store must do.
fn contract(store: &dyn SegmentStore) {
    for (sequence, length) in [1, 254, 255, 256, 510, 1_000].into_iter().enumerate() {
        let ids = sorted_ids(length);
        let data = write(store, SegmentName { sequence: count(sequence), ..NAME }, &ids);
        assert_eq!(data.ids(), count(length));
        assert_eq!(read(&*data).unwrap(), ids);
        for (place, id) in ids.iter().enumerate() {
            let page = place / PAGE_IDS;
            for guess in [0, place % PAGE_IDS, PAGE_IDS] {
                assert!(data.page_contains(page, guess, *id).unwrap());
                assert!(!data.page_contains(page, guess, *id + 1).unwrap());
            }
        }
    }
}

#[test]
fn what_was_appended_is_found_in_memory() {
    contract(&MemoryStore);
}

#[test]
fn what_was_appended_is_found_in_files() {
    contract(&store(&TempDir::new().unwrap()));
}

#[test]
fn a_segment_is_found_again_by_its_name() {
    let dir = TempDir::new().unwrap();
    let ids = sorted_ids(1_000);
    drop(write(&store(&dir), NAME, &ids));
    let handle = store(&dir).open(NAME).unwrap();
    assert_eq!(read(&*handle.data).unwrap(), ids);
    assert_eq!(handle.pages(), 4);
    let path = dir.path().join("g0000003-s0005-0000000042.ids");
    assert_eq!(fs::metadata(path).unwrap().len(), handle.data.disk_bytes());
}

#[test]
fn a_file_takes_at_most_17_bytes_for_an_id() {
    let dir = TempDir::new().unwrap();
    for length in [1_792, 10_000] {
        let name = SegmentName { sequence: count(length), ..NAME };
        let data = write(&store(&dir), name, &sorted_ids(length));
        assert!(data.disk_bytes() <= 17 * count(length));
    }
}

/// Format version 1, byte for byte: segments of this release must be readable by all later ones.
#[test]
fn the_file_format_is_the_released_one() {
    let dir = TempDir::new().unwrap();
    let handle = write(&store(&dir), NAME, &[1, 0x0102 << 112]);
    let bytes = fs::read(dir.path().join(format!("{NAME}.ids"))).unwrap();
    let mut expected = vec![1];
    expected.extend([0; 29]);
    expected.extend([2, 1]);
    expected.extend(GOLDEN_PAGE_CHECKSUM);
    expected.extend(b"tallyids\x01\0\0\0\x02\0\0\0\0\0\0\0");
    expected.extend(GOLDEN_FOOTER_CHECKSUM);
    assert_eq!(bytes, expected);
    drop(handle);
}

const GOLDEN_PAGE_CHECKSUM: [u8; 4] = [2, 123, 180, 62];
const GOLDEN_FOOTER_CHECKSUM: [u8; 4] = [127, 69, 59, 10];

#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let dir = TempDir::new().unwrap();
    let whole = sorted_ids(300);
    drop(write(&store(&dir), NAME, &whole));
    let path = dir.path().join(format!("{NAME}.ids"));
    let bytes = fs::read(&path).unwrap();
    // The padding between the first page's checksum and the second page means nothing.
    let padding = PAGE_IDS * ID_BYTES + CRC_BYTES..PAGE_BYTES;
    for at in (0..bytes.len()).filter(|at| !padding.contains(at)) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, damaged).unwrap();
        let found = store(&dir).open(NAME).and_then(|handle| read(&*handle.data));
        assert!(
            matches!(found, Err(SegmentError::Damaged { .. } | SegmentError::Version { .. })),
            "byte {at}: {found:?}"
        );
    }
}

#[test]
fn a_page_in_another_place_or_segment_is_damaged() {
    let dir = TempDir::new().unwrap();
    drop(write(&store(&dir), NAME, &sorted_ids(510)));
    let path = dir.path().join(format!("{NAME}.ids"));
    let bytes = fs::read(&path).unwrap();
    let mut swapped = bytes[PAGE_BYTES..2 * PAGE_BYTES].to_vec();
    swapped.extend_from_slice(&bytes[..PAGE_BYTES]);
    swapped.extend_from_slice(&bytes[2 * PAGE_BYTES..]);
    fs::write(&path, swapped).unwrap();
    let handle = store(&dir).open(NAME).unwrap();
    assert!(matches!(read(&*handle.data), Err(SegmentError::Damaged { page: 0, .. })));

    let other = SegmentName { sequence: 43, ..NAME };
    fs::write(dir.path().join(format!("{other}.ids")), bytes).unwrap();
    assert!(matches!(store(&dir).open(other), Err(SegmentError::Damaged { .. })));
}

#[test]
fn a_file_that_was_cut_short_is_damaged() {
    let dir = TempDir::new().unwrap();
    drop(write(&store(&dir), NAME, &sorted_ids(300)));
    let path = dir.path().join(format!("{NAME}.ids"));
    let bytes = fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let found = store(&dir).open(NAME);
        assert!(matches!(found, Err(SegmentError::Damaged { .. })), "{length} bytes: {found:?}");
    }
    // While it is open, too.
    fs::write(&path, &bytes).unwrap();
    let handle = store(&dir).open(NAME).unwrap();
    fs::write(&path, &bytes[..100]).unwrap();
    assert!(matches!(read(&*handle.data), Err(SegmentError::Damaged { page: 0, .. })));
}

#[test]
fn a_segment_of_a_later_version_is_not_called_damaged() {
    let dir = TempDir::new().unwrap();
    drop(write(&store(&dir), NAME, &[1]));
    let path = dir.path().join(format!("{NAME}.ids"));
    let mut bytes = fs::read(&path).unwrap();
    let version_at = bytes.len() - FOOTER_BYTES + format::MAGIC.len();
    bytes[version_at] = 2;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(store(&dir).open(NAME), Err(SegmentError::Version { version: 2, .. })));
}

/// More ids than a file may have that is kept for use under another name.
const MANY_IDS: usize = 20_000;

#[test]
fn an_unfinished_segment_leaves_nothing_behind() {
    let dir = TempDir::new().unwrap();
    let mut writer = store(&dir).create(NAME, count(MANY_IDS)).unwrap();
    writer.append(&sorted_ids(MANY_IDS)).unwrap();
    assert_eq!(file_names(&dir).len(), 1);
    drop(writer);
    assert!(file_names(&dir).is_empty());
}

#[test]
fn a_retired_segment_is_readable_until_its_last_handle_goes() {
    let dir = TempDir::new().unwrap();
    let ids = sorted_ids(MANY_IDS);
    let data = write(&store(&dir), NAME, &ids);
    let held = Arc::clone(&data);
    data.retire();
    drop(data);
    assert_eq!(read(&*held).unwrap(), ids);
    drop(held);
    assert!(file_names(&dir).is_empty());
}

#[test]
fn the_file_of_a_small_retired_segment_is_used_again() {
    let dir = TempDir::new().unwrap();
    let store = store(&dir);
    write(&store, NAME, &sorted_ids(1_000)).retire();
    assert_eq!(file_names(&dir).len(), 1);
    // Shorter than what was in the file, then longer.
    for (sequence, length) in [(43, 300), (44, 2_000)] {
        let name = SegmentName { sequence, ..NAME };
        let data = write(&store, name, &sorted_ids(length));
        assert_eq!(file_names(&dir), [format!("{name}.ids")]);
        assert_eq!(read(&*store.open(name).unwrap().data).unwrap(), sorted_ids(length));
        data.retire();
    }
}

#[test]
fn files_that_wait_to_be_used_again_are_not_many() {
    let dir = TempDir::new().unwrap();
    let store = store(&dir);
    let write = |sequence| write(&store, SegmentName { sequence, ..NAME }, &[1]);
    let segments: Vec<_> = (0..count(SPARE_FILES_MAX) + 20).map(write).collect();
    segments.into_iter().for_each(|data| data.retire());
    assert_eq!(file_names(&dir).len(), SPARE_FILES_MAX);
}

#[test]
fn a_name_is_never_written_twice() {
    let dir = TempDir::new().unwrap();
    let store = store(&dir);
    let data = write(&store, NAME, &[1]);
    let refused = |found| matches!(found, Err(SegmentError::Io { act: "write", .. }));
    assert!(refused(store.create(NAME, 1).map(drop)));
    // Nor with a file at hand that could be renamed.
    write(&store, SegmentName { sequence: 43, ..NAME }, &[1]).retire();
    assert!(refused(store.create(NAME, 1).map(drop)));
    assert_eq!(read(&*data).unwrap(), [1]);
}

#[test]
fn segments_stay_readable_when_fewer_files_may_be_open() {
    let dir = TempDir::new().unwrap();
    let store = DirectoryStore::new(dir.path(), 3).unwrap();
    let ids = sorted_ids(300);
    let segments: Vec<_> =
        (0..10).map(|sequence| write(&store, SegmentName { sequence, ..NAME }, &ids)).collect();
    for _ in 0..3 {
        for data in &segments {
            assert_eq!(read(&**data).unwrap(), ids);
        }
    }
}

#[test]
fn no_more_files_are_open_than_may_be() {
    let dir = TempDir::new().unwrap();
    let files = OpenFiles { max: 3, order: Mutex::default() };
    let slots = ["a", "b", "c", "d", "e", "f"].map(|name| {
        let path = dir.path().join(name);
        fs::write(&path, name).unwrap();
        Arc::new(FileSlot { path, file: Mutex::default() })
    });
    for (slot, text) in slots.iter().zip(["a", "b", "c", "d", "e", "f"]).cycle().take(20) {
        let mut byte = [0];
        files.file(slot).unwrap().read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, text.as_bytes());
        assert!(slots.iter().filter(|slot| lock(&slot.file).is_some()).count() <= 3);
        assert!(lock(&files.order).len() <= 3);
    }
}

#[test]
fn segments_that_nobody_names_are_removed_and_other_files_stay() {
    let dir = TempDir::new().unwrap();
    let store = store(&dir);
    let names = [1, 2, 3].map(|sequence| SegmentName { sequence, ..NAME });
    names.iter().for_each(|name| drop(write(&store, *name, &[1])));
    fs::write(dir.path().join("notes.ids"), "not ours").unwrap();
    assert_eq!(store.keep_only(&BTreeSet::from([names[1]])).unwrap(), 2);
    let mut left = file_names(&dir);
    left.sort();
    assert_eq!(left, [format!("{}.ids", names[1]), "notes.ids".to_owned()]);
}

#[test]
fn a_directory_that_cannot_be_made_says_which() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = DirectoryStore::new(file.join("segments"), 1).unwrap_err();
    assert!(refused.to_string().contains("file/segments"), "{refused}");
}

#[test]
fn a_name_is_read_back_from_its_text_only() {
    assert_eq!(SegmentName::parse(&NAME.to_string()), Some(NAME));
    let big = SegmentName { generation: u32::MAX, shard: Shard(1023), sequence: u64::MAX };
    assert_eq!(SegmentName::parse(&big.to_string()), Some(big));
    for text in ["", "g3-s5-42", "g0000003-s0005-0000000042.ids", "g0000003-s0005-+000000042"] {
        assert_eq!(SegmentName::parse(text), None, "{text}");
    }
}
