//! What a producer meets: brokers that are gone, refuse, or take one record of many. The brokers are
//! librdkafka's mock cluster, which can be told to fail.

use std::sync::atomic::Ordering::Relaxed;

use rdkafka::bindings::rd_kafka_resp_err_t as Code;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::RDKafkaApiKey;
use tally_eventlog::contract::{self, DEADLINE, append_all, record};
use tally_eventlog::kafka::KafkaLog;
use tally_eventlog::{AppendError, EventLog, NewRecord};

use crate::proxy::Proxy;
use crate::support::{
    OwnTopic, append, await_that, broker, clock, demands, options_at, read_to_end,
};

const PARTITIONS: u32 = 20;

struct Mock {
    cluster: MockCluster<'static, DefaultProducerContext>,
    log: KafkaLog,
}

fn mock(settings: &str) -> Mock {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("events", i32::try_from(PARTITIONS).unwrap(), 1).unwrap();
    let options = options_at(cluster.bootstrap_servers(), "events", settings);
    let log = KafkaLog::open(&options, &demands(PARTITIONS), clock()).unwrap();
    Mock { cluster, log }
}

/// A record in each partition, so that each travels in a request of its own.
fn one_each() -> Vec<NewRecord> {
    (0..PARTITIONS).map(|partition| record(partition, u64::from(partition))).collect()
}

/// B75, B77: a broker that is gone confirms nothing, and everybody hears of it.
#[test]
fn an_append_to_a_dead_broker_ends_unknown() {
    let Mock { cluster, log } = mock("delivery.timeout.ms=1500");
    append_all(&log, one_each());
    cluster.broker_down(1).unwrap();
    let outcomes = contract::append(&log, one_each());
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, Err(AppendError::Unknown { .. }))),
        "{outcomes:?}"
    );
    cluster.broker_up(1).unwrap();
    await_that("the broker", || contract::append(&log, one_each()).iter().all(Result::is_ok));
}

/// B75, B09: one failing delivery of 20 fails its own record and no other.
#[test]
fn each_record_has_the_outcome_of_its_own_delivery() {
    let topic = OwnTopic::new();
    let log = topic.open(PARTITIONS);
    append_all(&log, one_each());
    // Behind the log's back, so that the broker and not the log refuses.
    topic.configure("max.message.bytes", "2000");
    let mut records = one_each();
    // No codec makes this smaller.
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    });
    records[7].payload = noise.take(20_000).collect();
    let outcomes = contract::append(&log, records);
    for (place, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Err(AppendError::TooLarge { .. }) => assert_eq!(place, 7),
            outcome => assert!(place != 7 && *outcome == Ok(1), "{place}: {outcome:?}"),
        }
    }
    let again = contract::append(&log, one_each());
    assert!(again.iter().all(Result::is_ok), "{again:?}");
}

/// B11: a fault of the deployment is told at once, as one that a client may try again later.
#[test]
fn a_broker_that_forbids_the_topic_makes_the_log_unavailable() {
    let Mock { cluster, log } = mock("");
    append_all(&log, one_each());
    let refused = Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::Produce, &[refused]);
    let outcomes = contract::append(&log, vec![record(3, 1)]);
    assert!(matches!(outcomes.as_slice(), [Err(AppendError::Unavailable { .. })]), "{outcomes:?}");
    await_that("the permission", || contract::append(&log, one_each()).iter().all(Result::is_ok));
}

/// B76: as long as replicas are short nothing is confirmed.
#[test]
fn nothing_is_confirmed_while_replicas_are_short() {
    let Mock { cluster, log } = mock("delivery.timeout.ms=1500");
    let short = Code::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    cluster.request_errors(RDKafkaApiKey::Produce, &vec![short; 1_000]);
    let outcomes = contract::append(&log, vec![record(0, 1), record(0, 2)]);
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
    cluster.clear_request_errors(RDKafkaApiKey::Produce);
    await_that("the replicas", || contract::append(&log, one_each()).iter().all(Result::is_ok));
}

