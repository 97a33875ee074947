//! `GET /v1/stats/top` and `GET /v1/stats/series`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use serde_json::json;
use tally_model::bucket::{Bucket, Granularity};
use tally_sinks::counts::{CountsStore as _, PutCondition};
use tally_sinks::registry::{NewType, Registry};

use super::{HOUR, NOW, SERIES, problem, world, world_without_rows};
use crate::testing::{READ, World, at, get, request, row, send};

#[tokio::test]
async fn a_top_answer_says_what_it_is_about_and_how_far_it_can_be_relied_on() {
    let answer = get(&world().replica(), HOUR).await;
    assert_eq!(answer.status, StatusCode::OK);
    let mut json = answer.json();
    assert!(json["digest"].as_str().is_some_and(|digest| digest.len() == 32), "{json}");
    json["digest"] = json!("...");
    let want = json!({
        "window": {
            "start": "2026-03-10T09:00:00Z",
            "end": "2026-03-10T10:00:00Z",
            "requestedStart": "2026-03-10T09:00:00Z",
            "requestedEnd": "2026-03-10T10:00:00Z",
            "resolution": "hour",
            "widened": false,
        },
        "complete": false,
        "exact": true,
        "asOf": "2026-03-10T10:02:00Z",
        "digest": "...",
        "readableUntil": "2026-03-10T11:58:00Z",
        "finalUntil": "2026-03-09T12:00:00Z",
        "dataFrom": "2026-03-10T08:00:00Z",
        "bucketsRead": 60,
        "manifestReads": 2,
        "missing": [],
        "missingMinutes": 0,
        "notClosed": [],
        "notClosedMinutes": 0,
        "stale": [],
        "staleMinutes": 0,
        "dirty": [],
        "dirtyHours": 0,
        "total": 240,
        "other": 60,
        "results": [
            { "rank": 1, "eventType": "b", "typeId": 2, "count": 120 },
            { "rank": 2, "eventType": "a", "typeId": 1, "count": 60 },
        ],
    });
    assert_eq!(json, want);
}

#[tokio::test]
async fn after_a_day_a_whole_range_is_complete() {
    let world = world();
    world.clock.advance(24 * 3_600_000);
    let json = get(&world.replica(), HOUR).await.json();
    assert_eq!((&json["complete"], &json["exact"]), (&json!(true), &json!(true)));
}

#[tokio::test]
async fn an_hour_without_events_has_a_total_of_zero_and_no_results() {
    let world = world_without_rows();
    world.minutes("2026-03-10T09:00:00Z", "2026-03-10T10:00:00Z", |_| vec![]);
    let json = get(&world.replica(), HOUR).await.json();
    assert_eq!((&json["total"], &json["results"]), (&json!(0), &json!([])));
    assert_eq!((&json["exact"], &json["bucketsRead"]), (&json!(true), &json!(60)));
}

/// B102.
#[tokio::test]
async fn types_with_one_count_come_in_the_same_order_always_and_everywhere() {
    let world = World::at(NOW);
    world.types(&["e", "B", "d", "a", "c"]);
    world.marks("2026-03-10T08:00:00Z", "2026-03-10T11:40:00Z", "2026-03-10T11:58:00Z");
    world.minutes("2026-03-10T09:00:00Z", "2026-03-10T10:00:00Z", |_| vec![0, 1, 1, 1, 1, 1]);
    let want: Vec<_> = ["B", "a", "c"].into_iter().map(|name| (name.to_owned(), 60)).collect();
    let mut replicas = [world.replica(), world.replica()];
    for call in 0..100_usize {
        if call == 50 {
            // A restart: the cache is gone.
            replicas[1] = world.replica();
        }
        let answer = get(&replicas[call % 2], &format!("{HOUR}&k=3")).await;
        assert_eq!(answer.results(), want, "call {call}");
    }
}

#[tokio::test]
async fn k_beyond_the_number_of_types_returns_all_that_have_events() {
    let answer = get(&world().replica(), &format!("{HOUR}&k=4000")).await;
    assert_eq!(answer.results().len(), 2);
}

/// B100.
#[tokio::test]
async fn a_bad_k_is_400_with_the_parameter_named() {
    let replica = world().replica();
    for k in ["0", "-1", "1.5", "abc", "2147483648", "18446744073709551616"] {
        let answer = get(&replica, &format!("{HOUR}&k={k}")).await;
        let json = problem(&answer, StatusCode::BAD_REQUEST, "bad_parameter");
        assert_eq!(json["errors"][0]["parameter"], "k");
        assert_eq!(json["errors"][0]["message"], "must be an integer from 1 to 4000");
    }
}

