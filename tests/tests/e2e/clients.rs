//! The client commands and imports, against a running node and against a folder.

use serde_json::{Value, json};
use tally_tests::{
    Node, event, fresh_id, now_ms, tally, tally_ok, tally_with, time, wait_for, write_lines,
};

/// The sequence of the README: the variables of a running node are set, and a folder is worked on.
#[test]
fn a_folder_can_be_named_while_the_variables_of_a_running_node_are_set() {
    let folder = tempfile::tempdir().unwrap();
    let (file, dir) = (folder.path().join("events.ndjson"), folder.path().join("history"));
    let start_ms = (now_ms() / 60_000 - 10) * 60_000;
    write_lines(
        &file,
        (0..60).map(|second| event(&fresh_id(), "a", start_ms + second * 1_000).to_string()),
    );
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    let variables = [("TALLY_URL", "http://127.0.0.1:1"), ("TALLY_TOKEN", "tr_none")];
    let import = ["import", file, "--data-dir", dir, "--received-at", "event-time"];
    for args in [&import[..], &["worker", "--bounded", "--data-dir", dir]] {
        let finished = tally_with(&variables, args);
        assert_eq!(finished.code, 0, "{args:?}: {}", finished.stderr);
    }
    let (start, end) = (time(start_ms), time(start_ms + 60_000));
    let top = ["top", "--start", &start, "--end", &end, "--data-dir", dir, "-o", "csv"];
    let finished = tally_with(&variables, &top);
    assert_eq!(
        finished.stdout.trim_end(),
        "rank,eventType,typeId,count\r\n1,a,1,60",
        "{}",
        finished.stderr
    );
    let series = ["series", "a", "--start", &start, "--end", &end, "--data-dir", dir, "-o", "json"];
    let answer: Value = serde_json::from_str(&tally_ok(&series)).unwrap();
    assert_eq!(answer["points"][0]["count"], 60, "{answer}");
    let table = tally_ok(&["top", "--last", "1h", "--data-dir", dir]);
    assert!(table.contains('a') && table.contains("60"), "{table}");
    let missing = ["series", "nobody", "--start", &start, "--end", &end, "--data-dir", dir];
    assert_eq!(tally(&missing).code, 3, "an unknown type is not found");
    let types = tally_ok(&["types", "list", "--data-dir", dir, "-o", "csv"]);
    assert!(types.contains("1,a,active"), "{types}");
    tally_ok(&["types", "deprecate", "a", "--data-dir", dir]);
    assert!(tally_ok(&["types", "list", "--data-dir", dir, "-o", "csv"]).contains("deprecated"));
}

#[test]
fn an_import_into_a_running_node_takes_every_good_line_and_names_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let small = [("pipeline.watermark_delay", "1s"), ("collector.limits.events", "50")];
    let node = Node::start(&folder.path().join("data"), &small, &[]);
    node.register(&["a"]);
    let now = now_ms();
    let good = |_| event(&fresh_id(), "a", now - 1_000).to_string();
    let mut large = event(&fresh_id(), "a", now);
    large["properties"] = json!({ "text": "x".repeat(1_100_000) });
    let mut lines: Vec<String> = (0..300).map(good).collect();
    lines.insert(7, "{broken".to_owned());
    lines.insert(150, large.to_string());
    let repeated = lines[20].clone();
    lines.push(repeated);
    let file = folder.path().join("events.ndjson");
    write_lines(&file, &lines);
    let finished = tally(&[
        "import",
        file.to_str().unwrap(),
        "--url",
        &node.url,
        "--token",
        &node.write_key,
        "-o",
        "json",
        "--wait",
        "--read-token",
        &node.read_token,
    ]);
    assert_eq!(finished.code, 1, "two lines are bad: {}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["accepted"], 301, "{report}");
    assert_eq!(report["rejected"], json!({"too_large": 1, "unreadable": 1}), "{report}");
    assert!(
        finished.stderr.contains("line 8") && finished.stderr.contains("line 151"),
        "{}",
        finished.stderr
    );
    let minute_ms = (now - 1_000) / 60_000 * 60_000;
    let path =
        format!("/v1/stats/top?start={}&end={}&k=1", time(minute_ms), time(minute_ms + 60_000));
    wait_for("the imported events", || (node.get(&path)["total"] == 300).then_some(()));
    let wrong = ["import", file.to_str().unwrap(), "--url", &node.url, "--token", "tw_wrong"];
    assert_eq!(tally(&wrong).code, 5, "a wrong key is refused");
    assert!(node.terminate().success());
}

#[test]
fn large_events_are_imported_whole_and_wait_counts_them() {
    let folder = tempfile::tempdir().unwrap();
    let (file, dir) = (folder.path().join("large.ndjson"), folder.path().join("data"));
    let start_ms = now_ms() - 3_600_000;
    let text = "x".repeat(20_000);
    write_lines(
        &file,
        (0..5_000).map(|number| {
            let mut event = event(&fresh_id(), "a", start_ms + number * 100);
            event["properties"] = json!({ "text": text });
            event.to_string()
        }),
    );
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    let import =
        ["import", file, "--data-dir", dir, "--received-at", "event-time", "--wait", "-o", "json"];
    let report: Value = serde_json::from_str(&tally_ok(&import)).unwrap();
    assert_eq!(report["accepted"], 5_000, "{report}");
    let (start, end) = (time(start_ms / 60_000 * 60_000), time((start_ms / 60_000 + 12) * 60_000));
    let top = tally_ok(&["top", "--start", &start, "--end", &end, "--data-dir", dir, "-o", "csv"]);
    assert!(top.contains("1,a,1,5000"), "{top}");
}
