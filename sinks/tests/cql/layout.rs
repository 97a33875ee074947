//! The keyspace: made, refused, migrated; and what stands in it.

use std::path::Path;

use tally_model::bucket::{Bucket, DAY_MS, Granularity, MINUTE_MS, Period};
use tally_sinks::counts::{CountsStore, PutCondition};
use tally_sinks::cql::{CqlOpenError, CqlStore, Migration};
use tally_sinks::meta::MetaStore;

use crate::{Keyspace, row};

#[test]
fn a_keyspace_of_another_layout_is_refused_and_an_older_one_migrated() {
    let keyspace = Keyspace::new();
    let store = keyspace.open();
    store.meta().put_if("t", b"k", None, b"v").expect("up");
    keyspace.execute("UPDATE tally_schema SET version = 99 WHERE id = 1");
    let refused = CqlStore::open(keyspace.options()).expect_err("too new");
    assert!(matches!(refused, CqlOpenError::TooNew { found: 99, .. }), "{refused}");
    let refused = CqlStore::migrate(keyspace.options()).expect_err("too new");
    assert!(matches!(refused, CqlOpenError::TooNew { found: 99, .. }), "{refused}");

    // Broken off before the version was written down.
    keyspace.execute("DELETE FROM tally_schema WHERE id = 1");
    keyspace.execute("DROP TABLE meta_buckets");
    let migration = CqlStore::migrate(keyspace.options()).expect("it goes on");
    assert_eq!(migration, Migration { from: 0, to: 1 });
    let again = CqlStore::migrate(keyspace.options()).expect("nothing to do");
    assert_eq!(again, Migration { from: 1, to: 1 });
    let store = CqlStore::open(keyspace.options()).expect("migrated");
    assert_eq!(store.meta().get("t", b"k").expect("up").as_deref(), Some(b"v".as_slice()));
}

#[test]
fn a_keyspace_with_tables_of_something_else_is_refused() {
    let keyspace = Keyspace::new();
    keyspace.open();
    keyspace.execute("DELETE FROM tally_schema WHERE id = 1");
    keyspace.execute("CREATE TABLE orders (id int PRIMARY KEY)");
    let refused = CqlStore::open(keyspace.options()).expect_err("foreign");
    assert!(refused.to_string().contains("the table orders of something else"), "{refused}");
}

#[test]
fn sixty_days_go_period_by_period_and_reads_of_other_days_stay_slices_b88_b89() {
    let keyspace = Keyspace::new();
    let store = keyspace.open();
    let counts = store.counts();
    let days = 0..4_i64;
    for day in days.clone() {
        let minutes = day * 1_440..(day + 1) * 1_440;
        let puts: Vec<_> =
            minutes.map(|minute| (row(minute, 1, 1, 3), PutCondition::Below)).collect();
        assert!(counts.put_many(&puts).iter().all(Result::is_ok));
    }
    for day in 0..3 {
        let period = Period::containing(Granularity::Minute, day * DAY_MS);
        assert_eq!(counts.delete_period(period).expect("up"), 1_440);
        assert_eq!(counts.small_rows(period, i64::MIN, i64::MAX).expect("up"), []);
    }
    let before = store.round_trips();
    let last: Vec<Bucket> =
        (0..1_440).map(|minute| Bucket::minute(3 * DAY_MS + minute * MINUTE_MS)).collect();
    let rows = counts.rows(&last).expect("up");
    assert!(rows.iter().all(Option::is_some), "what is kept is whole");
    assert_eq!(store.round_trips() - before, 6, "three slices, each of revisions and vectors");
}

/// No path of the store writes a row of counts without a condition, and nothing expires by itself
/// (B83, B88). The vector of a row is written in the batch of its small row.
#[test]
fn no_statement_writes_a_row_of_counts_without_a_condition_b83() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cql");
    let mut texts = vec![folder.join("../cql.rs")];
    texts.extend(
        ["counts.rs", "counts/put.rs", "meta.rs", "schema.rs", "session.rs"]
            .map(|file| folder.join(file)),
    );
    let mut statements = Vec::new();
    for path in texts {
        let text = std::fs::read_to_string(&path).expect("a source file");
        // Texts of several lines are joined as the compiler joins them.
        let text = text.replace("\\\n", "");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        statements.extend(text.split('"').map(str::to_owned).filter(|text| {
            ["INSERT ", "UPDATE ", "DELETE "].iter().any(|verb| text.starts_with(verb))
        }));
    }
    let counts: Vec<&String> =
        statements.iter().filter(|text| text.contains("ks.counts")).collect();
    assert_eq!(counts.len(), 4, "{counts:?}");
    for statement in &statements {
        assert!(!statement.to_uppercase().contains("TTL"), "{statement}");
        assert!(!statement.contains("USING"), "{statement}");
    }
    let free: Vec<_> = counts.into_iter().filter(|text| !text.contains(" IF ")).collect();
    let [vector, delete] = free.as_slice() else { unreachable!("{free:?}") };
    assert!(vector.ends_with("VALUES (?, ?, ?, ?, ?, ?, 1)"), "{vector}");
    assert_eq!(*delete, "DELETE FROM ks.counts WHERE granularity = ? AND period = ?");
}