/// B77: a log that is closed while its broker is gone answers every caller, and confirms nothing.
#[test]
fn closing_a_log_without_a_broker_answers_everybody() {
    let Mock { cluster, log } = mock("");
    append_all(&log, one_each());
    cluster.broker_down(1).unwrap();
    let waiting: Vec<_> = (0..500).map(|number| append(&log, vec![record(0, number)])).collect();
    drop(log);
    for receiver in waiting {
        let outcomes = receiver.try_recv().expect("everybody has an answer");
        assert!(
            matches!(
                outcomes.as_slice(),
                [Err(AppendError::Unknown { .. } | AppendError::Unavailable { .. })]
            ),
            "{outcomes:?}"
        );
        assert!(receiver.try_recv().is_err(), "and only one");
    }
}

/// The last owner of a log may be the completion of an append, which runs on a thread of the log.
#[test]
fn a_completion_may_drop_the_log() {
    let Mock { cluster, log } = mock("");
    let log = std::sync::Arc::new(log);
    let (sender, receiver) = std::sync::mpsc::channel();
    let last = std::sync::Arc::clone(&log);
    let done = move |outcomes| {
        drop(last);
        sender.send(outcomes).unwrap();
    };
    // Keeps the answer back until the completion is the last owner.
    cluster.broker_down(1).unwrap();
    log.append(vec![record(0, 1)], Box::new(done)).unwrap();
    drop(log);
    cluster.broker_up(1).unwrap();
    assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), [Ok(0)]);
}

/// B78: what waits for a broker is bounded, refused whole calls are not queued in part, and the log
/// recovers by itself.
#[test]
fn a_full_queue_refuses_whole_calls_and_recovers() {
    const QUEUE_BYTES: u64 = 100_000;
    let Mock { cluster, log } = mock(&format!("queue.bytes={QUEUE_BYTES}"));
    append_all(&log, one_each());
    cluster.broker_down(1).unwrap();
    let mut waiting = Vec::new();
    let refused = loop {
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = Box::new(move |outcomes| sender.send(outcomes).unwrap_or(()));
        match log.append(one_each(), done) {
            Ok(()) => waiting.push(receiver),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, AppendError::Overloaded { .. }), "{refused}");
    assert!(log.stats().queued_bytes.load(Relaxed) <= QUEUE_BYTES);
    assert!(waiting.len() > 10, "{} calls fit", waiting.len());
    cluster.broker_up(1).unwrap();
    let calls = u64::try_from(waiting.len()).unwrap();
    for receiver in waiting {
        let outcomes = receiver.recv_timeout(DEADLINE).unwrap();
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    }
    assert_eq!(log.end_offsets().unwrap(), [1 + calls; 20]);
    await_that("room", || log.stats().queued_bytes.load(Relaxed) == 0);
    append_all(&log, one_each());
}

/// An idempotent producer that cannot go on is replaced.
#[test]
fn a_new_producer_takes_over_after_a_fatal_error() {
    let Mock { cluster, log } = mock("");
    cluster.request_errors(
        RDKafkaApiKey::InitProducerId,
        &[Code::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 1],
    );
    let outcomes = contract::append(&log, one_each());
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
    await_that("the new producer", || contract::append(&log, one_each()).iter().all(Result::is_ok));
}

/// A request that was lost on the way, or its answer: written at most once, and the order stays.
#[test]
fn a_cut_connection_neither_doubles_nor_reorders() {
    let topic = OwnTopic::new();
    let proxy = Proxy::new(broker());
    let options = options_at(proxy.address(), &topic.name, "linger.ms=0");
    let log = KafkaLog::open(&options, &demands(1), clock()).unwrap();
    let mut waiting = Vec::new();
    for number in 0..2_000 {
        waiting.push(append(&log, vec![record(0, number)]));
        if number % 500 == 250 {
            proxy.cut(true);
            proxy.cut(false);
        }
    }
    for (offset, receiver) in (0..).zip(waiting) {
        assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), [Ok(offset)]);
    }
    let found = read_to_end(&log, log.reader(&[(0, 0)]).unwrap().as_mut());
    let numbers: Vec<_> =
        found.iter().map(|(_, _, payload)| contract::number_of(payload)).collect();
    assert_eq!(numbers, (0..2_000).collect::<Vec<_>>());
}
