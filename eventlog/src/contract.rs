//! What every [`EventLog`] must do, as tests that take the implementation.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::convert::{to_index, to_u64};
use crate::{AppendError, EventLog, LogError, LogReader, NewRecord, Offset, Partition, ReadLimits};

/// How long a check waits for a log before it fails.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// Partitions of the logs under test.
const PARTITIONS: Partition = 3;
const NO_LIMITS: ReadLimits = ReadLimits { records: usize::MAX, bytes: usize::MAX };

/// An empty log, and what a test must be able to do to it from outside.
pub struct UnderTest {
    /// The log.
    pub log: Arc<dyn EventLog>,
    /// Largest key and payload together that it takes.
    pub record_bytes_max: usize,
    /// Keeps appends from becoming durable (`true`), or lets all go (`false`).
    pub hold: Box<dyn Fn(bool)>,
    /// Has retention remove at least the first record of partition 0, but not all of partition 0.
    pub remove_oldest: Box<dyn Fn()>,
    /// Dropped after the log, for example its folder.
    pub keep: Box<dyn Any>,
}

impl fmt::Debug for UnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnderTest").field("log", &self.log).finish_non_exhaustive()
    }
}

/// Runs every check, each on a log of its own; `make` gets the number of partitions.
///
/// # Panics
/// If the log breaks the contract.
pub fn run(make: impl Fn(Partition) -> UnderTest) {
    for check in [
        a_new_log_is_empty,
        offsets_are_contiguous_and_keep_the_order_of_calls,
        one_bad_record_does_not_fail_its_neighbours,
        readers_are_independent,
        a_reader_starts_in_the_middle_and_stops_at_its_limits,
        a_reader_sees_only_what_is_durable,
        calls_of_many_threads_keep_their_own_order,
        a_start_outside_the_log_is_out_of_range,
        what_retention_removed_is_out_of_range,
    ] {
        check(&make(PARTITIONS));
    }
}

/// A record whose key and payload tell it from every other number.
#[must_use]
pub fn record(partition: Partition, number: u64) -> NewRecord {
    let key = u128::from(number).to_be_bytes();
    let bytes = usize::from(number.to_le_bytes()[0]) * 3;
    let mut payload = number.to_le_bytes().to_vec();
    payload.resize(8 + bytes, number.to_le_bytes()[0]);
    NewRecord { partition, key, payload }
}

/// The number of a [`record`].
///
/// # Panics
/// If the payload is none of a `record`.
#[must_use]
pub fn number_of(payload: &[u8]) -> u64 {
    let number = u64::from_le_bytes(*payload.first_chunk().expect("a payload of `record`"));
    assert_eq!(payload, record(0, number).payload, "payload of record {number}");
    number
}

/// Appends and waits for the outcome.
///
/// # Panics
/// If the log refuses, or does not answer exactly once within [`DEADLINE`].
pub fn append(log: &dyn EventLog, records: Vec<NewRecord>) -> Vec<Result<Offset, AppendError>> {
    let (sender, receiver) = mpsc::channel();
    let count = records.len();
    let done = Box::new(move |results| sender.send(results).expect("the test still waits"));
    log.append(records, done).expect("the log takes appends");
    let results = receiver.recv_timeout(DEADLINE).expect("the log answers");
    assert_eq!(results.len(), count, "one result a record");
    results
}

/// Appends records that must all be confirmed. Returns their offsets.
///
/// # Panics
/// If one is not.
pub fn append_all(log: &dyn EventLog, records: Vec<NewRecord>) -> Vec<Offset> {
    let results = append(log, records);
    results.into_iter().map(|result| result.expect("the record is confirmed")).collect()
}

