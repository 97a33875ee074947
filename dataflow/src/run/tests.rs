use std::sync::Arc;

use proptest::prelude::*;
use tally_model::bucket::{Bucket, DAY_MS, HOUR_MS, MINUTE_MS};
use tally_model::ids::Shard;
use tally_model::reasons::InvalidReason;
use tally_model::revision::{Generation, Revision};
use tally_model::rules::Timing;
use tally_model::truth::LoggedEvent;
use tally_model::vector::CountVector;
use tally_sinks::counts::{PutCondition, Row, RowSource, SmallRow, WriterId};
use tally_sinks::marks;

use crate::testing::{
    Cells, Deployment, Fault, FlakyCounts, Gate, GatedLog, T0, encode, event, streaming_cells,
};
use crate::{CountError, MissingRange, Mode, Stages};

mod holes;
mod laws;
mod pressure;
mod restarts;

const CLOSE_MS: i64 = Timing::DEFAULT.watermark_delay_ms;
const RETIRE_MS: i64 = Timing::DEFAULT.retire_after_ms();

/// `count` events of one type in one minute, on time.
fn events(first_id: u64, count: u64, slot: u16, minute: i64) -> Vec<LoggedEvent> {
    let at_ms = T0 + minute * MINUTE_MS;
    (first_id..first_id + count).map(|id| event(id, slot, at_ms + 1_000, at_ms + 2_000)).collect()
}

fn cells(of: &[(i64, u16, u64)]) -> Cells {
    of.iter().map(|(minute, slot, count)| ((T0 + minute * MINUTE_MS, *slot), *count)).collect()
}

// --- minutes and rows

#[test]
fn a_quiet_minute_gets_its_row_also_after_a_time_down() {
    let mut tally = Deployment::new(2, 2);
    tally.append(&events(1, 3, 1, 3));
    let running = tally.start();
    running.pass(30 * MINUTE_MS);
    running.settle();
    running.stop();
    let closed = |tally: &Deployment| marks::read(tally.meta.as_ref()).unwrap().readable_up_to_ms;
    let first = closed(&tally).unwrap();
    assert!(first >= T0 + 28 * MINUTE_MS);
    tally.clock.advance(3 * HOUR_MS);
    let running = tally.start();
    running.pass(0);
    running.settle();
    running.stop();
    let last = closed(&tally).unwrap();
    assert!(last >= first + 3 * HOUR_MS);
    let stored: Vec<i64> = tally.rows().iter().map(|row| row.small.bucket.start_ms()).collect();
    let every: Vec<i64> = (0..).map(|minute| T0 + minute * MINUTE_MS).take(stored.len()).collect();
    assert_eq!(stored, every, "from the origin on, without a gap");
    assert_eq!(stored.last(), Some(&(last - MINUTE_MS)));
    assert_eq!(tally.cells(), cells(&[(3, 1, 3)]));
}

#[test]
fn a_minute_before_the_origin_has_a_row_only_if_it_has_events() {
    let mut tally = Deployment::new(1, 1);
    tally.clock.advance(DAY_MS);
    tally.append(&events(1, 1, 1, -5));
    tally.append(&events(2, 1, 1, 1));
    tally.count_bounded().unwrap();
    let stored = tally.rows().into_iter().map(|row| row.small.bucket.start_ms() - T0);
    assert_eq!(stored.map(|at| at / MINUTE_MS).collect::<Vec<_>>(), [-5, 0, 1]);
}