/// B101.
#[tokio::test]
async fn bounds_within_a_minute_are_refused_or_widened_and_the_window_says_so() {
    let replica = world().replica();
    let path = "/v1/stats/top?start=2026-03-10T09:00:10Z&end=2026-03-10T09:00:40Z";
    let json = problem(&get(&replica, path).await, StatusCode::BAD_REQUEST, "bad_parameter");
    let message = json["errors"][0]["message"].as_str().unwrap();
    assert!(message.contains("2026-03-10T09:00:00Z and 2026-03-10T09:01:00Z"), "{message}");

    let json = get(&replica, &format!("{path}&snap=true")).await.json();
    let window = json!({
        "start": "2026-03-10T09:00:00Z",
        "end": "2026-03-10T09:01:00Z",
        "requestedStart": "2026-03-10T09:00:10Z",
        "requestedEnd": "2026-03-10T09:00:40Z",
        "resolution": "minute",
        "widened": true,
    });
    assert_eq!((&json["window"], &json["total"]), (&window, &json!(4)));
}

#[tokio::test]
async fn a_raw_plus_is_refused_and_an_encoded_one_is_an_offset() {
    let replica = world().replica();
    let path = |plus| {
        format!(
            "/v1/stats/top?start=2026-03-10T14:30:00{plus}05:30&end=2026-03-10T15:30:00{plus}05:30"
        )
    };
    let json = problem(&get(&replica, &path("+")).await, StatusCode::BAD_REQUEST, "bad_parameter");
    assert!(json["errors"][0]["message"].as_str().unwrap().contains("encode + as %2B"), "{json}");
    let json = get(&replica, &path("%2B")).await.json();
    assert_eq!(json["window"]["start"], "2026-03-10T09:00:00Z");
    assert_eq!(json["total"], 240);
}

/// B104.
#[tokio::test]
async fn the_local_day_of_the_clock_change_is_the_sum_of_its_25_hours() {
    let world = World::at("2026-11-03T12:00:00Z");
    world.types(&["a"]);
    world.marks("2026-10-30T00:00:00Z", "2026-11-03T11:00:00Z", "2026-11-03T11:58:00Z");
    world.minutes("2026-10-31T00:00:00Z", "2026-11-03T00:00:00Z", |number| vec![0, number % 7]);
    // Day rows that are much too great: a local day holds none of them whole.
    for day in ["2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z"] {
        let bucket = Bucket::containing(Granularity::Day, at(day));
        world.put(row(bucket, at(NOW), vec![0, 1_000_000]));
    }
    let local = "start=2026-11-01T00:00:00-04:00&end=2026-11-02T00:00:00-05:00";
    let replica = world.replica();
    let top = get(&replica, &format!("/v1/stats/top?{local}")).await.json();
    let hours = format!("/v1/stats/series?type=a&granularity=hour&{local}");
    let series = get(&replica, &hours).await.json();
    let points = series["points"].as_array().unwrap();
    assert_eq!(points.len(), 25);
    let sum: u64 = points.iter().map(|point| point["count"].as_u64().unwrap()).sum();
    // The range begins 1,680 minutes after the first row.
    let want: u64 = (1_680..1_680 + 25 * 60).map(|number| number % 7).sum();
    assert_eq!(
        (sum, top["total"].as_u64(), series["total"].as_u64()),
        (want, Some(want), Some(want))
    );
}

