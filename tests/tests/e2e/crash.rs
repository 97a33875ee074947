//! kill -9 and SIGTERM under load.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tally_eventlog::segment::{SegmentLog, SegmentOptions};
use tally_eventlog::{EventLog, ReadLimits};
use tally_model::clock::ManualClock;
use tally_model::ids::EventId;
use tally_model::record::{Decoded, RecordHead};
use tally_tests::{Node, event, fresh_id, now_ms, request, wait_for};

/// What clients were told while a node was under load.
#[derive(Default)]
struct Outcome {
    acknowledged: Mutex<HashSet<EventId>>,
    refused: Mutex<Vec<u16>>,
}

/// Posts from four threads until `stop` is set or nobody answers.
fn load(url: &str, key: &str, outcome: &Outcome, stop: &AtomicBool) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let ids: Vec<String> = (0..20).map(|_| fresh_id()).collect();
                    let events: Vec<_> =
                        ids.iter().map(|id| event(id, "page_view", now_ms())).collect();
                    let body = json!({ "events": events }).to_string();
                    let Some(reply) =
                        request(&format!("{url}/v1/events"), "POST", Some(key), Some(&body))
                    else {
                        return;
                    };
                    if reply.status == 202 {
                        let ids = ids.iter().map(|id| EventId::parse(id).unwrap());
                        outcome.acknowledged.lock().unwrap().extend(ids);
                    } else {
                        outcome.refused.lock().unwrap().push(reply.status);
                    }
                }
            });
        }
    });
}

/// The ids of all events in the log of a data folder that no process has open.
fn logged(dir: &Path) -> HashSet<EventId> {
    let clock = std::sync::Arc::new(ManualClock::new(now_ms()));
    let log = SegmentLog::open(&dir.join("log"), SegmentOptions::default(), clock).unwrap();
    let from: Vec<_> = (0..).zip(log.low_offsets().unwrap()).collect();
    let mut reader = log.reader(&from).unwrap();
    let mut ids = HashSet::new();
    let limits = ReadLimits { records: 100_000, bytes: 64 << 20 };
    loop {
        let progress = reader
            .read(limits, &mut |record| match RecordHead::decode(record.payload) {
                Ok(Decoded::Event(head)) => {
                    ids.insert(head.id);
                }
                other => assert_eq!(other, Ok(Decoded::Control)),
            })
            .unwrap();
        if progress.records == 0 {
            return ids;
        }
    }
}

#[test]
fn every_acknowledged_event_is_in_the_log_after_kill_9_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let outcome = Outcome::default();
    for round in 1..=3 {
        let node = Node::start(&dir, &[], &[]);
        let before = outcome.acknowledged.lock().unwrap().len();
        let (url, key) = (node.url.clone(), node.write_key.clone());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| load(&url, &key, &outcome, &stop));
            wait_for("some acknowledged events", || {
                (outcome.acknowledged.lock().unwrap().len() > before + 2_000).then_some(())
            });
            node.kill();
            stop.store(true, Ordering::Relaxed);
        });
        let logged = logged(&dir);
        let acknowledged = outcome.acknowledged.lock().unwrap();
        let lost = acknowledged.difference(&logged).count();
        assert_eq!(lost, 0, "round {round}: of {} acknowledged", acknowledged.len());
    }
    // The log that three crashes left is still served.
    let node = Node::start(&dir, &[], &[]);
    assert_eq!(
        node.post(&json!({"events": [event(&fresh_id(), "a", now_ms())]}).to_string()).status,
        202
    );
    assert!(node.terminate().success());
}

#[test]
fn sigterm_under_load_drains_and_exits_0_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let node = Node::start(&dir, &[], &[]);
    let outcome = Outcome::default();
    let (url, key) = (node.url.clone(), node.write_key.clone());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| load(&url, &key, &outcome, &stop));
        wait_for("some acknowledged events", || {
            (outcome.acknowledged.lock().unwrap().len() > 2_000).then_some(())
        });
        let status = node.terminate();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(status.code(), Some(0));
    });
    for status in outcome.refused.lock().unwrap().iter() {
        assert_eq!(*status, 503, "a draining node refuses with 503 only");
    }
    let acknowledged = outcome.acknowledged.lock().unwrap();
    assert_eq!(acknowledged.difference(&logged(&dir)).count(), 0);
}