#[test]
fn a_minute_is_put_once_whole_and_restated_at_most_once_a_period() {
    let mut tally = Deployment::new(4, 2);
    tally.options.restate_every_ms = 60_000;
    tally.append(&events(1, 20, 1, 0));
    tally.append(&events(100, 20, 2, 0));
    let running = tally.start();
    running.pass(MINUTE_MS + CLOSE_MS);
    running.settle();
    let first = tally.row(T0).unwrap();
    assert_eq!(first.vector.counts(), [0, 20, 20], "all workers' partials in the first put");
    let put = running.progress.rows().put;

    for id in 200..210 {
        tally.append(&events(id, 1, 1, 0));
        running.until("it is counted", |p| p.totals().counted == 40 + id - 199);
    }
    let soon = || tally.row(T0).is_some_and(|row| row.vector.counts() == [0, 30, 20]);
    running.until("the minute is restated", |_| soon());
    let second = tally.row(T0).unwrap();
    assert!(second.small.revision > first.small.revision);
    assert!(second.small.written_at_ms > first.small.written_at_ms);
    running.settle();
    let minutes = u64::try_from(tally.rows().len()).unwrap();
    let puts_of_it = running.progress.rows().put - (minutes - 1);
    assert!(puts_of_it <= 3, "{puts_of_it} puts for ten arrivals, {put} before");
    running.stop();
}

#[test]
fn what_is_pending_goes_out_before_its_minute_retires() {
    let mut tally = Deployment::new(2, 2);
    tally.options.restate_every_ms = DAY_MS;
    tally.append(&events(1, 5, 1, 0));
    let running = tally.start();
    running.pass(MINUTE_MS + CLOSE_MS);
    running.settle();
    tally.append(&events(10, 5, 1, 0));
    running.until("all are counted", |p| p.totals().counted == 10);
    running.pass(RETIRE_MS + MINUTE_MS);
    running.until("the minute is retired", |p| p.retired_up_to_ms() >= Some(T0 + MINUTE_MS));
    assert_eq!(tally.cells(), cells(&[(0, 1, 10)]));
    running.stop();
}

#[test]
fn minutes_past_retention_are_not_put() {
    let mut tally = Deployment::new(1, 1);
    tally.clock.advance(62 * DAY_MS);
    tally.append(&events(1, 4, 1, 0));
    let late_ms = T0 + 61 * DAY_MS;
    tally.append(&[event(9, 1, late_ms, late_ms)]);
    let report = tally.count_bounded().unwrap();
    assert_eq!(report.rows.past_retention, 1);
    assert_eq!(report.totals.counted, 5);
    assert!(tally.row(T0).is_none());
    assert!(tally.row(late_ms).is_some());
}

// --- which events count

/// B43: at equality it is in, a millisecond later it is late; the start of a minute is its own.
#[test]
fn at_the_border_of_lateness_the_stamps_decide() {
    let mut tally = Deployment::new(2, 2);
    tally.clock.advance(DAY_MS);
    let border_ms = T0 + MINUTE_MS + CLOSE_MS + Timing::DEFAULT.lateness_ms;
    tally.append(&[
        event(1, 1, T0, border_ms),
        event(2, 2, T0 + MINUTE_MS - 1, border_ms + 1),
        event(3, 3, T0 + MINUTE_MS, border_ms + 2),
    ]);
    let report = tally.count_bounded().unwrap();
    assert_eq!(tally.cells(), cells(&[(0, 1, 1), (1, 3, 1)]));
    assert_eq!((report.totals.counted, report.totals.late), (2, 1));
}

/// B46: across the border of an hour, and of a day.
#[test]
fn a_repeat_counts_in_the_first_copys_minute_whatever_its_own() {
    let mut tally = Deployment::new(3, 2);
    tally.clock.advance(3 * DAY_MS);
    let midnight = T0 + DAY_MS;
    tally.append(&[
        event(1, 1, midnight - HOUR_MS - 100, midnight - HOUR_MS),
        event(1, 1, midnight - HOUR_MS + 100, midnight - HOUR_MS + 200),
        event(2, 2, midnight - 1_000, midnight - 900),
        event(2, 2, midnight + 1_000, midnight + 1_100),
    ]);
    let report = tally.count_bounded().unwrap();
    assert_eq!(tally.cells(), cells(&[(1_379, 1, 1), (1_439, 2, 1)]));
    assert_eq!(report.totals.repeats, 2);
}

