//! What retention removes, and who notices.

use super::*;

const RETENTION: i64 = SMALL.retention_ms;
/// Each commit gets a segment.
const TINY: SegmentOptions = SegmentOptions { segment_bytes: 1, ..SMALL };

/// Five segments with one record of partition 0 each, appended 10 ms apart.
fn five_segments(bench: &Bench) -> SegmentLog {
    let log = bench.open(TINY);
    for number in 0..5 {
        append_all(&log, vec![record(0, number)]);
        bench.clock.advance(10);
    }
    log
}

#[test]
fn closed_segments_go_oldest_first_when_their_last_append_is_old_enough() {
    let bench = Bench::new();
    let log = five_segments(&bench);
    for (after_ms, removed, low) in [(-1, 0, 0), (0, 1, 1), (9, 0, 1), (20, 2, 3), (1_000, 1, 4)] {
        let case = format!("{after_ms} ms after the first is due");
        assert_eq!(
            log.apply_retention(START_MS + RETENTION + after_ms).unwrap(),
            removed,
            "{case}"
        );
        assert_eq!(log.low_offsets().unwrap(), [low, 0, 0], "{case}");
        assert_eq!(numbers_of(&everything(&log), 0, low), (low..5).collect::<Vec<_>>(), "{case}");
    }
    assert_eq!(log.stats().segments_removed.load(Relaxed), 4);
    let names: Vec<_> = bench.files().into_keys().collect();
    assert_eq!(names, [segment_name(5), files::FORMAT_FILE.to_owned()], "no index is left behind");
    drop(log);
    let log = bench.open(TINY);
    assert_eq!((log.low_offsets().unwrap()[0], log.end_offsets().unwrap()[0]), (4, 5));
    assert_eq!(append(&log, vec![record(0, 5)]), [Ok(5)]);
}

#[test]
fn retention_counts_from_the_append_and_a_clock_set_back_deletes_nothing_early() {
    let bench = Bench::new();
    let log = bench.open(ONE_SEGMENT);
    append_all(&log, vec![record(0, 0)]);
    bench.clock.step_to(START_MS - 500);
    append_all(&log, vec![record(0, 1)]);
    drop(log);
    let log = bench.open(TINY);
    append_all(&log, vec![record(0, 2)]);
    assert_eq!(log.apply_retention(START_MS + RETENTION - 1).unwrap(), 0);
    assert_eq!(log.apply_retention(START_MS + RETENTION).unwrap(), 1);
    assert_eq!(log.low_offsets().unwrap(), [2, 0, 0]);
}

#[test]
fn the_log_applies_retention_by_itself() {
    let bench = Bench::new();
    let log = five_segments(&bench);
    bench.clock.advance(RETENTION);
    // It looks after a commit, at most once a minute.
    for number in 0..4 {
        bench.clock.advance(60_000);
        append_all(&log, vec![record(1, number)]);
    }
    assert_eq!(log.low_offsets().unwrap()[0], 5);
    assert_eq!(log.end_offsets().unwrap(), [5, 4, 0]);
}

#[test]
fn a_segment_is_closed_by_age_so_that_old_records_can_go() {
    let bench = Bench::new();
    let log = bench.open(ONE_SEGMENT);
    append_all(&log, vec![record(0, 0)]);
    bench.clock.advance(RETENTION / 10 - 1);
    append_all(&log, vec![record(0, 1)]);
    assert!(!bench.files().contains_key(&segment_name(2)));
    drop(log);
    let log = bench.open(ONE_SEGMENT);
    bench.clock.advance(1);
    append_all(&log, vec![record(0, 2)]);
    assert!(bench.files().contains_key(&segment_name(2)), "its age outlives a restart");
}

#[test]
fn a_reader_in_a_removed_segment_ends_it_and_then_stops_before_the_hole() {
    let bench = Bench::new();
    let log = bench.open(SMALL);
    for number in 0..60 {
        append_all(&log, vec![record(0, number)]);
    }
    let mut reader = log.reader(&[(0, 0)]).unwrap();
    let limits = ReadLimits { records: 1, bytes: usize::MAX };
    assert_eq!(reader.read(limits, &mut |_| {}).unwrap().records, 1);
    assert!(log.apply_retention(START_MS + RETENTION).unwrap() > 1);
    let low = log.low_offsets().unwrap()[0];
    let mut next = 1;
    let error = loop {
        match reader.read(limits, &mut |seen| {
            assert_eq!(seen.offset, next);
            next += 1;
        }) {
            Ok(progress) => assert_eq!(progress.records, 1),
            Err(error) => break error,
        }
    };
    assert!((2..low).contains(&next), "it read its own segment to the end, {next} of {low}");
    for error in [error, reader.read(limits, &mut |_| {}).unwrap_err()] {
        let LogError::OutOfRange { partition: 0, offset, low: found, end: 60 } = error else {
            panic!("{error:?}");
        };
        assert_eq!((offset, found), (next, low));
    }
    assert_eq!(reader.positions(), [(0, next)]);
}

#[test]
fn a_reader_for_whom_nothing_was_removed_passes_the_hole() {
    let bench = Bench::new();
    let log = bench.open(TINY);
    let mut reader = log.reader(&[(1, 0)]).unwrap();
    for number in 0..5 {
        append_all(&log, vec![record(0, number)]);
    }
    assert_eq!(log.apply_retention(START_MS + RETENTION).unwrap(), 4);
    append_all(&log, vec![record(1, 7)]);
    assert_eq!(read_all(reader.as_mut()), [(1, 0, 7)]);
}