/// B103.
#[tokio::test]
async fn a_range_of_ages_is_refused_before_anything_is_read() {
    let world = world();
    let replica = world.replica();
    for range in [
        "start=1970-01-01T00:00:00Z&end=9999-12-31T00:00:00Z",
        "start=1970-01-01T00:00:00Z&end=10000-01-01T00:00:00Z",
        "start=2026-01-01T00:00:00Z&end=2046-01-02T00:00:00Z",
    ] {
        for path in ["top?", "series?type=a&granularity=minute&"] {
            let answer = get(&replica, &format!("/v1/stats/{path}{range}")).await;
            problem(&answer, StatusCode::BAD_REQUEST, "bad_parameter");
        }
    }
    let many = "start=2026-03-01T00:00:00Z&end=2026-03-07T22:41:00Z";
    let path = format!("/v1/stats/series?type=a&granularity=minute&{many}");
    let json = problem(&get(&replica, &path).await, StatusCode::BAD_REQUEST, "bad_parameter");
    assert!(json["errors"][0]["message"].as_str().unwrap().contains("10001 points"), "{json}");
    assert_eq!(world.counts.listings.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn the_longest_range_reads_a_bounded_number_of_manifests() {
    let world = world();
    let path = "/v1/stats/top?start=2026-03-10T00:00:00Z&end=2046-03-10T00:00:00Z";
    let json = get(&world.replica(), path).await.json();
    assert_eq!(json["total"], 4 * 238);
    assert_eq!(json["notClosed"][0]["start"], "2026-03-10T11:58:00Z");
    assert_eq!(json["notClosed"].as_array().unwrap().len(), 1);
    assert!(json["manifestReads"].as_u64().unwrap() <= 3, "{json}");
    assert_eq!(json["exact"], false);
}

#[tokio::test]
async fn what_has_no_row_is_zero_before_the_origin_missing_when_retired_and_else_not_closed() {
    let world = world_without_rows();
    world.minutes("2026-03-10T08:00:00Z", "2026-03-10T10:00:00Z", |_| vec![0, 1]);
    world.minutes("2026-03-10T10:05:00Z", "2026-03-10T11:58:00Z", |_| vec![0, 1]);
    let path = "/v1/stats/top?start=2026-03-10T07:00:00Z&end=2026-03-10T12:00:00Z";
    let json = get(&world.replica(), path).await.json();
    let span = |start, end| json!([{ "start": start, "end": end }]);
    assert_eq!(json["total"], 120 + 113);
    assert_eq!(json["missing"], span("2026-03-10T10:00:00Z", "2026-03-10T10:05:00Z"));
    assert_eq!(json["missingMinutes"], 5);
    assert_eq!(json["notClosed"], span("2026-03-10T11:58:00Z", "2026-03-10T12:00:00Z"));
    assert_eq!((&json["exact"], &json["complete"]), (&json!(false), &json!(false)));
}

#[tokio::test]
async fn past_the_retention_of_minutes_the_edges_widen_and_the_window_says_so() {
    let mut world = world();
    world.settings.minutes_days = 1;
    world.clock.step_to(at("2026-03-13T12:00:30Z"));
    let hour = Bucket::containing(Granularity::Hour, at("2026-03-10T09:00:00Z"));
    world.put(row(hour, at(NOW), vec![0, 9]));
    let path = "/v1/stats/top?start=2026-03-10T09:10:00Z&end=2026-03-10T09:20:00Z";
    let json = get(&world.replica(), path).await.json();
    assert_eq!(json["window"]["start"], "2026-03-10T09:00:00Z");
    assert_eq!(json["window"]["requestedStart"], "2026-03-10T09:10:00Z");
    assert_eq!(json["window"]["resolution"], "hour");
    assert_eq!((&json["window"]["widened"], &json["total"]), (&json!(true), &json!(9)));
}

#[tokio::test]
async fn an_answer_that_the_client_has_is_not_sent_again_until_a_row_changes() {
    let world = world();
    let replica = world.replica();
    let first = get(&replica, HOUR).await;
    let tag = first.header("etag").to_owned();
    assert!(tag.starts_with("W/\""), "{tag}");
    assert_eq!(first.header("cache-control"), "private, no-cache");

    let ask = || {
        let mut asked = request("GET", HOUR, Some(READ), None);
        asked.headers_mut().insert("if-none-match", tag.parse().unwrap());
        asked
    };
    world.clock.advance(1_000);
    let second = send(&replica, ask()).await;
    assert_eq!((second.status, second.header("etag")), (StatusCode::NOT_MODIFIED, tag.as_str()));
    assert!(second.body.is_empty());

    world.put(row(Bucket::minute(at("2026-03-10T09:59:00Z")), at(NOW), vec![0, 50]));
    world.clock.advance(1_000);
    let third = send(&replica, ask()).await;
    assert_eq!(third.status, StatusCode::OK);
    assert_eq!(third.results(), [("b".to_owned(), 118), ("a".to_owned(), 109)]);
    assert_ne!(third.json()["digest"], first.json()["digest"]);
}

#[tokio::test]
async fn a_new_event_type_changes_the_entity_tag_because_its_name_may_appear() {
    let world = world();
    let replica = world.replica();
    let before = get(&replica, HOUR).await.header("etag").to_owned();
    world.types(&["late comer"]);
    assert_ne!(get(&replica, HOUR).await.header("etag"), before);
}

#[tokio::test]
async fn a_type_that_another_process_has_just_registered_is_named() {
    let world = world_without_rows();
    let replica = world.replica();
    let elsewhere = Registry::open(Arc::clone(&world.meta)).unwrap();
    elsewhere.register(NewType::named("brand new".to_owned())).unwrap();
    world.minutes("2026-03-10T09:00:00Z", "2026-03-10T10:00:00Z", |_| vec![0, 0, 0, 0, 1]);
    assert_eq!(get(&replica, HOUR).await.results(), [("brand new".to_owned(), 60)]);
}

#[tokio::test]
async fn a_row_that_changes_while_it_is_read_is_read_again() {
    let world = world();
    let bucket = Bucket::minute(at("2026-03-10T09:30:00Z"));
    world.counts.before_rows(move |counts| {
        let newer = row(bucket, at(NOW), vec![0, 41]);
        assert!(counts.put_many(&[(newer, PutCondition::Below)])[0].is_ok());
    });
    let answer = get(&world.replica(), HOUR).await;
    assert_eq!(answer.results(), [("b".to_owned(), 118), ("a".to_owned(), 100)]);
    assert_eq!(answer.json()["asOf"], "2026-03-10T12:00:30Z");
}

#[tokio::test]
async fn csv_is_sent_on_request_with_what_a_table_cannot_say_in_headers() {
    let world = world_without_rows();
    world.types(&["=cmd()"]);
    world.minutes("2026-03-10T09:00:00Z", "2026-03-10T10:00:00Z", |_| vec![0, 1, 0, 0, 2]);
    let replica = world.replica();
    let asked = get(&replica, &format!("{HOUR}&format=csv")).await;
    assert_eq!(asked.text(), "rank,eventType,typeId,count\r\n1,'=cmd(),4,120\r\n2,a,1,60\r\n");
    assert_eq!(asked.header("content-type"), "text/csv; charset=utf-8; header=present");
    assert_eq!(asked.header("tally-window"), "2026-03-10T09:00:00Z/2026-03-10T10:00:00Z");
    assert_eq!((asked.header("tally-complete"), asked.header("tally-exact")), ("false", "true"));

    let accept = |types: &'static str| {
        let mut asked = request("GET", HOUR, Some(READ), None);
        asked.headers_mut().insert("accept", types.parse().unwrap());
        asked
    };
    let negotiated = send(&replica, accept("text/csv")).await;
    assert_eq!(negotiated.text(), asked.text());
    assert_eq!(negotiated.header("etag"), asked.header("etag"));
    let neither = send(&replica, accept("text/html")).await;
    problem(&neither, StatusCode::NOT_ACCEPTABLE, "not_acceptable");
}

#[tokio::test]
async fn a_series_has_a_point_for_every_bucket() {
    let world = world();
    let replica = world.replica();
    let path = "/v1/stats/series?type=b&granularity=hour\
                &start=2026-03-10T07:00:00Z&end=2026-03-10T13:00:00Z";
    let json = get(&replica, path).await.json();
    let counts: Vec<_> = json["points"].as_array().unwrap().iter().map(|p| &p["count"]).collect();
    assert_eq!(counts, [0, 120, 120, 120, 116, 0]);
    assert_eq!(json["points"][1]["start"], "2026-03-10T08:00:00Z");
    assert_eq!((&json["eventType"], &json["typeId"]), (&json!("b"), &json!(2)));
    assert_eq!((&json["total"], &json["granularity"]), (&json!(476), &json!("hour")));
    assert_eq!(json["notClosedMinutes"], 62);

    let minutes = get(&replica, SERIES).await.json();
    assert_eq!((minutes["points"].as_array().unwrap().len(), &minutes["total"]), (60, &json!(60)));

    world.clock.advance(24 * 3_600_000 - 30_000);
    let json = get(&replica, path).await.json();
    let complete: Vec<_> =
        json["points"].as_array().unwrap().iter().map(|p| &p["complete"]).collect();
    assert_eq!(complete, [true, true, true, true, false, false]);
}

#[tokio::test]
async fn a_series_of_an_unknown_type_is_404_and_of_the_unknown_types_is_not() {
    let replica = world().replica();
    let path = |name| SERIES.replace("type=a", &format!("type={name}"));
    let json = problem(&get(&replica, &path("nope")).await, StatusCode::NOT_FOUND, "unknown_type");
    assert_eq!(json["errors"][0]["parameter"], "type");
    let other = get(&replica, &path("__other")).await.json();
    assert_eq!((&other["typeId"], &other["total"]), (&json!(0), &json!(60)));
    let blank = get(&replica, &path("%20a")).await;
    problem(&blank, StatusCode::BAD_REQUEST, "bad_parameter");
}

#[tokio::test]
async fn a_series_as_csv_has_a_line_for_every_bucket() {
    let path = "/v1/stats/series?type=b&granularity=hour&format=csv\
                &start=2026-03-10T08:00:00Z&end=2026-03-10T10:00:00Z";
    let answer = get(&world().replica(), path).await;
    let want = "start,count,complete\r\n2026-03-10T08:00:00Z,120,false\r\n\
                2026-03-10T09:00:00Z,120,false\r\n";
    assert_eq!(answer.text(), want);
}
