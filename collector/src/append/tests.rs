use std::sync::Barrier;
use std::thread;

use prost::Message as _;
use tally_eventlog::ReadLimits;
use tally_eventlog::memory::{Fault, MemoryLog};
use tally_model::clock::ManualClock;
use tally_model::record::Record;

use super::*;

const PARTITIONS: u32 = 3;
const RUN: u64 = 77;

struct Bench {
    log: Arc<MemoryLog>,
    appender: Appender,
}

fn bench() -> Bench {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(0));
    let log = Arc::new(MemoryLog::new(PARTITIONS, Arc::clone(&clock)));
    let appender = Appender::new(Arc::clone(&log) as _, RUN, clock, Arc::default());
    Bench { log, appender }
}

fn record(partition: u32) -> NewRecord {
    NewRecord { partition, key: [1; 16], payload: Record::default().encode_to_vec() }
}

impl Bench {
    /// Run and sequence of every record, by partition in log order.
    fn numbers(&self) -> Vec<Vec<(u64, u64)>> {
        let from: Vec<_> = (0..PARTITIONS).map(|partition| (partition, 0)).collect();
        let mut reader = self.log.reader(&from).unwrap();
        let mut numbers = vec![Vec::new(); from.len()];
        let all = ReadLimits { records: usize::MAX, bytes: usize::MAX };
        reader
            .read(all, &mut |read| {
                let record = Record::decode(read.payload).unwrap();
                numbers[usize::try_from(read.partition).unwrap()]
                    .push((record.run, record.sequence));
            })
            .unwrap();
        numbers
    }
}

#[test]
fn numbers_are_gapless_and_in_log_order_under_concurrency() {
    let bench = bench();
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (bench, start) = (&bench, &start);
            scope.spawn(move || {
                start.wait();
                for batch in 0..50 {
                    let records = (0..5).map(|at| record((thread + batch + at) % PARTITIONS));
                    let pending = bench.appender.append(records.collect()).unwrap();
                    assert_eq!(pending.wait_blocking(), Ok(Vec::new()));
                }
            });
        }
    });
    let numbers = bench.numbers();
    assert_eq!(numbers.iter().map(Vec::len).sum::<usize>(), 1_000);
    for partition in numbers {
        let want: Vec<_> = (0..).take(partition.len()).map(|sequence| (RUN, sequence)).collect();
        assert_eq!(partition, want);
    }
}

#[test]
fn a_batch_that_was_not_queued_leaves_no_gap() {
    let bench = bench();
    bench.log.set_fault(Some(Fault::Refuse(AppendError::Overloaded { queued_bytes: 9 })));
    let refused = bench.appender.append(vec![record(0), record(0), record(2)]);
    assert!(matches!(refused, Err(AppendFailure::Overloaded(_))));
    assert!(bench.appender.is_healthy(), "load is no fault of the deployment");
    bench.log.set_fault(None);
    let pending = bench.appender.append(vec![record(0), record(2)]).unwrap();
    assert_eq!(pending.wait_blocking(), Ok(Vec::new()));
    assert_eq!(bench.numbers(), [vec![(RUN, 0)], vec![], vec![(RUN, 0)]]);
}

#[test]
fn a_record_over_the_logs_limit_is_named_and_its_neighbours_are_confirmed() {
    let bench = bench();
    let large = NewRecord { payload: vec![0; 2 << 20], ..record(1) };
    let pending = bench.appender.append(vec![record(0), large, record(2)]).unwrap();
    assert_eq!(pending.wait_blocking(), Ok(vec![1]));
    assert!(bench.appender.is_healthy());
}

#[test]
fn a_fault_of_the_deployment_is_noted_until_the_log_confirms_again() {
    let bench = bench();
    let full = AppendError::Unavailable { reason: "disk full".to_owned() };
    let unknown = AppendError::Unknown { reason: "no answer".to_owned() };
    let cases = [
        (Fault::Refuse(full.clone()), AppendFailure::Refused(full.clone())),
        (Fault::Lose(full.clone()), AppendFailure::Refused(full)),
        (Fault::KeepUnconfirmed(unknown), AppendFailure::Unknown),
    ];
    for (fault, want) in cases {
        bench.log.set_fault(Some(fault.clone()));
        let outcome = bench.appender.append(vec![record(0)]).and_then(PendingAppend::wait_blocking);
        assert_eq!(outcome, Err(want), "{fault:?}");
        assert!(!bench.appender.is_healthy(), "{fault:?}");

        bench.log.set_fault(None);
        let pending = bench.appender.append(vec![record(0)]).unwrap();
        assert_eq!(pending.wait_blocking(), Ok(Vec::new()));
        assert!(bench.appender.is_healthy());
    }
}

#[test]
fn a_log_that_goes_away_without_an_answer_confirms_nothing() {
    #[derive(Debug)]
    struct Deaf;
    impl EventLog for Deaf {
        fn partitions(&self) -> Partition {
            1
        }
        fn append(&self, _records: Vec<NewRecord>, _done: AppendDone) -> Result<(), AppendError> {
            Ok(())
        }
        fn end_offsets(&self) -> Result<Vec<Offset>, tally_eventlog::LogError> {
            Ok(vec![0])
        }
        fn low_offsets(&self) -> Result<Vec<Offset>, tally_eventlog::LogError> {
            Ok(vec![0])
        }
        fn reader(
            &self,
            _from: &[(Partition, Offset)],
        ) -> Result<Box<dyn tally_eventlog::LogReader>, tally_eventlog::LogError> {
            unreachable!("nobody reads")
        }
    }
    let clock = Arc::new(ManualClock::new(0));
    let appender = Appender::new(Arc::new(Deaf), RUN, clock, Arc::default());
    let pending = appender.append(vec![record(0)]).unwrap();
    assert_eq!(pending.wait_blocking(), Err(AppendFailure::Unknown));
}
