//! What a reader meets: gone records, foreign records, every codec, a broker that goes away.

use std::sync::atomic::Ordering::Relaxed;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use tally_eventlog::contract::{DEADLINE, append_all, number_of, record};
use tally_eventlog::kafka::KafkaLog;
use tally_eventlog::{EventLog, LogError, NewRecord, ReadLimits};

use crate::proxy::Proxy;
use crate::support::{
    NO_LIMITS, OwnTopic, await_that, broker, clock, demands, options_at, out_of_range,
    plain_client, read_to_end,
};

const ONE: ReadLimits = ReadLimits { records: 1, ..NO_LIMITS };

/// B65: the client never jumps to the end; the exact range is known, and what is kept is read.
#[test]
fn a_reader_that_retention_overtakes_says_so_and_stays() {
    // Fetches little ahead, so that it has to ask the broker for what is gone.
    let topic = OwnTopic::with("queued.min.messages=1&fetch.message.max.bytes=1000");
    let log = topic.open(2);
    let large = |number: u64| NewRecord { payload: vec![0; 2_000], ..record(0, number) };
    for number in 0..100 {
        append_all(&log, vec![large(number), record(1, number)]);
    }
    let mut slow = log.reader(&[(0, 0)]).unwrap();
    await_that("a record", || slow.read(ONE, &mut |_| {}).unwrap().records == 1);
    topic.remove_before(&[(0, 50)]);
    assert_eq!(log.low_offsets().unwrap(), [50, 0]);
    let mut next = 1;
    let mut met = None;
    await_that("the hole", || {
        let read = slow.read(ONE, &mut |record| {
            assert_eq!(record.offset, next, "no silent jump");
            next += 1;
        });
        met = out_of_range(read);
        met.is_some()
    });
    assert!(next < 50, "it read ahead to {next}");
    assert_eq!(met, Some((0, next, 50, 100)));
    // It stays there however often it is asked; a new one goes on where the log begins now.
    assert_eq!(out_of_range(slow.read(ONE, &mut |_| {})), Some((0, next, 50, 100)));
    assert_eq!(slow.positions(), [(0, next)]);
    assert_eq!(out_of_range(log.reader(&[(1, 3), (0, 49)])), Some((0, 49, 50, 100)));
    let found = read_to_end(&log, log.reader(&[(0, 50)]).unwrap().as_mut());
    assert_eq!(found.len(), 50);
}

/// B66: a topic that does not begin at 0, and a partition whose records are all gone.
#[test]
fn a_reader_starts_at_the_low_offset_and_an_emptied_partition_is_at_its_end() {
    let topic = OwnTopic::new();
    let log = topic.open(2);
    append_all(&log, (0..40).flat_map(|n| [record(0, n), record(1, n)]).collect());
    topic.remove_before(&[(0, 25), (1, 40)]);
    let low = log.low_offsets().unwrap();
    assert_eq!(
        (low.as_slice(), log.end_offsets().unwrap().as_slice()),
        (&[25, 40][..], &[40, 40][..])
    );
    let mut reader = log.reader(&[(0, low[0]), (1, low[1])]).unwrap();
    let found = read_to_end(&log, reader.as_mut());
    let offsets: Vec<_> =
        found.iter().map(|(partition, offset, _)| (*partition, *offset)).collect();
    assert_eq!(offsets, (25..40).map(|offset| (0, offset)).collect::<Vec<_>>());
    assert_eq!(reader.positions(), [(0, 40), (1, 40)]);
    assert_eq!(out_of_range(log.reader(&[(0, 0)])), Some((0, 0, 25, 40)));
}

/// B67: a null value is handed out as an empty one, a null key too, and reading goes on.
#[test]
fn foreign_records_are_handed_out_as_they_are() {
    let topic = OwnTopic::new();
    let log = topic.open(1);
    let producer: BaseProducer = plain_client().create().unwrap();
    let to = || BaseRecord::<[u8], [u8]>::to(&topic.name).partition(0);
    producer.send(to().key(b"short")).unwrap();
    producer.send(to().payload(b"")).unwrap();
    producer.send(to().payload(b"\x07\xff\x00").key(&[1; 40])).unwrap();
    producer.flush(DEADLINE).unwrap();
    append_all(&log, vec![record(0, 7)]);
    let mut reader = log.reader(&[(0, 0)]).unwrap();
    let mut found = Vec::new();
    await_that("four records", || {
        let each = &mut |record: tally_eventlog::LogRecord<'_>| {
            found.push((record.offset, record.key.to_vec(), record.payload.to_vec()));
        };
        reader.read(NO_LIMITS, each).unwrap();
        found.len() == 4
    });
    let own = record(0, 7);
    assert_eq!(
        found,
        [
            (0, b"short".to_vec(), vec![]),
            (1, vec![], vec![]),
            (2, vec![1; 40], b"\x07\xff\x00".to_vec()),
            (3, own.key.to_vec(), own.payload),
        ]
    );
    assert_eq!(reader.positions(), [(0, 4)]);
}

