//! The segment log as its users see it; helpers for the files beside this one.

mod faults;
mod recovery;
mod retention;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, mpsc};

use proptest::prelude::*;
use tally_model::clock::ManualClock;
use tempfile::TempDir;

use super::files::SegmentFile;
use super::*;
use crate::ReadLimits;
use crate::contract::{self, UnderTest, append, append_all, numbers_of, read_all, record};

const START_MS: i64 = 1_700_000_000_000;

/// Three partitions and segments of a few commits.
const SMALL: SegmentOptions = SegmentOptions {
    partitions: 3,
    segment_bytes: 2 << 10,
    record_bytes_max: 1 << 20,
    queue_bytes_max: 64 << 20,
    retention_ms: 1_000_000,
};

/// One segment for everything a test writes.
const ONE_SEGMENT: SegmentOptions = SegmentOptions { segment_bytes: 1 << 30, ..SMALL };

/// A folder, a clock and a disk that fails on demand.
struct Bench {
    folder: TempDir,
    clock: Arc<ManualClock>,
    disk: Disk,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START_MS));
        Self { folder: TempDir::new().unwrap(), clock, disk: Disk::default() }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn try_open(&self, options: SegmentOptions) -> Result<SegmentLog, LogError> {
        let clock = Arc::clone(&self.clock);
        SegmentLog::open_with(&self.dir(), options, clock, self.disk.wrap())
    }

    fn open(&self, options: SegmentOptions) -> SegmentLog {
        self.try_open(options).unwrap()
    }

    /// The files of the log but for the lock, by name.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.dir()).unwrap().map(Result::unwrap);
        let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
        let kept = named.filter(|(name, _)| name != files::LOCK_FILE);
        kept.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
    }

    /// Makes the folder hold these files and nothing else.
    fn restore(&self, files: &BTreeMap<String, Vec<u8>>) {
        fs::remove_dir_all(self.dir()).unwrap();
        fs::create_dir(self.dir()).unwrap();
        for (name, bytes) in files {
            fs::write(self.dir().join(name), bytes).unwrap();
        }
    }

    fn segment_bytes(&self, sequence: u64) -> u64 {
        fs::metadata(files::segment_path(&self.dir(), sequence)).unwrap().len()
    }
}

fn everything(log: &SegmentLog) -> Vec<(Partition, Offset, u64)> {
    let from: Vec<_> = (0..).zip(log.low_offsets().unwrap()).collect();
    read_all(log.reader(&from).unwrap().as_mut())
}

fn segment_name(sequence: u64) -> String {
    format!("{sequence:020}.log")
}

fn index_name(sequence: u64) -> String {
    format!("{sequence:020}.index")
}

/// What the disk does wrong.
#[derive(Debug, Default)]
struct DiskState {
    /// fdatasync does not return.
    is_held: bool,
    write_fault: Option<io::ErrorKind>,
    sync_fault: Option<io::ErrorKind>,
    cut_fault: Option<io::ErrorKind>,
}

#[derive(Clone, Debug, Default)]
struct Disk(Arc<(Mutex<DiskState>, Condvar)>);

impl Disk {
    fn set(&self, change: impl FnOnce(&mut DiskState)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn hold(&self, is_held: bool) {
        self.set(|state| state.is_held = is_held);
    }

    fn wrap(&self) -> Wrap {
        let disk = self.clone();
        Box::new(move |file| Box::new(FaultyFile { file, disk: disk.clone() }))
    }
}

struct FaultyFile {
    file: File,
    disk: Disk,
}

fn outcome(fault: Option<io::ErrorKind>) -> io::Result<()> {
    fault.map_or(Ok(()), |kind| Err(kind.into()))
}

impl SegmentFile for FaultyFile {
    /// A write that fails has written half.
    fn write_all_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let fault = self.disk.0.0.lock().unwrap().write_fault;
        let written = if fault.is_some() { &bytes[..bytes.len() / 2] } else { bytes };
        SegmentFile::write_all_at(&self.file, written, position)?;
        outcome(fault)
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = self.disk.0.0.lock().unwrap();
        let (state, _) = self
            .disk
            .0
            .1
            .wait_timeout_while(state, contract::DEADLINE, |state| state.is_held)
            .unwrap();
        outcome(state.sync_fault)?;
        self.file.sync_data()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        outcome(self.disk.0.0.lock().unwrap().cut_fault)?;
        self.file.set_len(bytes)
    }
}

