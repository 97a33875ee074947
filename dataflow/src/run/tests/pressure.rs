//! What is on its way is bounded, whatever is slow (CNT-8).

use super::*;
use crate::testing::{MeasuredLog, Meter, Running, StuckCounts, StuckSegments};

const RECORDS_A_READ: usize = 50;

/// Lets the log give few records at once, and measures what is on its way.
fn measured(tally: &mut Deployment) -> Arc<Meter> {
    let meter = Arc::<Meter>::default();
    tally.seen_log = Arc::new(MeasuredLog {
        log: Arc::clone(&tally.seen_log),
        records_a_read: RECORDS_A_READ,
        meter: Arc::clone(&meter),
    });
    meter
}

/// What the sources may have read without knowing what became of it: each reads once more when it
/// is just below its budget.
fn bound(budget: usize, workers: usize) -> u64 {
    u64::try_from(workers * (budget - 1 + RECORDS_A_READ)).unwrap()
}

/// Some time, by the clock of the run.
fn wait(running: &Running) {
    let mut ticks = 0;
    running.until("time passes", |_| {
        ticks += 1;
        ticks > 100
    });
}

#[test]
fn a_replay_at_full_speed_has_no_more_on_its_way_than_its_budget() {
    let by_records = |options: &mut crate::CountOptions| options.budget_records = 300;
    let by_bytes = |options: &mut crate::CountOptions| {
        options.budget_bytes = 300 * crate::reading::EVENT_BYTES;
    };
    for (workers, budget) in [1, 2, 3].into_iter().zip([by_records, by_bytes, by_records]) {
        let mut tally = Deployment::new(4, workers);
        tally.clock.advance(DAY_MS);
        budget(&mut tally.options);
        let meter = measured(&mut tally);
        tally.append(&(0..30_000).map(|id| event(id, 1, T0, T0)).collect::<Vec<_>>());
        let parts = tally.parts();
        meter.progress.set(Arc::clone(&parts.progress)).unwrap();
        let options = crate::CountOptions { mode: Mode::Bounded, ..tally.options };
        crate::run(parts, options).unwrap();
        assert_eq!(tally.cells(), cells(&[(0, 1, 30_000)]));
        let (most, bound) = (meter.most(), bound(300, workers));
        assert!(most <= bound, "{most} records were on their way, {bound} may be");
    }
}

#[test]
fn a_worker_that_stands_still_is_not_flooded_by_the_others() {
    let mut tally = Deployment::new(4, 3);
    tally.clock.advance(MINUTE_MS);
    tally.options.budget_records = 300;
    let store = Arc::new(StuckSegments { shard: Shard(1), door: Default::default() });
    tally.segments = Arc::<StuckSegments>::clone(&store);
    let meter = measured(&mut tally);
    let all = events(1, 60_000, 1, 0);
    tally.append(&all);
    store.door.shut();
    let running = tally.start();
    meter.progress.set(Arc::clone(&running.progress)).unwrap();
    running.until("a worker stands still", |_| store.door.is_waited_for());
    wait(&running);
    let read = running.progress.totals().records;
    wait(&running);
    assert_eq!(running.progress.totals().records, read, "the sources wait");
    assert!(read < 60_000);
    store.door.open();
    running.until("all are counted", |p| p.totals().counted == 60_000);
    running.pass(HOUR_MS);
    running.settle();
    running.stop();
    assert_eq!(tally.cells(), cells(&[(0, 1, 60_000)]));
    let (most, bound) = (meter.most(), bound(300, 3));
    assert!(most <= bound, "{most} records were on their way, {bound} may be");
}

/// Appends events minute by minute, as time goes on, until more minutes wait than may. Returns the
/// events.
fn fill(tally: &Deployment, running: &Running, is_full: impl Fn() -> bool) -> Vec<LoggedEvent> {
    let mut all = Vec::new();
    for minute in 1..600 {
        let now_ms = T0 + minute * MINUTE_MS;
        let more = events(u64::try_from(minute).unwrap() * 10, 5, 1, minute - 1);
        tally.clock.step_to(now_ms);
        tally.append(&more);
        all.extend(more);
        let want = u64::try_from(all.len()).unwrap();
        running.until("they are read or wait", |p| p.totals().records == want || is_full());
        if is_full() {
            return all;
        }
    }
    panic!("hours of events were read and nothing waits: {:?}", running.progress);
}