/// B47: what looks alike is not a repeat.
#[test]
fn equal_partials_of_two_workers_are_both_counted() {
    let mut tally = Deployment::new(2, 2);
    tally.clock.advance(DAY_MS);
    // As many events of each worker's shards, alike except for their ids.
    let all: Vec<LoggedEvent> = events(1, 100, 1, 0);
    for partition in 0..2 {
        let at_home = all.iter().copied().filter(|event| tally.home(event) == partition);
        tally.append(&at_home.take(5).collect::<Vec<_>>());
    }
    let report = tally.count_bounded().unwrap();
    assert_eq!(report.counted_by_worker, [5, 5]);
    assert_eq!(tally.cells(), cells(&[(0, 1, 10)]));
    tally.append(&events(201, 20, 1, 1));
    tally.count_bounded().unwrap();
    assert_eq!(tally.cells(), cells(&[(0, 1, 10), (1, 1, 20)]));
}

/// B51: shards follow from the id, not from the partition.
#[test]
fn a_copy_in_a_foreign_partition_meets_its_first() {
    for workers in 1..=3 {
        let mut tally = Deployment::new(4, workers);
        tally.clock.advance(DAY_MS);
        let all = events(1, 1_000, 1, 0);
        tally.append(&all);
        let elsewhere = all.iter().map(|event| ((tally.home(event) + 1) % 4, encode(event)));
        tally.append_raw(elsewhere);
        let report = tally.count_bounded().unwrap();
        assert_eq!(tally.cells(), cells(&[(0, 1, 1_000)]), "{workers} workers");
        assert_eq!(report.totals.repeats, 1_000);
    }
}

#[test]
fn records_that_are_no_events_are_skipped_and_counted() {
    let mut tally = Deployment::new(1, 1);
    tally.clock.advance(DAY_MS);
    tally.append(&events(1, 2, 1, 0));
    let foreign = encode(&event(7, 1, T0 + 5, T0));
    let control = vec![8, 1, 16, 1];
    tally.append_raw([vec![], vec![0xff; 9], vec![8, 77], foreign, control].map(|p| (0, p)));
    tally.append(&events(8, 1, 1, 0));
    let totals = tally.count_bounded().unwrap().totals;
    let invalid = InvalidReason::ALL.iter().map(|reason| totals.invalid(*reason));
    assert_eq!(invalid.collect::<Vec<_>>(), [1, 1, 1, 1]);
    assert_eq!((totals.records, totals.counted, totals.control), (8, 3, 1));
}

/// B41: it is counted as late and changes no row.
#[test]
fn an_event_twenty_minutes_late_is_counted_as_late_only() {
    let mut tally = Deployment::new(2, 2);
    tally.append(&events(1, 5, 1, 0));
    let running = tally.start();
    running.pass(20 * MINUTE_MS);
    running.settle();
    let before = tally.row(T0).unwrap();
    let received_ms = T0 + 20 * MINUTE_MS;
    tally.append(&[event(10, 1, T0 + 30_000, received_ms), event(10, 1, T0, received_ms)]);
    running.until("both are read", |p| p.totals().records == 7);
    running.pass(HOUR_MS);
    running.settle();
    let totals = running.stop().totals;
    assert_eq!((totals.counted, totals.late, totals.repeats), (5, 1, 1));
    assert_eq!(tally.row(T0), Some(before));
}

#[test]
fn an_event_read_after_its_minute_retired_is_a_straggler() {
    let mut tally = Deployment::new(2, 2);
    tally.append(&events(1, 5, 1, 0));
    let running = tally.start();
    running.pass(RETIRE_MS + 2 * MINUTE_MS);
    tally.append(&events(10, 3, 1, 0));
    running.until("it is read", |p| p.totals().straggler == 3);
    assert_eq!(running.stop().totals.counted, 5);
    assert_eq!(tally.cells(), cells(&[(0, 1, 5)]));
}

