//! Answers against a naive model that sums single events: 10,000 comparisons.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tally_model::bucket::{Bucket, DAY_MS, Granularity, MINUTE_MS};
use tally_model::clock::Clock as _;
use tally_model::revision::{Generation, Revision};
use tally_model::time::format_rfc3339;
use tally_model::vector::CountVector;
use tally_sinks::counts::{
    CountsStore as _, PutCondition, PutOutcome, Row, RowSource, SmallRow, WriterId,
};
use tally_sinks::marks;

use crate::testing::{World, at, get, row};

const FIRST: &str = "2026-02-27T00:00:00Z";
/// Minutes of six days, over the end of a month.
const MINUTES: i64 = 6 * 1_440;
const SEEDS: u64 = 50;
const QUESTIONS: u64 = 200;

/// A sequence of numbers that look random.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: i64) -> i64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        self.0 += 1;
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        i64::try_from(hasher.finish() >> 2).unwrap() % bound.max(1)
    }
}

fn ms(minute: i64) -> i64 {
    at(FIRST) + minute * MINUTE_MS
}

/// A deployment beside what is true of it. Minutes are numbered from [`FIRST`].
struct Both {
    world: World,
    noise: Noise,
    origin: i64,
    /// Minutes before this one have a row.
    readable: i64,
    retired: i64,
    /// What each minute holds now.
    minutes: BTreeMap<i64, [u64; 3]>,
    /// What each held when its day was last folded.
    folded: BTreeMap<i64, [u64; 3]>,
    /// Days restated since, by number.
    pending: BTreeSet<i64>,
}

impl Both {
    fn new(seed: u64) -> Self {
        let mut noise = Noise(seed << 32);
        let origin = noise.below(1_500);
        let world = World::at(&format_rfc3339(ms(origin)));
        world.types(&["a", "b"]);
        marks::set_origin_if_absent(&*world.meta, ms(origin)).unwrap();
        let (minutes, folded, pending) = Default::default();
        Self { world, noise, origin, readable: origin, retired: origin, minutes, folded, pending }
    }

    fn events(&mut self) -> [u64; 3] {
        let mut counts = [0; 3];
        for _event in 0..self.noise.below(6) {
            let slot = usize::try_from(self.noise.below(3)).unwrap();
            counts[slot] += 1;
        }
        counts
    }

    /// One thing that happens.
    fn step(&mut self) {
        match self.noise.below(10) {
            0..=4 => self.stream(),
            5 => self.restate(),
            6..=7 => self.fold(),
            _ => {
                let most = if self.noise.below(4) == 0 { DAY_MS } else { 90_000 };
                self.world.clock.advance(self.noise.below(most));
            }
        }
    }

    /// Streaming closes some minutes, and retires some.
    fn stream(&mut self) {
        let to = (self.readable + self.noise.below(700)).min(MINUTES);
        let mut puts = Vec::new();
        for minute in self.readable..to {
            let counts = self.events();
            self.minutes.insert(minute, counts);
            let bucket = Bucket::minute(ms(minute));
            let revision = Revision::streaming(Generation::default(), bucket.end_ms()).unwrap();
            let small = SmallRow {
                bucket,
                revision,
                writer: WriterId(1),
                written_at_ms: bucket.end_ms(),
                source: RowSource::Stream,
                digest: 0,
                width: 3,
            };
            let vector = CountVector::from_counts(counts.to_vec());
            puts.push((Row { small, vector }, PutCondition::Below));
        }
        for outcome in self.world.counts.put_many(&puts) {
            assert!(matches!(outcome, Ok(PutOutcome::Stored)));
        }
        self.readable = to;
        self.retired = self.retired.max(to - 16 - self.noise.below(30)).max(self.origin);
        let [retired, readable] = [self.retired, self.readable].map(|minute| Some(ms(minute)));
        let advance = marks::advance(&*self.world.meta, Generation::default(), retired, readable);
        assert!(matches!(advance, Ok(marks::Advance::Published(_))));
        let behind_ms = ms(to) + 2 * MINUTE_MS - self.world.clock.now_ms();
        self.world.clock.advance(behind_ms.max(0));
    }

    /// A recount of a retired minute puts other counts, or the same.
    fn restate(&mut self) {
        if self.retired == self.origin {
            return;
        }
        let minute = self.origin + self.noise.below(self.retired - self.origin);
        let counts = self.events();
        let bucket = Bucket::minute(ms(minute));
        let stored = self.world.counts.rows(&[bucket]).unwrap().remove(0).unwrap().small.revision;
        let now_ms = self.world.clock.now_ms().max(stored.time_ms() + 1);
        let put = (row(bucket, now_ms, counts.to_vec()), PutCondition::Exactly(Some(stored)));
        let outcomes = self.world.counts.put_many(&[put]);
        assert!(matches!(outcomes[..], [Ok(PutOutcome::Stored)]));
        self.minutes.insert(minute, counts);
        self.pending.insert(minute / 1_440);
    }

