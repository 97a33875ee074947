use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::Ordering;

use tally_model::bucket::DAY_MS;
use tally_sinks::meta::CasOutcome;

use super::*;
use crate::testing::{DEADLINE, Fault, NOW_MS, TestMeta, as_clock, clock, spawn, wait_until};

const MASTER: [u8; 32] = [9; 32];
const HOUR: Duration = Duration::from_secs(3_600);

fn secrets() -> DeploymentSecrets {
    DeploymentSecrets { id_key: [3; 16], index_secret: [10; 32], name_secret: [11; 32] }
}

fn open_with(meta: &Arc<TestMeta>, master: [u8; 32], options: KeyStoreOptions) -> Arc<KeyStore> {
    let meta = Arc::<TestMeta>::clone(meta);
    let master = MasterKey::from_bytes(master);
    let store = KeyStore::open(meta, master, &secrets(), options, as_clock(&clock())).unwrap();
    Arc::new(store)
}

/// A store whose commits wait for announced callers as long as it takes.
fn open(meta: &Arc<TestMeta>) -> Arc<KeyStore> {
    open_with(meta, MASTER, KeyStoreOptions { batch_wait: HOUR, ..KeyStoreOptions::default() })
}

fn bytes_of(keys: &UserKeys) -> ([u8; 32], [u8; 32], i64) {
    (*keys.data_key, *keys.secret, keys.created_at_ms)
}

fn one(store: &KeyStore, user: &str) -> Arc<UserKeys> {
    let batch = store.user_keys(&[user], NOW_MS).unwrap();
    batch.keys.into_iter().next().unwrap()
}

fn row_of(meta: &TestMeta, store: &KeyStore, user: &str) -> Option<Vec<u8>> {
    meta.get(TABLE, &store.index_of(user).0).unwrap()
}

#[test]
fn keys_come_in_the_order_asked_and_new_users_count_once() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    let first = store.user_keys(&["a", "b", "a"], NOW_MS).unwrap();
    assert_eq!((first.keys.len(), first.created), (3, 2));
    assert!(Arc::ptr_eq(&first.keys[0], &first.keys[2]));
    assert_eq!(first.keys[0].created_at_ms(), NOW_MS);

    let second = store.user_keys(&["c", "b", "a"], NOW_MS + 1).unwrap();
    assert_eq!((second.keys.len(), second.created), (3, 1));
    assert!(Arc::ptr_eq(&second.keys[1], &first.keys[1]));
    assert!(Arc::ptr_eq(&second.keys[2], &first.keys[0]));
    let distinct: HashSet<_> = second.keys.iter().map(|keys| bytes_of(keys)).collect();
    assert_eq!(distinct.len(), 3);
}

#[test]
fn the_store_is_asked_only_for_what_is_not_in_memory() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    assert!(store.cached("a").is_none());
    let made = one(&store, "a");
    assert!(Arc::ptr_eq(&store.cached("a").unwrap(), &made));
    store.user_keys(&["a"], NOW_MS).unwrap();
    store.user_keys(&[], NOW_MS).unwrap();
    assert_eq!((meta.lookups.load(Ordering::SeqCst), meta.commits()), (1, vec![1]));
}

#[test]
fn keys_are_durable_before_they_are_handed_out() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    meta.shut();
    let caller = Arc::clone(&store);
    let answer = spawn(move || bytes_of(&one(&caller, "a")));
    wait_until("the commit begins", || meta.commits().len() == 1);
    assert!(answer.try_recv().is_err());
    assert!(store.cached("a").is_none(), "what is not durable is not in memory either");
    assert_eq!(row_of(&meta, &store, "a"), None);
    meta.open();
    let made = answer.recv_timeout(DEADLINE).unwrap();
    let row = row_of(&meta, &store, "a").unwrap();
    let stored = row::decode(&store.master, &store.index_of("a"), &row).unwrap();
    assert_eq!(bytes_of(&stored), made);
}

