//! Starts on a log whose oldest records retention has removed.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tally_tests::{Node, event, fresh_id, now_ms, tally_ok, time, wait_for};

use super::traffic::{FAST, MINUTE_MS, Traffic, checkpointed, files};

/// Removes every closed segment of the log, as retention does after its days.
fn trim(dir: &Path) {
    let mut segments = files(&dir.join("log"));
    segments.retain(|path| path.extension().is_some_and(|is| is == "log"));
    assert!(segments.len() > 2, "{segments:?}");
    segments.pop();
    for segment in segments {
        drop(fs::remove_file(segment.with_extension("index")));
        fs::remove_file(segment).unwrap();
    }
}

#[test]
fn on_a_trimmed_log_a_checkpoint_starts_without_a_flag_and_none_at_all_wants_accept_hole() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let data = dir.to_str().unwrap();
    let settings = [FAST, &[("log.segment", "64KiB")]].concat();
    let mut traffic = Traffic::new();
    let node = Node::start(&dir, &settings, &[]);
    traffic.send(&node, 3_000);
    traffic.settle(&node);
    checkpointed(&node);
    node.kill();
    trim(&dir);
    // The checkpoint knows the ids of the records that are gone.
    let node = Node::start(&dir, &settings, &[]);
    traffic.settle(&node);
    traffic.repeat(&node);
    traffic.settle(&node);
    assert!(tally_ok(&late_list(&node)).contains("\"hours\":[]"));
    node.kill();

    trim(&dir);
    fs::remove_dir_all(dir.join("objects")).unwrap();
    for _ in 0..2 {
        let (code, said) = Node::refused(&dir, &settings, &[]);
        assert_eq!(code, Some(5), "{said}");
        assert!(said.contains("--accept-hole") && said.contains("lacks offsets"), "{said}");
    }
    let node = Node::start(&dir, &settings, &["--accept-hole"]);
    let hours = wait_for("hours that are marked", || {
        let list: Value = serde_json::from_str(&tally_ok(&late_list(&node))).unwrap();
        let hours = list["hours"].as_array().unwrap().clone();
        hours.iter().any(|hour| hour["hole"] == true).then_some(hours)
    });
    let (from_ms, to_ms) = traffic.range_ms();
    let path = format!(
        "/v1/stats/series?type=a&start={}&end={}&granularity=minute",
        time(from_ms),
        time(to_ms)
    );
    let answer = node.get(&path);
    assert!(answer["dirtyHours"].as_u64().unwrap() >= 1, "{answer} {hours:?}");
    assert_eq!((&answer["complete"], &answer["exact"]), (&json!(false), &json!(false)));

    // Rows stand as they were, and what arrives now is counted.
    let minute_ms = (now_ms() / MINUTE_MS - 1) * MINUTE_MS;
    let body = json!({"events": [event(&fresh_id(), "a", minute_ms)]}).to_string();
    assert_eq!(node.post(&body).status, 202);
    let (start, end) = (time(minute_ms), time(minute_ms + MINUTE_MS));
    let top = format!("/v1/stats/top?start={start}&end={end}&k=1");
    wait_for("the new event", || (node.get(&top)["total"] == 1).then_some(()));
    assert_eq!(traffic.look(&node).values().sum::<u64>(), traffic.sent());
    checkpointed(&node);
    node.kill();
    // The checkpoint lies behind the hole: no flag from here on, and the hours stay marked.
    let node = Node::start(&dir, &settings, &[]);
    assert_eq!(traffic.look(&node).values().sum::<u64>(), traffic.sent());
    let list: Value = serde_json::from_str(&tally_ok(&late_list(&node))).unwrap();
    assert!(list["hours"].as_array().unwrap().iter().any(|hour| hour["hole"] == true));
    assert!(node.terminate().success());
    let stopped = tally_ok(&["late", "list", "--data-dir", data, "-o", "csv"]);
    assert!(stopped.contains(",true,"), "{stopped}");
}

fn late_list(node: &Node) -> [&str; 8] {
    ["late", "list", "--url", &node.url, "--token", &node.read_token, "-o", "json"]
}