// --- watermarks

/// B35: a minute is readable about three minutes after it began, whatever partitions are empty.
#[test]
fn partitions_that_never_had_a_record_hold_nothing_back() {
    let mut tally = Deployment::new(4, 2);
    let all = events(1, 100, 1, 2);
    let some: Vec<_> = all.into_iter().filter(|event| tally.home(event) < 2).collect();
    let running = tally.start();
    tally.append(&some);
    running.until("the minute is readable", |p| p.readable_up_to_ms() >= Some(T0 + 3 * MINUTE_MS));
    let now_ms = tally_model::clock::Clock::now_ms(tally.clock.as_ref());
    assert!(now_ms <= T0 + 5 * MINUTE_MS + 5_000, "three minutes after it began");
    let count = u64::try_from(some.len()).unwrap();
    assert_eq!(tally.cells(), cells(&[(2, 1, count)]));
    running.stop();
}

/// B36: nothing is late although half of the workers have nothing to read.
#[test]
fn workers_without_partitions_neither_hold_back_nor_advance() {
    let mut tally = Deployment::new(2, 4);
    let running = tally.start();
    for id in 0..100 {
        let received_ms = T0 + 2 * MINUTE_MS + i64::try_from(id * 977 % 90_000).unwrap();
        tally.append(&[event(id, 1, received_ms - 500, received_ms)]);
    }
    running.until("all are read", |p| p.totals().records == 100);
    running.pass(10 * MINUTE_MS);
    running.settle();
    let report = running.stop();
    assert_eq!((report.totals.counted, report.totals.late), (100, 0));
    assert_eq!(tally.cells().values().sum::<u64>(), 100);
}

/// A deployment whose last partition gives readers only what the gate allows, at first nothing.
fn gated(partitions: u32, workers: usize) -> (Deployment, Gate) {
    let mut tally = Deployment::new(partitions, workers);
    let gate = Gate::default();
    let log = Arc::clone(&tally.log);
    tally.seen_log = Arc::new(GatedLog { log, gated: vec![partitions - 1], gate: gate.clone() });
    (tally, gate)
}

/// B37: idle is who has read to the end of the log, not who has delivered nothing for long.
#[test]
fn a_slow_reader_is_not_an_idle_partition() {
    for workers in [1, 2] {
        let (mut tally, gate) = gated(2, workers);
        let running = tally.start();
        running.pass(0);
        let all = events(1, 50, 1, 1);
        tally.append(&all);
        let watermark_ms = running.progress.watermark_ms();
        tally.clock.advance(2 * HOUR_MS);
        let reachable = u64::try_from(all.iter().filter(|e| tally.home(e) == 0).count()).unwrap();
        running.until("the other is read", |p| p.totals().records == reachable);
        for _ in 0..50 {
            running.until("time passes", |_| true);
            tally.clock.advance(MINUTE_MS);
        }
        assert!(running.progress.watermark_ms() <= watermark_ms.max(Some(T0 + 62_000)));
        gate.open();
        running.until("all are read", |p| p.totals().records == 50);
        running.pass(0);
        running.settle();
        let report = running.stop();
        assert_eq!(report.totals.straggler + report.totals.late, 0);
        assert_eq!(tally.cells(), cells(&[(1, 1, 50)]));
    }
}

#[test]
fn right_after_a_start_every_partition_counts_even_unread() {
    let (mut tally, gate) = gated(2, 2);
    let old = events(1, 50, 1, 1);
    tally.append(&old);
    let young = events(100, 50, 1, 120);
    tally.append(&young);
    tally.clock.advance(3 * HOUR_MS);
    let running = tally.start();
    let all = old.iter().chain(&young);
    let first = u64::try_from(all.filter(|e| tally.home(e) == 0).count()).unwrap();
    running.until("the first partition is read", |p| p.totals().records == first);
    assert_eq!(running.progress.watermark_ms(), None);
    gate.open();
    running.until("all are read", |p| p.totals().records == 100);
    running.pass(0);
    running.settle();
    assert_eq!(running.stop().totals.straggler, 0);
    assert_eq!(tally.cells(), cells(&[(1, 1, 50), (120, 1, 50)]));
}