#[test]
fn another_process_reads_the_same_keys_from_the_store() {
    let meta = Arc::new(TestMeta::default());
    let made = bytes_of(&one(&open(&meta), "a"));
    let store = open(&meta);
    let batch = store.user_keys(&["a"], NOW_MS + DAY_MS).unwrap();
    assert_eq!((bytes_of(&batch.keys[0]), batch.created), (made, 0));
    assert!(store.cached("a").is_some());
}

#[test]
fn creators_that_race_get_one_key_per_user() {
    const THREADS: usize = 4;
    let meta = Arc::new(TestMeta::default());
    let options = KeyStoreOptions::default;
    let stores = [open_with(&meta, MASTER, options()), open_with(&meta, MASTER, options())];
    let users: Vec<String> = (0..300).map(|user| format!("u-{user}")).collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let barrier = Barrier::new(stores.len() * THREADS);
    let batches: Vec<UserKeysBatch> = std::thread::scope(|scope| {
        let ask = |store: &Arc<KeyStore>| {
            barrier.wait();
            let parts = users.chunks(7).map(|part| store.user_keys(part, NOW_MS).unwrap());
            let all = UserKeysBatch { keys: Vec::new(), created: 0 };
            parts.fold(all, |mut all, part| {
                all.keys.extend(part.keys);
                all.created += part.created;
                all
            })
        };
        let both = stores.iter().flat_map(|store| [store; THREADS]);
        let threads: Vec<_> = both.map(|store| scope.spawn(move || ask(store))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let of = |batch: &UserKeysBatch| batch.keys.iter().map(|keys| bytes_of(keys)).collect();
    let first: Vec<_> = of(&batches[0]);
    for batch in &batches {
        assert!(of(batch) == first, "all threads have the same keys");
    }
    let created: usize = batches.iter().map(|batch| batch.created).sum();
    assert_eq!(created, users.len(), "each new user is reported once");
}

#[test]
fn callers_that_meet_a_commit_share_the_next_one() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    let ask = |user: String| {
        let store = Arc::clone(&store);
        spawn(move || store.user_keys(&[&user, "everybody's"], NOW_MS).unwrap().created)
    };
    meta.shut();
    let first = ask("first".to_owned());
    wait_until("the first commit begins", || meta.commits().len() == 1);
    let others: Vec<_> = (0..20).map(|user| ask(format!("u-{user}"))).collect();
    wait_until("the others have queued up", || store.creator.ordered_users() == 40);
    meta.open();
    assert_eq!(first.recv_timeout(DEADLINE), Ok(2));
    for answer in others {
        assert_eq!(answer.recv_timeout(DEADLINE), Ok(1), "somebody else made the shared one");
    }
    assert_eq!(meta.commits(), [2, 21]);
}

#[test]
fn a_commit_waits_for_callers_who_are_still_looking() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    let arrival = store.creator.arrive();
    let caller = Arc::clone(&store);
    let answer = spawn(move || one(&caller, "a").created_at_ms());
    wait_until("the first order", || {
        store.creator.ordered_users() == 1 || !meta.commits().is_empty()
    });
    let made = arrival.order(vec![store.index_of("b")], NOW_MS).unwrap();
    assert!(made[0].as_ref().unwrap().is_new);
    assert_eq!(answer.recv_timeout(DEADLINE), Ok(NOW_MS));
    assert_eq!(meta.commits(), [2]);
}

#[test]
fn a_commit_does_not_wait_for_callers_longer_than_it_may() {
    let meta = Arc::new(TestMeta::default());
    let options =
        KeyStoreOptions { batch_wait: Duration::from_millis(1), ..KeyStoreOptions::default() };
    let store = open_with(&meta, MASTER, options);
    let _arrival = store.creator.arrive();
    let caller = Arc::clone(&store);
    let answer = spawn(move || one(&caller, "a").created_at_ms());
    assert_eq!(answer.recv_timeout(DEADLINE), Ok(NOW_MS));
}

#[test]
fn a_full_batch_does_not_wait_and_larger_calls_go_through_whole() {
    let meta = Arc::new(TestMeta::default());
    let options = KeyStoreOptions { batch_keys: 3, batch_wait: HOUR, ..KeyStoreOptions::default() };
    let store = open_with(&meta, MASTER, options);
    let _arrival = store.creator.arrive();
    let caller = Arc::clone(&store);
    let answer = spawn(move || caller.user_keys(&["a", "b", "c", "d", "e"], NOW_MS).unwrap());
    assert_eq!(answer.recv_timeout(DEADLINE).unwrap().created, 5);
    assert_eq!(meta.commits(), [5]);
}

#[test]
fn a_commit_takes_no_more_orders_than_fit() {
    let meta = Arc::new(TestMeta::default());
    let options = KeyStoreOptions { batch_keys: 5, ..KeyStoreOptions::default() };
    let store = open_with(&meta, MASTER, options);
    meta.shut();
    let ask = |names: [&'static str; 2]| {
        let store = Arc::clone(&store);
        spawn(move || store.user_keys(&names, NOW_MS).unwrap().created)
    };
    let mut answers = vec![ask(["a", "b"])];
    wait_until("the first commit begins", || meta.commits().len() == 1);
    answers.extend([["c", "d"], ["e", "f"], ["g", "h"]].map(ask));
    wait_until("the others have queued up", || store.creator.ordered_users() == 6);
    meta.open();
    for answer in answers {
        assert_eq!(answer.recv_timeout(DEADLINE), Ok(2));
    }
    assert_eq!(meta.commits(), [2, 4, 2]);
}

#[test]
fn a_store_that_is_down_makes_no_keys_and_the_next_call_may_succeed() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    meta.fail_next(Fault::Unavailable);
    let error = store.user_keys(&["a"], NOW_MS).unwrap_err();
    assert!(matches!(error, KeyError::Unavailable(_)), "{error:?}");
    assert!(store.cached("a").is_none());
    assert_eq!(store.user_keys(&["a"], NOW_MS).unwrap().created, 1);
}