/// Everything that is there for a reader now: partition, offset and number of each record. Calls of
/// `read` may hand out less than what is there, but not nothing.
///
/// # Panics
/// If reading fails or a record is not as it was appended.
pub fn read_all(reader: &mut dyn LogReader) -> Vec<(Partition, Offset, u64)> {
    let mut found = Vec::new();
    loop {
        let before = found.len();
        let progress = reader.read(NO_LIMITS, &mut |seen| {
            let number = number_of(seen.payload);
            assert_eq!(seen.key, record(0, number).key, "key of record {number}");
            found.push((seen.partition, seen.offset, number));
        });
        let progress = progress.expect("the log can be read");
        assert_eq!(progress.records, found.len() - before, "progress counts what was handed out");
        if progress.records == 0 {
            return found;
        }
    }
}

/// The numbers of one partition's records, in order, after a check that offsets count up from
/// `first`.
///
/// # Panics
/// If they do not.
#[must_use]
pub fn numbers_of(
    found: &[(Partition, Offset, u64)],
    partition: Partition,
    first: Offset,
) -> Vec<u64> {
    let own = found.iter().filter(|(of, _, _)| *of == partition);
    let check = |((_, offset, number), want): (&(Partition, Offset, u64), Offset)| {
        assert_eq!(*offset, want, "offsets of partition {partition} are contiguous");
        *number
    };
    own.zip(first..).map(check).collect()
}

fn everything(log: &dyn EventLog) -> Vec<(Partition, Offset, u64)> {
    let from: Vec<_> = (0..).zip(log.low_offsets().expect("known")).collect();
    read_all(reader(log, &from).as_mut())
}

fn reader(log: &dyn EventLog, from: &[(Partition, Offset)]) -> Box<dyn LogReader> {
    log.reader(from).expect("the offsets are in range")
}

fn ends(log: &dyn EventLog) -> Vec<Offset> {
    log.end_offsets().expect("known")
}

fn a_new_log_is_empty(test: &UnderTest) {
    let log = test.log.as_ref();
    assert_eq!(log.partitions(), PARTITIONS);
    assert_eq!(ends(log), [0, 0, 0]);
    assert_eq!(log.low_offsets().expect("known"), [0, 0, 0]);
    assert_eq!(everything(log), []);
    assert_eq!(append(log, Vec::new()), []);
    assert_eq!(ends(log), [0, 0, 0]);
}

fn offsets_are_contiguous_and_keep_the_order_of_calls(test: &UnderTest) {
    let log = test.log.as_ref();
    // Partition 1 stays empty.
    let of = |number: u64| if number.is_multiple_of(3) { 2 } else { 0 };
    let mut want = vec![Vec::new(); 3];
    for call in 0..20 {
        let numbers = call * 50..call * 50 + call;
        let records = numbers.clone().map(|number| record(of(number), number)).collect();
        let offsets = append_all(log, records);
        for (number, offset) in numbers.zip(offsets) {
            let partition = &mut want[to_index(of(number))];
            assert_eq!(offset, to_u64(partition.len()), "offset of record {number}");
            partition.push(number);
        }
    }
    let found = everything(log);
    for (partition, want) in (0..).zip(&want) {
        assert_eq!(numbers_of(&found, partition, 0), *want);
    }
    assert_eq!(ends(log), want.iter().map(|of| to_u64(of.len())).collect::<Vec<_>>());
}

fn one_bad_record_does_not_fail_its_neighbours(test: &UnderTest) {
    let log = test.log.as_ref();
    let bytes_max = test.record_bytes_max;
    let sized = |bytes: usize| NewRecord { payload: vec![0; bytes - 16], ..record(0, 0) };
    let results = append(
        log,
        vec![
            record(0, 1),
            sized(bytes_max + 1),
            record(0, 2),
            record(PARTITIONS, 3),
            sized(bytes_max),
            record(1, 4),
        ],
    );
    let too_large = AppendError::TooLarge { bytes: bytes_max + 1, bytes_max };
    let no_partition = AppendError::NoPartition { partition: PARTITIONS, partitions: PARTITIONS };
    assert_eq!(results, [Ok(0), Err(too_large), Ok(1), Err(no_partition), Ok(2), Ok(0)]);
    assert_eq!(ends(log), [3, 1, 0]);
}

