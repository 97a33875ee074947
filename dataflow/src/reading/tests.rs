use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tally_model::bucket::MINUTE_MS;

use super::*;
use crate::options::CountOptions;
use crate::shared::Start;
use crate::testing::{Deployment, T0, UnsteadyLog, event};

/// The reading of one worker of a deployment whose run starts now.
fn reading(tally: &mut Deployment, mode: Mode, worker: usize) -> Reading {
    let start = Start {
        from: tally.log.low_offsets().unwrap(),
        end: tally.log.end_offsets().unwrap(),
        first_minute_ms: T0,
        ..Start::default()
    };
    let options = CountOptions { mode, ..tally.options };
    Reading::open(&Shared::new(tally.parts(), options, start), worker).unwrap()
}

fn ids(batches: impl Iterator<Item = ShardBatch>) -> Vec<(Shard, Vec<MixedId>)> {
    batches.map(|b| (b.shard, b.ids.into_iter().map(|(id, _)| id).collect())).collect()
}

#[test]
fn events_come_by_shard_in_log_order() {
    let mut tally = Deployment::new(2, 1);
    let events: Vec<_> = (0..200).map(|id| event(id % 150, 1, T0, T0)).collect();
    tally.append(&events);
    let mut reading = reading(&mut tally, Mode::Continuous, 0);
    assert_eq!(reading.read().unwrap(), 200);
    let batches: Vec<_> = ids(reading.take_batches());
    for (shard, got) in batches {
        let mixed = events.iter().map(|event| tally.mixer.mix(event.id));
        let want: Vec<_> = mixed.filter(|id| id.shard(tally.options.shards) == shard).collect();
        assert_eq!(got, want);
    }
    assert_eq!(ids(reading.take_batches()), [], "handed out once");
    assert_eq!(reading.take_tally().records, 200);
    assert_eq!(reading.take_tally(), Totals::default());
}

#[test]
fn a_bounded_reading_stops_where_the_log_ended_at_the_start() {
    let mut tally = Deployment::new(1, 1);
    tally.append(&[event(1, 1, T0, T0 + 5)]);
    let mut reading = reading(&mut tally, Mode::Bounded, 0);
    tally.append(&[event(2, 1, T0, T0 + 9)]);
    assert!(!reading.is_exhausted());
    reading.read().unwrap();
    assert_eq!(ids(reading.take_batches()).len(), 1);
    assert_eq!(reading.take_tally().records, 1);
    assert!(reading.is_exhausted());
    let report = reading.report().unwrap();
    assert_eq!((report.hold, report.greatest_ms), (Hold::Nothing, Some(T0 + 5)));
    assert!(report.caught_up);
}

#[test]
fn an_unread_partition_is_unknown_and_an_empty_one_stands_at_now() {
    let mut tally = Deployment::new(2, 2);
    tally.options.workers = 2;
    let at_home = (0..).map(|id| event(id, 1, T0, T0 + 7)).find(|event| tally.home(event) == 0);
    tally.append(&[at_home.unwrap()]);
    let now_ms = T0 + MINUTE_MS;
    let mut unread = reading(&mut tally, Mode::Continuous, 0);
    assert_eq!(unread.report().unwrap().hold, Hold::Unknown);
    assert!(!unread.report().unwrap().caught_up);
    let mut empty = reading(&mut tally, Mode::Continuous, 1);
    let report = empty.report().unwrap();
    assert_eq!((report.hold, report.caught_up), (Hold::At(now_ms), true));
    unread.read().unwrap();
    assert_eq!(unread.report().unwrap().hold, Hold::At(now_ms), "read to its end");
}

#[test]
fn a_worker_without_partitions_reads_nothing_and_holds_nothing() {
    let mut tally = Deployment::new(1, 3);
    let mut reading = reading(&mut tally, Mode::Continuous, 2);
    assert_eq!(reading.read().unwrap(), 0);
    assert!(reading.is_exhausted());
    let report = reading.report().unwrap();
    assert_eq!((report.hold, report.greatest_ms, report.caught_up), (Hold::Nothing, None, true));
}

#[test]
fn the_partitions_of_all_workers_are_all_partitions() {
    let mut tally = Deployment::new(7, 3);
    let read: usize = (0..3)
        .map(|worker| reading(&mut tally, Mode::Continuous, worker).decoder.partitions.len())
        .sum();
    assert_eq!(read, 7);
    assert_eq!(Arc::strong_count(&tally.log), 2, "no reader is left");
}

#[test]
fn a_log_out_of_reach_holds_the_watermark_until_it_answers_again() {
    let mut tally = Deployment::new(1, 1);
    tally.append(&[event(1, 1, T0, T0 + 5)]);
    let away = Arc::new(AtomicBool::new(true));
    let mut parts = tally.parts();
    parts.log = Arc::new(UnsteadyLog { log: parts.log, away: Arc::clone(&away) });
    let start = Start { from: vec![0], end: vec![1], first_minute_ms: T0, ..Start::default() };
    let options = CountOptions { mode: Mode::Continuous, ..tally.options };
    let mut reading = Reading::open(&Shared::new(parts, options, start), 0).unwrap();
    assert_eq!(reading.read().unwrap(), 0);
    assert_eq!(reading.report().unwrap().hold, Hold::Unknown);

    away.store(false, Ordering::SeqCst);
    assert_eq!(reading.read().unwrap(), 1);
    let read_ms = tally.clock.now_ms();
    assert_eq!(reading.report().unwrap().hold, Hold::At(read_ms), "read to its end");

    away.store(true, Ordering::SeqCst);
    tally.clock.advance(MINUTE_MS);
    assert_eq!(reading.report().unwrap().hold, Hold::At(read_ms), "nobody knows of later records");
    away.store(false, Ordering::SeqCst);
    assert_eq!(reading.report().unwrap().hold, Hold::At(read_ms + MINUTE_MS));
}
