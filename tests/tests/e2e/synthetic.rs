//! Seeded synthetic logs: days of traffic in seconds, against the naive model.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tally_model::time::parse_rfc3339;
use tally_tests::{
    Node, counts_by_minute, event, fresh_id, now_ms, read_lines, tally, tally_ok, time, wait_for,
    write_lines,
};

type Counts = BTreeMap<(i64, String), u64>;

fn counts_file(path: &Path) -> Counts {
    let mut counts = Counts::new();
    read_lines(path, |line| {
        let cells: Vec<&str> = line.split(',').collect();
        if let [minute, event_type, count] = cells[..]
            && minute != "minute"
        {
            let cell = (parse_rfc3339(minute).unwrap(), event_type.to_owned());
            counts.insert(cell, count.parse().unwrap());
        }
    });
    counts
}

/// Counts a folder in bounded mode and returns the report.
fn count(dir: &Path, workers: usize) -> Value {
    let workers = workers.to_string();
    let dir = dir.to_str().unwrap();
    let args = ["worker", "--bounded", "--workers", &workers, "--data-dir", dir, "-o", "json"];
    serde_json::from_str(&tally_ok(&args)).unwrap()
}

fn all_counts(dir: &Path, truth: &Counts) -> Counts {
    let node = Node::start(dir, &[], &[]);
    let mut types: Vec<String> = truth.keys().map(|(_, name)| name.clone()).collect();
    types.sort();
    types.dedup();
    let (first, last) = (truth.keys().next().unwrap().0, truth.keys().next_back().unwrap().0);
    let counts = counts_by_minute(&node, &types, first, last + 60_000);
    assert!(node.terminate().success());
    counts
}

#[test]
fn three_days_with_forty_percent_in_one_type_are_exact_and_the_workers_loads_are_even() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, truth) = (folder.path().join("data"), folder.path().join("truth.csv"));
    tally_ok(&[
        "bench",
        "generate",
        "--data-dir",
        dir.to_str().unwrap(),
        "--truth",
        truth.to_str().unwrap(),
        "--events",
        "5000000",
        "--span",
        "3d",
        "--types",
        "300",
        "--record-bytes",
        "150",
    ]);
    let report = count(&dir, 4);
    let by_worker: Vec<u64> = report["countedByWorker"]
        .as_array()
        .unwrap()
        .iter()
        .map(|count| count.as_u64().unwrap())
        .collect();
    assert_eq!(by_worker.len(), 4);
    let (least, most) = (by_worker.iter().min().unwrap(), by_worker.iter().max().unwrap());
    assert!(most * 10 <= least * 11, "loads differ by more than 10 %: {by_worker:?}");
    assert_eq!(report["records"], 5_000_000);
    assert_eq!(report["late"], 0, "{report}");
    assert_eq!(report["straggler"], 0, "{report}");
    let truth = counts_file(&truth);
    assert_eq!(report["counted"], truth.values().sum::<u64>());
    assert!(all_counts(&dir, &truth) == truth, "the counts differ from the naive model");
}

#[test]
fn an_empty_partition_changes_no_count() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, truth) = (folder.path().join("data"), folder.path().join("truth.csv"));
    tally_ok(&[
        "bench",
        "generate",
        "--data-dir",
        dir.to_str().unwrap(),
        "--truth",
        truth.to_str().unwrap(),
        "--events",
        "200000",
        "--span",
        "1d",
        "--types",
        "20",
        "--record-bytes",
        "150",
        "--empty-partition",
        "3",
    ]);
    count(&dir, 2);
    let truth = counts_file(&truth);
    assert!(all_counts(&dir, &truth) == truth, "the counts differ from the naive model");
}

/// A line of an NDJSON file.
fn line(event_type: &str, at_ms: i64) -> String {
    event(&fresh_id(), event_type, at_ms).to_string()
}

#[test]
fn an_unsorted_file_gives_the_same_counts_as_a_sorted_one() {
    let folder = tempfile::tempdir().unwrap();
    let start_ms = now_ms() - 6 * 3_600_000;
    let sorted: Vec<String> = ["a", "b", "c"]
        .into_iter()
        .cycle()
        .zip((0..5_000).map(|i| start_ms + i * 3_000))
        .map(|(name, at_ms)| line(name, at_ms))
        .collect();
    let mut shuffled = sorted.clone();
    shuffled.sort_by_key(|line| line.bytes().map(u64::from).sum::<u64>());
    let mut seen = Vec::new();
    for (name, lines) in [("sorted", &sorted), ("shuffled", &shuffled)] {
        let (file, dir) = (folder.path().join(format!("{name}.ndjson")), folder.path().join(name));
        write_lines(&file, lines);
        let (file, dir_text) = (file.to_str().unwrap(), dir.to_str().unwrap());
        tally_ok(&["import", file, "--data-dir", dir_text, "--received-at", "event-time"]);
        let report = count(&dir, 2);
        assert_eq!(report["counted"], 5_000, "{report}");
        let node = Node::start(&dir, &[], &[]);
        let types = ["a", "b", "c"].map(str::to_owned);
        seen.push(counts_by_minute(
            &node,
            &types,
            start_ms / 60_000 * 60_000,
            (start_ms / 60_000 + 300) * 60_000,
        ));
        assert!(node.terminate().success());
    }
    assert_eq!(seen[0].values().sum::<u64>(), 5_000);
    assert!(seen[0] == seen[1]);
}