    fn fold(&mut self) {
        self.world.fold();
        self.folded = self.minutes.clone();
        self.pending.clear();
    }

    fn sum(minutes: &BTreeMap<i64, [u64; 3]>, from: i64, to: i64) -> [u64; 3] {
        let mut sum = [0; 3];
        for counts in minutes.range(from..to.max(from)).map(|(_, counts)| counts) {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        sum
    }

    /// What an answer about `[from, to)` that calls itself exact must hold. A day that is read as
    /// its row may be as it was folded last: the row tells only what its hours tell.
    fn want(&self, from: i64, to: i64) -> Vec<[u64; 3]> {
        let mut wanted = vec![Self::sum(&self.minutes, from, to)];
        for day in &self.pending {
            let (start, end) = (day * 1_440, (day + 1) * 1_440);
            let row = Bucket::containing(Granularity::Day, ms(start));
            if start < from || to < end || self.world.counts.rows(&[row]).unwrap()[0].is_none() {
                continue;
            }
            let [new, old] = [&self.minutes, &self.folded].map(|of| Self::sum(of, start, end));
            for sum in &mut wanted {
                for (sum, (new, old)) in sum.iter_mut().zip(new.iter().zip(old)) {
                    *sum = *sum + old - new;
                }
            }
        }
        wanted
    }

    fn question(&mut self) -> (i64, i64) {
        let grid = [1, 1, 60, 1_440][usize::try_from(self.noise.below(4)).unwrap()];
        let from = self.noise.below(MINUTES) / grid * grid;
        let to = from + (self.noise.below(MINUTES - from) / grid + 1) * grid;
        (from, to)
    }

    /// Asks, and compares everything that the answer says.
    async fn compare(&mut self, replica: &axum::Router, seed: u64) {
        let (from, to) = self.question();
        let (start, end) = (format_rfc3339(ms(from)), format_rfc3339(ms(to)));
        let json = get(replica, &format!("/v1/stats/top?start={start}&end={end}")).await.json();
        let context = format!("seed {seed}, minutes {from} to {to}: {json}");

        let open = (to - from.max(self.readable).max(self.origin)).max(0);
        assert_eq!(json["missing"], json!([]), "{context}");
        assert_eq!(json["notClosedMinutes"], open, "{context}");
        let stale = json["staleMinutes"].as_i64().unwrap();
        let touches_pending =
            self.pending.iter().any(|day| day * 1_440 < to && from < (day + 1) * 1_440);
        assert!(stale == 0 || touches_pending, "{context}");
        assert_eq!(json["exact"], open == 0 && stale == 0, "{context}");
        let final_ms = Granularity::Minute.floor(self.world.clock.now_ms() - DAY_MS);
        let complete = open == 0 && stale == 0 && ms(to) <= final_ms;
        assert_eq!(json["complete"], complete, "{context}");
        assert_eq!(json["dataFrom"], format_rfc3339(ms(self.origin)), "{context}");
        if stale == 0 {
            let counts = counts_of(&json);
            assert!(self.want(from, to).contains(&counts), "{context}");
            assert_eq!(json["total"], counts.iter().sum::<u64>(), "{context}");
        }
    }
}

fn counts_of(json: &Value) -> [u64; 3] {
    let mut counts = [json["other"].as_u64().unwrap(), 0, 0];
    for result in json["results"].as_array().unwrap() {
        let slot = usize::try_from(result["typeId"].as_u64().unwrap()).unwrap();
        counts[slot] = result["count"].as_u64().unwrap();
    }
    counts
}

#[tokio::test]
async fn ten_thousand_answers_are_those_of_a_naive_sum_of_events() {
    let mut compared = 0;
    for seed in 0..SEEDS {
        let mut both = Both::new(seed);
        let replica = both.world.replica();
        // A fresh deployment is asked too.
        both.compare(&replica, seed).await;
        for _question in 1..QUESTIONS {
            both.step();
            // Answers are made from what is at most a second old.
            both.world.clock.advance(1_000);
            both.compare(&replica, seed).await;
            compared += 1;
        }
        compared += 1;
    }
    assert_eq!(compared, SEEDS * QUESTIONS);
}
