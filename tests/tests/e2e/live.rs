//! Events posted live over HTTP, against an independent tally.

use std::collections::{BTreeMap, HashSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tally_tests::{Node, counts_by_minute, event, fresh_id, now_ms, request, time, wait_for};

/// Readable one second after a minute's end, so that tests need not wait for long.
const SHORT: &[(&str, &str)] = &[("pipeline.watermark_delay", "1s")];

const TYPES: [&str; 6] = ["page_view", "click", "search", "purchase", "login", "share"];

fn minute_of(at_ms: i64) -> i64 {
    at_ms.div_euclid(60_000) * 60_000
}

#[test]
fn verdicts_add_up_and_counts_equal_an_independent_tally_when_requests_are_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(&folder.path().join("data"), SHORT, &[]);
    node.register(&TYPES);
    let mut rng = StdRng::seed_from_u64(7);
    let mut seen = HashSet::new();
    let mut expected: BTreeMap<(i64, String), u64> = BTreeMap::new();
    let mut repeated = 0;
    let started_ms = now_ms();
    for request in 0..300 {
        // Within the allowed lateness, on both sides of several minute borders.
        let mut events: Vec<Value> = (0..20)
            .map(|_| {
                let name = TYPES[rng.random_range(0..TYPES.len())];
                event(&fresh_id(), name, now_ms() - rng.random_range(0..600_000))
            })
            .collect();
        let malformed = request % 10 == 0;
        if malformed {
            events[3]["eventType"] = json!("");
            events[7]["eventTime"] = json!("yesterday");
        }
        let body = json!({ "events": events }).to_string();
        let times = if request % 20 == 0 { 2 } else { 1 };
        repeated += times - 1;
        for _ in 0..times {
            let reply = node.post(&body);
            assert_eq!(reply.status, 202, "{}", reply.body);
            let answer = reply.json();
            let rejected = answer["rejected"].as_array().unwrap();
            assert_eq!(rejected.len(), if malformed { 2 } else { 0 }, "{answer}");
            assert_eq!(answer["accepted"], 20 - rejected.len(), "{answer}");
        }
        for (index, event) in events.iter().enumerate() {
            let id = event["eventId"].as_str().unwrap().to_owned();
            if !(malformed && (index == 3 || index == 7)) && seen.insert(id) {
                let at = event["eventTime"].as_str().unwrap();
                let minute_ms = minute_of(tally_model::time::parse_rfc3339(at).unwrap());
                let name = event["eventType"].as_str().unwrap().to_owned();
                *expected.entry((minute_ms, name)).or_default() += 1;
            }
        }
    }
    assert_eq!(repeated, 15, "5 % of the requests are repeated");
    let end_ms = minute_of(now_ms()) + 60_000;
    node.wait_readable(end_ms);
    let types: Vec<String> = TYPES.map(str::to_owned).to_vec();
    let start_ms = minute_of(started_ms) - 660_000;
    // Restatements of earlier minutes are coalesced for some seconds.
    wait_for("the counts of all events", || {
        let counted = counts_by_minute(&node, &types, start_ms, end_ms);
        (counted.values().sum::<u64>() == expected.values().sum::<u64>()).then_some(())
    });
    assert_eq!(counts_by_minute(&node, &types, start_ms, end_ms), expected);
    assert!(node.terminate().success());
}

#[test]
fn a_registered_type_counts_in_its_own_slot_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(&folder.path().join("data"), SHORT, &[]);
    let at_ms = now_ms();
    let unknown = json!({"events": [event(&fresh_id(), "brand_new", at_ms)]}).to_string();
    let answer = node.post(&unknown).json();
    assert_eq!(answer["warned"][0]["reason"], "unknown_type", "{answer}");
    node.register(&["brand_new"]);
    let known = json!({"events": [event(&fresh_id(), "brand_new", at_ms)]}).to_string();
    let answer = node.post(&known).json();
    assert_eq!(answer["warned"], json!([]), "{answer}");
    let end_ms = minute_of(at_ms) + 60_000;
    node.wait_readable(end_ms);
    let path = format!("/v1/stats/top?start={}&end={}&k=5", time(end_ms - 60_000), time(end_ms));
    let answer = wait_for("both events", || {
        let answer = node.get(&path);
        (answer["total"] == 2).then_some(answer)
    });
    assert_eq!(answer["other"], 1, "{answer}");
    assert_eq!(answer["results"][0]["eventType"], "brand_new", "{answer}");
    assert_eq!(answer["results"][0]["count"], 1, "{answer}");
    assert!(node.terminate().success());
}

