use super::*;
use crate::keys::{KeyError, KeyStoreOptions};
use crate::master::MasterKey;
use crate::secrets::DeploymentSecrets;
use crate::testing::{Fault, NOW_MS, TestMeta, as_clock, clock};
use tally_model::clock::ManualClock;
use tally_sinks::meta::CasOutcome;

/// HMAC of the user "u-1" of this deployment is in the golden file.
fn key_store(clock: &Arc<ManualClock>) -> Arc<KeyStore> {
    let secrets =
        DeploymentSecrets { id_key: [3; 16], index_secret: [10; 32], name_secret: [11; 32] };
    let (meta, master) = (Arc::new(TestMeta::default()), MasterKey::from_bytes([9; 32]));
    let options = KeyStoreOptions::default();
    Arc::new(KeyStore::open(meta, master, &secrets, options, as_clock(clock)).unwrap())
}

fn open(
    meta: &Arc<TestMeta>,
    keys: &Arc<KeyStore>,
    clock: &Arc<ManualClock>,
) -> Result<ErasureLedger, StoreError> {
    ErasureLedger::open(Arc::<TestMeta>::clone(meta), Arc::clone(keys), as_clock(clock))
}

/// "u-1" was erased a millisecond after [`NOW_MS`].
const GOLDEN: &[u8] = include_bytes!("../../golden/ledger-entry-1.bin");

fn add(meta: &TestMeta, sequence: u64, entry: &[u8]) {
    let put = meta.rows.put_if(TABLE, &sequence.to_be_bytes(), None, entry).unwrap();
    assert_eq!(put, CasOutcome::Applied);
}

fn entry(kind: u32, user: u64) -> Vec<u8> {
    let mut index = [0; 32];
    index[..8].copy_from_slice(&user.to_be_bytes());
    let user = index.to_vec();
    Entry { version: VERSION, kind, user, requested_at_ms: NOW_MS }.encode_to_vec()
}

#[test]
fn an_entry_evicts_the_cached_keys_of_its_user_at_the_next_poll() {
    let (clock, meta) = (clock(), Arc::new(TestMeta::default()));
    let keys = key_store(&clock);
    let ledger = open(&meta, &keys, &clock).unwrap();
    keys.user_keys(&["u-1", "u-2"], NOW_MS).unwrap();
    add(&meta, 1, GOLDEN);
    ledger.poll().unwrap();
    assert!(keys.cached("u-1").is_none());
    assert!(keys.cached("u-2").is_some());
    let error = keys.user_keys(&["u-1"], NOW_MS).unwrap_err();
    assert!(matches!(error, KeyError::Destroyed), "{error:?}");
}

#[test]
fn a_new_process_heeds_the_ledger_before_it_reads_any_key() {
    let (clock, meta) = (clock(), Arc::new(TestMeta::default()));
    let keys = key_store(&clock);
    keys.user_keys(&["u-1"], NOW_MS).unwrap();
    add(&meta, 1, GOLDEN);
    open(&meta, &keys, &clock).unwrap();
    assert!(keys.cached("u-1").is_none());
}

#[test]
fn more_entries_than_a_page_are_all_applied_once() {
    let (clock, meta) = (clock(), Arc::new(TestMeta::default()));
    let keys = key_store(&clock);
    for sequence in 1..=2 * PAGE as u64 {
        add(&meta, sequence, &entry(KIND_REQUESTED, sequence));
    }
    let ledger = open(&meta, &keys, &clock).unwrap();
    assert_eq!(*ledger.applied.lock().unwrap(), 2 * PAGE as u64);
    keys.user_keys(&["u-1"], NOW_MS).unwrap();
    add(&meta, 2 * PAGE as u64 + 1, GOLDEN);
    ledger.poll().unwrap();
    assert!(keys.cached("u-1").is_none());
}

#[test]
fn age_counts_from_the_last_successful_poll_whatever_the_wall_clock_does() {
    let (clock, meta) = (clock(), Arc::new(TestMeta::default()));
    let ledger = open(&meta, &key_store(&clock), &clock).unwrap();
    assert_eq!((ledger.age_ms(), ledger.is_fresh(1), ledger.is_fresh(0)), (0, true, false));
    clock.advance(59_999);
    clock.step_to(0);
    assert_eq!((ledger.age_ms(), ledger.is_fresh(60_000)), (59_999, true));
    clock.advance(1);
    assert!(!ledger.is_fresh(60_000));
    meta.fail_next(Fault::Unavailable);
    ledger.poll().unwrap_err();
    assert_eq!(ledger.age_ms(), 60_000, "a poll that failed makes nothing younger");
    ledger.poll().unwrap();
    assert_eq!(ledger.age_ms(), 0);
}

#[test]
fn a_ledger_that_cannot_be_read_stops_the_start() {
    let (clock, meta) = (clock(), Arc::new(TestMeta::default()));
    meta.fail_next(Fault::Unavailable);
    let error = open(&meta, &key_store(&clock), &clock).unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
}

#[test]
fn unreadable_entries_are_not_skipped() {
    let newer = Entry { version: 2, ..Entry::decode(GOLDEN).unwrap() }.encode_to_vec();
    let nobody = Entry { user: vec![1; 31], ..Entry::decode(GOLDEN).unwrap() }.encode_to_vec();
    // (what the row shows, its sequence, its bytes, what the error says)
    let cases = [
        ("garbage", 1, vec![0xff; 3], "erasure_ledger: entry 1 is no entry"),
        ("a newer version", 1, newer, "entry 1 has a version that this program does not know"),
        ("no user", 1, nobody, "entry 1 names no user"),
        ("a gap", 2, GOLDEN.to_vec(), "entry 1 is missing"),
    ];
    for (name, sequence, bytes, want) in cases {
        let (clock, meta) = (clock(), Arc::new(TestMeta::default()));
        let ledger = open(&meta, &key_store(&clock), &clock).unwrap();
        add(&meta, sequence, &bytes);
        clock.advance(7);
        for _ in 0..2 {
            let error = ledger.poll().unwrap_err();
            assert!(error.to_string().contains(want), "{name}: {error}");
        }
        assert_eq!(ledger.age_ms(), 7, "{name}: the copy grows older");
    }
}

#[test]
fn kinds_that_say_nothing_about_keys_are_passed_over() {
    let (clock, meta) = (clock(), Arc::new(TestMeta::default()));
    let keys = key_store(&clock);
    keys.user_keys(&["u-1"], NOW_MS).unwrap();
    add(&meta, 1, &Entry { kind: 7, ..Entry::decode(GOLDEN).unwrap() }.encode_to_vec());
    open(&meta, &keys, &clock).unwrap();
    assert!(keys.cached("u-1").is_some());
}

#[test]
fn nothing_of_the_ledger_is_shown() {
    let (clock, meta) = (clock(), Arc::new(TestMeta::default()));
    let ledger = open(&meta, &key_store(&clock), &clock).unwrap();
    assert_eq!(format!("{ledger:?}"), "ErasureLedger { age_ms: 0, .. }");
}
