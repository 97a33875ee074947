//! Laws: whatever the workers, partitions, batches and runs, what is stored is the truth.

use super::*;

/// A stream of events in log order: ids that repeat, several types, events out of order by up to 20
/// minutes (so that some are late), stamps that are up to a few seconds out of order. With each one
/// comes the moment of its append.
fn stream() -> impl Strategy<Value = Vec<(i64, LoggedEvent)>> {
    let age_ms = prop_oneof![3 => 0_i64..90_000, 1 => 0_i64..20 * MINUTE_MS];
    let step = (0_u64..150, 0_u16..6, 0_i64..20_000, 0_i64..3_000, age_ms);
    prop::collection::vec(step, 0..300).prop_map(|steps| {
        let mut now_ms = T0 + 30 * MINUTE_MS;
        let mut stream = Vec::new();
        for (id, slot, by_ms, jitter_ms, age_ms) in steps {
            now_ms += by_ms;
            let received_at_ms = now_ms - jitter_ms;
            stream.push((now_ms, event(id, slot, received_at_ms - age_ms, received_at_ms)));
        }
        stream
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_bounded_run_stores_the_truth(
        stream in stream(),
        workers in 1_usize..4,
        partitions in 1_u32..6,
    ) {
        let events: Vec<_> = stream.into_iter().map(|(_, event)| event).collect();
        let mut tally = Deployment::new(partitions, workers);
        tally.clock.advance(48 * HOUR_MS);
        tally.append(&events);
        let report = tally.count_bounded().unwrap();
        let truth = tally.truth(&events);
        prop_assert_eq!(tally.cells(), streaming_cells(&truth));
        prop_assert_eq!(report.totals.late, truth.late());
        prop_assert_eq!(report.totals.repeats, truth.repeats());
        prop_assert_eq!(report.totals.straggler + report.totals.past_window, 0);
        prop_assert_eq!(report.totals.records, u64::try_from(events.len()).unwrap());
        let counted: u64 = tally.cells().values().sum();
        prop_assert_eq!(report.totals.counted, counted);
        prop_assert_eq!(report.counted_by_worker.iter().sum::<u64>(), counted);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Events arrive while it runs, in batches cut anywhere, across stops, starts and bounded runs;
    /// no stored count ever falls.
    #[test]
    fn runs_that_follow_each_other_store_the_truth(
        stream in stream(),
        workers in prop::collection::vec(1_usize..4, 1..4),
        cuts in prop::collection::vec(1_usize..60, 300),
        bounded in any::<bool>(),
    ) {
        let events: Vec<_> = stream.iter().map(|(_, event)| *event).collect();
        let mut tally = Deployment::new(3, 1);
        let mut rest = stream.as_slice();
        let mut cuts = cuts.into_iter();
        let share = stream.len() / workers.len() + 1;
        let mut seen = Cells::new();
        let mut check = |tally: &Deployment| {
            let now = tally.cells();
            for (cell, count) in &seen {
                assert!(now.get(cell) >= Some(count), "{cell:?} fell");
            }
            seen = now;
        };
        for workers in workers {
            tally.options.workers = workers;
            let running = tally.start();
            let (mut mine, others) = rest.split_at(share.min(rest.len()));
            rest = others;
            while let Some((now_ms, _)) = mine.first() {
                let (batch, later) = mine.split_at(cuts.next().unwrap_or(1).min(mine.len()));
                mine = later;
                if *now_ms > tally_model::clock::Clock::now_ms(tally.clock.as_ref()) {
                    tally.clock.step_to(*now_ms);
                }
                tally.append(&batch.iter().map(|(_, event)| *event).collect::<Vec<_>>());
                let end: u64 = tally.log_len();
                running.until("it is read", |p| p.totals().records == end);
                check(&tally);
            }
            running.until("it has caught up", |p| p.caught_up());
            running.stop();
            check(&tally);
            if bounded {
                tally.count_bounded().unwrap();
                check(&tally);
            }
        }
        let running = tally.start();
        running.pass(2 * HOUR_MS);
        running.settle();
        let report = running.stop();
        check(&tally);
        let truth = tally.truth(&events);
        prop_assert_eq!(tally.cells(), streaming_cells(&truth));
        prop_assert_eq!(report.totals.late, truth.late());
        prop_assert_eq!(report.totals.repeats, truth.repeats());
        prop_assert_eq!(report.rows.withheld, 0);
    }
}
