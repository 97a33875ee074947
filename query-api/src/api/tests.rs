//! The service as a client sees it.

mod event_types;
mod formats;
mod late_hours;
mod model;
mod shown;
mod stats;
mod tiers;

use axum::http::StatusCode;
use serde_json::Value;

use crate::testing::{ADMIN, Answer, PLAIN, READ, WRITE, World, get, request, send};

const NOW: &str = "2026-03-10T12:00:30Z";
const HOUR: &str = "/v1/stats/top?start=2026-03-10T09:00:00Z&end=2026-03-10T10:00:00Z";
/// Before the origin, so final and zero.
const OLD_HOUR: &str = "/v1/stats/top?start=2026-03-08T09:00:00Z&end=2026-03-08T10:00:00Z";
const SERIES: &str = "/v1/stats/series?type=a&granularity=minute\
                      &start=2026-03-10T09:00:00Z&end=2026-03-10T10:00:00Z";
const LATE: &str = "/v1/late-hours?start=2026-03-10T00:00:00Z&end=2026-03-11T00:00:00Z";

/// A deployment since 8 o'clock, all minutes closed up to 11:58 and retired up to 11:40, with the
/// types `a`, `b` and `never`, and without rows.
fn world_without_rows() -> World {
    let world = World::at(NOW);
    world.types(&["a", "b", "never"]);
    world.marks("2026-03-10T08:00:00Z", "2026-03-10T11:40:00Z", "2026-03-10T11:58:00Z");
    world
}

/// The same with its rows: each minute has one event of unknown type, one `a` and two `b`.
fn world() -> World {
    let world = world_without_rows();
    world.minutes("2026-03-10T08:00:00Z", "2026-03-10T11:58:00Z", |_| vec![1, 1, 2]);
    world
}

/// Checks what every problem document has, and returns it.
fn problem(answer: &Answer, status: StatusCode, code: &str) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "application/problem+json");
    let json = answer.json();
    assert_eq!(json["status"], status.as_u16());
    assert_eq!(json["code"], code, "{json}");
    assert_eq!(json["type"], format!("urn:tally:problem:{code}"));
    assert!(json["title"].is_string() && json["detail"].is_string(), "{json}");
    json
}

