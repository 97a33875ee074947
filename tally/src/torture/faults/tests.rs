use std::cell::Cell;

use tally_checkpoints::objects::{MemoryObjects, ObjectName};
use tally_model::revision::{Generation, Revision};
use tally_model::vector::CountVector;
use tally_sinks::counts::memory::MemoryCounts;
use tally_sinks::counts::{RowSource, WriterId};

use super::*;

thread_local! {
    static DEATHS: Cell<u32> = const { Cell::new(0) };
}

fn deaths() -> u32 {
    DEATHS.with(Cell::get)
}

/// The faults of a process that outlives its end, in a folder of its own.
fn faults(crash: &str) -> (tempfile::TempDir, Faults) {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        folder: folder.path().to_owned(),
        crash: CrashAt::parse(crash),
        passed: AtomicU32::new(0),
        die: || DEATHS.with(|deaths| deaths.set(deaths.get() + 1)),
    };
    DEATHS.with(|deaths| deaths.set(0));
    (folder, Faults { plan: Some(Arc::new(plan)) })
}

fn put(minute_ms: i64, count: u64) -> (Row, PutCondition) {
    let mut vector = CountVector::default();
    vector.set(TypeId(1), count);
    let small = SmallRow {
        bucket: Bucket::minute(minute_ms),
        revision: Revision::streaming(Generation::new(1).unwrap(), 1).unwrap(),
        writer: WriterId(1),
        written_at_ms: 0,
        source: RowSource::Stream,
        digest: 0,
        width: 2,
    };
    (Row { small, vector }, PutCondition::Below)
}

#[test]
fn every_point_reads_back_with_its_number() {
    for point in Point::ALL {
        let crash = CrashAt { point, occurrence: 3 };
        assert_eq!(CrashAt::parse(&crash.to_string()), Some(crash));
    }
    for text in ["", "before-manifest", "nowhere 1", "before-manifest x"] {
        assert_eq!(CrashAt::parse(text), None, "{text}");
    }
}

#[test]
fn a_process_dies_at_its_point_at_the_time_it_was_told() {
    let name = |text: &str| ObjectName::parse(text).unwrap();
    // How often the process had died after each of two checkpoints of two data objects each, after
    // two reads and after a collection.
    for (crash, want) in [
        ("before-upload 1", [1, 1, 1, 1]),
        ("before-upload 2", [0, 1, 1, 1]),
        ("between-objects 3", [0, 1, 1, 1]),
        ("before-manifest 2", [0, 1, 1, 1]),
        ("after-manifest 1", [1, 1, 1, 1]),
        ("during-restore 2", [0, 0, 1, 1]),
        ("during-collection 1", [0, 0, 0, 1]),
    ] {
        let (_folder, faults) = faults(crash);
        let objects = faults.objects(Arc::new(MemoryObjects::default()));
        let mut seen = Vec::new();
        for epoch in [1, 2] {
            for shard in [0, 1] {
                let object = name(&format!("data/g0000001-e{epoch}-s{shard}"));
                objects.create(&object, b"state").unwrap();
            }
            objects.create(&name(&format!("manifests/{epoch}")), b"manifest").unwrap();
            seen.push(deaths());
        }
        for shard in [0, 1] {
            objects.read(&name(&format!("data/g0000001-e2-s{shard}"))).unwrap();
        }
        seen.push(deaths());
        objects.delete(&[name("manifests/1")]).unwrap();
        seen.push(deaths());
        assert_eq!(seen, want, "{crash}");
    }
}

#[test]
fn the_row_is_stored_when_the_process_dies_before_it_knows() {
    let (folder, faults) = faults("between-put-and-ack 1");
    let inner: Arc<dyn CountsStore> = Arc::new(MemoryCounts::default());
    let outcomes = faults.counts(Arc::clone(&inner)).put_many(&[put(0, 5)]);
    assert!(matches!(outcomes[..], [Ok(PutOutcome::Stored)]));
    assert_eq!(deaths(), 1);
    assert!(inner.rows(&[Bucket::minute(0)]).unwrap()[0].is_some());
    let folder = FaultFolder(folder.path().to_owned());
    assert_eq!(folder.reached(), Some(Point::BetweenPutAndAck));
}

#[test]
fn a_store_that_is_away_takes_and_gives_nothing() {
    let (folder, faults) = faults("");
    let inner: Arc<dyn CountsStore> = Arc::new(MemoryCounts::default());
    let counts = faults.counts(Arc::clone(&inner));
    let folder = FaultFolder(folder.path().to_owned());
    folder.set(STORE_AWAY, Some("")).unwrap();
    let outcomes = counts.put_many(&[put(0, 5)]);
    assert!(matches!(outcomes[..], [Err(StoreError::Unavailable { .. })]));
    assert!(counts.rows(&[Bucket::minute(0)]).is_err());
    assert!(inner.is_empty().unwrap());
    folder.set(STORE_AWAY, None).unwrap();
    assert!(matches!(counts.put_many(&[put(0, 5)])[..], [Ok(PutOutcome::Stored)]));
}

#[test]
fn one_minute_is_miscounted_and_stays_so() {
    let (folder, faults) = faults("");
    let folder = FaultFolder(folder.path().to_owned());
    folder.set(MISCOUNT, Some("")).unwrap();
    for _process in [1, 2] {
        let inner: Arc<dyn CountsStore> = Arc::new(MemoryCounts::default());
        let counts = faults.counts(Arc::clone(&inner));
        let outcomes = counts.put_many(&[put(0, 0), put(60_000, 5), put(120_000, 6)]);
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 3);
        let stored = inner.rows(&[0, 60_000, 120_000].map(Bucket::minute)).unwrap();
        let stored = stored.into_iter().map(|row| row.unwrap().vector.get(TypeId(1)));
        assert_eq!(stored.collect::<Vec<u64>>(), [0, 4, 6]);
    }
}
