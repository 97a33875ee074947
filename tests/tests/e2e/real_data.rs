//! Real public events against counts that were computed without Tally.
//!
//! The data lies beside the repository in `shared/data`. On a machine without it these tests say
//! that they are left out; everything else runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tally_model::bucket::DAY_MS;
use tally_model::time::parse_rfc3339;
use tally_tests::servers::Servers;
use tally_tests::{
    Node, copy_folder, counts_by_minute, now_ms, read_lines, tally_with, time, variable,
    write_lines,
};

/// Minutes are kept for two days more than by default, because the data spans 60.
const KEPT: (&str, &str) = ("retention.minutes", "62d");

fn data_folder() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let folder = root.join("shared/data");
    if folder.is_dir() {
        return Some(folder);
    }
    tally_tests::note(&format!("left out: there is no {}", folder.display()));
    None
}

/// A data set moved to now by whole days.
struct DataSet {
    file: PathBuf,
    shift_ms: i64,
    types: Vec<String>,
    counts: BTreeMap<(i64, String), u64>,
    answers: Value,
}

fn shifted(data: &Path, name: &str, folder: &Path) -> DataSet {
    let events = ["gz", "zst"].map(|kind| data.join(format!("{name}.ndjson.{kind}")));
    let source = events.iter().find(|path| path.exists()).unwrap();
    let answers: Value =
        serde_json::from_slice(&std::fs::read(data.join(format!("{name}.answers.json"))).unwrap())
            .unwrap();
    let mut newest_ms = i64::MIN;
    let mut lines = Vec::new();
    read_lines(source, |line| {
        newest_ms = newest_ms.max(parse_rfc3339(time_of(line)).unwrap());
        lines.push(line.to_owned());
    });
    let shift_ms = (now_ms() - 600_000 - newest_ms).div_euclid(DAY_MS) * DAY_MS;
    let file = folder.join(format!("{name}.ndjson"));
    write_lines(
        &file,
        lines.iter().map(|line| {
            let old = time_of(line);
            line.replace(old, &time(parse_rfc3339(old).unwrap() + shift_ms))
        }),
    );
    let mut counts = BTreeMap::new();
    let mut types = Vec::new();
    read_lines(&data.join(format!("{name}.counts.csv.gz")), |line| {
        let cells: Vec<&str> = line.split(',').collect();
        if let [minute, event_type, count] = cells[..]
            && minute != "minute"
        {
            let minute_ms = parse_rfc3339(minute).unwrap() + shift_ms;
            counts.insert((minute_ms, event_type.to_owned()), count.parse().unwrap());
            types.push(event_type.to_owned());
        }
    });
    types.sort();
    types.dedup();
    DataSet { file, shift_ms, types, counts, answers }
}

fn time_of(line: &str) -> &str {
    line.split_once("\"eventTime\":").unwrap().1.trim_start().split('"').nth(1).unwrap()
}

fn import(set: &DataSet, dir: &Path, settings: &[(&str, &str)]) {
    let (dir, file) = (dir.to_str().unwrap(), set.file.to_str().unwrap());
    run(settings, &["import", file, "--data-dir", dir, "--received-at", "event-time"]);
}

/// Runs a command that must succeed, with settings.
fn run(settings: &[(&str, &str)], args: &[&str]) -> String {
    let variables: Vec<(String, &str)> =
        settings.iter().map(|(key, value)| (variable(key), *value)).collect();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let finished = tally_with(&variables, args);
    assert_eq!(finished.code, 0, "{args:?}: {}", finished.stderr);
    finished.stdout
}

fn count_and_compare(set: &DataSet, dir: &Path, workers: usize, settings: &[(&str, &str)]) {
    let (folder, count) = (dir.to_str().unwrap(), workers.to_string());
    run(settings, &["worker", "--bounded", "--workers", &count, "--data-dir", folder]);
    let node = Node::start(dir, settings, &[]);
    compare_answers(set, &node);
    let first_ms = set.counts.keys().next().unwrap().0;
    let last_ms = set.counts.keys().next_back().unwrap().0;
    let counted = counts_by_minute(&node, &set.types, first_ms, last_ms + 60_000);
    let wrong: Vec<_> = set
        .counts
        .iter()
        .filter(|(cell, count)| counted.get(*cell) != Some(count))
        .take(5)
        .collect();
    assert!(wrong.is_empty(), "{workers} workers: {wrong:?} and more are different");
    assert_eq!(counted.len(), set.counts.len(), "{workers} workers: cells too many");
    assert!(node.terminate().success());
}

/// Every expected top-K answer, through the HTTP API.
fn compare_answers(set: &DataSet, node: &Node) {
    let expected = set.answers["answers"].as_array().unwrap();
    assert!(expected.len() >= 12, "only {} answers to compare", expected.len());
    for want in expected {
        let [start, end] = ["start", "end"].map(|bound| {
            time(parse_rfc3339(want[bound].as_str().unwrap()).unwrap() + set.shift_ms)
        });
        let path = format!("/v1/stats/top?start={start}&end={end}&k={}", want["k"]);
        let answer = node.get(&path);
        let name = want["name"].as_str().unwrap();
        assert_eq!(ranked(&answer["results"]), ranked(&want["results"]), "{name}: {path}");
        assert_eq!(answer["total"], want["total"], "{name}: {path}");
        // A whole day may reach past now; every other range is closed.
        if answer["notClosedMinutes"] == 0 {
            assert_eq!(answer["exact"], true, "{name}: {answer}");
        } else {
            assert_eq!(name, "day", "{answer}");
        }
    }
}

