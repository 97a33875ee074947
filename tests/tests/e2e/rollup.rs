//! Rows folded by a node and by `tally rollup`, and what clients see of them.

use std::path::Path;

use serde_json::{Value, json};
use tally_model::bucket::{Bucket, Granularity};
use tally_model::revision::Revision;
use tally_model::vector::CountVector;
use tally_sinks::counts::{
    CountsStore as _, PutCondition, PutOutcome, Row, RowSource, SmallRow, WriterId,
};
use tally_sinks::redb::RedbStore;
use tally_tests::{
    Node, event, fresh_id, now_ms, tally, tally_ok, tally_with, time, wait_for, write_lines,
};

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// Counts `hours` of history with one event a minute into `dir`; they begin at `start_ms`. Every
/// event is in the file three times.
fn history(dir: &Path, start_ms: i64, hours: i64) {
    let file = dir.with_extension("ndjson");
    let lines = (0..hours * 60).flat_map(|minute| {
        let line = event(&fresh_id(), "a", start_ms + minute * 60_000).to_string();
        [line.clone(), line.clone(), line]
    });
    write_lines(&file, lines);
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    tally_ok(&["import", file, "--data-dir", dir, "--received-at", "event-time"]);
    tally_ok(&["worker", "--bounded", "--data-dir", dir]);
}

/// Start of the UTC day so many days ago.
fn day(days_ago: i64) -> i64 {
    (now_ms() / DAY_MS - days_ago) * DAY_MS
}

fn rows(dir: &Path, granularity: Granularity, start_ms: i64, end_ms: i64) -> Vec<Row> {
    let store = RedbStore::open(&dir.join("counts.redb")).unwrap();
    let mut buckets = vec![Bucket::containing(granularity, start_ms)];
    while buckets.last().unwrap().end_ms() < end_ms {
        buckets.push(Bucket::containing(granularity, buckets.last().unwrap().end_ms()));
    }
    store.counts().rows(&buckets).unwrap().into_iter().flatten().collect()
}

/// A class-1 put of a minute, as a recount does it.
fn restate(dir: &Path, minute_ms: i64, counts: &[u64]) {
    let store = RedbStore::open(&dir.join("counts.redb")).unwrap();
    let bucket = Bucket::containing(Granularity::Minute, minute_ms);
    let stored = store.counts().rows(&[bucket]).unwrap().remove(0).map(|row| row.small.revision);
    let vector = CountVector::from_counts(counts.to_vec());
    let small = SmallRow {
        bucket,
        revision: Revision::recomputed(now_ms()).unwrap(),
        writer: WriterId(7),
        written_at_ms: now_ms(),
        source: RowSource::Log,
        digest: 0,
        width: u32::try_from(vector.width()).unwrap(),
    };
    let put = (Row { small, vector }, PutCondition::Exactly(stored));
    assert!(matches!(store.counts().put_many(&[put])[..], [Ok(PutOutcome::Stored)]));
}

fn rollup(dir: &Path, more: &[&str]) -> Value {
    let data = dir.to_str().unwrap();
    let args = [&["rollup", "--data-dir", data, "-o", "json"], more].concat();
    serde_json::from_str(&tally_ok(&args)).unwrap()
}

