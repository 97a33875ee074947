//! A disk that is full or broken.

use super::*;

const FULL: Option<io::ErrorKind> = Some(io::ErrorKind::StorageFull);
const BROKEN: Option<io::ErrorKind> = Some(io::ErrorKind::Other);

fn is_unavailable(result: &Result<Offset, AppendError>) -> bool {
    matches!(result, Err(AppendError::Unavailable { .. }))
}

fn is_unknown(result: &Result<Offset, AppendError>) -> bool {
    matches!(result, Err(AppendError::Unknown { .. }))
}

/// Nothing is taken any more, durable records can be read, and a restart finds a good log.
fn expect_stopped(bench: &Bench, log: SegmentLog) {
    bench.disk.set(|state| *state = DiskState::default());
    let refused = log.append(vec![record(0, 8)], Box::new(|_| panic!("nothing was queued")));
    assert!(is_unavailable(&refused.map(|()| 0)));
    assert_eq!(log.end_offsets().unwrap(), [1, 0, 0]);
    assert_eq!(everything(&log), [(0, 0, 1)]);
    drop(log);
    let log = bench.open(ONE_SEGMENT);
    let end = log.end_offsets().unwrap()[0];
    assert!((1..=2).contains(&end), "the unknown record is there or not: {end}");
    assert_eq!(append(&log, vec![record(0, 9)]), [Ok(end)]);
    assert_eq!(numbers_of(&everything(&log), 0, 0).last(), Some(&9));
}

#[test]
fn a_full_disk_refuses_for_certain_and_takes_appends_again_when_there_is_room() {
    let bench = Bench::new();
    let log = bench.open(ONE_SEGMENT);
    append_all(&log, vec![record(0, 1)]);
    let durable = bench.segment_bytes(1);
    for fault in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
        bench.disk.set(|state| state.write_fault = Some(fault));
        let results = append(&log, vec![record(0, 2), record(1, 3)]);
        assert!(results.iter().all(is_unavailable), "{results:?}");
        assert_eq!(bench.segment_bytes(1), durable, "what was written is cut off again");
    }
    bench.disk.set(|state| state.write_fault = None);
    assert_eq!(append(&log, vec![record(0, 4), record(1, 5)]), [Ok(1), Ok(0)]);
    let want = [(0, 0, 1), (0, 1, 4), (1, 0, 5)];
    assert_eq!(everything(&log), want);
    drop(log);
    assert_eq!(everything(&bench.open(ONE_SEGMENT)), want);
}

#[test]
fn a_full_disk_that_cannot_be_cut_back_leaves_the_outcome_unknown_and_stops_the_log() {
    for (case, break_cut) in [
        ("cut", (|state| state.cut_fault = BROKEN) as fn(&mut DiskState)),
        ("sync of the cut", |state| state.sync_fault = BROKEN),
    ] {
        let bench = Bench::new();
        let log = bench.open(ONE_SEGMENT);
        append_all(&log, vec![record(0, 1)]);
        bench.disk.set(|state| state.write_fault = FULL);
        bench.disk.set(break_cut);
        assert!(append(&log, vec![record(0, 2)]).iter().all(is_unknown), "{case}");
        expect_stopped(&bench, log);
    }
}

#[test]
fn a_failed_fdatasync_leaves_the_outcome_unknown_and_stops_the_log() {
    // Room that runs out in fdatasync is no better: what is on disk then is anybody's guess.
    for fault in [BROKEN, FULL] {
        let bench = Bench::new();
        let log = bench.open(ONE_SEGMENT);
        append_all(&log, vec![record(0, 1)]);
        bench.disk.set(|state| state.sync_fault = fault);
        assert!(append(&log, vec![record(0, 2)]).iter().all(is_unknown));
        expect_stopped(&bench, log);
    }
}

#[test]
fn a_failed_write_leaves_the_outcome_unknown_and_stops_the_log() {
    let bench = Bench::new();
    let log = bench.open(ONE_SEGMENT);
    append_all(&log, vec![record(0, 1)]);
    bench.disk.set(|state| state.write_fault = BROKEN);
    assert!(append(&log, vec![record(0, 2)]).iter().all(is_unknown));
    expect_stopped(&bench, log);
}

#[test]
fn callers_who_wait_behind_a_failed_commit_hear_that_nothing_was_written() {
    let bench = Bench::new();
    let log = bench.open(SegmentOptions { queue_bytes_max: usize::MAX, ..ONE_SEGMENT });
    append_all(&log, vec![record(0, 1)]);
    bench.disk.set(|state| (state.is_held, state.sync_fault) = (true, BROKEN));
    let (sender, receiver) = mpsc::channel();
    for call in 0..40 {
        let sender = sender.clone();
        // Together more than one commit takes.
        let payload = vec![0; 1_000_000];
        let records = vec![NewRecord { payload, ..record(0, 0) }];
        let done = Box::new(move |results: Vec<_>| sender.send((call, results)).unwrap());
        log.append(records, done).unwrap();
    }
    bench.disk.hold(false);
    let heard: Vec<_> =
        (0..40).map(|_| receiver.recv_timeout(contract::DEADLINE).unwrap()).collect();
    assert_eq!(
        heard.iter().map(|(call, _)| *call).collect::<Vec<_>>(),
        (0..40).collect::<Vec<_>>()
    );
    let unknown = heard.iter().take_while(|(_, results)| results.iter().all(is_unknown)).count();
    let refused = heard.iter().skip(unknown);
    assert!((1..=17).contains(&unknown), "one commit is unknown, {unknown} calls");
    assert!(refused.clone().count() > 0);
    assert!(refused.clone().all(|(_, results)| results.iter().all(is_unavailable)));
    assert_eq!(log.stats().queued_bytes.load(Relaxed), 0);
}

#[test]
fn a_disk_too_full_for_the_next_segment_refuses_until_there_is_room() {
    let bench = Bench::new();
    let log = bench.open(SegmentOptions { segment_bytes: 1, ..SMALL });
    append_all(&log, vec![record(0, 1)]);
    bench.disk.set(|state| state.write_fault = FULL);
    for _ in 0..2 {
        assert!(append(&log, vec![record(0, 2)]).iter().all(is_unavailable));
    }
    bench.disk.set(|state| state.write_fault = None);
    assert_eq!(append(&log, vec![record(0, 3)]), [Ok(1)]);
    drop(log);
    assert_eq!(everything(&bench.open(SMALL)), [(0, 0, 1), (0, 1, 3)]);
}

#[test]
fn a_next_segment_that_cannot_be_made_otherwise_stops_the_log() {
    let bench = Bench::new();
    let log = bench.open(SegmentOptions { segment_bytes: 1, ..SMALL });
    append_all(&log, vec![record(0, 1)]);
    bench.disk.set(|state| state.sync_fault = BROKEN);
    assert!(append(&log, vec![record(0, 2)]).iter().all(is_unavailable));
    expect_stopped(&bench, log);
}
