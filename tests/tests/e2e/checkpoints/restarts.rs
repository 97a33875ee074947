//! Restarts with other numbers of workers, after a bounded run, after a long pause, and many.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tally_tests::{Node, event, fresh_id, now_ms, tally_ok, time, wait_for, write_lines};

use super::traffic::{FAST, MINUTE_MS, Traffic, checkpointed, files_below, records, written};

#[test]
fn one_four_two_and_three_workers_by_kill_9_drop_nothing_as_late_and_count_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let mut traffic = Traffic::new();
    for workers in ["1", "4", "2", "3"] {
        let node = Node::start(&dir, FAST, &["--workers", workers]);
        traffic.send(&node, 2_000);
        traffic.repeat(&node);
        traffic.settle(&node);
        checkpointed(&node);
        // These are after the last checkpoint, or on their way into the next one.
        traffic.send(&node, 500);
        node.kill();
    }
    let node = Node::start(&dir, FAST, &["--workers", "2"]);
    traffic.settle(&node);
    assert!(node.terminate().success());
}

#[test]
fn many_restarts_without_traffic_keep_the_object_store_small() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let settings = [FAST, &[("pipeline.checkpoint_every", "100ms")]].concat();
    let mut sizes = Vec::new();
    for _ in 0..6 {
        let node = Node::start(&dir, &settings, &[]);
        wait_for("some checkpoints", || (written(&node) >= 5.0).then_some(()));
        node.kill();
        sizes.push(files_below(&dir.join("objects")));
    }
    // Three checkpoints of four shards, one that is being written, and leftovers of one crash.
    let most = sizes.iter().max().unwrap();
    assert!(*most <= 40, "{sizes:?}");
    let node = Node::start(&dir, &settings, &[]);
    wait_for("more checkpoints", || (written(&node) >= 15.0).then_some(()));
    assert!(node.terminate().success());
    let last = files_below(&dir.join("objects"));
    assert!(last <= sizes[0] + 10, "{last} after {sizes:?}");
}

/// Counts an hour of history, one event a minute up to now, in a bounded run.
fn bounded_hour(dir: &Path) {
    let file = dir.with_extension("ndjson");
    let now = now_ms();
    let line = |minute: i64| event(&fresh_id(), "a", now - minute * MINUTE_MS).to_string();
    write_lines(&file, (0..60).map(line));
    let (file, data) = (file.to_str().unwrap(), dir.to_str().unwrap());
    tally_ok(&["import", file, "--data-dir", data, "--received-at", "event-time"]);
    tally_ok(&["worker", "--bounded", "--data-dir", data]);
}

fn series(node: &Node, start_ms: i64, end_ms: i64) -> Value {
    let path = format!(
        "/v1/stats/series?type=a&start={}&end={}&granularity=minute",
        time(start_ms),
        time(end_ms)
    );
    node.get(&path)
}

fn points(answer: &Value) -> Vec<u64> {
    let points = answer["points"].as_array().unwrap().iter();
    points.map(|point| point["count"].as_u64().unwrap()).collect()
}

#[test]
fn an_event_twenty_minutes_old_is_late_once_listed_and_takes_exactness_from_its_hour() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    bounded_hour(&dir);
    // B41, and again after a crash: from the checkpoint, and from the log.
    let mut node = Node::start(&dir, &FAST[1..], &[]);
    let at_ms = now_ms() - 20 * MINUTE_MS;
    let minute_ms = at_ms / MINUTE_MS * MINUTE_MS;
    let before = series(&node, minute_ms, minute_ms + MINUTE_MS);
    assert_eq!((&before["exact"], &before["dirtyHours"]), (&json!(true), &json!(0)), "{before}");
    let body = json!({"events": [event(&fresh_id(), "a", at_ms)]}).to_string();
    assert_eq!(node.post(&body).status, 202);
    for round in ["live", "from the checkpoint", "from the log"] {
        let answer = wait_for("the dirty hour", || {
            let answer = series(&node, minute_ms, minute_ms + MINUTE_MS);
            (answer["dirtyHours"] == 1).then_some(answer)
        });
        wait_for("the late event", || (records(&node).late == 1).then_some(()));
        assert_eq!(points(&answer), points(&before), "{round}");
        assert_eq!(answer["complete"], false, "{round}: {answer}");
        assert_eq!(answer["exact"], false, "{round}: {answer}");
        let list = ["late", "list", "--url", &node.url, "--token", &node.read_token, "-o", "json"];
        let list: Value = serde_json::from_str(&tally_ok(&list)).unwrap();
        assert_eq!(list["total"], json!({"late": 1, "straggler": 0, "pastWindow": 0}), "{round}");
        let hour = time(at_ms / 3_600_000 * 3_600_000);
        assert_eq!(list["hours"][0]["start"], hour.as_str(), "{round}: {list}");
        checkpointed(&node);
        node.kill();
        if round == "from the checkpoint" {
            fs::remove_dir_all(dir.join("objects")).unwrap();
        }
        node = Node::start(&dir, &FAST[1..], &[]);
    }
    assert_eq!(records(&node).late, 1);
    assert!(node.terminate().success());
}