#[tokio::test]
async fn nothing_is_answered_without_a_token_that_allows_it() {
    let world = world();
    let replica = world.replica();
    let types = "/v1/event-types";
    let (post, patch) = (Some(r#"{"name":"x"}"#), Some(r#"{"status":"active"}"#));
    let one = "/v1/event-types/a";
    // (method, path, body, statuses for: no token, unknown, write, plain read, read, admin)
    let cases = [
        ("GET", HOUR, None, [401, 401, 403, 400, 200, 200]),
        ("GET", OLD_HOUR, None, [401, 401, 403, 200, 200, 200]),
        ("GET", SERIES, None, [401, 401, 403, 400, 200, 200]),
        ("GET", "/v1/stats/top", None, [401, 401, 403, 400, 400, 400]),
        ("GET", LATE, None, [401, 401, 403, 403, 200, 200]),
        ("GET", types, None, [401, 401, 200, 200, 200, 200]),
        ("POST", types, post, [401, 401, 403, 403, 403, 201]),
        ("PATCH", one, patch, [401, 401, 403, 403, 403, 200]),
    ];
    let tokens = [None, Some("nobody"), Some(WRITE), Some(PLAIN), Some(READ), Some(ADMIN)];
    for (method, path, body, statuses) in cases {
        for (token, status) in tokens.into_iter().zip(statuses) {
            let answer = send(&replica, request(method, path, token, body)).await;
            assert_eq!(answer.status.as_u16(), status, "{method} {path} as {token:?}");
            if status == 401 {
                problem(&answer, StatusCode::UNAUTHORIZED, "unauthorized");
                assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"tally\"");
            }
        }
    }
}

#[tokio::test]
async fn a_token_counts_only_as_a_bearer_header_sent_once() {
    let replica = world().replica();
    let headers = [
        vec![format!("Basic {READ}")],
        vec![READ.to_owned()],
        vec![format!("Bearer {READ}"), format!("Bearer {READ}")],
        vec![],
    ];
    for values in headers {
        let mut asked = request("GET", &format!("{HOUR}&token={READ}"), None, None);
        for value in &values {
            asked.headers_mut().append("authorization", value.parse().unwrap());
        }
        let answer = send(&replica, asked).await;
        problem(&answer, StatusCode::UNAUTHORIZED, "unauthorized");
    }
    let mut lower = request("GET", HOUR, None, None);
    lower.headers_mut().append("authorization", format!("bearer {READ}").parse().unwrap());
    assert_eq!(send(&replica, lower).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_read_token_without_the_raw_scope_is_told_what_it_lacks() {
    let replica = world().replica();
    let answer = send(&replica, request("GET", LATE, Some(PLAIN), None)).await;
    let json = problem(&answer, StatusCode::FORBIDDEN, "raw_scope_required");
    assert!(json["detail"].as_str().unwrap().contains("stats:raw"));
}

#[tokio::test]
async fn another_method_is_refused_with_those_there_are() {
    let replica = world().replica();
    for (path, allow) in
        [(HOUR, "GET,HEAD"), (LATE, "GET,HEAD"), ("/v1/event-types", "GET,HEAD,POST")]
    {
        let answer = send(&replica, request("DELETE", path, Some(ADMIN), None)).await;
        problem(&answer, StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
        assert_eq!(answer.header("allow"), allow);
    }
}

#[tokio::test]
async fn more_queries_than_may_wait_are_refused_and_the_rest_are_answered() {
    let mut world = world();
    world.settings.concurrent_reads = 1;
    world.settings.waiting_reads = 1;
    let (replica, (release, held)) = (world.replica(), std::sync::mpsc::channel::<()>());
    let (entered, mut is_entered) = tokio::sync::mpsc::channel(1);
    world.counts.before_rows(move |_| {
        entered.blocking_send(()).unwrap();
        held.recv().unwrap();
    });
    let ask = || {
        let replica = replica.clone();
        tokio::spawn(async move { get(&replica, HOUR).await })
    };
    let first = ask();
    is_entered.recv().await.expect("the first query reads");
    // Of the next two, one waits and one is refused at once.
    let (mut one, mut two) = (ask(), ask());
    let (refused, waits) = tokio::select! {
        answer = &mut one => (answer.unwrap(), two),
        answer = &mut two => (answer.unwrap(), one),
    };
    problem(&refused, StatusCode::SERVICE_UNAVAILABLE, "overloaded");
    assert_eq!(refused.header("retry-after"), "1");
    release.send(()).unwrap();
    for answer in [first.await.unwrap(), waits.await.unwrap()] {
        assert_eq!(answer.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_gives_503_and_tells_no_internals() {
    let world = world();
    let replica = world.replica();
    world.counts.fails.store(true, std::sync::atomic::Ordering::Relaxed);
    let answer = get(&replica, HOUR).await;
    problem(&answer, StatusCode::SERVICE_UNAVAILABLE, "unavailable");
    assert!(!answer.text().contains("it is off"), "{}", answer.text());
    world.counts.fails.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(get(&replica, HOUR).await.status, StatusCode::OK);
}

#[tokio::test]
async fn metrics_name_routes_and_statuses_and_nothing_that_was_asked() {
    let world = world();
    let mut registry = prometheus_client::registry::Registry::default();
    let replica = world.measured_replica(&mut registry);
    get(&replica, HOUR).await;
    get(&replica, &format!("{SERIES}&secret=hunter2")).await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "query_requests_total{route=\"Top\",status=\"200\"} 1",
        "query_requests_total{route=\"Series\",status=\"400\"} 1",
        "query_request_seconds_count{route=\"Top\"} 1",
        "query_rows_read_total 60",
        "query_cache_misses_total 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("hunter2") && !text.contains(READ));
}