#[test]
fn a_collector_with_a_fast_clock_does_not_move_the_watermark_past_now() {
    let mut tally = Deployment::new(1, 1);
    let running = tally.start();
    let fast_ms = T0 + 2 * HOUR_MS;
    tally.append(&[event(1, 1, T0 + 2 * MINUTE_MS, fast_ms)]);
    running.until("it is read", |p| p.totals().records == 1);
    tally.append(&events(10, 600, 1, 2));
    running.until("all are read", |p| p.totals().records == 601);
    running.pass(10 * MINUTE_MS);
    let now_ms = tally_model::clock::Clock::now_ms(tally.clock.as_ref());
    assert!(running.progress.watermark_ms() <= Some(now_ms));
    running.settle();
    let report = running.stop();
    // By its own stamps the first one is late: that is decided by the record alone.
    assert_eq!((report.totals.counted, report.totals.late), (600, 1));
}

// --- several runs

#[test]
fn a_bounded_run_leaves_room_for_events_that_are_still_on_time() {
    let mut tally = Deployment::new(2, 2);
    tally.clock.advance(10 * MINUTE_MS);
    tally.append(&events(1, 10, 1, 0));
    tally.append(&events(20, 10, 1, 9));
    let report = tally.count_bounded().unwrap();
    assert_eq!(tally.cells(), cells(&[(0, 1, 10), (9, 1, 10)]), "every minute is put");
    assert_eq!(report.readable_up_to_ms, Some(T0 + 7 * MINUTE_MS), "by the stamps");
    assert!(report.retired_up_to_ms < Some(T0));
    let rows = tally.rows();
    assert_eq!(rows.len(), 10, "also the quiet minutes up to the last stamp");

    let running = tally.start();
    tally.append(&events(40, 5, 1, 0));
    tally.append(&events(50, 5, 1, 9));
    running.pass(HOUR_MS);
    running.settle();
    let report = running.stop();
    assert_eq!((report.totals.counted, report.totals.straggler), (30, 0));
    assert_eq!(tally.cells(), cells(&[(0, 1, 15), (9, 1, 15)]));
    for before in rows {
        let after = tally.row(before.small.bucket.start_ms()).unwrap();
        assert!(!after.vector.lowers(&before.vector));
        assert!(after.small.revision > before.small.revision);
    }
}

#[test]
fn rows_that_lay_below_the_retired_mark_are_not_written_again() {
    let mut tally = Deployment::new(2, 2);
    tally.append(&events(1, 10, 1, 0));
    let running = tally.start();
    running.pass(HOUR_MS);
    running.settle();
    let report = running.stop();
    let retired_ms = report.retired_up_to_ms.unwrap();
    let before = tally.rows();
    let running = tally.start();
    running.pass(MINUTE_MS);
    running.settle();
    running.stop();
    for old in before {
        let start_ms = old.small.bucket.start_ms();
        let new = tally.row(start_ms).unwrap();
        if old.small.bucket.end_ms() <= retired_ms {
            assert_eq!(new, old, "left alone");
        } else {
            assert_eq!(new.small.revision.generation().number(), 2, "taken over");
            assert_eq!(new.small.written_at_ms, old.small.written_at_ms);
            assert_eq!(new.vector, old.vector);
        }
    }
}

