//! Minute, hour and day rows behind one answer.

use axum::http::StatusCode;
use serde_json::json;
use tally_model::bucket::{Bucket, DAY_MS, Granularity, HOUR_MS, MINUTE_MS};
use tally_model::range::Run;
use tally_model::time::format_rfc3339;

use crate::testing::{READ, World, at, get, request, row, send};

/// Rows of three tiers, each with one event of slot 1 a minute; minutes and hours of the first and
/// the last two days only.
fn years(first: &str, days: i64) -> World {
    let first_ms = at(first);
    let end_ms = first_ms + days * DAY_MS;
    let world = World::at(&format_rfc3339(end_ms + 2 * DAY_MS));
    world.types(&["a"]);
    world.marks(first, &format_rfc3339(end_ms), &format_rfc3339(end_ms));
    for granularity in Granularity::ALL {
        let minutes = u64::try_from(granularity.width_ms() / MINUTE_MS).unwrap();
        let stretches = match granularity {
            Granularity::Day => vec![(first_ms, end_ms)],
            Granularity::Minute | Granularity::Hour => {
                vec![(first_ms, first_ms + 2 * DAY_MS), (end_ms - 2 * DAY_MS, end_ms)]
            }
        };
        for (start_ms, end_ms) in stretches {
            for bucket in (Run { granularity, start_ms, end_ms }).buckets() {
                world.put(row(bucket, bucket.end_ms(), vec![0, minutes]));
            }
        }
    }
    world
}

#[tokio::test]
async fn an_answer_says_that_it_read_the_fewest_rows() {
    // (days of rows, start, end, minutes kept, rows, from when the answer counts)
    let cases = [
        (32, "00:01:00", (30, "00:01:00"), 400, 112, "00:01:00"),
        (32, "00:01:00", (30, "23:59:00"), 400, 193, "00:01:00"),
        (367, "00:01:00", (365, "00:01:00"), 400, 447, "00:01:00"),
        (367, "00:01:00", (365, "23:59:00"), 400, 528, "00:01:00"),
        (367, "01:01:00", (365, "23:59:00"), 60, 469, "01:00:00"),
    ];
    let first_ms = at("2025-01-01T00:00:00Z");
    for (days, start, (end_day, end), kept, rows, from) in cases {
        let mut world = years("2025-01-01T00:00:00Z", days);
        world.settings.minutes_days = kept;
        let end_date = format_rfc3339(first_ms + end_day * DAY_MS);
        let end = end_date.replace("00:00:00", end);
        let path = format!("/v1/stats/top?start=2025-01-01T{start}Z&end={end}");
        let json = get(&world.replica(), &path).await.json();
        assert_eq!(json["bucketsRead"], rows, "{path}: {json}");
        let from_ms = at(&format!("2025-01-01T{from}Z"));
        let minutes = (at(&end) - from_ms) / MINUTE_MS;
        assert_eq!((&json["total"], &json["exact"]), (&json!(minutes), &json!(true)), "{path}");
        assert_eq!(json["window"]["start"], format_rfc3339(from_ms));
        assert_eq!(json["window"]["widened"], start != from);
    }
}

/// Three days from March 7th, folded, all final.
fn folded() -> World {
    let world = World::at("2026-03-14T12:00:00Z");
    world.types(&["a"]);
    world.marks("2026-03-07T00:00:00Z", "2026-03-10T00:00:00Z", "2026-03-10T00:00:00Z");
    world.minutes("2026-03-07T00:00:00Z", "2026-03-10T00:00:00Z", |number| vec![0, number % 5]);
    world.fold();
    world
}

const DAYS: &str = "/v1/stats/top?start=2026-03-07T00:00:00Z&end=2026-03-10T00:00:00Z";

/// B92: a restated minute is seen in every tier, and no cached answer outlives it.
#[tokio::test]
async fn b92_a_restated_minute_changes_count_digest_as_of_and_entity_tag_of_every_tier() {
    let world = folded();
    let replica = world.replica();
    let paths = [
        DAYS.to_owned(),
        "/v1/stats/top?start=2026-03-08T10:00:00Z&end=2026-03-08T11:00:00Z".to_owned(),
        "/v1/stats/top?start=2026-03-08T10:05:00Z&end=2026-03-08T10:06:00Z".to_owned(),
        DAYS.replace("top?", "series?type=a&granularity=day&"),
        DAYS.replace("top?", "series?type=a&granularity=hour&"),
    ];
    let mut before = Vec::new();
    for path in &paths {
        let answer = get(&replica, path).await;
        let json = answer.json();
        assert_eq!((&json["complete"], &json["exact"]), (&json!(true), &json!(true)), "{path}");
        before.push((json, answer.header("etag").to_owned()));
    }
    let minute = Bucket::minute(at("2026-03-08T10:05:00Z"));
    world.put(row(minute, at("2026-03-14T11:00:00Z"), vec![0, 1_000]));
    world.clock.advance(1_000);

    // Until it is folded, an hour that is read as a row says that it is out of date.
    let hour = get(&replica, &paths[1]).await.json();
    let span = json!([{"start": "2026-03-08T10:00:00Z", "end": "2026-03-08T11:00:00Z"}]);
    assert_eq!((&hour["stale"], &hour["staleMinutes"]), (&span, &json!(60)), "{hour}");
    assert_eq!((&hour["complete"], &hour["exact"]), (&json!(false), &json!(false)));

    world.fold();
    world.clock.advance(1_000);
    for (path, (old, tag)) in paths.iter().zip(before) {
        let mut asked = request("GET", path, Some(READ), None);
        asked.headers_mut().insert("if-none-match", tag.parse().unwrap());
        let answer = send(&replica, asked).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        let new = answer.json();
        let grown = new["total"].as_u64().unwrap() - old["total"].as_u64().unwrap();
        // It was minute 605 of the second day, number 2045 of all, which had none.
        assert_eq!(grown, 1_000, "{path}");
        assert_ne!(new["digest"], old["digest"], "{path}");
        assert!(new["asOf"].as_str() > old["asOf"].as_str(), "{path}: {new}");
        assert_eq!((&new["complete"], &new["stale"]), (&json!(true), &json!([])), "{path}");
    }
}