#[test]
fn the_admin_port_answers_three_paths_and_nothing_else_is_open_without_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(&folder.path().join("data"), &[], &[]);
    for path in ["/livez", "/readyz", "/metrics"] {
        let reply = request(&format!("{}{path}", node.admin), "GET", None, None).unwrap();
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    }
    for path in ["/", "/v1/stats/top", "/v1/keys", "/debug"] {
        let reply = request(&format!("{}{path}", node.admin), "GET", None, None).unwrap();
        assert_eq!(reply.status, 404, "{path}");
    }
    let closed = [
        ("POST", "/v1/events"),
        ("GET", "/v1/stats/top?start=2026-01-01T00:00:00Z&end=2026-01-02T00:00:00Z"),
        ("GET", "/v1/stats/series?type=a&start=2026-01-01T00:00:00Z&end=2026-01-02T00:00:00Z"),
        ("GET", "/v1/event-types"),
        ("POST", "/v1/event-types"),
        ("GET", "/v1/keys"),
        ("POST", "/v1/keys"),
    ];
    for (method, path) in closed {
        for token in [None, Some(""), Some("tw_wrong")] {
            let reply = request(&format!("{}{path}", node.url), method, token, Some("{}")).unwrap();
            assert_eq!(reply.status, 401, "{method} {path}: {}", reply.body);
        }
    }
    // A key of one kind does not open what belongs to another.
    let body = json!({"events": [event(&fresh_id(), "a", now_ms())]}).to_string();
    assert_eq!(node.request("POST", "/v1/events", &node.read_token, Some(&body)).status, 403);
    assert_eq!(node.request("GET", "/v1/keys", &node.read_token, None).status, 403);
    let top = "/v1/stats/top?start=2026-01-01T00:00:00Z&end=2026-01-02T00:00:00Z";
    assert_eq!(node.request("GET", top, &node.write_key, None).status, 403);
    assert!(node.terminate().success());
}

#[test]
fn a_revoked_key_is_refused_within_ten_seconds_under_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(&folder.path().join("data"), &[], &[]);
    let made = node.request(
        "POST",
        "/v1/keys",
        &node.admin_token,
        Some(&json!({"kind": "write", "name": "shop"}).to_string()),
    );
    assert_eq!(made.status, 201, "{}", made.body);
    let made = made.json();
    let key = made["secret"].as_str().unwrap();
    let body = json!({"events": [event(&fresh_id(), "a", now_ms())]}).to_string();
    assert_eq!(node.request("POST", "/v1/events", key, Some(&body)).status, 202);
    let path = format!("/v1/keys/{}/revoke", made["number"]);
    let revoked_ms = now_ms();
    assert_eq!(node.request("POST", &path, &node.admin_token, None).status, 204);
    wait_for("the refusal of the key", || {
        (node.request("POST", "/v1/events", key, Some(&body)).status == 401).then_some(())
    });
    let took_ms = now_ms() - revoked_ms;
    assert!(took_ms < 10_000, "{took_ms} ms");
    assert!(node.terminate().success());
}

#[test]
fn no_secret_user_or_property_stands_in_logs_metrics_or_the_log_of_events() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let node = Node::start(&dir, &[("collector.capture", "true")], &[]);
    let (user, secret) = ("Xaver.Personal@example.org", "PropertyOnlyTheUserKnows");
    let mut known = event(&fresh_id(), "page_view", now_ms());
    known["userId"] = json!(user);
    known["properties"] = json!({ "note": secret });
    let good = json!({"events": [known]}).to_string();
    assert_eq!(node.post(&good).status, 202);
    // Error paths too: bad JSON, too large, wrong type, a key in the query string.
    node.post(&format!("{good}baz"));
    let large = good.replace(secret, &secret.repeat(200_000));
    // The collector may hang up before such a body is sent whole.
    let events = format!("{}/v1/events", node.url);
    drop(request(&events, "POST", Some(&node.write_key), Some(&large)));
    let in_query = format!("/v1/events?key={}&userId={user}", node.write_key);
    assert_eq!(node.request("POST", &in_query, "none", Some(&good)).status, 401);
    let texts = [("metrics", node.metrics())];
    let keys = [node.write_key.clone(), node.read_token.clone(), node.admin_token.clone()];
    let log = dir.with_extension("log");
    assert!(node.terminate().success());
    // What up prints for the newcomer holds the keys; what it logs must not.
    let logged: String = std::fs::read_to_string(log)
        .unwrap()
        .lines()
        .filter(|line| line.starts_with('{'))
        .collect();
    for (name, text) in texts.iter().map(|(n, t)| (*n, t)).chain([("log", &logged)]) {
        for needle in [user, secret].into_iter().chain(keys.iter().map(String::as_str)) {
            assert!(!text.contains(needle), "{needle} stands in the {name}");
        }
    }
    for file in files_below(&dir.join("log")) {
        let bytes = std::fs::read(&file).unwrap();
        for needle in [user, secret] {
            let found = bytes.windows(needle.len()).any(|window| window == needle.as_bytes());
            assert!(!found, "{needle} stands in {}", file.display());
        }
    }
}

fn files_below(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect()
}

#[test]
fn a_client_that_never_reads_its_answers_is_hung_up_on() {
    use std::io::Write;

    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(&folder.path().join("data"), &[], &[]);
    let mut stream = std::net::TcpStream::connect(node.url.trim_start_matches("http://")).unwrap();
    stream.set_write_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
    let requests = "POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".repeat(1_000);
    wait_for("the end of the connection", || match stream.write_all(requests.as_bytes()) {
        // Taken, or the client's own buffer is full because the node waits for it to read.
        Ok(()) => None,
        Err(error) if matches!(error.raw_os_error(), Some(11)) => None,
        Err(_hung_up) => Some(()),
    });
    let body = json!({"events": [event(&fresh_id(), "a", now_ms())]}).to_string();
    assert_eq!(node.post(&body).status, 202, "others are served");
    assert!(node.terminate().success());
}
