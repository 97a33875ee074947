//! What tokens without the raw scope see.

use std::collections::BTreeMap;

use axum::Router;
use axum::http::StatusCode;
use serde_json::json;
use tally_model::bucket::{DAY_MS, HOUR_MS, MINUTE_MS};
use tally_model::time::format_rfc3339;

use super::problem;
use crate::testing::{Answer, PLAIN, READ, World, at, request, row, send};
use tally_model::bucket::Bucket;

const FIRST: &str = "2026-03-07T00:00:00Z";

async fn ask(replica: &Router, path: &str) -> Answer {
    send(replica, request("GET", path, Some(PLAIN), None)).await
}

/// A number that looks random, for a place and a purpose.
fn noise(seed: u64, place: u64, purpose: u64) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (seed, place, purpose).hash(&mut hasher);
    hasher.finish()
}

/// The counts of a minute: hours with few and with many events of four types.
fn counts(seed: u64, minute: u64) -> Vec<u64> {
    (0..4)
        .map(|slot| {
            let often = 1 + noise(seed, minute / 60, slot) % 12;
            u64::from(noise(seed, minute, 10 + slot) % 12 < often / 3)
        })
        .collect()
}

/// Four days of minutes, all final; `folded` of them are folded.
fn world(seed: u64, folded: u64) -> World {
    let world = World::at("2026-03-14T12:00:00Z");
    world.types(&["a", "b", "c"]);
    world.marks(FIRST, "2026-03-11T00:00:00Z", "2026-03-11T00:00:00Z");
    world.minutes(FIRST, "2026-03-11T00:00:00Z", |minute| counts(seed, minute));
    let end_ms = at(FIRST) + i64::try_from(folded).unwrap() * DAY_MS;
    let sweep = tally_jobs::rollup::Sweep::Within(at(FIRST)..end_ms);
    world.rollup().run(sweep, &|| true).unwrap();
    world
}

/// What a naive reader would show of hours `[from, to)`: whole cells of at least 10.
fn naive(seed: u64, from: u64, to: u64) -> BTreeMap<String, u64> {
    let mut shown = BTreeMap::new();
    for hour in from..to {
        let mut cells = [0_u64; 4];
        for minute in hour * 60..hour * 60 + 60 {
            for (cell, count) in cells.iter_mut().zip(counts(seed, minute)) {
                *cell += count;
            }
        }
        for (name, cell) in ["__other", "a", "b", "c"].into_iter().zip(cells) {
            if cell >= 10 {
                *shown.entry(name.to_owned()).or_default() += cell;
            }
        }
    }
    shown
}

fn hour(number: u64) -> String {
    format_rfc3339(at(FIRST) + i64::try_from(number).unwrap() * HOUR_MS)
}

async fn shown(replica: &Router, from: u64, to: u64) -> BTreeMap<String, u64> {
    let path = format!("/v1/stats/top?start={}&end={}&k=4000", hour(from), hour(to));
    let answer = ask(replica, &path).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let json = answer.json();
    assert_eq!(json["suppressedBelow"], 10);
    let mut counts: BTreeMap<String, u64> = answer.results().into_iter().collect();
    let other = json["other"].as_u64().unwrap();
    if other > 0 {
        counts.insert("__other".to_owned(), other);
    }
    let total: u64 = counts.values().sum();
    assert_eq!(json["total"], total, "the total is what is shown");
    counts
}

/// Whole days and parts of them, folded or not: what is shown is made of whole cells, so what two
/// answers differ by is made of whole cells too.
#[tokio::test]
async fn no_two_answers_differ_by_less_than_the_threshold() {
    let mut differences = 0;
    for seed in 0..12_u64 {
        let world = world(seed, seed % 5);
        let replica = world.replica();
        for question in 0..25 {
            let from = noise(seed, question, 20) % 72;
            let to = from + 2 + noise(seed, question, 21) % (94 - from);
            let whole = shown(&replica, from, to).await;
            assert_eq!(whole, naive(seed, from, to), "seed {seed}, hours {from} to {to}");
            for part in [(from + 1, to), (from, to - 1)] {
                let part = shown(&replica, part.0, part.1).await;
                for (name, count) in &whole {
                    let difference = count - part.get(name).copied().unwrap_or(0);
                    assert!(difference == 0 || difference >= 10, "{name} {difference}");
                    differences += u32::from(difference > 0);
                }
            }
        }
        // A whole day against its 23 hours, each hour left out once.
        for left_out in 0..24 {
            let day = shown(&replica, 24, 48).await;
            let before = shown_or_none(&replica, 24, 24 + left_out).await;
            let after = shown_or_none(&replica, 25 + left_out, 48).await;
            for (name, count) in day {
                let rest = [&before, &after]
                    .iter()
                    .map(|part| part.get(&name).copied().unwrap_or(0))
                    .sum::<u64>();
                let difference = count - rest;
                assert!(difference == 0 || difference >= 10, "{name} {difference}");
            }
        }
    }
    assert!(differences > 100, "{differences}");
}

