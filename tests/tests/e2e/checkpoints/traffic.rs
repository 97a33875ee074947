//! Events that are sent, sent again, and held against what a node answers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tally_tests::{Node, counts_by_minute, event, fresh_id, now_ms, tally_ok, wait_for};

/// Everything short, and few shards, so that some thousand events fill segments.
pub(super) const FAST: &[(&str, &str)] = &[
    ("pipeline.shards", "4"),
    ("pipeline.watermark_delay", "1s"),
    ("pipeline.epoch", "100ms"),
    ("pipeline.restate_every", "100ms"),
    ("pipeline.checkpoint_every", "300ms"),
];

/// As [`FAST`], but checkpoints are made only for savepoints: a test says when.
pub(super) const ON_REQUEST: &[(&str, &str)] = &[
    ("pipeline.shards", "4"),
    ("pipeline.watermark_delay", "1s"),
    ("pipeline.epoch", "100ms"),
    ("pipeline.restate_every", "100ms"),
    ("pipeline.checkpoint_every", "1d"),
];

/// With so many events each of the four shards of [`FAST`] writes a segment.
pub(super) const SEGMENTS: usize = 9_000;

pub(super) const MINUTE_MS: i64 = 60_000;

type Counts = BTreeMap<(i64, String), u64>;

/// What was sent to one deployment in its whole life, and what it answered.
///
/// Events are two to nine minutes old: in time, and in minutes that are closed, so that nobody has
/// to wait for the end of one.
pub(super) struct Traffic {
    begin_ms: i64,
    bodies: Vec<String>,
    expected: Counts,
    seen: Counts,
    repeats: u64,
}

impl Traffic {
    pub(super) fn new() -> Self {
        Self {
            begin_ms: (now_ms() / MINUTE_MS - 9) * MINUTE_MS,
            bodies: Vec::new(),
            expected: Counts::new(),
            seen: Counts::new(),
            repeats: 0,
        }
    }

    /// First and next instant of the minutes that events are sent for.
    pub(super) fn range_ms(&self) -> (i64, i64) {
        (self.begin_ms, self.begin_ms + 7 * MINUTE_MS)
    }

    pub(super) fn sent(&self) -> u64 {
        self.expected.values().sum()
    }

    /// Sends so many new events.
    pub(super) fn send(&mut self, node: &Node, events: usize) {
        node.register(&["a", "b"]);
        let mut left = events;
        while left > 0 {
            let some = left.min(500);
            left -= some;
            let events: Vec<_> = (0..7)
                .cycle()
                .take(some)
                .enumerate()
                .map(|(index, minute)| {
                    let name = if index % 3 == 0 { "a" } else { "b" };
                    let minute_ms = self.begin_ms + minute * MINUTE_MS;
                    *self.expected.entry((minute_ms, name.to_owned())).or_default() += 1;
                    event(&fresh_id(), name, minute_ms + 1_000)
                })
                .collect();
            let body = json!({ "events": events }).to_string();
            assert_eq!(node.post(&body).status, 202);
            self.bodies.push(body);
        }
    }

    /// Sends every event of its life once more.
    pub(super) fn repeat(&mut self, node: &Node) {
        for body in &self.bodies {
            assert_eq!(node.post(body).status, 202);
        }
        self.repeats += self.sent();
    }

    /// The counts of now; no row may be lower than it was ever seen, whatever happened in between.
    pub(super) fn look(&mut self, node: &Node) -> Counts {
        let types = ["a", "b"].map(str::to_owned);
        let (from_ms, to_ms) = self.range_ms();
        let counts = counts_by_minute(node, &types, from_ms, to_ms);
        for (cell, before) in &self.seen {
            let now = counts.get(cell).copied().unwrap_or(0);
            assert!(now >= *before, "{cell:?} went down from {before} to {now}");
        }
        self.seen.clone_from(&counts);
        counts
    }

    /// Waits until every event is counted once, every copy is known as one, and nothing is late.
    pub(super) fn settle(&mut self, node: &Node) {
        let (sent, repeats) = (self.sent(), self.repeats);
        wait_for("the counts of all that was sent", || {
            let counts = self.look(node);
            let records = records(node);
            assert!(records.counted <= sent, "{sent} events became {records:?}");
            let all = Records { counted: sent, repeats, late: 0, straggler: 0 };
            (counts == self.expected && records == all).then_some(())
        });
    }
}

/// What became of the records of a deployment's whole life, as its metrics say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) counted: u64,
    pub(super) repeats: u64,
    pub(super) late: u64,
    pub(super) straggler: u64,
}

pub(super) fn records(node: &Node) -> Records {
    let of = |outcome: &str| {
        let value = node.metric(&format!("tally_count_records_total{{outcome=\"{outcome}\"}}"));
        format!("{value:.0}").parse().unwrap()
    };
    Records {
        counted: of("counted"),
        repeats: of("repeat"),
        late: of("late"),
        straggler: of("straggler"),
    }
}

pub(super) fn written(node: &Node) -> f64 {
    node.metric("tally_checkpoints_total{outcome=\"written\"}")
}

/// Waits for a checkpoint that was begun after now.
pub(super) fn checkpointed(node: &Node) {
    let before = written(node);
    wait_for("two checkpoints", || (written(node) >= before + 2.0).then_some(()));
}

/// Makes a savepoint, and with it a checkpoint.
pub(super) fn savepoint(node: &Node, name: &str) {
    tally_ok(&["savepoint", name, "--url", &node.url, "--token", &node.admin_token]);
}

/// The files of a folder, by name.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

/// All files below a folder.
pub(super) fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files_below(&path) } else { 1 }).sum()
}