#[test]
fn keeps_the_contract() {
    contract::run(|partitions| {
        let bench = Bench::new();
        let log = Arc::new(bench.open(SegmentOptions { partitions, ..SMALL }));
        let (retention, disk) = (Arc::clone(&log), bench.disk.clone());
        UnderTest {
            log,
            record_bytes_max: SMALL.record_bytes_max,
            hold: Box::new(move |is_held| disk.hold(is_held)),
            remove_oldest: Box::new(move || {
                assert!(retention.apply_retention(START_MS + SMALL.retention_ms).unwrap() > 0);
            }),
            keep: Box::new(bench),
        }
    });
}

#[test]
fn calls_that_wait_share_one_commit() {
    const CALLS: u64 = 64;
    let bench = Bench::new();
    let log = bench.open(ONE_SEGMENT);
    bench.disk.hold(true);
    let (sender, receiver) = mpsc::channel();
    let log_ref = &log;
    thread::scope(|scope| {
        for call in 0..CALLS {
            let sender = sender.clone();
            scope.spawn(move || {
                let done = Box::new(move |results: Vec<_>| sender.send(results).unwrap());
                log_ref.append(vec![record(0, call), record(1, call)], done).unwrap();
            });
        }
    });
    bench.disk.hold(false);
    for _ in 0..CALLS {
        assert!(receiver.recv_timeout(contract::DEADLINE).unwrap().iter().all(Result::is_ok));
    }
    let stats = log.stats();
    // The first one or few were already being written when the others came.
    assert!(stats.commits.load(Relaxed) <= 2, "{stats:?}");
    assert_eq!(stats.records.load(Relaxed), 2 * CALLS);
    assert!(stats.commit_records_max.load(Relaxed) >= CALLS, "{stats:?}");
    assert_eq!(stats.queued_bytes.load(Relaxed), 0);
    assert!(stats.sync_ns_total.load(Relaxed) >= stats.sync_ns_max.load(Relaxed));
    assert!(stats.sync_ns_max.load(Relaxed) > 0);
    drop(log);
    assert_eq!(stats.bytes.load(Relaxed), bench.segment_bytes(1) - 48);
}

#[test]
fn a_full_queue_is_overloaded_and_one_large_call_is_not() {
    let bench = Bench::new();
    let log = bench.open(SegmentOptions { queue_bytes_max: 1_000, ..ONE_SEGMENT });
    let large = || vec![NewRecord { payload: vec![1; 5_000], ..record(0, 0) }];
    bench.disk.hold(true);
    let (sender, receiver) = mpsc::channel();
    log.append(large(), Box::new(move |results| sender.send(results).unwrap())).unwrap();
    let refused = log.append(large(), Box::new(|_| panic!("nothing was queued")));
    let Err(AppendError::Overloaded { queued_bytes }) = refused else {
        panic!("{refused:?}");
    };
    assert!(queued_bytes > 5_000);
    bench.disk.hold(false);
    assert_eq!(receiver.recv_timeout(contract::DEADLINE), Ok(vec![Ok(0)]));
    assert_eq!(append(&log, large()), [Ok(1)]);
}

#[test]
fn large_records_read_back_in_the_midst_of_small_ones() {
    let bench = Bench::new();
    let log = bench.open(ONE_SEGMENT);
    let sizes = [1_usize, 1 << 20, 0, 300_000, 2, 700_000, 1 << 20, 5];
    let payload =
        |index: usize| vec![u8::try_from(index).unwrap(); sizes[index].min((1 << 20) - 16)];
    let records = (0..sizes.len()).flat_map(|index| {
        let large = NewRecord { payload: payload(index), ..record(1, 0) };
        [large, record(0, u64::try_from(index).unwrap())]
    });
    append_all(&log, records.collect());
    let mut next = 0;
    log.reader(&[(1, 0)])
        .unwrap()
        .read(ReadLimits { records: 100, bytes: usize::MAX }, &mut |seen| {
            assert_eq!(seen.payload, payload(next), "record {next}");
            assert_eq!(seen.appended_at_ms, START_MS);
            next += 1;
        })
        .unwrap();
    assert_eq!(next, sizes.len());
    assert_eq!(numbers_of(&read_all(log.reader(&[(0, 0)]).unwrap().as_mut()), 0, 0).len(), next);
}