#[test]
fn keys_whose_storing_is_unknown_are_not_used_until_they_are_read_back() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    meta.fail_next(Fault::Unknown);
    let error = store.user_keys(&["a"], NOW_MS).unwrap_err();
    assert!(matches!(error, KeyError::Unavailable(_)), "{error:?}");
    assert!(store.cached("a").is_none());
    let row = row_of(&meta, &store, "a").unwrap();
    let stored = row::decode(&store.master, &store.index_of("a"), &row).unwrap();
    let batch = store.user_keys(&["a"], NOW_MS + 1).unwrap();
    assert_eq!((bytes_of(&batch.keys[0]), batch.created), (bytes_of(&stored), 0));
}

#[test]
fn nobody_waits_for_a_thread_that_has_died() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    let ask = |user: &'static str| {
        let store = Arc::clone(&store);
        spawn(move || store.user_keys(&[user], NOW_MS).unwrap_err())
    };
    meta.fail_next(Fault::Panic);
    meta.shut();
    let in_the_commit = ask("a");
    wait_until("the commit begins", || meta.commits().len() == 1);
    let in_the_queue = ask("b");
    wait_until("the other has queued up", || store.creator.ordered_users() == 1);
    meta.open();
    for answer in [in_the_commit, in_the_queue, ask("c")] {
        let error = answer.recv_timeout(DEADLINE).unwrap();
        assert!(matches!(error, KeyError::Stopped), "{error:?}");
    }
}