/// B91 and B95: tiers are sums of the tier below, whatever the local time zone is.
#[test]
fn b95_a_folder_is_folded_into_whole_utc_days_in_any_time_zone() {
    let folder = tempfile::tempdir().unwrap();
    let start_ms = day(4);
    let mut seen = Vec::new();
    for (name, zone) in
        [("utc", "UTC"), ("kolkata", "Asia/Kolkata"), ("toronto", "America/Toronto")]
    {
        let dir = folder.path().join(name);
        history(&dir, start_ms, 50);
        let data = dir.to_str().unwrap();
        let dry = ["rollup", "--data-dir", data, "--dry-run", "-o", "csv"];
        let due = tally_with(&[("TZ", zone)], &dry).stdout;
        assert_eq!(due.lines().skip(1).filter(|line| line.starts_with("day,")).count(), 2, "{due}");
        assert!(rows(&dir, Granularity::Hour, start_ms, start_ms + DAY_MS).is_empty());

        let finished = tally_with(&[("TZ", zone)], &["rollup", "--data-dir", data]);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        assert!(finished.stdout.contains("and 2 days"), "{}", finished.stdout);
        let days = rows(&dir, Granularity::Day, start_ms - DAY_MS, start_ms + 4 * DAY_MS);
        let hours = rows(&dir, Granularity::Hour, start_ms, start_ms + 2 * DAY_MS);
        let minutes = rows(&dir, Granularity::Minute, start_ms, start_ms + 2 * DAY_MS);
        assert_eq!((days.len(), hours.len(), minutes.len()), (2, 48, 2_880));
        for (tier, events) in [(&days, 1_440), (&hours, 60), (&minutes, 1)] {
            assert!(tier.iter().all(|row| row.vector.counts().iter().sum::<u64>() == events));
        }
        assert!(days.iter().all(|row| row.small.bucket.start_ms() % DAY_MS == 0));
        seen.push(days.into_iter().map(|row| row.vector).collect::<Vec<_>>());
        assert_eq!(rollup(&dir, &[])["hoursFolded"], 0, "nothing is due any more");
    }
    assert!(seen.windows(2).all(|two| two[0] == two[1]));
}

/// B92 through the binary: a recounted minute reaches every tier and every client.
#[test]
fn b92_a_restated_minute_is_folded_and_no_client_keeps_an_old_answer() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let start_ms = day(3);
    history(&dir, start_ms, 30);
    assert_eq!(rollup(&dir, &[])["daysFolded"], 1);
    let data = dir.to_str().unwrap();
    let (from, to) = (time(start_ms), time(start_ms + DAY_MS));
    let top = |more: &[&str]| {
        let args = ["top", "--start", &from, "--end", &to, "--data-dir", data, "-o", "json"];
        serde_json::from_str::<Value>(&tally_ok(&[&args, more].concat())).unwrap()
    };
    let before = top(&[]);
    assert_eq!((&before["total"], &before["bucketsRead"]), (&json!(1_440), &json!(1)));

    restate(&dir, start_ms + 10 * HOUR_MS + 5 * 60_000, &[0, 3]);
    let other_day = format!("{}/{}", time(start_ms + DAY_MS), time(start_ms + 2 * DAY_MS));
    assert_eq!(rollup(&dir, &["--range", &other_day])["hoursFolded"], 0);
    let this_day = format!("{from}/{to}");
    let report = rollup(&dir, &["--range", &this_day]);
    assert_eq!((&report["hoursFolded"], &report["daysFolded"]), (&json!(1), &json!(1)));
    let after = top(&[]);
    assert_eq!((&after["total"], &after["bucketsRead"]), (&json!(1_442), &json!(1)));
    assert_ne!(after["digest"], before["digest"]);
    assert!(after["asOf"].as_str() > before["asOf"].as_str());
}

#[test]
fn a_node_folds_by_itself_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let start_ms = day(3);
    history(&dir, start_ms, 30);
    let node = Node::start(&dir, &[("jobs.rollup_every", "200ms")], &[]);
    let path = format!("/v1/stats/top?start={}&end={}", time(start_ms), time(start_ms + DAY_MS));
    let answer = wait_for("the day's row", || {
        let answer = node.get(&path);
        (answer["bucketsRead"] == 1).then_some(answer)
    });
    assert_eq!((&answer["total"], &answer["complete"]), (&json!(1_440), &json!(true)));
    wait_for("the metrics", || {
        (node.metric("tally_rollup_days_folded_total") >= 1.0).then_some(())
    });
    assert!(node.metric("tally_rollup_hours_folded_total") >= 29.0);
    assert!(node.metric("tally_rollup_stuck_buckets") == 0.0);
    assert!(node.metric("tally_rollup_last_run_timestamp_seconds") > 1e9);

    // While a node has the folder, a second rollup is refused.
    let refused = tally(&["rollup", "--data-dir", dir.to_str().unwrap()]);
    assert_eq!(refused.code, 5, "{}", refused.stderr);
    assert!(node.terminate().success());
}

