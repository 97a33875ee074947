//! A client: posts a seeded stream of events, and sends each batch again until it is taken.

use std::collections::HashSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tally_model::bucket::{Granularity, MINUTE_MS};
use tally_model::clock::Clock;
use tally_model::ids::EventId;
use tally_model::time::format_rfc3339;

use super::line::Line;

/// The types that are registered before anything is sent.
pub(super) const TYPES: [&str; 4] = ["page_view", "click", "search", "purchase"];
/// A type that nobody registers.
const UNREGISTERED: &str = "experiment";

const BATCH: usize = 20;
const BATCH_EVERY_MS: i64 = 50;

/// An event as a client keeps it for a further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    id: [u8; 16],
    event_type: &'static str,
    event_time_ms: i64,
    sent_at_ms: i64,
}

/// The stream of events.
#[derive(Debug)]
pub(super) struct Traffic {
    rng: StdRng,
    window_ms: i64,
    /// From the end of a minute until its events are late, in ms.
    on_time_ms: i64,
    /// Everything that was taken, oldest first.
    taken: Vec<Sent>,
}

impl Traffic {
    /// The stream of `seed` for a deployment with this dedup window, whose events are late
    /// `on_time_ms` after the end of their minute.
    pub(super) fn new(seed: u64, window_ms: i64, on_time_ms: i64) -> Self {
        let rng = StdRng::seed_from_u64(seed ^ 0x7aff);
        Self { rng, window_ms, on_time_ms, taken: Vec::new() }
    }

    /// Posts to whatever node is up until the line is closed. Returns the ids that were
    /// acknowledged.
    ///
    /// # Errors
    /// In plain words, if a collector answers what no client of it should see.
    pub(super) fn run(
        mut self,
        line: &Line,
        clock: &dyn Clock,
    ) -> Result<HashSet<EventId>, String> {
        let mut due_ms = clock.monotonic_ms();
        while !line.is_closed() {
            let batch = self.batch(clock.now_ms());
            if post(&batch, line)? {
                self.taken.extend(batch);
            }
            due_ms = (due_ms + BATCH_EVERY_MS).max(clock.monotonic_ms() - BATCH_EVERY_MS);
            if let Ok(wait_ms @ 1..) = u64::try_from(due_ms - clock.monotonic_ms()) {
                std::thread::park_timeout(Duration::from_millis(wait_ms));
            }
        }
        Ok(self.taken.iter().map(|event| EventId(event.id)).collect())
    }

    fn batch(&mut self, now_ms: i64) -> Vec<Sent> {
        (0..BATCH).map(|_| self.event(now_ms)).collect()
    }

    /// One event in ten is a repeat of one that was taken, half of them within the dedup window.
    fn event(&mut self, now_ms: i64) -> Sent {
        if self.rng.random_ratio(1, 10) && !self.taken.is_empty() {
            let oldest = if self.rng.random_bool(0.5) {
                let from_ms = now_ms - self.window_ms;
                self.taken.partition_point(|event| event.sent_at_ms < from_ms)
            } else {
                0
            };
            let oldest = oldest.min(self.taken.len() - 1);
            return Sent {
                sent_at_ms: now_ms,
                ..self.taken[self.rng.random_range(oldest..self.taken.len())]
            };
        }
        let id = uuid::Builder::from_random_bytes(self.rng.random()).into_uuid();
        let event_type = match self.rng.random_range(0..20) {
            0 => UNREGISTERED,
            1..=9 => TYPES[0],
            10..=14 => TYPES[1],
            15..=17 => TYPES[2],
            _ => TYPES[3],
        };
        Sent {
            id: id.into_bytes(),
            event_type,
            event_time_ms: self.event_time(now_ms),
            sent_at_ms: now_ms,
        }
    }

    /// Mostly now; now and then a while ago, at the edge of a minute, at the edge of being late, or
    /// far too late. Never ahead of the collector's clock: an event that is sent again has the same
    /// time, and one whose time the collector sets does not.
    fn event_time(&mut self, now_ms: i64) -> i64 {
        let minute_ms = Granularity::Minute.floor(now_ms);
        match self.rng.random_range(0..100) {
            0..70 => now_ms - self.rng.random_range(0..500),
            70..82 => now_ms - self.rng.random_range(0..20_000),
            82..86 => minute_ms - self.rng.random_range(0..2),
            86..92 => now_ms - self.on_time_ms - self.rng.random_range(-500..500),
            92..97 => now_ms - self.rng.random_range(0..3 * MINUTE_MS),
            _ => now_ms - self.rng.random_range(0..180 * MINUTE_MS),
        }
    }
}

/// Sends a batch until it is taken. Returns whether it was: a line that is closed ends the trying.
fn post(batch: &[Sent], line: &Line) -> Result<bool, String> {
    let events: Vec<Value> = batch.iter().map(describe).collect();
    let body = json!({ "events": events }).to_string();
    while !line.is_closed() {
        let Some(node) = line.node() else {
            std::thread::park_timeout(Duration::from_millis(5));
            continue;
        };
        match node.collector.send("POST", "/v1/events", Some(body.as_bytes())) {
            Ok(answer) if answer.status == 202 => {
                line.acknowledge(node.life);
                return Ok(true);
            }
            // The node is going down, is dead, or cannot append in time: try again.
            Ok(answer) if matches!(answer.status, 429 | 503) => {}
            Err(_no_answer) => {}
            Ok(answer) => {
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(format!("the collector answered {}: {text}", answer.status));
            }
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(false)
}

fn describe(event: &Sent) -> Value {
    json!({
        "eventId": uuid::Uuid::from_bytes(event.id).to_string(),
        "eventType": event.event_type,
        "userId": "someone",
        "eventTime": format_rfc3339(event.event_time_ms),
        "properties": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_772_359_200_000;

    /// A stream whose every batch is taken at once.
    fn stream(seed: u64, batches: i64) -> Vec<Sent> {
        let mut traffic = Traffic::new(seed, 10_000, 3_000);
        for number in 0..batches {
            let batch = traffic.batch(NOW_MS + number * BATCH_EVERY_MS);
            traffic.taken.extend(batch);
        }
        traffic.taken
    }

    #[test]
    fn the_same_seed_gives_the_same_stream() {
        assert_eq!(stream(1, 100), stream(1, 100));
        assert_ne!(stream(1, 100), stream(2, 100));
    }

    #[test]
    fn one_event_in_ten_repeats_an_earlier_one_inside_and_outside_of_the_window() {
        let stream = stream(3, 1_000);
        let mut first = std::collections::HashMap::new();
        let (mut inside, mut outside) = (0, 0);
        for event in &stream {
            assert!(event.event_time_ms <= event.sent_at_ms, "{event:?}");
            let original = *first.entry(event.id).or_insert(*event);
            assert_eq!(
                (original.event_type, original.event_time_ms),
                (event.event_type, event.event_time_ms)
            );
            match event.sent_at_ms - original.sent_at_ms {
                0 => {}
                1..=10_000 => inside += 1,
                _ => outside += 1,
            }
        }
        assert!((1_700..2_300).contains(&(stream.len() - first.len())));
        assert!(inside > 500 && outside > 500, "{inside} {outside}");
    }
}
