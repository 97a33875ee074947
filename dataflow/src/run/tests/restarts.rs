//! Runs that go on from a checkpoint.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tally_checkpoints::objects::{
    self, Created, FaultyObjects, Listed, MemoryObjects, ObjectError, ObjectName, ObjectStore,
};
use tally_checkpoints::reader::{self, Origin};
use tally_eventlog::EventLog;
use tally_operators::dedup::DirectoryStore;
use tally_sinks::dirty;
use tempfile::TempDir;

use super::*;
use crate::testing::Running;

/// An object store that can go away, for a time or for single calls.
#[derive(Debug)]
struct Objects {
    inner: Arc<MemoryObjects>,
    faulty: FaultyObjects<Arc<MemoryObjects>>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Debug, Default)]
struct Plan {
    away: bool,
    calls: usize,
    failing: Vec<usize>,
}

impl Objects {
    fn new() -> Self {
        let (inner, plan) = (Arc::<MemoryObjects>::default(), Arc::<Mutex<Plan>>::default());
        let shared = Arc::clone(&plan);
        let faulty = FaultyObjects::new(Arc::clone(&inner), move |_, _| {
            let mut plan = shared.lock().unwrap();
            plan.calls += 1;
            match (plan.away, plan.failing.contains(&plan.calls)) {
                (true, _) => Some(objects::Fault::Refused),
                (false, false) => None,
                // Some are not done, some are done and the answer is lost.
                (false, true) if plan.calls % 2 == 0 => Some(objects::Fault::AppliedThenLost),
                (false, true) => Some(objects::Fault::TimedOut),
            }
        });
        Self { inner, faulty, plan }
    }

    fn set_away(&self, away: bool) {
        self.plan.lock().unwrap().away = away;
    }

    /// From now on, the calls with these numbers fail.
    fn fail_calls(&self, numbers: &[usize]) {
        *self.plan.lock().unwrap() = Plan { away: false, calls: 0, failing: numbers.to_vec() };
    }
}

impl ObjectStore for Objects {
    fn create(&self, name: &ObjectName, bytes: &[u8]) -> Result<Created, ObjectError> {
        self.faulty.create(name, bytes)
    }

