use tally_model::bucket::MINUTE_MS;
use tally_model::types::TypeId;
use tally_sinks::marks;

use super::*;
use crate::shared::Start;
use crate::testing::{Deployment, T0};

/// A writer of a run that has started, driven by hand.
struct Hand {
    tally: Deployment,
    shared: Arc<Shared>,
    writer: Writer,
}

impl Hand {
    fn new() -> Self {
        Self::of(Deployment::new(1, 1))
    }

    fn of(mut tally: Deployment) -> Self {
        let start = Start { from: vec![0], end: vec![0], first_minute_ms: T0, ..Start::default() };
        let shared = Arc::new(Shared::new(tally.parts(), tally.options, start));
        let writer = Writer::new(Arc::clone(&shared), 3);
        Self { tally, shared, writer }
    }

    fn deliver(&mut self, rows: &[(i64, u64)], horizon: Horizon) {
        let vector = |count| CountVector::from_counts(vec![0, count]);
        let rows = rows.iter().map(|(minute, n)| (T0 + minute * MINUTE_MS, vector(*n)));
        self.shared.outbox.deliver(0, rows, Some(horizon));
    }

    fn round(&mut self) {
        let taken = self.shared.outbox.take(Duration::ZERO);
        self.writer.absorb(taken);
        assert!(self.writer.round(true).is_ok());
    }

    fn count(&self, minute: i64) -> Option<u64> {
        self.tally.row(T0 + minute * MINUTE_MS).map(|row| row.vector.get(TypeId(1)))
    }

    fn marks(&self) -> [Option<i64>; 2] {
        let marks = marks::read(self.tally.meta.as_ref()).unwrap();
        [marks.readable_up_to_ms, marks.retired_up_to_ms]
            .map(|mark_ms| mark_ms.map(|at_ms| (at_ms - T0) / MINUTE_MS))
    }
}

fn horizon(closed: i64, retired: i64, caught_up: bool) -> Horizon {
    Horizon {
        closed_up_to_ms: Some(T0 + closed * MINUTE_MS),
        retired_up_to_ms: Some(T0 + retired * MINUTE_MS),
        caught_up,
    }
}

#[test]
fn only_the_newest_vector_of_a_minute_is_put() {
    let mut hand = Hand::new();
    hand.deliver(&[(0, 1)], Horizon::default());
    hand.deliver(&[(0, 2), (1, 5)], horizon(2, 0, true));
    hand.round();
    assert_eq!(hand.writer.rows.put, 2);
    assert_eq!([hand.count(0), hand.count(1)], [Some(2), Some(5)]);
    assert_eq!(hand.writer.minutes.waiting_bytes(), 0);
}

#[test]
fn the_marks_stop_at_the_first_minute_that_is_not_stored() {
    // An earlier start has left a row of minute 2 that the replay has not reached yet.
    let mut earlier = Hand::of(Deployment::new(1, 1));
    earlier.deliver(&[(2, 9)], horizon(3, 0, true));
    earlier.round();
    let Hand { tally, .. } = earlier;
    let mut hand = Hand::of(tally);
    hand.deliver(&[(0, 1), (1, 1), (2, 1), (3, 1)], horizon(4, 3, false));
    hand.round();
    assert_eq!(hand.marks(), [Some(3), Some(2)], "readable stays where the earlier start put it");
    assert_eq!(hand.count(2), Some(9), "held");
    assert_eq!(hand.count(3), Some(1), "a minute without a row does not wait");
    hand.deliver(&[(2, 10)], horizon(4, 3, true));
    hand.round();
    assert_eq!(hand.count(2), Some(10));
    assert_eq!(hand.marks(), [Some(4), Some(3)]);
    assert_eq!(hand.writer.minutes.waiting_bytes(), 0);
}

#[test]
fn retired_minutes_are_forgotten_and_others_kept() {
    let mut hand = Hand::new();
    let rows: Vec<(i64, u64)> = (0..1_300).map(|minute| (minute, 1)).collect();
    hand.deliver(&rows, horizon(1_300, 1_290, true));
    hand.round();
    assert_eq!(hand.writer.minutes.first(), Some(T0 + 1_290 * MINUTE_MS));
    assert_eq!(hand.marks(), [Some(1_300), Some(1_290)]);
    assert_eq!(hand.count(1_299), Some(1));
}

#[test]
fn the_pause_after_failures_grows_to_its_bound() {
    let mut hand = Hand::new();
    let mut last = Duration::ZERO;
    for failures in 1..40 {
        hand.writer.failures = failures;
        let pause = hand.writer.pause_after_failure();
        assert!(pause >= last && pause <= RETRY_WAIT_MAX);
        last = pause;
    }
    assert_eq!(last, RETRY_WAIT_MAX);
}
