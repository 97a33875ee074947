//! `tally bench query`: how long top-K answers take over three years of rows.
//!
//! The service is called without a network, so what is measured is its own work. A range is asked
//! twice: *cold*, when nothing is in memory but the store's pages in the system's cache; and
//! *cached*, the same range right after, when its vectors are in the service's cache.

mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use clap::Args;
use prometheus_client::registry::Registry as Metrics;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tally_model::bucket::{DAY_MS, HOUR_MS, MINUTE_MS};
use tally_query_api::{QueryApi, QueryParts, QuerySettings, router};
use tower::ServiceExt as _;

use self::rows::{BenchClock, DAYS, MINUTES_DAYS, NOW_MS, Rows, TOKEN};
use super::{Row, float, measure, print};
use crate::failure::Failure;
use crate::output::{self, Format};

/// Clients that ask at once.
const CLIENTS: [usize; 3] = [1, 8, 64];

#[derive(Args, Debug)]
pub(crate) struct BenchQueryArgs {
    /// Event types, and so the width of every vector.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..=4_000))]
    slots: u16,
    /// Distinct ranges asked for, by all clients together.
    #[arg(long, default_value_t = 10_000)]
    ranges: usize,
    /// Seed of the ranges.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What ranges look like.
#[derive(Clone, Copy)]
enum Shape {
    /// Any length from a minute to a year, anywhere in three years.
    Any,
    /// 30 days and some hours and minutes, all of whose minutes are kept.
    Month,
}

/// How the service finds its rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// No vector and no manifest.
    Cold,
    /// Every vector; the manifests as they are a second old at most.
    Cached,
}

/// One measured answer.
#[derive(Clone, Copy)]
struct Answered {
    took: Duration,
    rows: u64,
}

pub(super) fn run(args: &BenchQueryArgs) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Vec::new();
    // The same answers over a hundred times the traffic: vectors have the same width.
    for (traffic, clients) in [(1, &CLIENTS[..]), (100, &CLIENTS[..1])] {
        let folder = tempfile::tempdir()?;
        let mut rows = None;
        output::note(format!("writing rows of three years, {} slots, {traffic} x", args.slots));
        let mut fill = measure("fill", || {
            let made = Rows::write(folder.path(), args.slots, traffic)?;
            let count = made.count;
            rows = Some(made);
            Ok(count)
        })?;
        let rows = rows.ok_or_else(|| anyhow::anyhow!("no rows were written"))?;
        fill.more.insert("traffic".to_owned(), json!(traffic));
        report.push(fill);
        for (shape, names) in [
            (Shape::Any, [(Memory::Cold, "cold"), (Memory::Cached, "cached")]),
            (Shape::Month, [(Memory::Cold, "cold_30d"), (Memory::Cached, "cached_30d")]),
        ] {
            for (memory, name) in names {
                for clients in clients {
                    let asked = Asked { args, shape, memory, clients: *clients };
                    let mut row = asked.measure(name, &rows, &runtime)?;
                    row.more.insert("traffic".to_owned(), json!(traffic));
                    report.push(row);
                }
            }
        }
    }
    print("query", &report, args.output)
}

/// One measurement.
struct Asked<'a> {
    args: &'a BenchQueryArgs,
    shape: Shape,
    memory: Memory,
    clients: usize,
}

impl Asked<'_> {
    fn measure(
        &self,
        name: &'static str,
        rows: &Rows,
        runtime: &tokio::runtime::Runtime,
    ) -> Result<Row, Failure> {
        let service = self.service(rows);
        let paths: Arc<[String]> = ranges(self.shape, self.args.ranges, self.args.seed).into();
        let next = Arc::new(AtomicUsize::new(0));
        let mut answers = Vec::new();
        let mut row = measure(name, || {
            answers = runtime.block_on(async {
                let clients: Vec<_> = (0..self.clients)
                    .map(|_client| {
                        let client = Client {
                            service: service.clone(),
                            clock: Arc::clone(&rows.clock),
                            memory: self.memory,
                        };
                        tokio::spawn(client.run(Arc::clone(&paths), Arc::clone(&next)))
                    })
                    .collect();
                let mut answers = Vec::with_capacity(paths.len());
                for client in clients {
                    answers.extend(client.await??);
                }
                Ok::<_, anyhow::Error>(answers)
            })?;
            Ok(u64::try_from(answers.len())?)
        })?;
        row.more.extend(figures(&mut answers));
        row.more.insert("clients".to_owned(), json!(self.clients));
        Ok(row)
    }

    fn service(&self, rows: &Rows) -> Router {
        let parts = QueryParts {
            counts: Arc::clone(&rows.counts),
            meta: Arc::clone(&rows.meta),
            registry: Arc::clone(&rows.registry),
            tokens: Arc::clone(&rows.tokens),
            clock: Arc::<BenchClock>::clone(&rows.clock),
        };
        let defaults = QuerySettings::default();
        let cache_bytes = match self.memory {
            Memory::Cold => 0,
            Memory::Cached => defaults.cache_bytes,
        };
        let settings = QuerySettings { cache_bytes, ..defaults };
        router(Arc::new(QueryApi::new(parts, settings, &mut Metrics::default())))
    }
}

