//! Arrow, packed bodies, and whatever else clients may send.

use std::io::Read as _;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{UInt16Type, UInt32Type, UInt64Type};
use arrow_ipc::reader::StreamReader;
use proptest::prelude::*;

use super::{HOUR, SERIES, world};
use crate::testing::{ADMIN, PLAIN, READ, get, request, send};

#[tokio::test]
async fn arrow_holds_what_json_holds() {
    let world = world();
    let replica = world.replica();
    let answer = get(&replica, &format!("{HOUR}&format=arrow")).await;
    assert_eq!(answer.header("content-type"), "application/vnd.apache.arrow.stream");
    assert_eq!(answer.header("tally-exact"), "true");
    let mut reader = StreamReader::try_new(&answer.body[..], None).unwrap();
    let schema = reader.schema();
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["rank", "eventType", "typeId", "count"]);
    let batch = reader.next().unwrap().unwrap();
    assert_eq!(batch.column(0).as_primitive::<UInt32Type>().values(), &[1, 2]);
    let types: Vec<_> = batch.column(1).as_string::<i32>().iter().flatten().collect();
    assert_eq!(types, ["b", "a"]);
    assert_eq!(batch.column(2).as_primitive::<UInt16Type>().values(), &[2, 1]);
    assert_eq!(batch.column(3).as_primitive::<UInt64Type>().values(), &[120, 60]);

    let mut asked = request("GET", SERIES, Some(READ), None);
    let arrow = "application/vnd.apache.arrow.stream".parse().unwrap();
    asked.headers_mut().insert("accept", arrow);
    let answer = send(&replica, asked).await;
    let mut reader = StreamReader::try_new(&answer.body[..], None).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().num_rows(), 60);
}

#[tokio::test]
async fn long_answers_are_packed_as_the_client_likes_and_read_the_same() {
    let world = world();
    let replica = world.replica();
    let plain = get(&replica, SERIES).await;
    assert_eq!(plain.header("content-encoding"), "");
    for (accepted, coding) in [("gzip", "gzip"), ("gzip, zstd", "zstd"), ("br", "")] {
        let mut asked = request("GET", SERIES, Some(READ), None);
        asked.headers_mut().insert("accept-encoding", accepted.parse().unwrap());
        let answer = send(&replica, asked).await;
        assert_eq!(answer.header("content-encoding"), coding);
        assert!(answer.header("vary").contains("accept-encoding"));
        let mut body = Vec::new();
        match coding {
            "gzip" => {
                flate2::read::GzDecoder::new(&answer.body[..]).read_to_end(&mut body).unwrap();
            }
            "zstd" => body = zstd::stream::decode_all(&answer.body[..]).unwrap(),
            _ => body = answer.body.to_vec(),
        }
        assert_eq!(body, plain.body, "{accepted}");
        assert!(coding.is_empty() || answer.body.len() * 3 < plain.body.len());
        assert_eq!(answer.header("etag"), plain.header("etag"), "a weak tag is of the content");
    }
    let mut short = request("GET", &format!("{HOUR}&format=csv"), Some(READ), None);
    short.headers_mut().insert("accept-encoding", "gzip".parse().unwrap());
    assert_eq!(send(&replica, short).await.header("content-encoding"), "");
}

/// A value that a parameter may or may not have.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{1,20}",
        "-?[0-9]{1,13}",
        Just("2026-03-10T09:00:00Z".to_owned()),
        Just("2026-03-10T10:00:00Z".to_owned()),
        Just("2026-03-09T10:00:00-05:00".to_owned()),
        Just("9999-12-31T23:59:59.999Z".to_owned()),
        Just("0001-01-01T00:00:00Z".to_owned()),
        Just("a".to_owned()),
        Just("__other".to_owned()),
        prop::sample::select(vec!["minute", "hour", "day", "json", "csv", "arrow", "true"])
            .prop_map(str::to_owned),
        "(%[0-9a-fA-F]{2}){1,6}",
        "[ -~]{0,8}".prop_map(|text| text.replace(['#', ' ', '"', '<', '>', '\\'], "_")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Names from the API's own description, values from anywhere.
    #[test]
    fn no_request_is_answered_with_a_fault_of_the_service(
        path in prop::sample::select(vec![
            "/v1/stats/top", "/v1/stats/series", "/v1/late-hours", "/v1/event-types",
        ]),
        parameters in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "start", "end", "k", "type", "granularity", "snap", "format", "region", "x",
                ]),
                value(),
            ),
            0..7,
        ),
        token in prop::sample::select(vec![READ, PLAIN, ADMIN]),
        accept in prop::sample::select(vec!["*/*", "text/csv", "application/json;q=0", "", "x"]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let query: Vec<String> =
            parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let path = format!("{path}?{}", query.join("&"));
        prop_assume!(path.parse::<axum::http::Uri>().is_ok());
        let mut asked = request("GET", &path, Some(token), None);
        asked.headers_mut().insert("accept", accept.parse().unwrap());
        let replica = WORLD.with(|world| world.replica());
        let answer = runtime.block_on(send(&replica, asked));
        prop_assert!(answer.status.as_u16() < 500, "{} {}", path, answer.text());
        if !answer.status.is_success() {
            prop_assert_eq!(answer.header("content-type"), "application/problem+json");
        }
    }
}

thread_local! {
    static WORLD: crate::testing::World = world();
}