fn readers_are_independent(test: &UnderTest) {
    let log = test.log.as_ref();
    let (mut one, mut other) = (reader(log, &[(0, 0)]), reader(log, &[(1, 0), (0, 0)]));
    append_all(log, vec![record(0, 1), record(1, 2), record(2, 3)]);
    assert_eq!(read_all(one.as_mut()), [(0, 0, 1)]);
    append_all(log, vec![record(0, 4)]);
    let found = read_all(other.as_mut());
    assert_eq!(numbers_of(&found, 0, 0), [1, 4]);
    assert_eq!(numbers_of(&found, 1, 0), [2]);
    assert_eq!(found.len(), 3, "partition 2 was not asked for");
    assert_eq!(other.positions(), [(1, 1), (0, 2)]);
    assert_eq!(one.positions(), [(0, 1)]);
    assert_eq!(read_all(one.as_mut()), [(0, 1, 4)]);
    assert_eq!(read_all(one.as_mut()), []);
    assert_eq!(read_all(reader(log, &[]).as_mut()), []);
}

fn a_reader_starts_in_the_middle_and_stops_at_its_limits(test: &UnderTest) {
    let log = test.log.as_ref();
    for call in 0..4 {
        let numbers = call * 10..call * 10 + 10;
        append_all(log, numbers.flat_map(|n| [record(0, n), record(1, 100 + n)]).collect());
    }
    for start in 0..=40 {
        let mut reader = reader(log, &[(0, start), (1, 40 - start)]);
        let found = read_all(reader.as_mut());
        assert_eq!(numbers_of(&found, 0, start), (start..40).collect::<Vec<_>>());
        assert_eq!(numbers_of(&found, 1, 40 - start), (140 - start..140).collect::<Vec<_>>());
        assert_eq!(reader.positions(), [(0, 40), (1, 40)]);
    }
    let mut reader = reader(log, &[(0, 5)]);
    let mut read = |limits: ReadLimits| {
        let mut numbers = Vec::new();
        let progress = reader.read(limits, &mut |seen| numbers.push(number_of(seen.payload)));
        let progress = progress.expect("the log can be read");
        assert_eq!(progress.records, numbers.len());
        (numbers, progress.bytes)
    };
    let bytes_of = |number| record(0, number).payload.len();
    let three = ReadLimits { records: 3, ..NO_LIMITS };
    assert_eq!(read(three), (vec![5, 6, 7], bytes_of(5) + bytes_of(6) + bytes_of(7)));
    assert_eq!(read(ReadLimits { records: 0, ..NO_LIMITS }), (vec![], 0));
    assert_eq!(read(ReadLimits { bytes: 0, ..NO_LIMITS }), (vec![], 0));
    assert_eq!(read(ReadLimits { bytes: 1, ..NO_LIMITS }), (vec![8], bytes_of(8)));
    let two = ReadLimits { bytes: bytes_of(9) + 1, ..NO_LIMITS };
    assert_eq!(read(two), (vec![9, 10], bytes_of(9) + bytes_of(10)));
    assert_eq!(read(NO_LIMITS).0, (11..40).collect::<Vec<_>>());
}

fn a_reader_sees_only_what_is_durable(test: &UnderTest) {
    let log = test.log.as_ref();
    append_all(log, vec![record(0, 1)]);
    let mut reader = reader(log, &[(0, 0)]);
    (test.hold)(true);
    let (sender, receiver) = mpsc::channel();
    for number in 2..4 {
        let sender = sender.clone();
        let done = Box::new(move |results| sender.send(results).expect("the test still waits"));
        log.append(vec![record(0, number)], done).expect("the log takes appends");
    }
    assert_eq!(read_all(reader.as_mut()), [(0, 0, 1)]);
    assert_eq!(ends(log), [1, 0, 0]);
    assert!(receiver.try_recv().is_err(), "nothing is confirmed before it is durable");
    (test.hold)(false);
    for offset in 1..3 {
        assert_eq!(receiver.recv_timeout(DEADLINE), Ok(vec![Ok(offset)]));
        // Whoever has heard of a record can read it.
        assert!(ends(log).first() > Some(&offset));
    }
    assert_eq!(read_all(reader.as_mut()), [(0, 1, 2), (0, 2, 3)]);
}