#[test]
fn a_reader_beside_a_busy_writer_sees_everything_once() {
    let bench = Bench::new();
    let log = bench.open(SMALL);
    let mut reader = log.reader(&[(0, 0)]).unwrap();
    let (log_ref, mut next) = (&log, 0);
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for number in 0..300 {
                append_all(log_ref, vec![record(0, number), record(1, number)]);
            }
        });
        let mut is_over = false;
        loop {
            let found = numbers_of(&read_all(reader.as_mut()), 0, next);
            let count = crate::convert::to_u64(found.len());
            assert_eq!(found, (next..next + count).collect::<Vec<_>>());
            next += count;
            if is_over && count == 0 {
                break;
            }
            is_over = writer.is_finished();
            thread::yield_now();
        }
    });
    assert_eq!(next, 300);
}

#[test]
fn dropping_the_log_commits_what_is_queued() {
    let bench = Bench::new();
    let log = bench.open(SMALL);
    bench.disk.hold(true);
    let (sender, receiver) = mpsc::channel();
    for number in 0..50 {
        let sender = sender.clone();
        let done = Box::new(move |results: Vec<_>| sender.send(results).unwrap());
        log.append(vec![record(0, number)], done).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(move || drop(log));
        bench.disk.hold(false);
    });
    let offsets: Vec<_> = receiver.try_iter().flatten().map(Result::unwrap).collect();
    assert_eq!(offsets, (0..50).collect::<Vec<_>>());
    assert_eq!(numbers_of(&everything(&bench.open(SMALL)), 0, 0), (0..50).collect::<Vec<_>>());
}

#[test]
fn a_caller_that_panics_takes_the_log_from_nobody() {
    let bench = Bench::new();
    let log = bench.open(SMALL);
    log.append(vec![record(0, 1)], Box::new(|_| panic!("on purpose, for the test"))).unwrap();
    assert_eq!(append(&log, vec![record(0, 2)]), [Ok(1)]);
}

#[test]
fn a_completion_may_be_the_last_owner_of_the_log() {
    let bench = Bench::new();
    let log = Arc::new(bench.open(SMALL));
    bench.disk.hold(true);
    let (sender, receiver) = mpsc::channel();
    let owner = Arc::clone(&log);
    let done = Box::new(move |results: Vec<_>| {
        drop(owner);
        sender.send(results).unwrap();
    });
    log.append(vec![record(0, 1)], done).unwrap();
    drop(log);
    bench.disk.hold(false);
    assert_eq!(receiver.recv_timeout(contract::DEADLINE), Ok(vec![Ok(0)]));
}

#[test]
fn options_that_no_log_can_have_are_refused() {
    let bench = Bench::new();
    for options in [
        SegmentOptions { partitions: 0, ..SMALL },
        SegmentOptions { record_bytes_max: (1 << 30) + 1, ..SMALL },
        SegmentOptions { retention_ms: -1, ..SMALL },
    ] {
        assert!(matches!(bench.try_open(options), Err(LogError::Options { .. })), "{options:?}");
    }
    assert!(!bench.dir().exists());
}

#[test]
fn a_segment_that_grows_before_it_is_closed_is_read_to_its_end() {
    let bench = Bench::new();
    let log = bench.open(ONE_SEGMENT);
    append_all(&log, vec![record(0, 1)]);
    // What a reader knew before the segment grew and was closed.
    let seen = log.journal.start(&[(0, 1)]).unwrap();
    append_all(&log, vec![record(0, 2)]);
    bench.clock.advance(ONE_SEGMENT.retention_ms / 10);
    append_all(&log, vec![record(0, 3)]);
    assert!(bench.files().contains_key(&segment_name(2)));
    let next = log.journal.next_segment(&seen.segment, seen.position, &[(0, 1)]).unwrap();
    assert!(next.is_none(), "record 2 is still to be read: {next:?}");
    assert_eq!(read_all(log.reader(&[(0, 1)]).unwrap().as_mut()), [(0, 1, 2), (0, 2, 3)]);
}