#[tokio::test]
async fn a_day_that_was_folded_from_other_hours_is_not_complete() {
    let world = folded();
    let hour = Bucket::containing(Granularity::Hour, at("2026-03-08T10:00:00Z"));
    world.put(row(hour, at("2026-03-14T13:00:00Z"), vec![0, 1]));
    let json = get(&world.replica(), DAYS).await.json();
    assert_eq!(json["stale"][0]["start"], "2026-03-08T00:00:00Z");
    assert_eq!((&json["staleMinutes"], &json["complete"]), (&json!(1_440), &json!(false)));
}

/// A local day, asked for by its offsets: the last hours of one UTC day and the first of the next.
#[tokio::test]
async fn local_days_are_summed_from_hours_and_half_hours() {
    let world = folded();
    let replica = world.replica();
    // (what it is, start, end, minutes)
    let cases = [
        ("New York, clocks forward", "2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00", 23),
        ("Kathmandu", "2026-03-08T00:00:00%2B05:45", "2026-03-09T00:00:00%2B05:45", 24),
        ("Adelaide", "2026-03-08T00:00:00%2B10:30", "2026-03-09T00:00:00%2B10:30", 24),
    ];
    for (name, start, end, hours) in cases {
        let path = format!("/v1/stats/top?start={start}&end={end}");
        let json = get(&replica, &path).await.json();
        let from_ms = at(json["window"]["start"].as_str().unwrap());
        let to_ms = at(json["window"]["end"].as_str().unwrap());
        assert_eq!(to_ms - from_ms, hours * HOUR_MS, "{name}");
        let first = (from_ms - at("2026-03-07T00:00:00Z")) / MINUTE_MS;
        let want: i64 = (first..first + hours * 60).map(|number| number % 5).sum();
        assert_eq!((&json["total"], &json["exact"]), (&json!(want), &json!(true)), "{name}");
        let rows = json["bucketsRead"].as_u64().unwrap();
        assert!(rows <= 23 + 2 * 45, "{name}: {rows} rows");
    }
}

#[tokio::test]
async fn leap_days_and_the_ends_of_years_are_days_like_others() {
    let world = World::at("2025-01-10T00:00:00Z");
    world.types(&["a"]);
    world.marks("2024-01-01T00:00:00Z", "2025-01-03T00:00:00Z", "2025-01-03T00:00:00Z");
    let run = Run {
        granularity: Granularity::Day,
        start_ms: at("2024-01-01T00:00:00Z"),
        end_ms: at("2025-01-03T00:00:00Z"),
    };
    for day in run.buckets() {
        world.put(row(day, day.end_ms(), vec![0, 1]));
    }
    let replica = world.replica();
    for (start, end, days) in [
        ("2024-02-28", "2024-03-01", 2),
        ("2024-01-01", "2025-01-01", 366),
        ("2024-12-31", "2025-01-02", 2),
    ] {
        let path = format!("/v1/stats/top?start={start}T00:00:00Z&end={end}T00:00:00Z");
        let json = get(&replica, &path).await.json();
        assert_eq!((&json["total"], &json["bucketsRead"]), (&json!(days), &json!(days)), "{path}");
    }
    let path = "/v1/stats/series?type=a&granularity=day\
                &start=2024-02-28T00:00:00Z&end=2024-03-02T00:00:00Z";
    let json = get(&replica, path).await.json();
    let starts: Vec<_> = json["points"].as_array().unwrap().iter().map(|p| &p["start"]).collect();
    assert_eq!(starts, ["2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"]);
}

/// B89: what is past its retention is not even looked for, deleted or not yet.
#[tokio::test]
async fn b89_a_ragged_range_reads_no_period_that_is_past_its_retention() {
    let mut world = years("2025-01-01T00:00:00Z", 400);
    world.settings.minutes_days = 60;
    let path = "/v1/stats/top?start=2025-01-01T00:01:00Z&end=2026-02-04T23:59:00Z";
    let before = get(&world.replica(), path).await.json();
    let retention = tally_jobs::retention::Retention {
        counts: std::sync::Arc::<crate::testing::HookedCounts>::clone(&world.counts),
        meta: std::sync::Arc::clone(&world.meta),
        clock: std::sync::Arc::<tally_model::clock::ManualClock>::clone(&world.clock),
        minutes_days: 60,
        hours_days: 730,
    };
    // The minutes of the first two days are the only old ones.
    assert_eq!(retention.run(&|| true).unwrap().rows, 2 * 1_440);
    world.counts.listings.store(0, std::sync::atomic::Ordering::Relaxed);
    let after = get(&world.replica(), path).await.json();
    assert_eq!(after["results"], before["results"]);
    assert_eq!((&after["digest"], &after["exact"]), (&before["digest"], &json!(true)));
    let listings = world.counts.listings.load(std::sync::atomic::Ordering::Relaxed);
    // Two years of days, the months of two ragged ends, the minutes of the young end.
    assert!(listings <= 5, "{listings} periods were listed: {after}");
}