/// One client: takes the next range as long as there is one.
struct Client {
    service: Router,
    clock: Arc<BenchClock>,
    memory: Memory,
}

impl Client {
    async fn run(
        self,
        paths: Arc<[String]>,
        next: Arc<AtomicUsize>,
    ) -> anyhow::Result<Vec<Answered>> {
        let mut answers = Vec::new();
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            match self.memory {
                // Manifests are a second old at most: now they are too old.
                Memory::Cold => self.clock.skip_a_second(),
                Memory::Cached => drop(self.ask(path).await?),
            }
            answers.push(self.ask(path).await?);
        }
        Ok(answers)
    }

    async fn ask(&self, path: &str) -> anyhow::Result<Answered> {
        let request = Request::get(path)
            .header("authorization", format!("Bearer {TOKEN}"))
            .body(Body::empty())?;
        let begun = now();
        let response = self.service.clone().oneshot(request).await?;
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await?;
        let took = begun.elapsed();
        anyhow::ensure!(status == StatusCode::OK, "{path}: {}", String::from_utf8_lossy(&body));
        let answer: Value = serde_json::from_slice(&body)?;
        anyhow::ensure!(answer["exact"] == true, "{path}: {answer}");
        Ok(Answered { took, rows: answer["bucketsRead"].as_u64().unwrap_or(0) })
    }
}

/// Paths of distinct ranges.
fn ranges(shape: Shape, count: usize, seed: u64) -> Vec<String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut paths = BTreeMap::new();
    while paths.len() < count {
        let (start_ms, end_ms) = match shape {
            Shape::Any => {
                let width_ms = random.random_range(1..=365 * DAY_MS / MINUTE_MS) * MINUTE_MS;
                let latest = (DAYS * DAY_MS - width_ms) / MINUTE_MS;
                let before_ms = random.random_range(0..=latest) * MINUTE_MS;
                (NOW_MS - before_ms - width_ms, NOW_MS - before_ms)
            }
            Shape::Month => {
                let more_ms = random.random_range(1..HOUR_MS * 24 / MINUTE_MS) * MINUTE_MS;
                let width_ms = 30 * DAY_MS + more_ms;
                let latest = ((MINUTES_DAYS - 1) * DAY_MS - width_ms) / MINUTE_MS;
                let before_ms = random.random_range(0..=latest) * MINUTE_MS;
                (NOW_MS - before_ms - width_ms, NOW_MS - before_ms)
            }
        };
        let path = format!("/v1/stats/top?start={start_ms}&end={end_ms}&k=10");
        paths.insert((start_ms, end_ms), path);
    }
    // Not in order of time: neighbours would find each other's pages.
    let mut paths: Vec<String> = paths.into_values().collect();
    for index in (1..paths.len()).rev() {
        paths.swap(index, random.random_range(0..=index));
    }
    paths
}

fn figures(answers: &mut [Answered]) -> serde_json::Map<String, Value> {
    answers.sort_unstable_by_key(|answer| answer.took);
    let at = |percent: usize| {
        let index = (answers.len() * percent / 100).min(answers.len().saturating_sub(1));
        let took = answers.get(index).map_or(Duration::ZERO, |answer| answer.took);
        json!((took.as_secs_f64() * 1e6).round() / 1e3)
    };
    let rows: u64 = answers.iter().map(|answer| answer.rows).sum();
    let count = u64::try_from(answers.len()).unwrap_or(1).max(1);
    serde_json::Map::from_iter([
        ("p50_ms".to_owned(), at(50)),
        ("p99_ms".to_owned(), at(99)),
        ("bucketsRead".to_owned(), json!((float(rows) / float(count)).round())),
    ])
}

#[expect(clippy::disallowed_methods, reason = "the clock counts in ms, these answers take less")]
fn now() -> Instant {
    Instant::now()
}