/// B70: one batch of each codec that a producer may choose.
#[test]
fn batches_of_every_codec_are_read() {
    let topic = OwnTopic::new();
    let log = topic.open(1);
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let producer: BaseProducer =
            plain_client().set("compression.type", codec).set("linger.ms", "50").create().unwrap();
        let payload = codec.repeat(100);
        for _ in 0..10 {
            producer
                .send(BaseRecord::<[u8], _>::to(&topic.name).partition(0).payload(&payload))
                .unwrap();
        }
        producer.flush(DEADLINE).unwrap();
    }
    let found = read_to_end(&log, log.reader(&[(0, 0)]).unwrap().as_mut());
    let codecs: Vec<_> = found.iter().step_by(10).map(|(_, _, payload)| &payload[..4]).collect();
    assert_eq!(codecs, [b"none", b"gzip", b"snap", b"lz4l", b"zstd"]);
    assert_eq!(found.len(), 50);
}

/// B71: a position comes from the caller, never from what a group has committed.
#[test]
fn lag_tools_see_a_mirrored_position_that_no_reader_follows() {
    let topic = OwnTopic::new();
    let log = topic.open(2);
    append_all(&log, (0..30).map(|number| record(0, number)).collect());
    log.mirror_positions(&[(0, 20), (1, 0)]);
    let group = format!("tally-{}", topic.name);
    let tool: BaseConsumer = plain_client().set("group.id", &group).create().unwrap();
    await_that("the committed position", || {
        let list = topic.list(&[(0, 0), (1, 0)]);
        let committed = tool.committed_offsets(list, DEADLINE);
        committed.is_ok_and(|list| list == topic.list(&[(0, 20), (1, 0)]))
    });
    for start in [5, 29, 0] {
        let found = read_to_end(&log, log.reader(&[(0, start)]).unwrap().as_mut());
        let numbers: Vec<_> = found.iter().map(|(_, _, payload)| number_of(payload)).collect();
        assert_eq!(numbers, (start..30).collect::<Vec<_>>());
    }
}

/// A broker that is away for a while ends nothing: reading goes on when it is back.
#[test]
fn a_reader_outlives_its_broker() {
    let topic = OwnTopic::new();
    let proxy = Proxy::new(broker());
    let options = options_at(proxy.address(), &topic.name, "");
    let log = KafkaLog::open(&options, &demands(1), clock()).unwrap();
    append_all(&log, vec![record(0, 1)]);
    let mut reader = log.reader(&[(0, 0)]).unwrap();
    assert_eq!(read_to_end(&log, reader.as_mut()).len(), 1);
    let idle = log.reader(&[(0, 1)]).unwrap();
    proxy.cut(true);
    drop(idle);
    assert_eq!(reader.read(NO_LIMITS, &mut |_| {}).unwrap().records, 0);
    let unavailable = log.end_offsets().unwrap_err();
    assert!(matches!(unavailable, LogError::Unavailable { .. }), "{unavailable}");
    await_that("the trouble to be counted", || {
        assert_eq!(reader.read(NO_LIMITS, &mut |_| {}).unwrap().records, 0);
        log.stats().read_errors.load(Relaxed) > 0
    });
    proxy.cut(false);
    let other = topic.open(1);
    append_all(&other, vec![record(0, 2)]);
    let mut numbers = Vec::new();
    await_that("the second record", || {
        reader.read(NO_LIMITS, &mut |record| numbers.push(number_of(record.payload))).unwrap();
        !numbers.is_empty()
    });
    assert_eq!((numbers.as_slice(), reader.positions()), (&[2][..], vec![(0, 2)]));
    await_that("the end", || log.end_offsets().is_ok_and(|ends| ends == [2]));
}
