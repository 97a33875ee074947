//! The demo: a seeded, realistic stream of events through the real collector.
//!
//! Types follow Zipf; some requests are repeated, some events come late, some client clocks are
//! ahead, some types are unknown. The same seed gives the same stream, apart from the times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tally_model::bucket::{Granularity, MINUTE_MS};
use tally_model::clock::Clock;
use tally_model::time::format_rfc3339;

use crate::deployment::BootstrapKeys;
use crate::failure::Failure;
use crate::output;
use crate::target::{Target, encode};

const TYPES: [&str; 16] = [
    "page_view",
    "click",
    "scroll",
    "search",
    "login",
    "add_to_cart",
    "video_play",
    "share",
    "sign_up",
    "checkout",
    "purchase",
    "like",
    "comment",
    "logout",
    "download",
    "refund",
];
const BATCH: usize = 20;

/// What the demo needs of the node that it runs in.
pub(crate) struct Demo {
    pub(crate) url: String,
    pub(crate) keys: BootstrapKeys,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seed: u64,
    pub(crate) rate: u32,
    pub(crate) stop: Arc<AtomicBool>,
}

impl Demo {
    /// Sends events until the stop flag is set, and prints the first top-K when there is one.
    pub(crate) fn run(&self) {
        if let Err(failure) = self.stream() {
            // A node that is going down refuses requests; that ends the demo, not the node.
            if !self.stop.load(Ordering::Relaxed) {
                tracing::error!("the demo ended: {:#}", failure.error);
            }
        }
    }

    fn stream(&self) -> Result<(), Failure> {
        self.register()?;
        let collector = Target::running(&self.url, self.keys.write_key.clone())?;
        let mut traffic = Traffic::new(self.seed);
        let mut shown = false;
        let first_minute_ms = Granularity::Minute.ceil(self.clock.now_ms());
        let pause_ms = u64::try_from(BATCH).unwrap_or(1) * 1_000 / u64::from(self.rate.max(1));
        let mut due_ms = self.clock.monotonic_ms();
        while !self.stop.load(Ordering::Relaxed) {
            let body = traffic.batch(self.clock.now_ms()).to_string();
            let answer = collector.send("POST", "/v1/events", Some(body.as_bytes()))?;
            if answer.status != 202 && answer.status != 429 && answer.status != 503 {
                return Err(answer.failure());
            }
            if !shown {
                shown = self.show_top(first_minute_ms)?;
            }
            due_ms += i64::try_from(pause_ms).unwrap_or(0);
            let wait_ms = due_ms - self.clock.monotonic_ms();
            if let Ok(wait_ms @ 1..) = u64::try_from(wait_ms) {
                std::thread::park_timeout(Duration::from_millis(wait_ms));
            }
        }
        Ok(())
    }

    /// Registers the demo's types, so that they count in slots of their own.
    fn register(&self) -> Result<(), Failure> {
        let admin = Target::running(&self.url, self.keys.admin_token.clone())?;
        for name in TYPES {
            let body = json!({"name": name, "owner": "demo"}).to_string();
            let answer = admin.send("POST", "/v1/event-types", Some(body.as_bytes()))?;
            // A type that is there already with another owner is as good.
            if !matches!(answer.status, 200 | 201 | 409) {
                return Err(answer.failure());
            }
        }
        Ok(())
    }

    /// Prints the top event types of the first whole minute once it is readable.
    fn show_top(&self, minute_ms: i64) -> Result<bool, Failure> {
        if self.clock.now_ms() < minute_ms + MINUTE_MS {
            return Ok(false);
        }
        let reader = Target::running(&self.url, self.keys.read_token.clone())?;
        let [start, end] = [minute_ms, minute_ms + MINUTE_MS].map(format_rfc3339);
        let path = format!("/v1/stats/top?start={}&end={}&k=5", encode(&start), encode(&end));
        let answer = reader.send("GET", &path, None)?;
        if answer.status != 200 {
            return Ok(false);
        }
        let answer: Value = serde_json::from_slice(&answer.body)?;
        if answer["notClosedMinutes"] != 0 {
            return Ok(false);
        }
        output::line(format!("\nTop 5 of the minute {start} ({} events):", answer["total"]))?;
        for result in answer["results"].as_array().into_iter().flatten() {
            let name = result["eventType"].as_str().unwrap_or_default();
            output::line(format!("  {:>2}. {name:<14} {:>8}", result["rank"], result["count"]))?;
        }
        output::line("")?;
        Ok(true)
    }
}

/// The stream of request bodies.
struct Traffic {
    rng: StdRng,
    last: Option<Value>,
}

impl Traffic {
    fn new(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), last: None }
    }

    /// The next request: now and then the last one again, as a client does that missed the answer.
    fn batch(&mut self, now_ms: i64) -> Value {
        if let Some(last) = self.last.take()
            && self.rng.random_ratio(1, 40)
        {
            return last;
        }
        let events: Vec<Value> = (0..BATCH).map(|_| self.event(now_ms)).collect();
        let body = json!({ "events": events });
        self.last = Some(body.clone());
        body
    }

    fn event(&mut self, now_ms: i64) -> Value {
        let id = uuid::Builder::from_random_bytes(self.rng.random()).into_uuid();
        let event_time_ms = match self.rng.random_range(0..1_000) {
            // A client clock that is two hours ahead: clamped to receivedAt.
            0..5 => now_ms + 2 * 3_600_000,
            // A phone that was offline: late by hours.
            5..8 => now_ms - 3 * 3_600_000,
            // A slow sender, still in time.
            8..60 => now_ms - self.rng.random_range(0..20_000),
            _ => now_ms - self.rng.random_range(0..2_000),
        };
        let user = self.rng.random_range(0..5_000_u32);
        json!({
            "eventId": id.to_string(),
            "eventType": self.event_type(),
            "userId": format!("user-{user}"),
            "eventTime": format_rfc3339(event_time_ms),
            "properties": {"path": format!("/item/{}", self.rng.random_range(0..500_u32))},
        })
    }

    /// Zipf over the types, with a few that nobody registered.
    fn event_type(&mut self) -> &'static str {
        if self.rng.random_ratio(1, 200) {
            return "experimental_event";
        }
        let harmonic: f64 = (1..=16).map(|rank| 1.0 / f64::from(rank)).sum();
        let mut at = self.rng.random::<f64>() * harmonic;
        for (rank, name) in (1_u8..).zip(TYPES) {
            at -= 1.0 / f64::from(rank);
            if at <= 0.0 {
                return name;
            }
        }
        TYPES[0]
    }
}
