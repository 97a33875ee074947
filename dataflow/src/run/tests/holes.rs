//! Retention that is faster than the reader: LOG-5.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use tally_checkpoints::objects::MemoryObjects;
use tally_sinks::dirty::{self, DirtyHour};

use super::*;

/// A deployment with checkpoints whose second partition is not read before the gate opens, and
/// events of two hours, of which most of its first hour are removed unread.
struct Overtaken {
    tally: Deployment,
    gate: Gate,
    meta_is_away: Arc<AtomicBool>,
    running: crate::testing::Running,
    /// Records of the open partition.
    open: u64,
    missing: MissingRange,
    /// What is still there.
    left: Vec<LoggedEvent>,
}

fn overtaken(accept_hole: bool) -> Overtaken {
    let (mut tally, gate) = gated(2, 2);
    let meta_is_away = tally.unsteady_meta();
    tally.objects = Some(Arc::new(MemoryObjects::default()));
    tally.options.checkpoint_every_ms = 200;
    tally.options.accept_hole = accept_hole;
    let mut all = events(1, 100, 1, 30);
    all.extend(events(101, 100, 2, 95));
    let behind = all[..100].iter().filter(|event| tally.home(event) == 1).count() - 10;
    let missing = MissingRange { partition: 1, from: 0, to: u64::try_from(behind).unwrap() };
    let (gone, left): (Vec<_>, Vec<_>) = {
        let mut number = 0;
        all.iter().partition(|event| {
            number += usize::from(tally.home(event) == 1);
            tally.home(event) == 1 && number <= behind
        })
    };
    let running = tally.start();
    running.pass(0);
    tally.clock.step_to(T0 + 2 * HOUR_MS);
    tally.append(&all);
    let open = u64::try_from(all.iter().filter(|event| tally.home(event) == 0).count()).unwrap();
    running.until("the open partition is read", |p| p.totals().records == open);
    tally.log.remove_before(1, missing.to);
    assert_eq!(gone.len(), behind);
    Overtaken { tally, gate, meta_is_away, running, open, missing, left }
}

fn hole_hours(tally: &Deployment) -> BTreeMap<i64, DirtyHour> {
    let mut hours = dirty::list(tally.meta.as_ref(), i64::MIN..i64::MAX).unwrap();
    hours.retain(|_, hour| hour.hole);
    hours
}

#[test]
fn a_reader_that_retention_overtakes_goes_on_behind_the_hole_and_its_hours_are_dirty() {
    let Overtaken { mut tally, gate, running, missing, left, .. } = overtaken(true);
    let removed = missing.to - missing.from;
    gate.open();
    running.until("all that is left is read", |p| p.totals().records == 200 - removed);
    assert_eq!(running.progress.missing_records(), removed);
    // An event that comes afterwards is counted as ever.
    let now_ms = tally_model::clock::Clock::now_ms(tally.clock.as_ref());
    let later: Vec<_> = (300..310).map(|id| event(id, 3, now_ms - 1_000, now_ms)).collect();
    tally.append(&later);
    running.until("all are read", |p| p.totals().records == 210 - removed);
    running.pass(HOUR_MS);
    running.settle();
    let report = running.stop();
    assert_eq!(report.totals.counted, 210 - removed);
    let all: Vec<_> = left.iter().chain(&later).copied().collect();
    assert_eq!(tally.cells(), streaming_cells(&tally.truth(&all)));
    // The watermark stood in the first minutes; what is left begins at half past.
    let hours = hole_hours(&tally);
    assert_eq!(hours.keys().copied().collect::<Vec<_>>(), [T0 - HOUR_MS, T0]);
    assert!(hours.values().all(|hour| hour.positions == [(1, missing.to)].into()));

    // The checkpoint stands behind the hole: it is neither met nor noted again.
    let running = tally.start();
    running.pass(0);
    assert_eq!(running.progress.missing_records(), 0);
    assert_eq!(running.stop().totals.records, 210 - removed);
    assert_eq!(hole_hours(&tally), hours);
}

#[test]
fn a_hole_that_is_not_accepted_ends_the_run_with_its_exact_range() {
    let Overtaken { tally, gate, running, open, missing, .. } = overtaken(false);
    let progress = Arc::clone(&running.progress);
    gate.open();
    let outcome = running.wait();
    let Err(CountError::Hole { ranges }) = outcome else {
        panic!("a hole must be refused: {outcome:?}");
    };
    assert_eq!(ranges, [missing]);
    assert_eq!((progress.totals().records, progress.missing_records()), (open, 0));
    assert!(hole_hours(&tally).is_empty());
}

/// What was read before the hole was met is neither lost nor read again, also within one read.
#[test]
fn what_was_read_before_a_hole_is_counted_once() {
    let (mut tally, gate) = gated(2, 1);
    tally.options.accept_hole = true;
    let running = tally.start();
    running.pass(0);
    let all = events(1, 400, 1, 1);
    tally.append(&all);
    let homes: Vec<_> = all.iter().map(|event| tally.home(event)).collect();
    let [open, behind] = [0, 1].map(|of| homes.iter().filter(|home| **home == of).count());
    running.until("the open one is read", |p| p.totals().records == u64::try_from(open).unwrap());
    gate.allow(7);
    let seven = u64::try_from(open + 7).unwrap();
    running.until("some are read", |p| p.totals().records == seven);
    tally.log.remove_before(1, 50);
    tally.append(&events(1_001, 100, 1, 1));
    gate.open();
    let left = u64::try_from(open + behind + 100 - 43).unwrap();
    running.until("all are read", |p| p.totals().records >= left);
    let report = running.stop();
    assert_eq!((report.totals.records, report.totals.counted), (left, left));
}

/// A checkpoint behind a hole that nobody was told of would hide it for ever.
#[test]
fn no_checkpoint_stands_behind_a_hole_before_its_hours_are_published() {
    let Overtaken { mut tally, gate, meta_is_away, running, missing, .. } = overtaken(true);
    meta_is_away.store(true, Ordering::SeqCst);
    gate.open();
    running.until("the hole is met", |p| p.missing_records() == missing.to);
    running.until("checkpoints fail", |p| p.checkpoints().failed_in_a_row() >= 3);
    running.stop.stop();
    let outcome = running.wait();
    assert!(matches!(outcome, Err(CountError::Store(_))), "{outcome:?}");
    assert!(hole_hours(&tally).is_empty());
    meta_is_away.store(false, Ordering::SeqCst);
    tally.count_bounded().unwrap();
    let hours = hole_hours(&tally);
    assert!(!hours.is_empty(), "found again from the last checkpoint");
    assert!(hours.values().all(|hour| hour.positions == [(1, missing.to)].into()));
}