#[test]
fn readers_never_see_a_closed_minute_fall_across_a_restart() {
    let (mut tally, gate) = gated(1, 2);
    gate.open();
    // 60 events of minute 0, one that closes it, then 40 more that are still on time.
    tally.clock.advance(4 * MINUTE_MS);
    tally.append(&events(1, 60, 1, 0));
    tally.append(&events(100, 1, 2, 4));
    tally.append(&events(200, 40, 1, 0));
    let running = tally.start();
    running.pass(0);
    running.settle();
    running.stop();
    assert_eq!(tally.cells(), cells(&[(0, 1, 100)]));
    let first = tally.row(T0).unwrap();

    // The replay closes the minute when it has seen only the first 61.
    gate.allow(61);
    let running = tally.start();
    running.until("its row is held", |p| p.held_rows() == 1);
    assert_eq!(tally.row(T0).as_ref(), Some(&first));
    assert!(!running.progress.caught_up());
    gate.open();
    running.until("it has caught up", |p| {
        assert_eq!(tally.row(T0).unwrap().vector, first.vector);
        p.caught_up()
    });
    running.until("it has its own row", |_| tally.row(T0).as_ref() != Some(&first));
    let second = tally.row(T0).unwrap();
    assert_eq!(
        (second.vector, second.small.written_at_ms),
        (first.vector, first.small.written_at_ms)
    );
    assert_eq!(running.progress.held_rows(), 0);
    assert_eq!(running.stop().rows.withheld, 0);
}

/// Stores a row as some other writer would.
fn store_row(tally: &Deployment, minute: i64, revision: Revision, counts: &[u64]) -> Row {
    let vector = CountVector::from_counts(counts.to_vec());
    let small = SmallRow {
        bucket: Bucket::minute(T0 + minute * MINUTE_MS),
        revision,
        writer: WriterId(99),
        written_at_ms: T0,
        source: RowSource::Stream,
        digest: 0,
        width: u32::try_from(vector.width()).unwrap(),
    };
    let row = Row { small, vector };
    tally.counts.put_many(&[(row.clone(), PutCondition::Below)]).remove(0).unwrap();
    row
}

fn streaming(generation: u32) -> Revision {
    Revision::streaming(Generation::new(generation).unwrap(), T0).unwrap()
}

#[test]
fn a_stored_count_is_never_lowered() {
    let mut tally = Deployment::new(1, 1);
    tally.parts();
    tally.append(&events(1, 3, 1, 0));
    let stored = store_row(&tally, 0, streaming(1), &[0, 5]);
    let running = tally.start();
    running.pass(HOUR_MS);
    running.settle();
    let report = running.stop();
    assert_eq!(report.rows.withheld, 1);
    assert_eq!(tally.row(T0), Some(stored));
    assert!(report.retired_up_to_ms > Some(T0 + MINUTE_MS), "it does not block the mark");
}

#[test]
fn a_recomputed_row_is_left_alone() {
    let mut tally = Deployment::new(1, 1);
    tally.append(&events(1, 3, 1, 0));
    let stored = store_row(&tally, 0, Revision::recomputed(T0).unwrap(), &[0, 2]);
    let running = tally.start();
    running.pass(HOUR_MS);
    running.settle();
    let report = running.stop();
    assert_eq!(report.rows.refused, 1);
    assert_eq!(tally.row(T0), Some(stored));
    assert!(report.retired_up_to_ms > Some(T0 + MINUTE_MS));
}

#[test]
fn a_row_of_a_later_start_ends_the_run() {
    let mut tally = Deployment::new(2, 2);
    tally.append(&events(1, 3, 1, 0));
    store_row(&tally, 0, streaming(7), &[0, 2]);
    let running = tally.start();
    tally.clock.advance(MINUTE_MS + CLOSE_MS);
    let stop = Arc::clone(&running.stop);
    let outcome = running.wait();
    let Err(CountError::Fenced { ours, theirs }) = outcome else {
        panic!("not fenced: {outcome:?}");
    };
    assert_eq!((ours.number(), theirs.number()), (1, 7));
    assert!(!stop.is_stopped(), "the caller's signal is the caller's");
}