/// A step of a random run.
#[derive(Clone, Debug)]
enum Step {
    /// One call with records of these partitions.
    Append(Vec<Partition>),
    Reopen,
    /// A reader that starts at these parts (in 256ths) of the partitions and reads in pieces.
    Read {
        parts: Vec<Option<u8>>,
        limits: ReadLimits,
    },
    /// The reader of the whole run reads on.
    Continue(ReadLimits),
}

fn limits() -> impl Strategy<Value = ReadLimits> {
    (1_usize..50, 1_usize..20_000).prop_map(|(records, bytes)| ReadLimits { records, bytes })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(0_u32..3, 0..60).prop_map(Step::Append),
        1 => Just(Step::Reopen),
        2 => (prop::collection::vec(prop::option::of(any::<u8>()), 3), limits())
            .prop_map(|(parts, limits)| Step::Read { parts, limits }),
        2 => limits().prop_map(Step::Continue),
    ]
}

/// Reads once and checks every record against the model. Returns the number of records.
fn read_checked(reader: &mut dyn LogReader, limits: ReadLimits, model: &[Vec<u64>]) -> usize {
    let mut positions: BTreeMap<_, _> = reader.positions().into_iter().collect();
    let progress = reader.read(limits, &mut |seen| {
        let next = positions.get_mut(&seen.partition).unwrap();
        assert_eq!(seen.offset, *next, "offset in partition {}", seen.partition);
        let want =
            model[crate::convert::to_index(seen.partition)][crate::convert::to_usize(seen.offset)];
        assert_eq!(contract::number_of(seen.payload), want);
        *next += 1;
    });
    assert_eq!(reader.positions().into_iter().collect::<BTreeMap<_, _>>(), positions);
    progress.unwrap().records
}

fn run_steps(steps: Vec<Step>, segment_bytes: u64) {
    let options = SegmentOptions { segment_bytes, ..SMALL };
    let bench = Bench::new();
    let mut log = bench.open(options);
    let mut model = vec![Vec::new(); 3];
    let mut number = 0;
    let mut follower = log.reader(&[(2, 0), (0, 0)]).unwrap();
    for step in steps {
        match step {
            Step::Append(partitions) => {
                let records = partitions.iter().map(|partition| {
                    number += 1;
                    model[crate::convert::to_index(*partition)].push(number);
                    record(*partition, number)
                });
                append_all(&log, records.collect());
            }
            Step::Reopen => {
                let positions = follower.positions();
                drop(log);
                log = bench.open(options);
                follower = log.reader(&positions).unwrap();
            }
            Step::Read { parts, limits } => {
                let part_of = |(partition, part): (Partition, Option<u8>)| {
                    let end =
                        crate::convert::to_u64(model[crate::convert::to_index(partition)].len());
                    part.map(|part| (partition, end * u64::from(part) / 255))
                };
                let from: Vec<_> = (0..).zip(parts).filter_map(part_of).collect();
                let mut reader = log.reader(&from).unwrap();
                while read_checked(reader.as_mut(), limits, &model) > 0 {}
                for (partition, offset) in reader.positions() {
                    let end = model[crate::convert::to_index(partition)].len();
                    assert_eq!(offset, crate::convert::to_u64(end), "all of partition {partition}");
                }
            }
            Step::Continue(limits) => _ = read_checked(follower.as_mut(), limits, &model),
        }
        let ends: Vec<_> = model.iter().map(|of| crate::convert::to_u64(of.len())).collect();
        assert_eq!(log.end_offsets().unwrap(), ends);
    }
    while read_checked(follower.as_mut(), ReadLimits { records: 7, bytes: 900 }, &model) > 0 {}
    let ends = |partition: usize| crate::convert::to_u64(model[partition].len());
    assert_eq!(follower.positions(), [(2, ends(2)), (0, ends(0))]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_run_reads_back_what_the_naive_model_holds(
        steps in prop::collection::vec(step(), 1..40),
        segment_bytes in prop_oneof![Just(1_u64), 1_000_u64..20_000, Just(1 << 30)],
    ) {
        run_steps(steps, segment_bytes);
    }
}
