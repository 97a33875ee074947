//! What every [`MetaStore`] must do, as checks that take the implementation.
//!
//! Each check asks its maker for a fresh, empty store and panics where the contract is broken.

use std::sync::{Arc, Barrier};

use super::{CasOutcome, MetaStore, scan_all};

/// Makes a fresh, empty store.
pub type Maker<'a> = &'a dyn Fn() -> Arc<dyn MetaStore>;

const APPLIED: CasOutcome = CasOutcome::Applied;

/// Every check of the contract.
///
/// # Panics
/// If the store breaks the contract.
pub fn all(make: Maker<'_>) {
    a_write_happens_only_under_its_condition(make);
    a_delete_happens_only_under_its_condition(make);
    tables_are_apart(make);
    inserts_keep_their_order_and_spare_taken_keys(make);
    a_scan_pages_through_a_table_in_order(make);
    any_bytes_are_a_key_and_a_value(make);
    of_two_racing_writes_exactly_one_wins(make);
    of_two_racing_batches_each_key_has_one_winner(make);
}

fn refused(current: Option<&[u8]>) -> CasOutcome {
    CasOutcome::Refused { current: current.map(<[u8]>::to_vec) }
}

fn row(key: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    (key.to_vec(), value.to_vec())
}

/// # Panics
/// If the store breaks the contract.
pub fn a_write_happens_only_under_its_condition(make: Maker<'_>) {
    type Case<'a> = (&'a str, Option<&'a [u8]>, &'a [u8], CasOutcome, Option<&'a [u8]>);
    let store = make();
    // (what the row shows, expected, value, outcome, value afterwards)
    let cases: [Case<'_>; 7] = [
        ("no row is no value", Some(b"a"), b"x", refused(None), None),
        ("nor an empty one", Some(b""), b"x", refused(None), None),
        ("a free key is taken", None, b"a", APPLIED, Some(b"a")),
        ("a taken key is not free", None, b"b", refused(Some(b"a")), Some(b"a")),
        ("another value", Some(b"b"), b"c", refused(Some(b"a")), Some(b"a")),
        ("the expected value", Some(b"a"), b"", APPLIED, Some(b"")),
        ("an empty value is a value", Some(b""), b"d", APPLIED, Some(b"d")),
    ];
    for (name, expected, value, want, after) in cases {
        assert_eq!(store.put_if("t", b"k", expected, value).expect("up"), want, "{name}");
        assert_eq!(store.get("t", b"k").expect("up").as_deref(), after, "{name}");
    }
}

/// # Panics
/// If the store breaks the contract.
pub fn a_delete_happens_only_under_its_condition(make: Maker<'_>) {
    let store = make();
    assert_eq!(store.delete_if("t", b"k", b"a").expect("up"), refused(None));
    assert_eq!(store.put_if("t", b"k", None, b"a").expect("up"), APPLIED);
    assert_eq!(store.delete_if("t", b"k", b"b").expect("up"), refused(Some(b"a")));
    assert_eq!(store.get("t", b"k").expect("up").as_deref(), Some(b"a".as_slice()));
    assert_eq!(store.delete_if("t", b"k", b"a").expect("up"), APPLIED);
    assert_eq!(store.get("t", b"k").expect("up"), None);
    assert_eq!(store.put_if("t", b"k", None, b"c").expect("up"), APPLIED, "free again");
}

/// # Panics
/// If the store breaks the contract.
pub fn tables_are_apart(make: Maker<'_>) {
    let store = make();
    assert_eq!(store.put_if("one", b"k", None, b"1").expect("up"), APPLIED);
    assert_eq!(store.get("two", b"k").expect("up"), None);
    assert_eq!(store.scan("two", None, 10).expect("up"), []);
    assert_eq!(store.get_many("two", &[b"k".to_vec()]).expect("up"), [None]);
    assert_eq!(store.put_if("two", b"k", None, b"2").expect("up"), APPLIED);
    assert_eq!(store.get("one", b"k").expect("up").as_deref(), Some(b"1".as_slice()));
}

