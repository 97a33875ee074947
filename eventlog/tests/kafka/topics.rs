//! The topic: made, checked, accepted, grown.

use tally_eventlog::contract::{append_all, record};
use tally_eventlog::kafka::{KafkaDemands, KafkaLog};
use tally_eventlog::{EventLog, LogError};

use crate::support::{OwnTopic, clock, demands, options_at, read_to_end, topic_name};

fn refusal(topic: &OwnTopic, demands: &KafkaDemands) -> LogError {
    KafkaLog::open(&topic.options, demands, clock()).expect_err("it is refused")
}

#[test]
fn a_missing_topic_is_not_made_with_fewer_replicas_unless_that_is_accepted() {
    let topic = OwnTopic::new();
    let strict = KafkaDemands { accept_settings: false, ..demands(2) };
    let message = refusal(&topic, &strict).to_string();
    assert!(message.contains("the cluster has 1 brokers, needed are 3"), "{message}");
    let log = topic.open(2);
    assert_eq!((log.partitions(), log.partitions_now().unwrap()), (2, 2));
    drop(log);
    // What was made keeps all that can be kept on one broker.
    let LogError::Settings { failing, .. } = refusal(&topic, &strict) else {
        panic!("the settings are refused")
    };
    assert_eq!(
        failing,
        [
            "its replication factor is 1, needed is at least 3",
            "min.insync.replicas is 1, needed is at least 2",
        ]
    );
}

#[test]
fn every_setting_that_loses_records_is_named() {
    let topic = OwnTopic::new();
    let settings = [
        ("retention.ms", "1000"),
        ("retention.bytes", "1000000"),
        ("cleanup.policy", "compact,delete"),
        ("unclean.leader.election.enable", "true"),
        ("max.message.bytes", "50000"),
    ];
    KafkaLog::create_topic(&topic.options, 3, 1, &settings).unwrap();
    let strict = KafkaDemands { accept_settings: false, ..demands(3) };
    let LogError::Settings { topic: name, failing } = refusal(&topic, &strict) else {
        panic!("the settings are refused")
    };
    assert_eq!(name, topic.name);
    assert_eq!(
        failing,
        [
            "its replication factor is 1, needed is at least 3".to_owned(),
            "min.insync.replicas is 1, needed is at least 2".to_owned(),
            format!("retention.ms is 1000, needed is more than {}", strict.retention_ms_min),
            "retention.bytes is 1000000, needed is -1 (no limit)".to_owned(),
            "cleanup.policy is compact,delete, needed is delete".to_owned(),
            "unclean.leader.election.enable is true, needed is false".to_owned(),
            "max.message.bytes is 50000, needed is at least 100128".to_owned(),
        ]
    );
    // Accepted, it is used as it is; a record that its batches cannot take is refused alone (B09).
    let log = topic.open(3);
    let large = tally_eventlog::NewRecord { payload: vec![0; 60_000], ..record(0, 2) };
    let results = tally_eventlog::contract::append(&log, vec![record(0, 1), large, record(0, 3)]);
    assert_eq!((&results[0], &results[2]), (&Ok(0), &Ok(1)));
    assert!(matches!(results[1], Err(tally_eventlog::AppendError::TooLarge { .. })), "{results:?}");
}

/// B63: partitions that are added are seen, and read from their first record on.
#[test]
fn added_partitions_are_seen_and_read_from_their_beginning() {
    let topic = OwnTopic::new();
    let log = topic.open(2);
    KafkaLog::grow(&topic.options, 4).unwrap();
    KafkaLog::grow(&topic.options, 3).unwrap();
    assert_eq!((log.partitions(), log.partitions_now().unwrap()), (2, 4));
    assert_eq!(log.end_offsets().unwrap(), [0, 0]);
    let grown = topic.open(4);
    append_all(
        &grown,
        (0..40).map(|number| record(u32::try_from(number % 4).unwrap(), number)).collect(),
    );
    let from: Vec<_> = (0..).zip(grown.low_offsets().unwrap()).collect();
    assert_eq!(read_to_end(&grown, grown.reader(&from).unwrap().as_mut()).len(), 40);
    let all =
        KafkaLog::open(&topic.options, &KafkaDemands { partitions: None, ..demands(1) }, clock());
    assert_eq!(all.unwrap().partitions(), 4);
    let too_few = refusal(&topic, &demands(5)).to_string();
    assert!(too_few.contains("the topic has 4 partitions, the deployment's layout 5"), "{too_few}");
}

#[test]
fn a_broker_that_does_not_answer_is_unavailable() {
    let options = options_at("127.0.0.1:1", &topic_name(), "");
    let error = KafkaLog::open(&options, &demands(1), clock()).unwrap_err();
    assert!(matches!(error, LogError::Unavailable { .. }), "{error}");
}