/// The sources have stopped: hours of events come and none is read. They go on when `mend` has
/// mended the store, and nothing is lost.
fn stops_and_goes_on(tally: &Deployment, running: Running, all: &[LoggedEvent], mend: impl Fn()) {
    wait(&running);
    let read = running.progress.totals().records;
    let first = all.last().map_or(0, |last| (last.event_time_ms - T0) / MINUTE_MS + 1);
    let later: Vec<_> = (first..first + 300)
        .flat_map(|minute| events(u64::try_from(minute).unwrap() * 10 + 5, 3, 2, minute))
        .collect();
    tally.clock.step_to(T0 + (first + 301) * MINUTE_MS);
    tally.append(&later);
    wait(&running);
    assert_eq!(running.progress.totals().records, read, "nothing is read");
    mend();
    let all: Vec<_> = all.iter().chain(&later).copied().collect();
    let records = u64::try_from(all.len()).unwrap();
    running.until("all are read", |p| p.totals().records == records);
    running.pass(HOUR_MS);
    running.settle();
    let report = running.stop();
    assert_eq!(report.totals.counted, records);
    assert_eq!(tally.cells(), streaming_cells(&tally.truth(&all)));
}

const WAIT_MINUTES: u64 = 60;

#[test]
fn sources_stop_when_a_dead_store_lets_too_many_minutes_wait_and_go_on_afterwards() {
    for workers in [1, 3] {
        let (mut tally, store) = flaky(workers);
        tally.options.windows_wait_minutes = usize::try_from(WAIT_MINUTES).unwrap();
        let running = tally.start();
        running.pass(0);
        store.set(Some(Fault::Down));
        let is_full = || running.progress.waiting_rows() > WAIT_MINUTES;
        let all = fill(&tally, &running, is_full);
        let minutes = u64::try_from(all.len()).unwrap() / 5;
        assert!((WAIT_MINUTES..WAIT_MINUTES + 10).contains(&minutes), "{minutes} were read");
        stops_and_goes_on(&tally, running, &all, || store.set(None));
    }
}

/// The writer hangs in the call and shows nothing; what was delivered meanwhile counts.
#[test]
fn sources_stop_when_a_store_hangs_and_go_on_afterwards() {
    let mut tally = Deployment::new(2, 2);
    let store = Arc::new(StuckCounts::default());
    tally.counts = Arc::<StuckCounts>::clone(&store);
    tally.options.windows_wait_minutes = usize::try_from(WAIT_MINUTES).unwrap();
    let running = tally.start();
    running.pass(0);
    store.door.shut();
    let ticks = std::cell::Cell::new((0, 0));
    let all = fill(&tally, &running, || {
        // Nothing was read for a long time although there is something.
        let (records, for_ticks) = ticks.get();
        let now = running.progress.totals().records;
        ticks.set(if now == records { (now, for_ticks + 1) } else { (now, 0) });
        for_ticks > 2_000
    });
    assert!(store.door.is_waited_for());
    let minutes = u64::try_from(all.len()).unwrap() / 5;
    assert!((WAIT_MINUTES..WAIT_MINUTES + 20).contains(&minutes), "{minutes} were read");
    stops_and_goes_on(&tally, running, &all, || store.door.open());
}

#[test]
fn a_bounded_run_whose_sources_wait_for_a_dead_store_ends_with_an_error() {
    let (mut tally, store) = flaky(1);
    tally.clock.advance(DAY_MS);
    tally.options.windows_wait_minutes = 5;
    // A stamp ends after each read, so that minutes close while there is more to read.
    tally.options.budget_records = 1;
    let meter = measured(&mut tally);
    let minutes = (0_u32..600).map(|n| events(u64::from(n) * 10, 5, 1, i64::from(n)));
    tally.append(&minutes.flatten().collect::<Vec<_>>());
    store.set(Some(Fault::Down));
    let parts = tally.parts();
    let progress = Arc::clone(&parts.progress);
    meter.progress.set(Arc::clone(&progress)).unwrap();
    let options = crate::CountOptions { mode: Mode::Bounded, ..tally.options };
    let outcome = crate::run::run_with_patience(parts, options, 3);
    assert!(matches!(outcome, Err(CountError::Store(_))), "{outcome:?}");
    assert!(progress.totals().records < 3_000, "it did not wait for room");
}
