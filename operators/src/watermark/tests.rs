use proptest::prelude::*;

use super::*;

#[test]
fn a_partition_follows_its_stamps_but_never_passes_now() {
    let mut partition = PartitionWatermark::default();
    assert_eq!(partition.at(1_000), None, "before the first record nothing is known");
    partition.read(700);
    partition.read(600);
    assert_eq!(partition.at(1_000), Some(700));
    partition.read(999_999);
    assert_eq!(partition.at(1_000), Some(1_000), "a fast collector does not move it past now");
    assert_eq!(partition.at(900), Some(1_000), "a clock that steps back does not lower it");
}

#[test]
fn at_its_end_a_partition_stands_at_the_time_of_the_question() {
    let mut partition = PartitionWatermark::default();
    partition.read_to_end(5_000);
    assert_eq!(partition.at(6_000), Some(5_000));
    partition.read(4_000);
    assert_eq!(partition.at(6_000), Some(5_000), "a record from before the question");
}

fn report(worker: usize, hold: Hold, greatest_ms: Option<i64>) -> WatermarkReport {
    WatermarkReport { worker, hold, greatest_ms, caught_up: false }
}

#[test]
fn nothing_is_known_before_every_worker_has_reported() {
    let mut global = GlobalWatermark::new(2);
    global.take(report(0, Hold::At(9), Some(9)));
    assert_eq!(global.reached().watermark_ms, None);
    global.take(report(1, Hold::Unknown, None));
    assert_eq!(global.reached().watermark_ms, None);
    global.take(report(1, Hold::At(4), Some(4)));
    assert_eq!(global.reached().watermark_ms, Some(4));
}

#[test]
fn a_worker_without_partitions_holds_nobody_back_and_advances_nobody() {
    let mut global = GlobalWatermark::new(2);
    global.take(report(1, Hold::Nothing, None));
    assert_eq!(global.reached(), Reached::default());
    global.take(report(0, Hold::At(7), Some(7)));
    assert_eq!(global.reached().watermark_ms, Some(7));
    assert!(!global.reached().all_read);
}

#[test]
fn an_exhausted_partition_counts_for_nothing_until_all_are() {
    let mut global = GlobalWatermark::new(2);
    global.take(report(0, Hold::Nothing, Some(100)));
    global.take(report(1, Hold::At(40), Some(40)));
    let reached = global.reached();
    assert_eq!((reached.watermark_ms, reached.all_read), (Some(40), false));
    global.take(report(1, Hold::Nothing, Some(60)));
    let reached = global.reached();
    assert_eq!((reached.watermark_ms, reached.all_read), (Some(100), true));
}

#[test]
fn all_must_have_caught_up() {
    let mut global = GlobalWatermark::new(2);
    let caught_up =
        |worker| WatermarkReport { caught_up: true, ..report(worker, Hold::At(1), None) };
    global.take(caught_up(0));
    assert!(!global.reached().caught_up);
    global.take(caught_up(1));
    assert!(global.reached().caught_up);
}

proptest! {
    /// Whatever is reported in whatever order, the global watermark never falls.
    #[test]
    fn the_global_watermark_never_falls(
        reports in prop::collection::vec((0_usize..3, prop::option::of(0_i64..100)), 0..60),
    ) {
        let mut global = GlobalWatermark::new(3);
        let mut last = None;
        for (worker, hold) in reports {
            global.take(report(worker, hold.into(), hold));
            let now = global.reached().watermark_ms;
            prop_assert!(now >= last);
            last = now;
        }
    }
}

#[test]
fn a_restored_watermark_stands_before_any_report_and_is_never_undercut() {
    let mut global = GlobalWatermark::restored(1, Some(900));
    assert_eq!(global.reached().watermark_ms, Some(900));
    global.take(WatermarkReport {
        worker: 0,
        hold: Hold::At(100),
        greatest_ms: Some(100),
        caught_up: false,
    });
    assert_eq!(global.reached().watermark_ms, Some(900), "a replay starts with older records");
}