    fn read(&self, name: &ObjectName) -> Result<Option<Vec<u8>>, ObjectError> {
        self.faulty.read(name)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>, ObjectError> {
        self.faulty.list(prefix)
    }

    fn delete(&self, names: &[ObjectName]) -> Result<(), ObjectError> {
        self.faulty.delete(names)
    }
}

/// A deployment with checkpoints, and the folder of its dedup ids.
fn deployment(partitions: u32, workers: usize) -> (Deployment, Arc<Objects>, TempDir) {
    let mut tally = Deployment::new(partitions, workers);
    let (objects, folder) = (Arc::new(Objects::new()), tempfile::tempdir().unwrap());
    tally.objects = Some(Arc::<Objects>::clone(&objects));
    tally.segments = Arc::new(DirectoryStore::new(folder.path(), 64).unwrap());
    tally.options.checkpoint_every_ms = 200;
    (tally, objects, folder)
}

fn checkpointed(running: &Running) {
    let before = running.progress.checkpoints().written();
    running.until("a checkpoint", |p| p.checkpoints().written() > before + 1);
}

/// Ends a run as a crash would: nothing of it reaches the object store any more.
fn crash(running: Running, objects: &Objects) {
    objects.set_away(true);
    running.stop.stop();
    assert!(matches!(running.wait(), Err(CountError::Checkpoint(_))));
    objects.set_away(false);
}

/// B49, B60, B61: reading goes on at the next offset, and each shard is loaded by one worker.
#[test]
fn a_run_goes_on_from_the_last_checkpoint_on_any_number_of_workers() {
    let (mut tally, objects, _folder) = deployment(4, 4);
    let all = events(1, 3_000, 1, 0);
    tally.append(&all[..1_000]);
    let running = tally.start();
    running.until("all are counted", |p| p.totals().counted == 1_000);
    checkpointed(&running);
    tally.append(&all[1_000..2_000]);
    running.until("all are counted", |p| p.totals().counted == 2_000);
    crash(running, &objects);
    for workers in [4, 1, 6, 2] {
        tally.options.workers = workers;
        let running = tally.start();
        running.until("it has caught up", |p| p.totals().records >= 2_000);
        let counted: u64 = running.progress.counted_by_worker().iter().sum();
        assert!(counted <= 1_000, "{counted} were read again by {workers} workers");
        let report = running.stop();
        assert_eq!((report.totals.records, report.totals.counted), (2_000, 2_000));
    }
    tally.append(&all[2_000..]);
    tally.append(&all[..500]);
    let report = tally.count_bounded().unwrap();
    assert_eq!((report.totals.counted, report.totals.repeats), (3_000, 500));
    assert_eq!(tally.cells(), cells(&[(0, 1, 3_000)]));
}

/// B55, B56: what was on disk after the checkpoint is thrown away with the records' effect.
#[test]
fn local_files_that_the_checkpoint_does_not_name_are_thrown_away() {
    let (mut tally, objects, folder) = deployment(2, 2);
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    tally.append(&events(1, 60_000, 1, 0));
    let running = tally.start();
    running.until("all are counted", |p| p.totals().counted == 60_000);
    checkpointed(&running);
    objects.set_away(true);
    tally.append(&events(100_001, 60_000, 2, 0));
    running.until("all are counted", |p| p.totals().counted == 120_000);
    running.stop.stop();
    assert!(running.wait().is_err());
    objects.set_away(false);
    assert!(files() > 0, "ids are in files");
    // Also on a new machine, where no file is left.
    for is_new_machine in [false, true] {
        if is_new_machine {
            for file in std::fs::read_dir(folder.path()).unwrap() {
                std::fs::remove_file(file.unwrap().path()).unwrap();
            }
        }
        let report = tally.count_bounded().unwrap();
        assert_eq!((report.totals.counted, report.totals.repeats), (120_000, 0));
    }
    assert_eq!(tally.cells(), cells(&[(0, 1, 60_000), (0, 2, 60_000)]));
    tally.append(&events(1, 100, 1, 0));
    assert_eq!(tally.count_bounded().unwrap().totals.repeats, 100);
}

#[test]
fn an_object_store_that_is_away_stops_no_counting_and_the_next_checkpoint_covers_it() {
    let (mut tally, objects, _folder) = deployment(2, 2);
    tally.append(&events(1, 100, 1, 0));
    let running = tally.start();
    checkpointed(&running);
    objects.set_away(true);
    running.until("checkpoints fail", |p| p.checkpoints().failed_in_a_row() >= 3);
    tally.append(&events(1_001, 100, 1, 0));
    running.until("counting goes on", |p| p.totals().counted == 200);
    running.pass(MINUTE_MS + CLOSE_MS);
    running.settle();
    assert_eq!(tally.cells(), cells(&[(0, 1, 200)]));
    objects.set_away(false);
    checkpointed(&running);
    assert_eq!(running.progress.checkpoints().failed_in_a_row(), 0);
    running.stop();
    assert_eq!(tally.start().stop().totals.counted, 200);
}

/// Checkpoints and reading go on while the counts store is down; what was retired meanwhile is in
/// the checkpoint and put after a restart.
#[test]
fn minutes_that_the_store_never_took_survive_a_restart() {
    let (mut tally, objects, _folder) = deployment(2, 2);
    let store = Arc::new(FlakyCounts::default());
    tally.counts = Arc::<FlakyCounts>::clone(&store);
    let running = tally.start();
    running.pass(MINUTE_MS);
    store.set(Some(Fault::Down));
    tally.append(&events(1, 50, 1, 3));
    running.until("they are counted", |p| p.totals().counted == 50);
    running.pass(2 * HOUR_MS);
    running.until("ten checkpoints", |p| p.checkpoints().written() >= 12);
    assert!(running.progress.oldest_waiting_ms().is_some());
    crash(running, &objects);
    store.set(None);
    let running = tally.start();
    running.until("it has begun", |p| p.watermark_ms().is_some());
    running.settle();
    running.until("the minute is retired", |p| p.retired_up_to_ms() > Some(T0 + HOUR_MS));
    assert_eq!(running.progress.counted_by_worker().iter().sum::<u64>(), 0, "nothing is reread");
    assert_eq!(tally.cells(), cells(&[(3, 1, 50)]));
    running.stop();
    let stored: Vec<i64> = tally.rows().iter().map(|row| row.small.bucket.start_ms()).collect();
    let every = (0..).map(|minute| T0 + minute * MINUTE_MS).take(stored.len());
    assert_eq!(stored, every.collect::<Vec<_>>(), "quiet minutes have their rows too");
}

#[test]
fn a_stored_minute_leaves_the_checkpoint() {
    let (mut tally, objects, _folder) = deployment(1, 1);
    tally.append(&events(1, 50, 1, 0));
    let running = tally.start();
    running.pass(MINUTE_MS + RETIRE_MS + MINUTE_MS);
    running.until("the minute is retired", |p| p.retired_up_to_ms() >= Some(T0 + MINUTE_MS));
    checkpointed(&running);
    running.stop();
    let (running, rows) = (tally.start(), tally.rows().len());
    running.pass(0);
    running.settle();
    let report = running.stop();
    assert!(report.rows.put + report.rows.unchanged <= u64::try_from(rows).unwrap());
    let restored = reader::restore(objects.as_ref(), "test", &Origin::Newest).unwrap().unwrap();
    let state = restored.manifest().shards[0].state.bytes;
    assert!(state < 200, "no minute is in it: {state} bytes");
}

#[test]
fn a_savepoint_is_kept_and_can_be_started_from() {
    let (mut tally, _objects, _folder) = deployment(2, 2);
    tally.append(&events(1, 100, 1, 0));
    let running = tally.start();
    running.until("they are counted", |p| p.totals().counted == 100);
    let name: tally_checkpoints::SavepointName = "before-upgrade".parse().unwrap();
    let ask = |running: &Running| {
        let answer = running.savepoints.request(name.clone());
        let mut outcome = None;
        running.until("it is answered", |_| {
            outcome = answer.try_recv().ok();
            outcome.is_some()
        });
        outcome.unwrap()
    };
    let made = ask(&running).unwrap();
    tally.append(&events(1_001, 100, 1, 0));
    running.until("they are counted", |p| p.totals().counted == 200);
    running.until("it is no retained one", |p| p.checkpoints().written() > 6);
    let error = ask(&running).unwrap_err();
    assert_eq!(error.to_string(), "savepoint before-upgrade exists already");
    running.stop();
    tally.origin = Origin::Savepoint(name);
    let running = tally.start();
    assert!(running.progress.totals().counted <= 200);
    running.until("all are counted", |p| p.totals().counted == 200);
    assert_eq!(running.progress.counted_by_worker().iter().sum::<u64>(), 100, "{made}");
    let savepoints = Arc::clone(&running.savepoints);
    running.stop();
    let late = savepoints.request("x".parse().unwrap()).recv();
    assert_eq!(late.unwrap(), Err(crate::SavepointError::Ended));
}

/// B54: the previous whole checkpoint is used, and its records are read again.
#[test]
fn a_damaged_checkpoint_is_passed_over_and_all_damaged_is_refused() {
    let (mut tally, objects, _folder) = deployment(2, 2);
    let running = tally.start();
    for first in [1, 1_001, 2_001] {
        tally.append(&events(first, 100, 1, 0));
        let counted = first / 1_000 * 100 + 100;
        running.until("they are counted", |p| p.totals().counted == counted);
        checkpointed(&running);
    }
    running.stop();
    let damage = |skip: usize| {
        let manifests = objects.list("manifests/").unwrap();
        for manifest in manifests.iter().rev().skip(skip) {
            objects.inner.damage(&manifest.name, |bytes| *bytes.last_mut().unwrap() ^= 1);
        }
    };
    let manifests = objects.list("manifests/").unwrap();
    let newest = &manifests.last().unwrap().name;
    objects.inner.damage(newest, |bytes| bytes.truncate(bytes.len() - 10));
    let report = tally.start().stop();
    assert_eq!(report.totals.counted, 300);
    assert_eq!(tally.count_bounded().unwrap().totals.counted, 300);
    assert_eq!(tally.cells(), cells(&[(0, 1, 300)]));
    damage(0);
    let refused = tally.count_bounded().unwrap_err();
    let text = format!("{refused}: {}", std::error::Error::source(&refused).unwrap());
    assert!(text.contains("every checkpoint is damaged"), "{text}");
    assert!(text.contains("start from a savepoint"), "{text}");
}

#[test]
fn without_any_checkpoint_the_log_is_read_from_its_oldest_offset() {
    let (mut tally, objects, _folder) = deployment(2, 2);
    tally.append(&events(1, 100, 1, 0));
    tally.count_bounded().unwrap();
    for prefix in ["manifests/", "data/"] {
        let names: Vec<_> = objects.list(prefix).unwrap().into_iter().map(|of| of.name).collect();
        objects.delete(&names).unwrap();
    }
    tally.append(&events(51, 100, 1, 0));
    let report = tally.count_bounded().unwrap();
    assert_eq!((report.totals.counted, report.totals.repeats), (150, 50));
    assert_eq!(tally.cells(), cells(&[(0, 1, 150)]));
}

#[test]
fn a_checkpoint_that_is_ahead_of_the_log_is_refused() {
    let (mut tally, _objects, _folder) = deployment(2, 2);
    tally.append(&events(1, 100, 1, 0));
    tally.count_bounded().unwrap();
    let other = Deployment::new(2, 2);
    tally.seen_log = Arc::<tally_eventlog::memory::MemoryLog>::clone(&other.log);
    let error = tally.count_bounded().unwrap_err();
    assert!(matches!(error, CountError::LogShort { .. }), "{error}");
    assert!(error.to_string().contains("partition 0 lacks offsets 0 to"), "{error}");
}

/// CNT-9: a run to the present end leaves a state from which a later one goes on.
#[test]
fn after_a_bounded_run_on_time_events_are_still_counted_and_no_row_falls() {
    let (mut tally, _objects, _folder) = deployment(3, 2);
    tally.append(&events(1, 100, 1, 0));
    tally.append(&events(1_001, 10, 1, 4));
    tally.count_bounded().unwrap();
    assert_eq!(tally.cells(), cells(&[(0, 1, 100), (4, 1, 10)]));
    tally.append(&events(2_001, 5, 1, 4));
    tally.append(&events(1, 100, 1, 0));
    let running = tally.start();
    running.pass(20 * MINUTE_MS);
    running.settle();
    let report = running.stop();
    assert_eq!((report.totals.counted, report.totals.repeats), (115, 100));
    assert_eq!(tally.cells(), cells(&[(0, 1, 100), (4, 1, 15)]));
}

/// B41: the table of dirty hours says which and how many; a crash neither doubles nor lowers them.
#[test]
fn late_events_are_told_by_hour_from_the_last_checkpoint() {
    let (mut tally, objects, _folder) = deployment(2, 2);
    tally.clock.advance(DAY_MS);
    let now_ms = T0 + DAY_MS;
    let late = |id, hour: i64| event(id, 1, T0 + hour * HOUR_MS, now_ms);
    tally.append(&[late(1, 3), late(2, 3), late(2, 3), late(3, 5), event(4, 1, now_ms, now_ms)]);
    let running = tally.start();
    running.until("all are read", |p| p.totals().records == 5);
    checkpointed(&running);
    let hours = |tally: &Deployment| dirty::list(tally.meta.as_ref(), T0..T0 + DAY_MS).unwrap();
    let late_at = |hours: &BTreeMap<i64, dirty::DirtyHour>| {
        let of = hours.iter().map(|(hour, dirty)| ((hour - T0) / HOUR_MS, dirty.late));
        of.collect::<Vec<_>>()
    };
    let first = hours(&tally);
    assert_eq!(late_at(&first), [(3, 2), (5, 1)]);
    let ends = (0..).zip(tally.log.end_offsets().unwrap()).collect::<BTreeMap<_, _>>();
    assert_eq!(first[&(T0 + 3 * HOUR_MS)].positions, ends);
    tally.append(&[late(9, 5)]);
    running.until("it is read", |p| p.totals().late == 4);
    crash(running, &objects);
    assert_eq!(late_at(&hours(&tally)), [(3, 2), (5, 1)], "not from a checkpoint that failed");
    assert_eq!(tally.count_bounded().unwrap().totals.late, 4);
    let last = hours(&tally);
    assert_eq!(late_at(&last), [(3, 2), (5, 2)]);
    assert_eq!(
        last[&(T0 + 3 * HOUR_MS)],
        first[&(T0 + 3 * HOUR_MS)],
        "nothing new: no new position"
    );
}

/// B42: what streaming does not count is told by hour, however old it is.
#[test]
fn events_of_yesterday_and_of_three_months_ago_make_their_hours_dirty() {
    let (mut tally, _objects, _folder) = deployment(2, 2);
    tally.clock.advance(DAY_MS);
    let now_ms = tally_model::clock::Clock::now_ms(tally.clock.as_ref());
    let old = [26 * HOUR_MS, 89 * DAY_MS].map(|age_ms| now_ms - age_ms);
    tally.append(&[event(1, 1, old[0], now_ms), event(2, 1, old[1], now_ms)]);
    let report = tally.count_bounded().unwrap();
    assert_eq!((report.totals.counted, report.totals.late), (0, 2));
    let hours = dirty::list(tally.meta.as_ref(), i64::MIN..i64::MAX).unwrap();
    let late: Vec<_> = hours.iter().map(|(hour_ms, dirty)| (*hour_ms, dirty.late)).collect();
    let hour_of = |at_ms: i64| at_ms - at_ms.rem_euclid(HOUR_MS);
    assert_eq!(late, [(hour_of(old[1]), 1), (hour_of(old[0]), 1)]);
}

/// B38: a partition that is slower after a restart still holds the watermark.
#[test]
fn the_backlog_of_a_partition_that_comes_last_is_not_late_after_a_restore() {
    for workers in [1, 2] {
        let (mut tally, _objects, _folder) = deployment(2, workers);
        let gate = Gate::default();
        let log = Arc::clone(&tally.log);
        tally.seen_log = Arc::new(GatedLog { log, gated: vec![1], gate: gate.clone() });
        gate.open();
        tally.append(&events(1, 100, 1, 0));
        let running = tally.start();
        running.until("they are counted", |p| p.totals().counted == 100);
        checkpointed(&running);
        running.stop();
        // Half an hour passes. One partition begins where it stopped, the other has new records.
        tally.clock.advance(30 * MINUTE_MS);
        let at_home = |partition, all: Vec<LoggedEvent>| {
            all.into_iter().filter(|event| tally.home(event) == partition).collect::<Vec<_>>()
        };
        let old = at_home(1, events(1_001, 100, 1, 1));
        let young = at_home(0, events(2_001, 100, 1, 30));
        tally.append(&young);
        tally.append(&old);
        let read = |more: &[LoggedEvent]| 100 + u64::try_from(more.len()).unwrap();
        gate.allow(0);
        let running = tally.start();
        running.until("the new ones are read", |p| p.totals().records == read(&young));
        for _ in 0..20 {
            tally.clock.advance(MINUTE_MS);
            running.until("time passes", |_| true);
        }
        assert!(running.progress.watermark_ms() <= Some(T0 + 2 * MINUTE_MS));
        gate.open();
        let all = read(&young) + u64::try_from(old.len()).unwrap();
        running.until("all are read", |p| p.totals().records == all);
        running.pass(0);
        running.settle();
        let totals = running.stop().totals;
        assert_eq!((totals.counted, totals.late + totals.straggler), (all, 0));
    }
}

/// B61: partitions stand at different times; only the number of workers differs.
#[test]
fn on_fewer_and_on_more_workers_the_same_is_stored() {
    let life = |workers: usize| {
        let (mut tally, objects, _folder) = deployment(3, 3);
        tally.clock.advance(12 * MINUTE_MS);
        let received_ms = |minute: i64| T0 + minute * MINUTE_MS + 2_000;
        let of = |first: u64| {
            (first..first + 600)
                .map(|id| {
                    let all = event(id, 1, T0, T0);
                    // Each partition is at a time of its own, and every tenth event is late.
                    let minute = 4 * i64::from(tally.home(&all)) + i64::try_from(id % 4).unwrap();
                    let age_ms = if id % 10 == 0 { 30 * MINUTE_MS } else { 1_000 };
                    let at_ms = received_ms(minute);
                    event(id, u16::try_from(id % 3).unwrap(), at_ms - age_ms, at_ms)
                })
                .collect::<Vec<_>>()
        };
        let all = [of(1), of(1_001)];
        tally.append(&all[0]);
        let running = tally.start();
        running.until("they are read", |p| p.totals().records == 600);
        checkpointed(&running);
        tally.append(&all[1]);
        running.until("they are read", |p| p.totals().records == 1_200);
        crash(running, &objects);
        tally.options.workers = workers;
        let report = tally.count_bounded().unwrap();
        let truth = tally.truth(&all.concat());
        assert_eq!(tally.cells(), streaming_cells(&truth), "{workers} workers");
        let classes: Vec<_> = tally.rows().iter().map(|row| row.small.revision.class()).collect();
        (tally.cells(), report.totals.late, classes)
    };
    let three = life(3);
    assert!(three.1 > 0);
    for workers in [2, 1, 6] {
        assert_eq!(life(workers), three, "{workers} workers");
    }
}

/// One life of a deployment.
#[derive(Clone, Debug)]
struct Life {
    workers: usize,
    /// Id, type, and how many minutes ago; how far out of order the stamp is, in ms.
    events: Vec<(u64, u16, i64, i64)>,
    /// Read so many of them, then wait for a checkpoint.
    checkpoint_after: Option<usize>,
    /// The counts store is away from then on.
    counts_away: bool,
    /// These calls of the object store fail, counted from when the first events are read.
    failing_calls: Vec<usize>,
    /// Time that passes before the second half of the events, in minutes.
    passes: i64,
    crashes: bool,
}

fn life() -> impl Strategy<Value = Life> {
    let event = (0_u64..60, 0_u16..3, -30_i64..3, 0_i64..30_000);
    let events = prop::collection::vec(event, 0..60);
    let failing_calls = prop::collection::vec(0_usize..60, 0..4);
    let outside = (any::<bool>(), failing_calls, 0_i64..30);
    (1_usize..5, events, prop::option::of(0_usize..60), outside, any::<bool>()).prop_map(
        |(workers, events, checkpoint_after, outside, crashes)| {
            let (counts_away, failing_calls, passes) = outside;
            Life { workers, events, checkpoint_after, counts_away, failing_calls, passes, crashes }
        },
    )
}

/// Everything that a life needs, and what was appended so far.
struct World {
    tally: Deployment,
    objects: Arc<Objects>,
    counts: Arc<FlakyCounts>,
    log: Vec<LoggedEvent>,
    invalid: u64,
    /// Every copy of an event has the same time.
    times: BTreeMap<u64, i64>,
}

impl World {
    /// Events that are received now, or a little earlier.
    fn receive(&mut self, events: &[(u64, u16, i64, i64)]) -> Vec<LoggedEvent> {
        let now_ms = tally_model::clock::Clock::now_ms(self.tally.clock.as_ref());
        let received = events.iter().map(|(id, slot, minute, jitter_ms)| {
            let received_ms = now_ms - jitter_ms;
            let at_ms = received_ms + minute.min(&0) * MINUTE_MS;
            let time_ms = *self.times.entry(*id).or_insert(at_ms);
            event(*id, *slot, time_ms.min(received_ms), received_ms)
        });
        let received: Vec<_> = received.collect();
        self.tally.append(&received);
        self.log.extend_from_slice(&received);
        received
    }