#[test]
fn a_hole_is_refused_with_its_exact_ranges_unless_accepted() {
    let mut tally = Deployment::new(2, 1);
    tally.clock.advance(DAY_MS);
    let all = events(1, 40, 1, 0);
    tally.append(&all);
    let in_first = u64::try_from(all.iter().filter(|e| tally.home(e) == 0).count()).unwrap();
    tally.log.remove_before(0, 2);
    let report = tally.count_bounded().unwrap();
    assert_eq!(report.totals.records, 38, "nothing was counted before: no hole");
    tally.log.remove_before(0, in_first);
    let Err(CountError::Hole { ranges }) = tally.count_bounded() else {
        panic!("a hole must be refused");
    };
    assert_eq!(ranges, [MissingRange { partition: 0, from: 0, to: in_first }]);
    tally.options.accept_hole = true;
    let report = tally.count_bounded().unwrap();
    assert_eq!(report.totals.records, 40 - in_first);
    assert_eq!(report.rows.withheld, 1);
    assert_eq!(tally.cells(), cells(&[(0, 1, 38)]), "nothing fell");
}

// --- stores that fail

fn flaky(workers: usize) -> (Deployment, Arc<FlakyCounts>) {
    let mut tally = Deployment::new(2, workers);
    let counts = Arc::new(FlakyCounts::default());
    tally.counts = Arc::<FlakyCounts>::clone(&counts);
    (tally, counts)
}

#[test]
fn counting_goes_on_while_the_store_is_down() {
    let (mut tally, store) = flaky(2);
    store.set(Some(Fault::Down));
    let running = tally.start();
    tally.append(&events(1, 50, 1, 1));
    running.pass(HOUR_MS);
    running.until("the store was asked", |p| p.store_errors() > 2);
    assert_eq!(running.progress.totals().counted, 50);
    assert_eq!(running.progress.retired_up_to_ms(), None, "nothing is stored");
    store.set(None);
    running.settle();
    running.until("minutes retire", |p| p.retired_up_to_ms() > Some(T0 + 2 * MINUTE_MS));
    assert_eq!(tally.cells(), cells(&[(1, 1, 50)]));
    running.stop();
}

#[test]
fn an_unknown_outcome_is_read_back() {
    let (mut tally, store) = flaky(1);
    tally.clock.advance(DAY_MS);
    tally.append(&events(1, 50, 1, 1));
    store.set(Some(Fault::AnswerLost));
    tally.count_bounded().unwrap();
    assert_eq!(tally.cells(), cells(&[(1, 1, 50)]));
    let row = tally.row(T0 + MINUTE_MS).unwrap();
    assert_eq!(row.small.writer, WriterId(1));
}

#[test]
fn a_retired_row_that_is_not_there_is_put_again_and_alarmed() {
    let (mut tally, store) = flaky(1);
    store.set(Some(Fault::Forgetful));
    tally.append(&events(1, 50, 1, 1));
    let running = tally.start();
    running.pass(HOUR_MS);
    running.until("the row is missed", |p| p.misread_rows() > 0);
    assert!(running.progress.retired_up_to_ms().is_none_or(|mark| mark <= T0));
    store.set(None);
    running.until("it is retired", |p| p.retired_up_to_ms() > Some(T0 + 2 * MINUTE_MS));
    assert_eq!(tally.cells(), cells(&[(1, 1, 50)]));
    running.stop();
}

#[test]
fn a_bounded_run_with_a_dead_store_ends_with_an_error() {
    let (mut tally, store) = flaky(1);
    tally.clock.advance(DAY_MS);
    tally.append(&events(1, 1, 1, 1));
    store.set(Some(Fault::Down));
    let parts = tally.parts();
    let progress = Arc::clone(&parts.progress);
    let options = crate::CountOptions { mode: Mode::Bounded, ..tally.options };
    let outcome = crate::run::run_with_patience(parts, options, 3);
    assert!(matches!(outcome, Err(CountError::Store(_))), "{outcome:?}");
    assert_eq!(progress.store_errors(), 3);
}

