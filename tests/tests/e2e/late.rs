//! Hours whose counts lack something, as clients see them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tally_sinks::dirty::{self, DirtyHour};
use tally_sinks::redb::RedbStore;
use tally_tests::{Node, event, fresh_id, now_ms, tally, tally_ok, time, write_lines};

const HOUR_MS: i64 = 3_600_000;

/// Counts three hours of history with one event a minute into `dir`; they begin at `start_ms`.
fn history(dir: &Path, start_ms: i64) {
    let file = dir.with_extension("ndjson");
    let event_at = |minute: i64| event(&fresh_id(), "a", start_ms + minute * 60_000).to_string();
    write_lines(&file, (0..180).map(event_at));
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    tally_ok(&["import", file, "--data-dir", dir, "--received-at", "event-time"]);
    tally_ok(&["worker", "--bounded", "--data-dir", dir]);
}

/// Notes something of an hour in a folder that no process has open.
fn note_dirty(dir: &Path, start_ms: i64, hour: DirtyHour) {
    let store = RedbStore::open(&dir.join("counts.redb")).unwrap();
    dirty::raise(&store.meta(), &BTreeMap::from([(start_ms, hour)])).unwrap();
}

#[test]
fn a_dirty_hour_takes_completeness_from_its_answers_and_is_listed_in_a_folder_and_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let start_ms = (now_ms() / HOUR_MS - 72) * HOUR_MS;
    history(&dir, start_ms);
    let dirty_ms = start_ms + HOUR_MS;
    let hour = DirtyHour {
        late: 3,
        straggler: 1,
        positions: BTreeMap::from([(0, 17), (1, 4)]),
        ..DirtyHour::default()
    };
    note_dirty(&dir, dirty_ms, hour);

    let data = dir.to_str().unwrap();
    let (from, to) = (time(start_ms), time(start_ms + 3 * HOUR_MS));
    let csv = format!(
        "start,late,straggler,pastWindow,hole,superseded,positions\r\n{},3,1,0,false,false,0:17 1:4",
        time(dirty_ms)
    );
    let listed = tally_ok(&["late", "list", "--data-dir", data, "-o", "csv"]);
    assert_eq!(listed.trim_end(), csv);
    let table = tally_ok(&["late", "list", "--data-dir", data, "--start", &from, "--end", &to]);
    let summary = "1 dirty hour; late 3, straggler 1, past the dedup window 0";
    assert!(table.contains(&time(dirty_ms)) && table.contains(summary), "{table}");
    let none = tally_ok(&["late", "list", "--data-dir", data, "--last", "1h"]);
    assert!(none.contains("0 dirty hours") && none.lines().count() == 1, "{none}");
    let top = tally(&["top", "--start", &from, "--end", &to, "--data-dir", data]);
    assert!(top.stderr.contains("dirty hours in it: 1"), "{}{}", top.stdout, top.stderr);

    let node = Node::start(&dir, &[], &[]);
    let path = format!("/v1/stats/series?type=a&start={from}&end={to}&granularity=hour");
    let answer = node.get(&path);
    let span = json!([{"start": time(dirty_ms), "end": time(dirty_ms + HOUR_MS)}]);
    assert_eq!((&answer["dirty"], &answer["dirtyHours"]), (&span, &json!(1)), "{answer}");
    assert_eq!((&answer["complete"], &answer["exact"]), (&json!(false), &json!(false)));
    let points: Vec<(&Value, &Value)> = answer["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| (&point["count"], &point["complete"]))
        .collect();
    let (sixty, complete, not) = (json!(60), json!(true), json!(false));
    assert_eq!(points, [(&sixty, &complete), (&sixty, &not), (&sixty, &complete)], "{answer}");
    let clean = node.get(&format!("/v1/stats/top?start={from}&end={}", time(dirty_ms)));
    assert_eq!((&clean["complete"], &clean["exact"]), (&json!(true), &json!(true)), "{clean}");

    let running = ["late", "list", "--url", &node.url, "--token", &node.read_token, "-o"];
    assert_eq!(tally_ok(&[&running[..], &["csv"]].concat()).trim_end(), csv);
    let json: Value = serde_json::from_str(&tally_ok(&[&running[..], &["json"]].concat())).unwrap();
    assert_eq!(json["hours"][0]["positions"][0], json!({"partition": 0, "nextOffset": 17}));
    assert_eq!(json["total"], json!({"late": 3, "straggler": 1, "pastWindow": 0}));
    assert!(node.terminate().success());
}

#[test]
fn late_list_ends_with_the_exit_code_of_what_went_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let node = Node::start(&dir, &[], &[]);
    let data = dir.to_str().unwrap();
    let (url, token) = (node.url.as_str(), node.read_token.as_str());
    let (odd, end) = ("2026-03-10T00:30:00Z", "2026-03-10T02:00:00Z");
    let nowhere = folder.path().join("nowhere");
    // (flags, exit code, what the message says)
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--url", url, "--token", token, "--start", odd, "--end", end], 2, "whole hour"),
        (&["--url", url, "--token", token, "--start", odd], 2, "--end"),
        (&["--url", url, "--token", &node.write_key], 5, "write key"),
        (&["--url", url, "--token", "tr_unknown"], 5, "not known"),
        (&["--data-dir", data], 5, "data"),
        (&["--data-dir", nowhere.to_str().unwrap()], 3, "no data folder"),
    ];
    for (flags, code, part) in cases {
        let finished = tally(&[&["late", "list"], flags].concat());
        assert_eq!(finished.code, code, "{flags:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(part), "{flags:?}: {}", finished.stderr);
    }
    assert!(node.terminate().success());
}
