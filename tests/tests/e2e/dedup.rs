//! `tally dedup` as people use it: files, pipes, bad lines, crashes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tally_tests::{binary, event, now_ms, tally, wait_for, write_lines};

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// An event with the time of its every copy.
struct Sent {
    id: u128,
    at_ms: i64,
}

impl Sent {
    fn line(&self) -> String {
        event(&uuid::Uuid::from_u128(self.id).to_string(), "page_view", self.at_ms).to_string()
    }
}

/// Days of events in a slight disorder; copies come at once, days later, and beyond the window.
fn days_of_events(count: u64, days: i64, seed: u64) -> Vec<Sent> {
    let mut rng = StdRng::seed_from_u64(seed);
    let end_ms = now_ms() - HOUR_MS;
    let span_ms = days * DAY_MS;
    let mut sent: Vec<Sent> = Vec::new();
    for n in 0..count {
        let into_ms =
            i64::try_from(u128::from(n) * u128::from(span_ms.unsigned_abs()) / u128::from(count));
        let at_ms = end_ms - span_ms + into_ms.unwrap() - rng.random_range(0..20 * 60_000);
        let id = if rng.random_ratio(1, 4) && n > 0 {
            let back = if rng.random_ratio(1, 2) { 100.min(sent.len()) } else { sent.len() };
            sent[sent.len() - 1 - rng.random_range(0..back)].id
        } else {
            rng.random::<u128>() | 1
        };
        sent.push(Sent { id, at_ms });
    }
    sent
}

/// The lines that are first copies: a copy repeats a first one that is at most seven days older.
fn firsts(sent: &[Sent]) -> Vec<String> {
    let mut firsts: HashMap<u128, i64> = HashMap::new();
    let mut lines = Vec::new();
    for copy in sent {
        let bucket = copy.at_ms.div_euclid(DAY_MS);
        if firsts.get(&copy.id).is_none_or(|first| bucket - first > 7) {
            firsts.insert(copy.id, bucket);
            lines.push(copy.line());
        }
    }
    lines
}

fn statistics(stderr: &str) -> Value {
    let line = stderr.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("no statistics: {stderr}"))).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs with these lines as standard input.
fn piped(args: &[&str], lines: &[String]) -> tally_tests::Finished {
    let mut child = Command::new(binary())
        .arg("dedup")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let mut out = child.stdout.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in lines {
                writeln!(stdin, "{line}").unwrap();
            }
            drop(stdin);
        });
        out.read_to_string(&mut stdout).unwrap();
    });
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    tally_tests::Finished { code: child.wait().unwrap().code().unwrap_or(-1), stdout, stderr }
}

#[test]
fn a_file_loses_its_repeats_within_the_window_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("events.ndjson"), folder.path().join("out.ndjson"));
    let sent = days_of_events(200_000, 20, 1);
    let want = firsts(&sent);
    write_lines(&input, sent.iter().map(Sent::line));
    let finished = tally(&["dedup", text(&input), "--out", text(&out), "-o", "json"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert_eq!(finished.stdout, "");
    assert!(std::fs::read_to_string(&out).unwrap().lines().eq(want.iter()));
    let statistics = statistics(&finished.stderr);
    assert_eq!(statistics["lines"], 200_000);
    assert_eq!(statistics["written"], want.len());
    assert_eq!(statistics["repeats"], 200_000 - want.len());

    // The same through pipes.
    let lines: Vec<String> = sent.iter().map(Sent::line).collect();
    let finished = piped(&[], &lines);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stdout.lines().eq(want.iter()));
}