// --- the rest

#[test]
fn a_run_stops_at_once_whatever_it_is_doing() {
    for workers in [1, 3] {
        let mut tally = Deployment::new(3, workers);
        let idle = tally.start();
        idle.pass(0);
        idle.stop();
        tally.append(&events(1, 50_000, 1, 1));
        tally.options.budget_records = 1;
        let busy = tally.start();
        busy.until("it counts", |p| p.totals().counted > 0);
        assert!(busy.stop().totals.counted <= 50_000);
    }
}

#[test]
fn a_stop_with_a_dead_store_is_prompt_too() {
    let (mut tally, store) = flaky(2);
    store.set(Some(Fault::Down));
    let running = tally.start();
    tally.append(&events(1, 50, 1, 1));
    running.pass(HOUR_MS);
    running.until("the store was asked", |p| p.store_errors() > 2);
    running.stop();
}

#[test]
fn a_panic_on_any_thread_ends_the_run() {
    let (mut tally, gate) = gated(2, 2);
    tally.append(&events(1, 50, 1, 1));
    let running = tally.start();
    running.until("the first partition is read", |p| p.totals().records > 0);
    gate.poison();
    let outcome = running.wait();
    assert!(
        matches!(&outcome, Err(CountError::Panicked { thread }) if thread == "worker 1"),
        "{outcome:?}"
    );

    let (mut tally, store) = flaky(2);
    tally.append(&events(1, 50, 1, 1));
    store.set(Some(Fault::Panics));
    let running = tally.start();
    tally.clock.advance(HOUR_MS);
    let outcome = running.wait();
    assert!(
        matches!(&outcome, Err(CountError::Panicked { thread }) if thread == "the writer"),
        "{outcome:?}"
    );
}

#[test]
fn load_is_even_when_one_type_has_most_of_the_traffic() {
    let mut tally = Deployment::new(4, 2);
    tally.clock.advance(DAY_MS);
    let all: Vec<_> = (0..40_000)
        .map(|id| {
            event(id, if id % 5 < 2 { 1 } else { 2 + u16::try_from(id % 7).unwrap() }, T0, T0)
        })
        .collect();
    tally.append(&all);
    let counted = tally.count_bounded().unwrap().counted_by_worker;
    assert_eq!(counted.iter().sum::<u64>(), 40_000);
    let (least, most) = (counted.iter().min().unwrap(), counted.iter().max().unwrap());
    assert!(most * 10 <= least * 11, "{counted:?}");
}

#[test]
fn a_tight_budget_changes_nothing() {
    for workers in [1, 2] {
        let mut tally = Deployment::new(2, workers);
        tally.clock.advance(DAY_MS);
        tally.options.budget_records = 100;
        let all: Vec<_> = (0..20_000).map(|id| event(id, 1, T0, T0)).collect();
        tally.append(&all);
        tally.count_bounded().unwrap();
        assert_eq!(tally.cells(), cells(&[(0, 1, 20_000)]));
    }
}

#[test]
fn measuring_stages_count_nothing() {
    let mut tally = Deployment::new(2, 2);
    tally.clock.advance(DAY_MS);
    let mut all = events(1, 100, 1, 0);
    all.extend(events(1, 10, 1, 0));
    tally.append(&all);
    for (stages, repeats) in [(Stages::Decode, 0), (Stages::Dedup, 10)] {
        tally.options.stages = stages;
        let totals = tally.count_bounded().unwrap().totals;
        assert_eq!((totals.records, totals.counted, totals.repeats), (110, 0, repeats));
    }
    assert!(tally.counts.is_empty().unwrap());
}

#[test]
fn no_worker_is_refused() {
    let mut tally = Deployment::new(1, 1);
    tally.options.workers = 0;
    assert!(matches!(tally.count_bounded(), Err(CountError::Start { .. })));
}
