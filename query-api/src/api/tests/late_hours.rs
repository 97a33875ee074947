//! `GET /v1/late-hours`, and what dirty hours do to other answers.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde_json::{Value, json};
use tally_sinks::dirty::DirtyHour;

use super::{HOUR, LATE, problem, world};
use crate::testing::{READ, World, get, request, send};

const DAY_MS: i64 = 24 * 3_600_000;

/// The deployment of the other tests a day later, so that only dirty hours are in the way.
fn world_a_day_later() -> World {
    let world = world();
    world.clock.advance(DAY_MS);
    world
}

fn late(late: u64) -> DirtyHour {
    DirtyHour { late, positions: BTreeMap::from([(3, 17), (10, 4)]), ..DirtyHour::default() }
}

fn top(start: &str, end: &str) -> String {
    format!("/v1/stats/top?start=2026-03-10T{start}:00Z&end=2026-03-10T{end}:00Z")
}

#[tokio::test]
async fn an_answer_that_touches_a_dirty_hour_says_so() {
    let world = world_a_day_later();
    world.dirty("2026-03-10T09:00:00Z", late(1));
    world.dirty("2026-03-10T10:00:00Z", DirtyHour { hole: true, ..DirtyHour::default() });
    let replica = world.replica();
    // (start, end, stretch, dirty hours)
    let cases = [
        ("08:00", "09:00", None, 0),
        ("08:00", "09:01", Some(("09", "10")), 1),
        ("09:59", "10:00", Some(("09", "10")), 1),
        ("08:00", "11:00", Some(("09", "11")), 2),
        ("10:59", "11:30", Some(("10", "11")), 1),
        ("11:00", "11:30", None, 0),
    ];
    for (start, end, stretch, hours) in cases {
        let json = get(&replica, &top(start, end)).await.json();
        let span = |(start, end)| {
            json!({
                "start": format!("2026-03-10T{start}:00:00Z"),
                "end": format!("2026-03-10T{end}:00:00Z"),
            })
        };
        assert_eq!(json["dirty"], Value::from_iter(stretch.map(span)), "{start} to {end}");
        assert_eq!(json["dirtyHours"], hours, "{start} to {end}");
        let clean = Value::Bool(hours == 0);
        assert_eq!((&json["complete"], &json["exact"]), (&clean, &clean), "{start} to {end}");
        assert_eq!((&json["missing"], &json["notClosed"]), (&json!([]), &json!([])));
    }
}

#[tokio::test]
async fn each_point_of_a_series_follows_its_own_hour() {
    let world = world_a_day_later();
    world.dirty("2026-03-10T09:00:00Z", late(1));
    let path = "/v1/stats/series?type=b&granularity=hour\
                &start=2026-03-10T08:00:00Z&end=2026-03-10T11:00:00Z";
    let replica = world.replica();
    let json = get(&replica, path).await.json();
    let complete: Vec<&Value> =
        json["points"].as_array().unwrap().iter().map(|point| &point["complete"]).collect();
    assert_eq!(complete, [true, false, true]);
    assert_eq!((&json["complete"], &json["dirtyHours"]), (&json!(false), &json!(1)));

    let csv = get(&replica, &format!("{path}&format=csv")).await;
    assert!(csv.text().contains("2026-03-10T09:00:00Z,120,false\r\n"), "{}", csv.text());
    assert_eq!((csv.header("tally-complete"), csv.header("tally-exact")), ("false", "false"));
}

#[tokio::test]
async fn the_entity_tag_changes_when_an_hour_becomes_dirty_and_not_with_another_event() {
    let world = world_a_day_later();
    let replica = world.replica();
    let tag = async || {
        world.clock.advance(1_000);
        get(&replica, HOUR).await.header("etag").to_owned()
    };
    let clean = tag().await;
    world.dirty("2026-03-10T09:00:00Z", late(1));
    let dirty = tag().await;
    assert_ne!(dirty, clean);
    world.dirty("2026-03-10T09:00:00Z", late(2));
    assert_eq!(tag().await, dirty, "the answer is the same");
}