fn calls_of_many_threads_keep_their_own_order(test: &UnderTest) {
    const THREADS: u64 = 4;
    const CALLS: u64 = 100;
    let log = test.log.as_ref();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let (sender, receiver) = mpsc::channel();
                for call in 0..CALLS {
                    let first = (thread * CALLS + call) * 2;
                    let records = vec![record(0, first), record(0, first + 1)];
                    let sender = sender.clone();
                    let done =
                        Box::new(move |results: Vec<_>| sender.send(results).expect("waits"));
                    log.append(records, done).expect("the log takes appends");
                }
                for _ in 0..CALLS {
                    let results = receiver.recv_timeout(DEADLINE).expect("the log answers");
                    assert!(results.iter().all(Result::is_ok));
                }
            });
        }
    });
    let numbers = numbers_of(&everything(log), 0, 0);
    for thread in 0..THREADS {
        let own = thread * CALLS * 2..(thread + 1) * CALLS * 2;
        let found: Vec<_> = numbers.iter().copied().filter(|n| own.contains(n)).collect();
        assert_eq!(found, own.collect::<Vec<_>>(), "records of thread {thread}");
    }
}

fn a_start_outside_the_log_is_out_of_range(test: &UnderTest) {
    let log = test.log.as_ref();
    append_all(log, vec![record(0, 1), record(0, 2)]);
    expect_out_of_range(log.reader(&[(1, 0), (0, 3)]), (0, 3, 0, 2));
    expect_out_of_range(log.reader(&[(PARTITIONS, 0)]), (PARTITIONS, 0, 0, 0));
    assert_eq!(read_all(reader(log, &[(0, 2), (2, 0)]).as_mut()), []);
}

fn what_retention_removed_is_out_of_range(test: &UnderTest) {
    let log = test.log.as_ref();
    let mut slow = reader(log, &[(0, 0)]);
    let mut idle = reader(log, &[(1, 0)]);
    for number in 0..100 {
        append_all(log, vec![record(0, number)]);
    }
    let limits = ReadLimits { records: 1, ..NO_LIMITS };
    (test.remove_oldest)();
    let low = log.low_offsets().expect("known")[0];
    assert!((1..100).contains(&low), "the low offset is {low}");
    assert_eq!(ends(log), [100, 0, 0]);
    expect_out_of_range(log.reader(&[(0, low - 1)]), (0, low - 1, low, 100));
    assert_eq!(numbers_of(&everything(log), 0, low), (low..100).collect::<Vec<_>>());
    // A reader that was overtaken may still have at hand what was removed, but it never jumps.
    let mut next = 0;
    while next < 100 {
        let progress = slow.read(limits, &mut |seen| {
            assert_eq!(seen.offset, next, "no silent jump");
            next += 1;
        });
        match progress {
            Ok(progress) => assert_eq!(progress.records, 1, "no silent end at {next}"),
            Err(overtaken) => {
                expect_out_of_range::<()>(Err(overtaken), (0, next, low, 100));
                break;
            }
        }
    }
    assert_eq!(slow.positions(), [(0, next)]);
    // A reader of another partition has lost nothing.
    append_all(log, vec![record(1, 7)]);
    assert_eq!(read_all(idle.as_mut()), [(1, 0, 7)]);
}

fn expect_out_of_range<T>(outcome: Result<T, LogError>, want: (Partition, Offset, Offset, Offset)) {
    let found = match outcome {
        Err(LogError::OutOfRange { partition, offset, low, end }) => {
            Some((partition, offset, low, end))
        }
        Ok(_) | Err(_) => None,
    };
    assert_eq!(found, Some(want), "partition, offset, low, end of an out-of-range error");
}
