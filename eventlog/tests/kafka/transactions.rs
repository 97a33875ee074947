//! Producers with transactions: what they abort never happened, and their markers are no records.

use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tally_eventlog::EventLog;
use tally_eventlog::contract::{DEADLINE, append_all, record};

use crate::support::{OwnTopic, await_that, plain_client, read_to_end};

fn producer(topic: &OwnTopic) -> BaseProducer {
    let producer: BaseProducer =
        plain_client().set("transactional.id", &topic.name).create().unwrap();
    producer.init_transactions(DEADLINE).unwrap();
    producer
}

fn begin(producer: &BaseProducer, topic: &OwnTopic, payload: &str, records: usize) {
    producer.begin_transaction().unwrap();
    for _ in 0..records {
        let record = BaseRecord::<[u8], _>::to(&topic.name).partition(0).payload(payload);
        producer.send(record).unwrap();
    }
    producer.flush(DEADLINE).unwrap();
}

/// B68.
#[test]
fn aborted_records_are_never_read() {
    let topic = OwnTopic::new();
    let log = topic.open(1);
    let producer = producer(&topic);
    for (records, payload) in [(10, "aborted"), (10, "one"), (0, "aborted"), (5, "two")] {
        begin(&producer, &topic, payload, records);
        if payload == "aborted" {
            producer.abort_transaction(DEADLINE).unwrap();
        } else {
            producer.commit_transaction(DEADLINE).unwrap();
        }
    }
    let mut reader = log.reader(&[(0, 0)]).unwrap();
    let found = read_to_end(&log, reader.as_mut());
    let payloads: Vec<_> = found.iter().map(|(_, _, payload)| payload.as_slice()).collect();
    assert_eq!(payloads, [vec![&b"one"[..]; 10], vec![&b"two"[..]; 5]].concat());
}

/// B69: a position reaches the end where markers or aborted records are the last things.
#[test]
fn a_reader_reaches_the_end_over_markers() {
    let topic = OwnTopic::new();
    let log = topic.open(1);
    let producer = producer(&topic);
    let mut reader = log.reader(&[(0, 0)]).unwrap();
    begin(&producer, &topic, "one", 3);
    producer.commit_transaction(DEADLINE).unwrap();
    await_that("the marker", || log.end_offsets().unwrap() == [4]);
    assert_eq!(read_to_end(&log, reader.as_mut()).len(), 3);
    assert_eq!(reader.positions(), [(0, 4)]);

    // While a transaction is open the end lies before it, also for what others append after it.
    begin(&producer, &topic, "aborted", 2);
    append_all(&log, vec![record(0, 1)]);
    assert_eq!(log.end_offsets().unwrap(), [4]);
    assert_eq!(read_to_end(&log, reader.as_mut()), []);
    producer.abort_transaction(DEADLINE).unwrap();
    await_that("the marker", || log.end_offsets().unwrap() == [8]);
    assert_eq!(read_to_end(&log, reader.as_mut()).len(), 1);
    assert_eq!(reader.positions(), [(0, 8)]);

    begin(&producer, &topic, "aborted", 2);
    producer.abort_transaction(DEADLINE).unwrap();
    await_that("the marker", || log.end_offsets().unwrap() == [11]);
    assert_eq!(read_to_end(&log, reader.as_mut()), []);
    assert_eq!(reader.positions(), [(0, 11)]);

    // Nothing but a marker is left, or nothing at all.
    for low in [10, 11] {
        topic.remove_before(&[(0, low)]);
        let mut late = log.reader(&[(0, log.low_offsets().unwrap()[0])]).unwrap();
        assert_eq!(read_to_end(&log, late.as_mut()), []);
        assert_eq!(late.positions(), [(0, 11)]);
    }
}