fn ranked(results: &Value) -> Vec<(u64, String, u64)> {
    let results = results.as_array().unwrap().iter();
    results
        .map(|item| {
            let name = item["eventType"].as_str().unwrap().to_owned();
            (item["rank"].as_u64().unwrap(), name, item["count"].as_u64().unwrap())
        })
        .collect()
}

#[test]
fn two_hours_of_github_events_give_the_independent_counts_with_any_number_of_workers() {
    let Some(data) = data_folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    let set = shifted(&data, "gharchive", folder.path());
    let imported = folder.path().join("imported");
    import(&set, &imported, &[]);
    for workers in [1, 2, 4] {
        let dir = folder.path().join(format!("workers-{workers}"));
        copy_folder(&imported, &dir);
        count_and_compare(&set, &dir, workers, &[KEPT]);
    }
}

#[test]
fn sixty_days_of_flights_give_the_independent_counts_with_any_number_of_workers() {
    let Some(data) = data_folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    let set = shifted(&data, "flights", folder.path());
    let imported = folder.path().join("imported");
    import(&set, &imported, &[]);
    for workers in [1, 2, 4] {
        let dir = folder.path().join(format!("workers-{workers}"));
        copy_folder(&imported, &dir);
        count_and_compare(&set, &dir, workers, &[KEPT]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn both_data_sets_give_the_independent_counts_over_kafka_and_cassandra() {
    let Some(data) = data_folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (name, workers) in [("gharchive", 2), ("flights", 3)] {
        let servers = Servers::new();
        let set = shifted(&data, name, folder.path());
        let dir = folder.path().join(format!("{name}-over-servers"));
        let settings = servers.settings(&[KEPT]);
        import(&set, &dir, &settings);
        count_and_compare(&set, &dir, workers, &settings);
    }
}

#[test]
fn github_events_posted_live_with_repeated_requests_give_an_independent_tally() {
    let Some(data) = data_folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    let settings = [("pipeline.watermark_delay", "1s")];
    let node = Node::start(&folder.path().join("data"), &settings, &[]);
    let events = github(&data);
    register(&node, &events.1);
    post_and_compare(events, &node, &node);
    assert!(node.terminate().success());
}

#[test]
fn github_events_posted_to_a_collector_give_an_independent_tally_through_kafka_and_cassandra() {
    let Some(data) = data_folder() else { return };
    let folder = tempfile::tempdir().unwrap();
    let servers = Servers::new();
    let settings = servers.settings(&[("pipeline.watermark_delay", "1s")]);
    let dir = folder.path().join("data");
    let worker = Node::role("worker", &dir, &settings, &["--workers", "2"]);
    let query = Node::role("query", &dir, &settings, &[]);
    let events = github(&data);
    // A collector that runs already would learn of the types some seconds later.
    register(&query, &events.1);
    let collector = Node::role("collector", &dir, &settings, &[]);
    post_and_compare(events, &collector, &query);
    for node in [collector, query, worker] {
        assert!(node.terminate().success());
    }
}

/// The events of two hours, and their types in order.
fn github(data: &Path) -> (Vec<Value>, Vec<String>) {
    let mut events: Vec<Value> = Vec::new();
    read_lines(&data.join("gharchive.ndjson.gz"), |line| {
        events.push(serde_json::from_str(line).unwrap());
    });
    let types: BTreeSet<String> =
        events.iter().map(|event| event["eventType"].as_str().unwrap().to_owned()).collect();
    (events, types.into_iter().collect())
}

fn register(node: &Node, types: &[String]) {
    node.register(&types.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Posts events to `collector`, some requests twice, and compares what `query` tells with an
/// independent tally.
fn post_and_compare(
    (mut events, types): (Vec<Value>, Vec<String>),
    collector: &Node,
    query: &Node,
) {
    // Mapped onto the ten minutes before now, in the order of the file.
    let now = now_ms();
    let mut expected: BTreeMap<(i64, String), u64> = BTreeMap::new();
    for (event, number) in events.iter_mut().zip(0_i64..) {
        let at_ms = now - 600_000 + number * 600_000 / 15_129;
        event["eventTime"] = Value::from(at_ms);
        let name = event["eventType"].as_str().unwrap().to_owned();
        *expected.entry((at_ms.div_euclid(60_000) * 60_000, name)).or_default() += 1;
    }
    for (request, batch) in events.chunks(100).enumerate() {
        let body = serde_json::json!({ "events": batch }).to_string();
        for _ in 0..if request % 20 == 0 { 2 } else { 1 } {
            let answer = collector.post(&body).json();
            assert_eq!(answer["accepted"], batch.len(), "{answer}");
            assert_eq!(answer["rejected"], serde_json::json!([]), "{answer}");
            assert_eq!(answer["warned"], serde_json::json!([]), "{answer}");
        }
    }
    let (start_ms, end_ms) = ((now / 60_000 - 11) * 60_000, (now / 60_000 + 1) * 60_000);
    query.wait_readable(end_ms);
    let counted = tally_tests::wait_for("the counts of all events", || {
        let counted = counts_by_minute(query, &types, start_ms, end_ms);
        (counted.values().sum::<u64>() == 15_129).then_some(counted)
    });
    assert!(counted == expected, "the counts differ from the independent tally");
}