#[test]
fn rows_that_were_tampered_with_are_refused() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    store.user_keys(&["a", "b"], NOW_MS).unwrap();
    let [good, of_another] = ["a", "b"].map(|user| row_of(&meta, &store, user).unwrap());
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut row = good.clone();
        change(&mut row);
        row
    };
    // (what the row shows, the row, what the error says)
    let cases = [
        ("of another user", of_another, "under another master key"),
        ("made to look younger", changed(|row| row[8] += 1), "under another master key"),
        ("damaged", changed(|row| row[50] ^= 1), "under another master key"),
        ("a newer version", changed(|row| row[0] = 2), "has a version that this program"),
        ("empty", Vec::new(), "has a version that this program"),
        ("cut short", changed(|row| row.truncate(100)), "has the wrong length"),
        ("only a version", changed(|row| row.truncate(1)), "has the wrong length"),
    ];
    for (name, row, want) in cases {
        let meta = Arc::new(TestMeta::default());
        let store = open(&meta);
        meta.put_if(TABLE, &store.index_of("a").0, None, &row).unwrap();
        let error = store.user_keys(&["a"], NOW_MS).unwrap_err();
        assert!(matches!(error, KeyError::Corrupt { .. }), "{name}: {error:?}");
        assert!(error.to_string().contains(want), "{name}: {error}");
        assert!(store.cached("a").is_none(), "{name}");
    }
}

#[test]
fn another_master_key_is_a_clear_error() {
    let meta = Arc::new(TestMeta::default());
    one(&open(&meta), "a");
    let store = open_with(&meta, [1; 32], KeyStoreOptions::default());
    let error = store.user_keys(&["a"], NOW_MS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the keys of a user cannot be read: the row was stored under another master key, or it is \
         damaged"
    );
}

#[test]
fn an_erased_user_has_no_old_keys_and_returns_with_new_ones() {
    const ERASED_MS: i64 = NOW_MS + 5_000;
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    store.user_keys(&["a", "b"], NOW_MS).unwrap();
    let old = bytes_of(&store.cached("a").unwrap());
    store.revoke(&store.index_of("a"), ERASED_MS);
    assert!(store.cached("a").is_none());
    assert!(store.cached("b").is_some(), "others keep theirs");

    let error = store.user_keys(&["a", "b"], NOW_MS).unwrap_err();
    assert!(matches!(error, KeyError::Destroyed), "{error:?}");
    assert!(store.cached("a").is_none(), "the row that is still there does not come back");

    let row = row_of(&meta, &store, "a").unwrap();
    meta.delete_if(TABLE, &store.index_of("a").0, &row).unwrap();
    // The clock of this machine is behind that of the one that took the request.
    let batch = store.user_keys(&["a"], NOW_MS).unwrap();
    assert_eq!(batch.created, 1);
    assert_eq!(batch.keys[0].created_at_ms(), ERASED_MS);
    assert!(bytes_of(&batch.keys[0]) != old);

    store.revoke(&store.index_of("a"), ERASED_MS);
    assert!(store.cached("a").is_some(), "the new keys survive the old erasure");
    store.revoke(&store.index_of("a"), ERASED_MS + 1);
    assert!(store.cached("a").is_none(), "and a second one destroys them");
}

#[test]
fn dead_keys_that_win_a_race_are_not_handed_out() {
    let meta = Arc::new(TestMeta::default());
    let [store, other] = [open(&meta), open(&meta)];
    store.revoke(&store.index_of("a"), NOW_MS + 1);
    meta.shut();
    let caller = Arc::clone(&store);
    let answer = spawn(move || caller.user_keys(&["a"], NOW_MS).map(|batch| batch.created));
    wait_until("the commit begins", || meta.commits().len() == 1);
    let theirs = UserKeys::new(NOW_MS, [1; 32], [2; 32]);
    let row = row::encode(&other.master, &other.index_of("a"), &theirs, [0; 12]);
    let put = meta.put_if(TABLE, &other.index_of("a").0, None, &row).unwrap();
    assert_eq!(put, CasOutcome::Applied);
    meta.open();
    let error = answer.recv_timeout(DEADLINE).unwrap().unwrap_err();
    assert!(matches!(error, KeyError::Destroyed), "{error:?}");
}