#[test]
fn a_bounded_run_with_late_events_exits_1_and_says_how_many() {
    let folder = tempfile::tempdir().unwrap();
    let (file, dir) = (folder.path().join("old.ndjson"), folder.path().join("data"));
    let hour_ago = now_ms() - 3_600_000;
    write_lines(&file, (0..7).map(|_| line("a", hour_ago)).chain([line("a", now_ms())]));
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    let imported = tally(&["import", file, "--data-dir", dir]);
    assert_eq!(imported.code, 0, "{}", imported.stderr);
    assert!(imported.stderr.contains("late"), "says that late events wait: {}", imported.stderr);
    let finished = tally(&["worker", "--bounded", "--data-dir", dir, "-o", "json"]);
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    assert!(finished.stderr.contains("7 late"), "{}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["late"], 7);
    assert_eq!(report["counted"], 1);
}

#[test]
fn after_a_bounded_run_up_lowers_no_row_and_counts_what_arrives_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let (file, dir) = (folder.path().join("events.ndjson"), folder.path().join("data"));
    let now = now_ms();
    let minutes = 30;
    write_lines(&file, (0..minutes * 60).map(|second| line("a", now - second * 1_000)));
    let (file, dir_text) = (file.to_str().unwrap(), dir.to_str().unwrap());
    tally_ok(&["import", file, "--data-dir", dir_text, "--received-at", "event-time"]);
    count(&dir, 2);
    let (start_ms, end_ms) = ((now / 60_000 - minutes) * 60_000, (now / 60_000 + 1) * 60_000);
    let path = format!(
        "/v1/stats/series?type=a&start={}&end={}&granularity=minute",
        time(start_ms),
        time(end_ms)
    );
    let points = |answer: &Value| -> Vec<u64> {
        let points = answer["points"].as_array().unwrap().iter();
        points.map(|point| point["count"].as_u64().unwrap()).collect()
    };
    let node = Node::start(&dir, &[("pipeline.watermark_delay", "1s")], &[]);
    let before = points(&node.get(&path));
    assert_eq!(before.iter().sum::<u64>(), minutes.cast_unsigned() * 60);
    // Ten minutes old: in time, so its closed minute is restated.
    let on_time = json!({"events": [event(&fresh_id(), "a", now_ms() - 600_000)]});
    assert_eq!(node.post(&on_time.to_string()).status, 202);
    wait_for("the event that arrived in time", || {
        let after = points(&node.get(&path));
        assert!(before.iter().zip(&after).all(|(b, a)| a >= b), "a count went down");
        (after.iter().sum::<u64>() == minutes.cast_unsigned() * 60 + 1).then_some(())
    });
    assert!(node.terminate().success());
}

/// The earlier start has seen the present: its checkpoint and marks must not make history late.
#[test]
fn a_folder_that_was_started_once_still_takes_history_as_if_it_were_new() {
    let folder = tempfile::tempdir().unwrap();
    let (file, dir) = (folder.path().join("events.ndjson"), folder.path().join("data"));
    let node = Node::start(&dir, &[("pipeline.checkpoint_every", "100ms")], &[]);
    wait_for("a checkpoint", || {
        node.metrics().contains("tally_checkpoint_last_timestamp_seconds").then_some(())
    });
    assert!(node.terminate().success());
    let day_ago = now_ms() / 60_000 * 60_000 - 86_400_000;
    write_lines(&file, [0, 0, 3].map(|minute| line("a", day_ago + minute * 60_000)));
    let (file, dir_text) = (file.to_str().unwrap(), dir.to_str().unwrap());
    tally_ok(&["import", file, "--data-dir", dir_text, "--received-at", "event-time"]);
    let report = count(&dir, 2);
    assert_eq!((&report["counted"], &report["straggler"]), (&json!(3), &json!(0)), "{report}");
    let (start, end) = (time(day_ago), time(day_ago + 4 * 60_000));
    let ask = ["top", "--start", &start, "--end", &end, "--data-dir", dir_text, "-o", "json"];
    let answer: Value = serde_json::from_str(&tally_ok(&ask)).unwrap();
    assert_eq!((&answer["total"], &answer["missingMinutes"]), (&json!(3), &json!(0)), "{answer}");
}