#[test]
fn rollup_ends_with_the_exit_code_of_what_went_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let start_ms = day(3);
    history(&dir, start_ms, 3);
    let data = dir.to_str().unwrap();
    let nowhere = folder.path().join("nowhere");
    // (flags, exit code, what the message says)
    let cases: [(&[&str], i32, &str); 4] = [
        (&["--data-dir", nowhere.to_str().unwrap()], 3, "no data folder"),
        (&["--data-dir", data, "--range", "2026-03-01"], 2, "START/END"),
        (&["--data-dir", data, "--range", "2026-03-01T00:00:00Z/x"], 2, "range"),
        (
            &["--data-dir", data, "--range", "2026-03-02T00:00:00Z/2026-03-01T00:00:00Z"],
            2,
            "before END",
        ),
    ];
    for (flags, code, part) in cases {
        let finished = tally(&[&["rollup"], flags].concat());
        assert_eq!(finished.code, code, "{flags:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(part), "{flags:?}: {}", finished.stderr);
    }
}

/// A token without the raw scope, made and used as people do.
#[test]
fn a_token_without_the_raw_scope_sees_whole_hours_without_their_small_counts() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let start_ms = day(3);
    history(&dir, start_ms, 30);
    let node = Node::start(&dir, &[("jobs.rollup_every", "200ms")], &[]);
    let create = ["keys", "create", "--kind", "read", "--scope", "stats", "--name", "board"];
    let target = ["--url", &node.url, "--token", &node.admin_token];
    let secret = tally_ok(&[&create[..], &target].concat()).trim().to_owned();

    let range = |from_ms: i64, to_ms: i64| format!("start={}&end={}", time(from_ms), time(to_ms));
    let hour = format!("/v1/stats/top?{}", range(start_ms, start_ms + HOUR_MS));
    let reply = node.request("GET", &hour, &secret, None);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let answer = reply.json();
    assert_eq!((&answer["total"], &answer["suppressedBelow"]), (&json!(60), &json!(10)));
    let minute = format!("/v1/stats/top?{}", range(start_ms, start_ms + 60_000));
    assert_eq!(node.request("GET", &minute, &secret, None).status, 400);
    let day = format!("/v1/stats/top?{}", range(start_ms, start_ms + DAY_MS));
    wait_for("the suppressed day", || {
        let answer = node.request("GET", &day, &secret, None).json();
        (answer["total"] == 1_440 && answer["bucketsRead"] == 1).then_some(())
    });

    // Revoked while it is used all the time: at once here, elsewhere within ten seconds.
    let listed = tally_ok(&[&["keys", "list", "-o", "csv"], &target[..]].concat());
    let line = listed.lines().find(|line| line.contains("board")).unwrap();
    let number = line.split(',').next().unwrap().to_owned();
    assert!(line.contains("stats"), "{line}");
    tally_ok(&[&["keys", "revoke", &number], &target[..]].concat());
    let revoked_ms = now_ms();
    wait_for("the refusal", || {
        (node.request("GET", &hour, &secret, None).status == 401).then_some(())
    });
    assert!(now_ms() - revoked_ms < 10_000);
    assert!(node.terminate().success());
}

/// B143: what clients make up becomes no series of the metrics.
#[test]
fn b143_metrics_grow_by_no_event_type_user_key_or_range() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::start(&folder.path().join("data"), &[], &[]);
    let lines = |metrics: String| metrics.lines().filter(|line| !line.starts_with('#')).count();
    let ask = |number: i64| {
        let bad = format!("tr_{number}");
        let start = time(day(number % 50 + 1));
        let path = format!("/v1/stats/series?type=t{number}&start={start}&end=x&granularity=day");
        assert_eq!(node.request("GET", &path, &bad, None).status, 401);
        assert_eq!(node.request("GET", &path, &node.read_token, None).status, 400);
        let made_up = event(&fresh_id(), &format!("made-up-{number}"), now_ms());
        let mut made_up = json!({ "events": [made_up] });
        made_up["events"][0]["userId"] = json!(format!("user-{number}"));
        assert_eq!(node.post(&made_up.to_string()).status, 202);
    };
    ask(0);
    let before = lines(node.metrics());
    (1..300).for_each(ask);
    let after = lines(node.metrics());
    assert!(after <= before + 20, "{before} lines became {after}");
    assert!(!node.metrics().contains("made-up"));
    assert!(node.terminate().success());
}