    fn records(&self) -> u64 {
        u64::try_from(self.log.len()).unwrap() + self.invalid
    }

    fn live(&mut self, life: &Life, foreign: Option<u32>) {
        self.tally.options.workers = life.workers;
        let cut = life.checkpoint_after.unwrap_or(0).min(life.events.len());
        self.receive(&life.events[..cut]);
        let running = self.tally.start();
        let records = self.records();
        // A store that fails while a run opens it ends that run: this is about what comes later.
        running.until("it has begun", |p| p.watermark_ms().is_some());
        running.until("they are read", |p| p.totals().records >= records);
        self.objects.fail_calls(&life.failing_calls);
        if life.counts_away {
            self.counts.set(Some(Fault::Down));
        }
        if life.checkpoint_after.is_some() {
            checkpointed(&running);
        }
        running.pass(life.passes * MINUTE_MS);
        let now = self.receive(&life.events[cut..]);
        if let Some(partition) = foreign {
            self.tally.append_raw([(partition, vec![0xff; 3])]);
            self.invalid += 1;
            // A copy of an event in a partition that is not its own.
            let copy: Vec<_> = now.first().copied().into_iter().collect();
            self.tally.append_raw(copy.iter().map(|event| (partition, encode(event))));
            self.log.extend(copy);
        }
        let records = self.records();
        running.until("all are read", |p| p.totals().records >= records);
        self.objects.fail_calls(&[]);
        if life.crashes {
            crash(running, &self.objects);
        } else {
            running.stop();
        }
        self.counts.set(None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The law of the cut: whatever was read before it, however records cross between workers,
    /// wherever the runs end and whichever store is away meanwhile, ids, minutes, late and invalid
    /// counts are those of the model.
    #[test]
    fn after_any_restore_everything_equals_the_model(
        partitions in 1_u32..5,
        lives in prop::collection::vec(life(), 1..5),
        foreign in any::<bool>(),
    ) {
        let (mut tally, objects, _folder) = deployment(partitions, 1);
        let counts = Arc::new(FlakyCounts::default());
        tally.counts = Arc::<FlakyCounts>::clone(&counts);
        tally.clock.advance(HOUR_MS);
        let (log, times) = (Vec::new(), BTreeMap::new());
        let mut world = World { tally, objects, counts, log, invalid: 0, times };
        for life in &lives {
            world.live(life, foreign.then_some((partitions - 1).min(1)));
        }
        let World { mut tally, log, invalid, .. } = world;
        let report = tally.count_bounded().unwrap();
        let truth = tally.truth(&log);
        let totals = report.totals;
        prop_assert_eq!(totals.records, u64::try_from(log.len()).unwrap() + invalid);
        prop_assert_eq!(totals.invalid(InvalidReason::Garbage), invalid);
        prop_assert_eq!((totals.repeats, totals.late), (truth.repeats(), truth.late()));
        prop_assert_eq!(totals.straggler + totals.past_window, 0);
        prop_assert_eq!(tally.cells(), streaming_cells(&truth));
        let hours = dirty::list(tally.meta.as_ref(), i64::MIN..i64::MAX).unwrap();
        prop_assert_eq!(hours.values().map(|hour| hour.late).sum::<u64>(), truth.late());
    }
}
