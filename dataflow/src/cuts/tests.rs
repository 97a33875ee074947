use super::*;

fn cuts(workers: usize) -> Cuts {
    Cuts::new(true, workers, 100, 0)
}

fn source(partition: Partition, next: Offset) -> SourceCut {
    let totals = Totals { records: next, ..Totals::default() };
    SourceCut { next_offsets: vec![(partition, next)], totals }
}

fn worker(watermark_ms: i64) -> WorkerCut {
    WorkerCut { watermark_ms: Some(watermark_ms), shards: Vec::new() }
}

#[test]
fn every_source_takes_exactly_the_announced_epoch_and_none_has_passed_it() {
    let cuts = cuts(2);
    let first = cuts.next_stamp(500, 0);
    let ahead = cuts.next_stamp(500, 507);
    assert_eq!((first, ahead), (500, 508));
    cuts.announce_regular(99);
    assert_eq!(cuts.announced(), None, "not yet due");
    cuts.announce_regular(100);
    assert_eq!(cuts.announced(), Some(509));
    assert_eq!(cuts.next_stamp(600, first), 509, "although the clock is further on");
    assert_eq!(cuts.next_stamp(600, ahead), 509);
    assert_eq!(cuts.next_stamp(600, 509), 600);
}

#[test]
fn a_cut_is_handed_over_once_everybody_has_given_their_part() {
    let cuts = cuts(2);
    cuts.announce_regular(100);
    cuts.take_source(0, source(0, 7));
    cuts.take_worker(1, worker(40));
    cuts.take_source(1, source(1, 9));
    assert!(cuts.announced().is_some());
    cuts.take_worker(0, worker(40));
    assert_eq!(cuts.announced(), None);
    let frozen = cuts.next().unwrap();
    assert_eq!(frozen.next_offsets, [(0, 7), (1, 9)].into());
    assert_eq!((frozen.totals.records, frozen.watermark_ms), (16, Some(40)));
}

#[test]
fn no_regular_cut_is_announced_while_one_is_uploaded() {
    let cuts = cuts(1);
    let announce = |now_ms| {
        cuts.announce_regular(now_ms);
        cuts.announced()
    };
    let give = || {
        cuts.take_source(0, source(0, 7));
        cuts.take_worker(0, worker(40));
    };
    assert!(announce(100).is_some());
    give();
    assert_eq!(announce(1_000), None, "it waits for its upload");
    assert!(cuts.next().is_some());
    assert_eq!(announce(1_000), None, "it is being uploaded");
    cuts.announce_last(1_000);
    assert!(cuts.announced().is_some(), "the last one waits for nobody");
    give();
    cuts.end(false);
    assert!(matches!(cuts.next(), Some(Frozen { purpose: Purpose::Last, .. })));
    assert!(cuts.next().is_none());
}

#[test]
fn a_source_that_has_left_takes_part_with_its_last_word() {
    let cuts = cuts(2);
    assert!(cuts.leave(0, source(0, 7)));
    assert!(!cuts.leave(1, source(1, 9)), "one has to stay");
    cuts.announce_last(0);
    cuts.take_source(1, source(1, 9));
    cuts.take_worker(0, worker(1));
    cuts.take_worker(1, worker(1));
    assert_eq!(cuts.next().unwrap().next_offsets, [(0, 7), (1, 9)].into());
}

#[test]
fn an_abandoned_run_uploads_nothing_more() {
    let cuts = cuts(1);
    cuts.announce_regular(100);
    cuts.take_source(0, source(0, 7));
    cuts.take_worker(0, worker(40));
    cuts.end(true);
    assert!(cuts.next().is_none());
}