#[test]
fn up_after_a_bounded_run_lowers_no_row_with_its_checkpoint_and_without_any() {
    for keep in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("data");
        bounded_hour(&dir);
        let (start_ms, end_ms) =
            ((now_ms() / MINUTE_MS - 61) * MINUTE_MS, now_ms() / MINUTE_MS * MINUTE_MS);
        if !keep {
            fs::remove_dir_all(dir.join("objects")).unwrap();
        }
        let node = Node::start(&dir, &FAST[1..], &[]);
        let before = points(&series(&node, start_ms, end_ms));
        let on_time = json!({"events": [event(&fresh_id(), "a", now_ms() - 5 * MINUTE_MS)]});
        assert_eq!(node.post(&on_time.to_string()).status, 202);
        let total = before.iter().sum::<u64>() + 1;
        wait_for("the event that arrived in time", || {
            let after = points(&series(&node, start_ms, end_ms));
            assert!(before.iter().zip(&after).all(|(b, a)| a >= b), "a count went down");
            (after.iter().sum::<u64>() == total).then_some(())
        });
        assert_eq!(records(&node).late, 0);
        assert!(node.terminate().success());
    }
}

#[test]
fn after_a_stop_longer_than_the_lateness_what_was_on_time_is_counted_and_quiet_minutes_have_rows() {
    // From the end of a minute, 1 s until it is readable, 2 s more until its events are late.
    let settings = [
        FAST,
        &[
            ("pipeline.lateness", "2s"),
            ("pipeline.append_grace", "1500ms"),
            ("collector.limits.append_deadline", "1s"),
        ],
    ]
    .concat();
    let folder = tempfile::tempdir().unwrap();
    let dirs = ["kept", "removed"].map(|name| folder.path().join(name));
    let mut sent_ms = 0;
    for dir in &dirs {
        let node = Node::start(dir, &settings, &[]);
        node.register(&["a"]);
        checkpointed(&node);
        sent_ms = now_ms();
        for _ in 0..3 {
            let events: Vec<Value> = (0..50).map(|_| event(&fresh_id(), "a", sent_ms)).collect();
            assert_eq!(node.post(&json!({ "events": events }).to_string()).status, 202);
        }
        // Some of it may be in a checkpoint, some not.
        node.kill();
    }
    // One whole minute goes by that no node sees.
    let minute_ms = sent_ms / MINUTE_MS * MINUTE_MS;
    wait_for("a quiet minute", || {
        (now_ms() > minute_ms + 2 * MINUTE_MS - 20_000 || now_ms() > sent_ms + 65_000).then_some(())
    });
    fs::remove_dir_all(dirs[1].join("objects")).unwrap();
    for dir in &dirs {
        let node = Node::start(dir, &settings, &[]);
        // The minute before may be the one of the first node's events.
        let answer = wait_for("the counts", || {
            let answer = series(&node, minute_ms - MINUTE_MS, minute_ms + MINUTE_MS);
            (points(&answer).iter().sum::<u64>() == 150).then_some(answer)
        });
        assert_eq!(answer["dirtyHours"], 0, "{answer}");
        let late = records(&node);
        assert_eq!((late.counted, late.late, late.straggler), (150, 0, 0));
        let until_ms = now_ms() / MINUTE_MS * MINUTE_MS;
        node.wait_readable(until_ms);
        let answer = series(&node, minute_ms, until_ms);
        assert_eq!((&answer["missingMinutes"], &answer["exact"]), (&json!(0), &json!(true)));
        assert!(node.terminate().success());
    }
}
