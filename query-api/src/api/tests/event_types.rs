//! `/v1/event-types`.

use axum::Router;
use axum::http::StatusCode;
use serde_json::json;

use super::{problem, world};
use crate::testing::{ADMIN, Answer, READ, get, request, send};

const TYPES: &str = "/v1/event-types";

async fn post(replica: &Router, body: &str) -> Answer {
    send(replica, request("POST", TYPES, Some(ADMIN), Some(body))).await
}

async fn patch(replica: &Router, name: &str, body: &str) -> Answer {
    send(replica, request("PATCH", &format!("{TYPES}/{name}"), Some(ADMIN), Some(body))).await
}

#[tokio::test]
async fn a_type_is_created_once_and_is_listed_at_once() {
    let replica = world().replica();
    let body = r#"{"name":"signup","owner":"growth","piiFlag":true,"schema":{"type":"object"}}"#;
    let created = post(&replica, body).await;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.text());
    let want = json!({
        "typeId": 4,
        "name": "signup",
        "schemaVersion": 1,
        "schema": { "type": "object" },
        "owner": "growth",
        "piiFlag": true,
        "status": "active",
    });
    assert_eq!(created.json(), want);
    let again = post(&replica, body).await;
    assert_eq!((again.status, again.json()), (StatusCode::OK, want.clone()));

    let listing = get(&replica, TYPES).await.json();
    let types = listing["eventTypes"].as_array().unwrap();
    assert_eq!(types.len(), 4, "__other is no event type: {listing}");
    assert_eq!(types[3], want);
}

#[tokio::test]
async fn another_body_under_a_known_name_is_a_conflict() {
    let replica = world().replica();
    let answer = post(&replica, r#"{"name":"a","owner":"somebody"}"#).await;
    problem(&answer, StatusCode::CONFLICT, "type_exists");
    assert_eq!(post(&replica, r#"{"name":"a"}"#).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_bad_body_is_refused_with_the_rule_that_it_breaks() {
    let replica = world().replica();
    let long = format!(r#"{{"name":"{}"}}"#, "x".repeat(129));
    let cases = [
        (r#"{"name":""}"#, "must not be empty"),
        (r#"{"name":" a"}"#, "blank"),
        (r#"{"name":"a\u0007b"}"#, "control characters"),
        (r#"{"name":"__other"}"#, "reserved"),
        (long.as_str(), "128 bytes"),
        (r#"{"name":"x","color":"red"}"#, "expected one of `name`, `schema`, `owner`, `piiFlag`"),
        (r#"{"name":"x","name":"y"}"#, "duplicate field"),
        (r#"{"owner":"x"}"#, "missing field `name`"),
        (r#"{"name":"x","schema":7}"#, "JSON Schema"),
        (r#"{"name":7}"#, "expected a string"),
        ("{", "EOF"),
    ];
    for (body, said) in cases {
        let json = problem(&post(&replica, body).await, StatusCode::BAD_REQUEST, "bad_body");
        let detail = json["detail"].as_str().unwrap();
        assert!(detail.contains(said), "{body}: {detail}");
    }
}

#[tokio::test]
async fn a_body_too_long_or_not_json_is_refused() {
    let replica = world().replica();
    let long = format!(r#"{{"name":"x","owner":"{}"}}"#, "o".repeat(64 << 10));
    problem(&post(&replica, &long).await, StatusCode::PAYLOAD_TOO_LARGE, "body_too_large");
    let mut form = request("POST", TYPES, Some(ADMIN), Some("name=x"));
    form.headers_mut().insert("content-type", "application/x-www-form-urlencoded".parse().unwrap());
    let answer = send(&replica, form).await;
    problem(&answer, StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type");
}

#[tokio::test]
async fn a_type_is_deprecated_and_keeps_its_slot_and_its_counts() {
    let replica = world().replica();
    let answer = patch(&replica, "a", r#"{"status":"deprecated"}"#).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(
        (&answer.json()["status"], &answer.json()["typeId"]),
        (&json!("deprecated"), &json!(1))
    );
    assert_eq!(get(&replica, super::HOUR).await.results()[1], ("a".to_owned(), 60));
    let back = patch(&replica, "a", r#"{"status":"active"}"#).await;
    assert_eq!(back.json()["status"], "active");
    let unknown = patch(&replica, "nope", r#"{"status":"active"}"#).await;
    problem(&unknown, StatusCode::NOT_FOUND, "unknown_type");
    let bad = patch(&replica, "a", r#"{"status":"gone"}"#).await;
    let json = problem(&bad, StatusCode::BAD_REQUEST, "bad_body");
    assert!(json["detail"].as_str().unwrap().contains("`active` or `deprecated`"), "{json}");
}

#[tokio::test]
async fn the_listing_is_not_sent_again_until_a_type_changes() {
    let replica = world().replica();
    let tag = get(&replica, TYPES).await.header("etag").to_owned();
    let ask = || {
        let mut asked = request("GET", TYPES, Some(READ), None);
        asked.headers_mut().insert("if-none-match", tag.parse().unwrap());
        asked
    };
    assert_eq!(send(&replica, ask()).await.status, StatusCode::NOT_MODIFIED);
    assert_eq!(patch(&replica, "b", r#"{"status":"deprecated"}"#).await.status, StatusCode::OK);
    assert_eq!(send(&replica, ask()).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_name_that_needs_encoding_is_found_in_the_path() {
    let world = world();
    world.types(&["cart/add ü"]);
    let answer = patch(&world.replica(), "cart%2Fadd%20%C3%BC", r#"{"status":"deprecated"}"#).await;
    assert_eq!((answer.status, &answer.json()["name"]), (StatusCode::OK, &json!("cart/add ü")));
}