#[test]
fn memory_stays_bounded_and_the_latest_users_stay_in_it() {
    const ENTRIES: usize = 1_280;
    let meta = Arc::new(TestMeta::default());
    let options = KeyStoreOptions { cache_entries: ENTRIES, ..KeyStoreOptions::default() };
    let store = open_with(&meta, MASTER, options);
    let users: Vec<String> = (0..10_000).map(|user| format!("u-{user}")).collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    for part in users.chunks(500) {
        store.user_keys(part, NOW_MS).unwrap();
        assert!(store.cached_users() <= ENTRIES, "{} users", store.cached_users());
    }
    assert!(store.cached_users() > ENTRIES / 2);
    assert!(store.cached(users[9_999]).is_some());
    assert!(store.cached(users[0]).is_none());
    assert_eq!(store.user_keys(&users, NOW_MS).unwrap().created, 0);
}

/// The expected tags come from another implementation of the same algorithm.
#[test]
fn a_row_tag_depends_on_the_user_and_the_utc_day_alone() {
    const MIDNIGHT_MS: i64 = 1_773_100_800_000;
    let keys = UserKeys::new(0, [7; 32], [8; 32]);
    let other = UserKeys::new(0, [7; 32], [9; 32]);
    let tag_20260310 = 0xccb6_512e_2e39_e668_a816_f220_df4d_1a5b_u128.to_be_bytes();
    let tag_20260311 = 0x2492_2463_82b5_118d_d2f8_d4a7_3cd6_80f0_u128.to_be_bytes();
    assert_eq!(keys.row_tag(MIDNIGHT_MS), tag_20260310);
    assert_eq!(keys.row_tag(MIDNIGHT_MS + DAY_MS - 1), tag_20260310);
    assert_eq!(keys.row_tag(MIDNIGHT_MS + DAY_MS), tag_20260311);
    assert_eq!(keys.row_tag(MIDNIGHT_MS), tag_20260310, "also after another day");
    assert_ne!(keys.row_tag(MIDNIGHT_MS - 1), tag_20260310);
    assert_ne!(other.row_tag(MIDNIGHT_MS), tag_20260310);

    let taken = keys.last_tag.lock().unwrap();
    assert_eq!(keys.row_tag(MIDNIGHT_MS), tag_20260310, "also while another thread asks");
    drop(taken);
}

#[test]
fn stored_keys_of_version_1_are_readable() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    let golden = include_bytes!("../../golden/user-keys-1.bin");
    meta.put_if(TABLE, &store.index_of("u-1").0, None, golden).unwrap();
    assert_eq!(bytes_of(&one(&store, "u-1")), ([7; 32], [8; 32], NOW_MS));
}

#[test]
fn nothing_secret_is_shown_or_stored_in_the_clear() {
    let meta = Arc::new(TestMeta::default());
    let store = open(&meta);
    let batch = store.user_keys(&["alice@example.com"], NOW_MS).unwrap();
    assert_eq!(format!("{batch:?}"), "UserKeysBatch { keys: [UserKeys(hidden)], created: 1 }");
    assert_eq!(format!("{store:?}"), "KeyStore { cached_users: 1, .. }");
    assert_eq!(format!("{:?}", store.index_of("a")), "UserIndex(hidden)");
    let rows = meta.scan(TABLE, None, 10).unwrap();
    let parts = rows.iter().flat_map(|(key, value)| [key.as_slice(), value.as_slice()]);
    let stored: Vec<u8> = parts.flatten().copied().collect();
    let keys = &batch.keys[0];
    for secret in [&keys.data_key[..], &keys.secret[..], b"alice@example.com", b"alice"] {
        assert!(!stored.windows(secret.len()).any(|window| window == secret));
    }
}