#[tokio::test]
async fn late_hours_are_listed_with_causes_and_positions() {
    let world = world();
    world.dirty("2026-03-10T08:00:00Z", late(2));
    let other = DirtyHour {
        late: 1,
        straggler: 3,
        past_window: 5,
        hole: true,
        superseded: true,
        positions: BTreeMap::new(),
    };
    world.dirty("2026-03-10T11:00:00Z", other);
    world.dirty("2026-03-11T00:00:00Z", late(99));
    let replica = world.replica();
    let answer = get(&replica, LATE).await;
    assert_eq!(answer.header("content-type"), "application/json");
    let want = json!({
        "window": {
            "start": "2026-03-10T00:00:00Z",
            "end": "2026-03-11T00:00:00Z",
            "requestedStart": "2026-03-10T00:00:00Z",
            "requestedEnd": "2026-03-11T00:00:00Z",
            "resolution": "hour",
            "widened": false,
        },
        "hours": [
            {
                "start": "2026-03-10T08:00:00Z",
                "late": 2,
                "straggler": 0,
                "pastWindow": 0,
                "hole": false,
                "superseded": false,
                "positions": [
                    { "partition": 3, "nextOffset": 17 },
                    { "partition": 10, "nextOffset": 4 },
                ],
            },
            {
                "start": "2026-03-10T11:00:00Z",
                "late": 1,
                "straggler": 3,
                "pastWindow": 5,
                "hole": true,
                "superseded": true,
                "positions": [],
            },
        ],
        "total": { "late": 3, "straggler": 3, "pastWindow": 5 },
    });
    assert_eq!(answer.json(), want);

    let csv = get(&replica, &format!("{LATE}&format=csv")).await;
    assert_eq!(csv.header("content-type"), "text/csv; charset=utf-8; header=present");
    let want = "start,late,straggler,pastWindow,hole,superseded,positions\r\n\
                2026-03-10T08:00:00Z,2,0,0,false,false,3:17 10:4\r\n\
                2026-03-10T11:00:00Z,1,3,5,true,true,\r\n";
    assert_eq!(csv.text(), want);
}

#[tokio::test]
async fn late_hours_that_the_client_has_are_not_sent_again_until_something_is_noted() {
    let world = world();
    let replica = world.replica();
    let tag = get(&replica, LATE).await.header("etag").to_owned();
    let ask = || {
        let mut asked = request("GET", LATE, Some(READ), None);
        asked.headers_mut().insert("if-none-match", tag.parse().unwrap());
        asked
    };
    assert_eq!(send(&replica, ask()).await.status, StatusCode::NOT_MODIFIED);
    world.dirty("2026-03-10T08:00:00Z", late(1));
    let answer = send(&replica, ask()).await;
    assert_eq!((answer.status, &answer.json()["total"]["late"]), (StatusCode::OK, &json!(1)));
}

#[tokio::test]
async fn bad_parameters_of_late_hours_are_400_with_what_is_allowed() {
    let replica = world().replica();
    // (query, parameter, part of the message)
    let cases = [
        ("", "start", "required"),
        ("start=2026-03-10T00:30:00Z&end=2026-03-10T02:00:00Z", "start", "whole hour"),
        ("start=2026-03-10T02:00:00Z&end=2026-03-10T01:00:00Z", "start", "before end"),
        ("start=2025-01-01T00:00:00Z&end=2026-02-21T17:00:00Z", "end", "10001 hours"),
        (
            "start=2026-03-10T00:00:00Z&end=2026-03-10T02:00:00Z&k=1",
            "k",
            "start, end, snap, format",
        ),
    ];
    for (query, parameter, part) in cases {
        let answer = get(&replica, &format!("/v1/late-hours?{query}")).await;
        let json = problem(&answer, StatusCode::BAD_REQUEST, "bad_parameter");
        assert_eq!(json["errors"][0]["parameter"], parameter, "{query}");
        assert!(json["errors"][0]["message"].as_str().unwrap().contains(part), "{json}");
    }
    let path = "/v1/late-hours?start=2026-03-10T00:30:00Z&end=2026-03-10T02:00:00Z&snap=true";
    let json = get(&replica, path).await.json();
    assert_eq!(json["window"]["start"], "2026-03-10T00:00:00Z");
}