#[test]
fn a_run_that_is_killed_again_and_again_writes_what_an_uninterrupted_one_writes() {
    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("events.ndjson");
    let sent = days_of_events(600_000, 12, 2);
    write_lines(&plain, sent.iter().map(Sent::line).chain(["{broken".to_owned()]));
    let compressed = folder.path().join("events.ndjson.zst");
    std::fs::write(&compressed, zstd::encode_all(std::fs::File::open(&plain).unwrap(), 1).unwrap())
        .unwrap();
    let want = firsts(&sent);
    for (name, input) in [("plain", &plain), ("compressed", &compressed)] {
        let path = |kind: &str| folder.path().join(format!("{name}.{kind}"));
        let (out, state, rejects) = (path("out"), path("state"), path("rejects"));
        let args = [
            "dedup",
            text(input),
            "--out",
            text(&out),
            "--state",
            text(&state),
            "--rejects",
            text(&rejects),
            "--checkpoint-every",
            "1ms",
            "-o",
            "json",
        ];
        let checkpoint = state.join("checkpoint");
        let saved = || checkpoint.metadata().ok().map(|metadata| metadata.modified().unwrap());
        let mut kills = 0;
        for _ in 0..4 {
            let before = saved();
            let mut child =
                Command::new(binary()).args(args).stderr(Stdio::null()).spawn().unwrap();
            wait_for("a checkpoint or the end", || {
                (saved() != before || child.try_wait().unwrap().is_some()).then_some(())
            });
            kills += u32::from(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(kills >= 2, "{name}: it was too quick: {kills}");
        let finished = tally(&args);
        assert_eq!(finished.code, 0, "{name}: {}", finished.stderr);
        assert!(std::fs::read_to_string(&out).unwrap().lines().eq(want.iter()), "{name}");
        assert_eq!(std::fs::read_to_string(&rejects).unwrap(), "{broken\n");
        let statistics = statistics(&finished.stderr);
        assert_eq!(statistics["lines"], 600_001, "{name}");
        assert_eq!(statistics["written"], want.len(), "{name}");
    }
}

#[test]
fn a_stream_that_was_cut_off_is_sent_again_and_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let (out, state) = (folder.path().join("out"), folder.path().join("state"));
    let sent = days_of_events(50_000, 3, 3);
    let lines: Vec<String> = sent.iter().map(Sent::line).collect();
    let args =
        ["--out", text(&out), "--state", text(&state), "--checkpoint-every", "1ms", "-o", "json"];
    let mut child = Command::new(binary())
        .arg("dedup")
        .args(args)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for line in &lines[..30_000] {
        writeln!(stdin, "{line}").unwrap();
    }
    wait_for("a checkpoint", || state.join("checkpoint").exists().then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();

    let finished = piped(&args, &lines);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(finished.stderr.contains("was interrupted after line"), "{}", finished.stderr);
    assert!(std::fs::read_to_string(&out).unwrap().lines().eq(firsts(&sent).iter()));
}

#[test]
fn a_line_goes_out_before_the_next_one_comes_in() {
    let mut child = Command::new(binary())
        .arg("dedup")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for id in 1..=3 {
        let sent = Sent { id, at_ms: now_ms() }.line();
        writeln!(stdin, "{sent}").unwrap();
        let mut got = String::new();
        stdout.read_line(&mut got).unwrap();
        assert_eq!(got.trim_end(), sent);
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

#[test]
fn bad_and_late_lines_are_named_or_kept_but_never_lost_silently() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (input, out) = (path("in"), path("out"));
    let at_ms = now_ms() - HOUR_MS;
    let mut lines: Vec<String> = (1..=20_000)
        .map(|id| Sent { id, at_ms: at_ms - 20_000 + i64::try_from(id).unwrap() }.line())
        .collect();
    let bad = [
        "{broken".to_owned(),
        json!({"eventTime": at_ms}).to_string(),
        json!({"eventId": "x", "eventTime": "yesterday"}).to_string(),
    ];
    lines.splice(1..1, bad.clone());
    lines.insert(0, "  ".to_owned());
    let late = Sent { id: 1 << 80, at_ms: at_ms - 30 * DAY_MS }.line();
    lines.push(late.clone());
    write_lines(&input, &lines);
    let finished = tally(&["dedup", text(&input), "--out", text(&out), "-o", "json"]);
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    for want in ["line 3: unreadable", "line 4: no_key", "line 5: no_time", "line 20005: late"] {
        assert!(finished.stderr.contains(want), "{want}: {}", finished.stderr);
    }
    let statistics = statistics(&finished.stderr);
    for (name, want) in [
        ("written", 20_000),
        ("blank", 1),
        ("late", 1),
        ("unreadable", 1),
        ("no_key", 1),
        ("no_time", 1),
    ] {
        assert_eq!(statistics[name], want, "{name}: {statistics}");
    }

    let (late_file, rejects) = (path("late"), path("rejects"));
    let kept = ["--late", text(&late_file), "--rejects", text(&rejects)];
    let args = [&["dedup", text(&input), "--out", text(&out)], &kept[..]].concat();
    let finished = tally(&args);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert_eq!(std::fs::read_to_string(&late_file).unwrap(), format!("{late}\n"));
    assert!(std::fs::read_to_string(&rejects).unwrap().lines().eq(bad.iter()));
}

#[test]
fn one_absurd_stamp_does_not_close_the_window_for_everyone_else() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let mut sent = days_of_events(60_000, 3, 4);
    let end_ms = now_ms();
    // Years ahead of the clock, and far ahead of the data only.
    for (place, at_ms) in
        [(0_u16, end_ms + 9_000 * DAY_MS), (20_000, end_ms + 9_000 * DAY_MS), (40_000, end_ms)]
    {
        sent.insert(usize::from(place), Sent { id: 1 << 90 | u128::from(place), at_ms });
    }
    write_lines(
        &input,
        sent.iter().map(|sent| {
            let at_ms = sent.at_ms - if sent.at_ms == end_ms { 0 } else { 40 * DAY_MS };
            Sent { id: sent.id, at_ms }.line()
        }),
    );
    let finished = tally(&["dedup", text(&input), "--out", text(&out), "-o", "json"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let statistics = statistics(&finished.stderr);
    assert_eq!(statistics["late"], 0, "{statistics}");
    assert_eq!(statistics["ahead"], 2, "{statistics}");
    let distinct: std::collections::HashSet<u128> = sent.iter().map(|sent| sent.id).collect();
    assert_eq!(statistics["written"], distinct.len(), "{statistics}");
}

#[test]
fn wrong_usage_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in");
    write_lines(&input, ["{}"]);
    let input = text(&input);
    let state = folder.path().join("state");
    let state = text(&state);
    let out = folder.path().join("out");
    let out = text(&out);
    let cases: [(&[&str], i32, &str); 8] = [
        (&[input, "--state", state], 2, "--out"),
        (&[input, "--out", input], 2, "named twice"),
        (&[input, "--out", out, "--late", out], 2, "named twice"),
        (&[input, "--window", "36h", "--bucket", "24h"], 2, "whole number"),
        (&[input, "--window", "7d", "--bucket", "1s"], 2, "--bucket"),
        (&[input, "--time", "t", "--time-now"], 2, "--time-now"),
        (&[input, "--time-now", "--state", state, "--out", out], 2, "standard input"),
        (&["missing.ndjson", "--out", out], 3, "missing.ndjson"),
    ];
    for (args, code, want) in cases {
        let finished = tally(&[&["dedup"], args].concat());
        assert_eq!(finished.code, code, "{args:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(want), "{args:?}: {}", finished.stderr);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the input is there");
}