async fn shown_or_none(replica: &Router, from: u64, to: u64) -> BTreeMap<String, u64> {
    if from == to { BTreeMap::new() } else { shown(replica, from, to).await }
}

#[tokio::test]
async fn a_series_shows_whole_cells_too() {
    let world = world(3, 2);
    let replica = world.replica();
    for (granularity, hours) in [("hour", 1), ("day", 24)] {
        let path = format!(
            "/v1/stats/series?type=b&granularity={granularity}&start={}&end={}",
            hour(0),
            hour(96)
        );
        let json = ask(&replica, &path).await.json();
        let points = json["points"].as_array().unwrap();
        assert_eq!(points.len() * hours, 96);
        for (number, point) in points.iter().enumerate() {
            let from = u64::try_from(number * hours).unwrap();
            let want = naive(3, from, from + u64::try_from(hours).unwrap());
            assert_eq!(point["count"], want.get("b").copied().unwrap_or(0), "{granularity}");
        }
        assert_eq!(json["suppressedBelow"], 10);
    }
}

#[tokio::test]
async fn what_is_finer_shorter_or_younger_is_refused_and_the_answer_says_what_is_allowed() {
    let mut world = world(1, 4);
    world.settings.min_width_ms = 2 * HOUR_MS;
    let replica = world.replica();
    let top = |start: &str, end: &str| format!("/v1/stats/top?start={start}&end={end}");
    let minutes = "/v1/stats/series?type=a&granularity=minute\
                   &start=2026-03-08T00:00:00Z&end=2026-03-08T04:00:00Z";
    // (path, code, parameter, what the message says)
    let cases = [
        (
            top("2026-03-08T00:01:00Z", "2026-03-08T04:00:00Z"),
            "bad_parameter",
            "start",
            "not on a whole hour",
        ),
        (
            top("2026-03-08T00:00:00Z", "2026-03-08T01:00:00Z"),
            "bad_parameter",
            "end",
            "120 minutes",
        ),
        (minutes.to_owned(), "bad_parameter", "granularity", "hour or day"),
        (
            top("2026-03-10T00:00:00Z", "2026-03-11T01:00:00Z"),
            "not_final",
            "end",
            "2026-03-11T00:00:00Z",
        ),
    ];
    for (path, code, parameter, says) in cases {
        let json = problem(&ask(&replica, &path).await, StatusCode::BAD_REQUEST, code);
        assert_eq!(json["errors"][0]["parameter"], parameter, "{json}");
        assert!(json["detail"].as_str().unwrap().contains(says), "{json}");
    }
    let snapped = format!("{}&snap=true", top("2026-03-08T00:01:00Z", "2026-03-08T01:59:00Z"));
    let json = ask(&replica, &snapped).await.json();
    assert_eq!(json["window"]["end"], "2026-03-08T02:00:00Z");
}

/// Another threshold than the rollup's, or a sum that got lost: the hours are read.
#[tokio::test]
async fn a_day_without_its_suppressed_sum_is_read_by_its_hours() {
    let mut world = world(5, 4);
    let folded = shown(&world.replica(), 24, 48).await;
    world.settings.suppress_below = 1;
    let path = format!("/v1/stats/top?start={}&end={}&k=4000", hour(24), hour(48));
    let by_hours = ask(&world.replica(), &path).await.json();
    assert_eq!((&by_hours["bucketsRead"], &by_hours["suppressedBelow"]), (&json!(24), &json!(1)));
    let raw = send(&world.replica(), request("GET", &path, Some(READ), None)).await.json();
    assert_eq!(by_hours["total"], raw["total"]);
    assert!(by_hours["total"].as_u64().unwrap() > folded.values().sum());
    // Where the hours are gone too, nothing is shown rather than too much.
    world.settings.hours_days = 1;
    world.settings.minutes_days = 1;
    let withheld = ask(&world.replica(), &path).await.json();
    assert_eq!((&withheld["total"], &withheld["missingMinutes"]), (&json!(0), &json!(1_440)));
    assert_eq!(withheld["complete"], false);
}

/// An hour without a row, one of whose minutes is missing: its cells are those of what is there.
#[tokio::test]
async fn the_minutes_of_a_torn_hour_are_put_together_before_they_are_shown() {
    let world = World::at("2026-03-14T12:00:00Z");
    world.types(&["a"]);
    world.marks(FIRST, "2026-03-08T00:00:00Z", "2026-03-08T00:00:00Z");
    for minute in (0..60).filter(|minute| *minute != 30) {
        let count = u64::from(minute < 11);
        world.put(row(Bucket::minute(at(FIRST) + minute * MINUTE_MS), 1 + minute, vec![3, count]));
    }
    let json = ask(&world.replica(), &format!("/v1/stats/top?start={}&end={}", hour(0), hour(1)))
        .await
        .json();
    assert_eq!((&json["total"], &json["missingMinutes"]), (&json!(59 * 3 + 11), &json!(1)));
}
