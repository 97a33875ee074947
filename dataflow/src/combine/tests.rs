use tally_model::bucket::{HOUR_MS, MINUTE_MS};
use tally_model::ids::MixedId;
use tally_model::types::TypeId;
use tally_operators::watermark::Hold;
use timely::dataflow::operators::vec::Input;
use timely::dataflow::operators::{Capture, capture::Extract};

use super::*;
use crate::restore;
use crate::shared::Start;
use crate::testing::{Deployment, T0};

fn batch(id: u128, minute: i64, shared: &Shared) -> ShardBatch {
    let id = MixedId(id);
    let start_ms = T0 + minute * MINUTE_MS;
    ShardBatch {
        shard: id.shard(shared.options.shards),
        ids: vec![(id, start_ms)],
        cells: vec![(start_ms, TypeId(1))],
    }
}

fn report(watermark_ms: i64) -> WatermarkReport {
    WatermarkReport {
        worker: 0,
        hold: Hold::At(watermark_ms),
        greatest_ms: Some(watermark_ms),
        caught_up: false,
    }
}

fn shared() -> Arc<Shared> {
    let mut tally = Deployment::new(1, 1);
    // Only the differences of events are looked at: no quiet minute gets a marker.
    let first_minute_ms = T0 + 1_000 * HOUR_MS;
    let start = Start { from: vec![0], end: vec![0], first_minute_ms, ..Start::default() };
    Arc::new(Shared::new(tally.parts(), tally.options, start))
}

fn counts(shared: &Shared) -> LocalCounts {
    let shards = restore::shards(shared, 0).unwrap();
    LocalCounts::new(0, &shared.options, shards, shared.start.first_minute_ms, None)
}

/// What came out, as (epoch, minute, difference).
fn plain(partials: impl IntoIterator<Item = Partial>) -> Vec<(Epoch, i64, i64)> {
    let minutes = (0..100).map(|minute| (minute, Cell::of(T0 + minute * MINUTE_MS, TypeId(1))));
    let minutes: Vec<_> = minutes.collect();
    let minute = |cell| minutes.iter().find(|(_, other)| *other == cell).unwrap().0;
    partials.into_iter().map(|(cell, epoch, by)| (epoch, minute(cell), by)).collect()
}

/// Both inputs must have passed an epoch before its minutes go out: a batch of that epoch may still
/// be on its way, also from another worker.
#[test]
fn a_minute_goes_out_whole_once_both_inputs_have_passed_the_epoch() {
    let captured = timely::execute_directly(move |worker| {
        let shared = shared();
        let (mut batches, mut reports, captured) = worker.dataflow::<Epoch, _, _>(|scope| {
            let (batches, batch_stream) = scope.new_input();
            let (reports, report_stream) = scope.new_input();
            let counts = counts(&shared);
            let combined = combine(batch_stream, report_stream, counts, Arc::clone(&shared));
            (batches, reports, combined.partials.capture())
        });
        let mut steps = || {
            for _ in 0..10 {
                worker.step();
            }
        };
        batches.advance_to(5);
        reports.advance_to(5);
        reports.send(report(T0 + 4 * MINUTE_MS));
        reports.advance_to(9);
        reports.flush();
        steps();
        batches.send(batch(1, 0, &shared));
        batches.send(batch(2, 0, &shared));
        batches.flush();
        steps();
        // A batch of a later epoch is taken in as well, but a minute that is open stays in.
        batches.advance_to(7);
        batches.send(batch(3, 50, &shared));
        batches.flush();
        steps();
        reports.send(report(T0 + HOUR_MS));
        captured
    });
    let out = captured.extract().into_iter().flat_map(|(_, partials)| partials);
    let out = plain(out);
    assert_eq!(out, [(5, 0, 2), (9, 50, 1), (10, 0, -2)], "counted, closed, taken back later");
}

#[test]
fn without_a_report_nothing_goes_out() {
    let captured = timely::execute_directly(move |worker| {
        let shared = shared();
        worker.dataflow::<Epoch, _, _>(|scope| {
            let (mut batches, batch_stream) = scope.new_input();
            let (_reports, report_stream) = scope.new_input();
            let counts = counts(&shared);
            let combined = combine(batch_stream, report_stream, counts, Arc::clone(&shared));
            batches.send(batch(1, 0, &shared));
            combined.partials.capture()
        })
    });
    assert_eq!(captured.extract(), []);
}
