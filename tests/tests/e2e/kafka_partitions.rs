//! A topic that grows while it is counted.

use std::sync::{Arc, mpsc};

use prost::Message;
use tally_eventlog::kafka::{KafkaDemands, KafkaLog};
use tally_eventlog::{EventLog, NewRecord};
use tally_model::clock::ManualClock;
use tally_model::record::{KIND_EVENT, RECORD_VERSION, Record, finish_encoded};
use tally_tests::servers::Servers;
use tally_tests::{Node, event, fresh_id, now_ms, wait_for};

/// Appends events to partitions 4 to 7 as a foreign producer, each with an id of its own.
fn append_to_new_partitions(servers: &Servers, events: u64) {
    let demands = KafkaDemands {
        partitions: None,
        partitions_to_create: 8,
        retention_ms_min: 0,
        retention_ms_to_create: 1,
        record_bytes_max: 1 << 18,
        accept_settings: true,
    };
    let log = KafkaLog::open(servers.log(), &demands, Arc::new(ManualClock::new(0))).unwrap();
    assert_eq!(log.partitions(), 8);
    let records = (0..events).map(|number| {
        let id: [u8; 16] = rand::random();
        let record = Record {
            version: RECORD_VERSION,
            kind: KIND_EVENT,
            event_id: id.to_vec(),
            event_time_ms: now_ms(),
            received_at_ms: now_ms(),
            row_tag: vec![7; 16],
            sealed: vec![0; 40],
            ..Record::default()
        };
        let mut payload = record.encode_to_vec();
        finish_encoded(&mut payload, 99, number);
        NewRecord { partition: 4 + u32::try_from(number % 4).unwrap(), key: id, payload }
    });
    let (tell, told) = mpsc::channel();
    log.append(records.collect(), Box::new(move |outcomes| tell.send(outcomes).unwrap())).unwrap();
    assert!(told.recv().unwrap().iter().all(Result::is_ok));
}

fn post(node: &Node, events: u64) {
    let events: Vec<_> = (0..events).map(|_| event(&fresh_id(), "page_view", now_ms())).collect();
    let answer = node.post(&serde_json::json!({ "events": events }).to_string()).json();
    assert_eq!(answer["accepted"], events.len(), "{answer}");
}

/// Records by what became of them.
fn records(node: &Node, outcome: &str) -> u64 {
    let name = format!("tally_count_records_total{{outcome=\"{outcome}\"}}");
    format!("{:.0}", node.metric(&name)).parse().unwrap()
}

#[test]
fn partitions_that_a_topic_gets_under_load_are_read_from_their_first_record_b63() {
    let folder = tempfile::tempdir().unwrap();
    let servers = Servers::new();
    let settings = servers.settings(&[("log.partitions", "4"), ("pipeline.workers", "2")]);
    let node = Node::start(&folder.path().join("data"), &settings, &[]);
    let pid = node.pid();
    post(&node, 200);
    KafkaLog::grow(servers.log(), 8).unwrap();
    // Before the node has noticed, so that a reader that began at the end would miss them.
    append_to_new_partitions(&servers, 100);
    let mut sent = 300;
    wait_for("the node to count what stands in the new partitions", || {
        post(&node, 10);
        sent += 10;
        node.log().contains("the log has more partitions").then_some(())
    });
    post(&node, 50);
    sent += 50;
    wait_for("the counts of all events", || (records(&node, "counted") >= sent).then_some(()));
    assert_eq!(records(&node, "counted"), sent, "accepted = appended = counted");
    assert_eq!(records(&node, "repeat"), 0);
    assert_eq!(node.pid(), pid, "the process went on");
    assert!(node.terminate().success());
}
