use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::Value;

use super::*;
use crate::testing::{ADMIN, READ, World, get, request, send};

const COMMITTED: &str = include_str!("../../../../docs/openapi.json");

fn described() -> Value {
    serde_json::from_str(&openapi_json().unwrap()).unwrap()
}

#[test]
fn the_committed_description_is_that_of_the_code() {
    assert!(
        COMMITTED == openapi_json().unwrap(),
        "docs/openapi.json is out of date; run: cargo run --release -p tally-query-api --example \
         openapi > docs/openapi.json"
    );
    assert!(described()["openapi"].as_str().unwrap().starts_with("3.1"));
}

/// The names of an object's fields, those of its parts too.
fn fields(api: &Value, schema: &Value) -> BTreeSet<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return fields(api, &api["components"]["schemas"][name]);
    }
    if let Some(parts) = schema["allOf"].as_array() {
        return parts.iter().flat_map(|part| fields(api, part)).collect();
    }
    schema["properties"].as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default()
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

/// What is answered has the fields that are described, and takes the parameters that are.
#[tokio::test]
async fn answers_and_parameters_are_those_of_the_description() {
    let api = described();
    let world = World::at("2026-03-10T12:00:30Z");
    world.types(&["a"]);
    world.marks("2026-03-10T08:00:00Z", "2026-03-10T11:40:00Z", "2026-03-10T11:58:00Z");
    world.minutes("2026-03-10T09:00:00Z", "2026-03-10T10:00:00Z", |_| vec![0, 1]);
    world.dirty(
        "2026-03-10T09:00:00Z",
        tally_sinks::dirty::DirtyHour {
            late: 1,
            positions: std::collections::BTreeMap::from([(0, 1)]),
            ..Default::default()
        },
    );
    let replica = world.replica();
    let range = "start=2026-03-10T09:00:00Z&end=2026-03-10T10:00:00Z";
    for (path, query, list) in [
        ("/v1/stats/top", range.to_owned(), "results"),
        ("/v1/stats/series", format!("type=a&granularity=hour&{range}"), "points"),
        ("/v1/late-hours", range.to_owned(), "hours"),
        ("/v1/event-types", String::new(), "eventTypes"),
    ] {
        let operation = &api["paths"][path]["get"];
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        let json = get(&replica, &format!("{path}?{query}")).await.json();
        let mut wanted = fields(&api, schema);
        // Only in answers to tokens without the raw scope.
        wanted.remove("suppressedBelow");
        assert_eq!(keys(&json), wanted, "{path}");
        let reference = schema["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        let own = &api["components"]["schemas"][reference];
        let parts = own["allOf"].as_array().cloned().unwrap_or_else(|| vec![own.clone()]);
        let items = parts.iter().find_map(|part| part["properties"][list].get("items")).unwrap();
        assert_eq!(keys(&json[list][0]), fields(&api, items), "{path} {list}");

        if path == "/v1/event-types" {
            continue;
        }
        let described: BTreeSet<&str> = (operation["parameters"].as_array().unwrap().iter())
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        let refused = get(&replica, &format!("{path}?nonsense=1")).await.json();
        let detail = refused["detail"].as_str().unwrap();
        let allowed = detail.split_once("allowed are ").unwrap().1.split(';').next().unwrap();
        assert_eq!(allowed.split(", ").collect::<BTreeSet<_>>(), described, "{path}");
    }
    let problem = get(&replica, "/v1/stats/top").await.json();
    assert_eq!(keys(&problem), fields(&api, &api["components"]["schemas"]["Problem"]));
    let body = Some(r#"{"name":"new"}"#);
    let made = send(&replica, request("POST", "/v1/event-types", Some(ADMIN), body)).await;
    let entry = &api["components"]["schemas"]["EventType"];
    assert_eq!(keys(&made.json()), fields(&api, entry));
}

#[tokio::test]
async fn the_description_and_its_page_are_served_and_load_nothing_from_elsewhere() {
    let replica = World::at("2026-03-10T12:00:30Z").replica();
    let answer = send(&replica, request("GET", "/openapi.json", None, None)).await;
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, described()));
    let page = send(&replica, request("GET", "/docs", Some(READ), None)).await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(!page.text().contains("https://") && !page.text().contains("http://"));
}