/// # Panics
/// If the store breaks the contract.
pub fn inserts_keep_their_order_and_spare_taken_keys(make: Maker<'_>) {
    let store = make();
    assert_eq!(store.put_if("t", b"b", None, b"old").expect("up"), APPLIED);
    let rows = [row(b"c", b"1"), row(b"b", b"2"), row(b"a", b"3"), row(b"c", b"4")];
    let outcomes = store.insert_many("t", &rows).expect("up");
    let want = [APPLIED, refused(Some(b"old")), APPLIED, refused(Some(b"1"))];
    assert_eq!(outcomes, want, "a later row sees an earlier one");
    let keys = [b"c".to_vec(), b"x".to_vec(), b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
    let values = store.get_many("t", &keys).expect("up");
    let values: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
    assert_eq!(values, [Some(b"1".as_slice()), None, Some(b"3"), Some(b"old"), Some(b"1")]);
    assert_eq!(store.insert_many("t", &[]).expect("up"), []);
    assert_eq!(store.get_many("t", &[]).expect("up"), Vec::<Option<Vec<u8>>>::new());
}

/// # Panics
/// If the store breaks the contract.
pub fn a_scan_pages_through_a_table_in_order(make: Maker<'_>) {
    let store = make();
    let numbered = |number: u32| row(&number.to_be_bytes(), &number.to_le_bytes());
    let rows: Vec<_> = (0..2_500).rev().map(numbered).collect();
    store.insert_many("t", &rows).expect("up");
    let ascending: Vec<_> = rows.into_iter().rev().collect();
    assert_eq!(store.scan("t", None, 3).expect("up"), ascending.get(..3).expect("rows"));
    let after = store.scan("t", Some(&1_u32.to_be_bytes()), 2).expect("up");
    assert_eq!(after, [numbered(2), numbered(3)], "the key itself is left out");
    let between = store.scan("t", Some(&[0, 0, 0, 1, 9]), 1).expect("up");
    assert_eq!(between, [numbered(2)], "the key need not exist");
    assert_eq!(store.scan("t", Some(&2_499_u32.to_be_bytes()), 5).expect("up"), []);
    assert_eq!(store.scan("t", None, 0).expect("up"), []);
    assert_eq!(scan_all(&*store, "t", None).expect("up"), ascending);
    assert_eq!(scan_all(&*store, "u", None).expect("up"), []);
}

/// # Panics
/// If the store breaks the contract.
pub fn any_bytes_are_a_key_and_a_value(make: Maker<'_>) {
    let store = make();
    let large = vec![0xa5; 1 << 20];
    let rows =
        [row(b"", b"empty key"), row(&[0], &[]), row(&[0xff; 300], &[0; 3]), row(b"l", &large)];
    for (key, value) in &rows {
        assert_eq!(store.put_if("t", key, None, value).expect("up"), APPLIED);
        assert_eq!(store.get("t", key).expect("up").as_ref(), Some(value));
    }
    let order: Vec<Vec<u8>> =
        store.scan("t", None, 10).expect("up").into_iter().map(|(key, _)| key).collect();
    assert_eq!(order, [b"".to_vec(), vec![0], b"l".to_vec(), vec![0xff; 300]]);
}

/// # Panics
/// If the store breaks the contract.
pub fn of_two_racing_writes_exactly_one_wins(make: Maker<'_>) {
    const ROUNDS: u8 = 25;
    let store = make();
    let start = Barrier::new(2);
    let run = |writer: u8| -> Vec<(CasOutcome, CasOutcome)> {
        let mut known: Option<Vec<u8>> = None;
        let mut racer = |round: u8| {
            start.wait();
            let fresh = store.put_if("fresh", &[round], None, &[writer]).expect("up");
            let mine = [round, writer];
            let chain = store.put_if("chain", b"k", known.as_deref(), &mine).expect("up");
            known = match &chain {
                CasOutcome::Applied => Some(mine.to_vec()),
                CasOutcome::Refused { current } => current.clone(),
            };
            (fresh, chain)
        };
        (0..ROUNDS).map(&mut racer).collect()
    };
    let (ones, twos) = std::thread::scope(|scope| {
        let (one, two) = (scope.spawn(|| run(1)), scope.spawn(|| run(2)));
        (one.join().expect("no panic"), two.join().expect("no panic"))
    });
    for (round, (one, two)) in (0..).zip(ones.into_iter().zip(twos)) {
        let fresh = if one.0 == APPLIED { (1, two.0) } else { (2, one.0) };
        assert_eq!(fresh.1, refused(Some(&[fresh.0])), "fresh key, round {round}");
        let chain = if one.1 == APPLIED { (1, two.1) } else { (2, one.1) };
        assert_eq!(chain.1, refused(Some(&[round, chain.0])), "chained values, round {round}");
    }
}

/// # Panics
/// If the store breaks the contract.
pub fn of_two_racing_batches_each_key_has_one_winner(make: Maker<'_>) {
    const KEYS: u8 = 50;
    let store = make();
    let start = Barrier::new(2);
    let run = |writer: u8| {
        let rows: Vec<_> = (0..KEYS).map(|key| row(&[key], &[writer])).collect();
        start.wait();
        store.insert_many("t", &rows).expect("up")
    };
    let (ones, twos) = std::thread::scope(|scope| {
        let (one, two) = (scope.spawn(|| run(1)), scope.spawn(|| run(2)));
        (one.join().expect("no panic"), two.join().expect("no panic"))
    });
    for (key, (one, two)) in (0..KEYS).zip(ones.into_iter().zip(twos)) {
        let (winner, loser) = if one == APPLIED { (1, two) } else { (2, one) };
        assert_eq!(loser, refused(Some(&[winner])), "key {key}");
        assert_eq!(store.get("t", &[key]).expect("up"), Some(vec![winner]), "key {key}");
    }
}
