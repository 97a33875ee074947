//! The contract of every log, through a proxy that can keep appends from the broker.

use std::sync::Arc;

use tally_eventlog::contract::{self, UnderTest};
use tally_eventlog::kafka::KafkaLog;

use crate::proxy::Proxy;
use crate::support::{OwnTopic, RECORD_BYTES_MAX, broker, clock, demands, options_at};

/// Also B65: what retention removed is out of range and never passed over in silence.
#[test]
fn keeps_the_contract() {
    contract::run(|partitions| {
        let proxy = Arc::new(Proxy::new(broker()));
        let topic = Arc::new(OwnTopic::new());
        let options = options_at(proxy.address(), &topic.name, "");
        let log = KafkaLog::open(&options, &demands(partitions), clock()).unwrap();
        let (held, removed) = (Arc::clone(&proxy), Arc::clone(&topic));
        UnderTest {
            log: Arc::new(log),
            record_bytes_max: RECORD_BYTES_MAX,
            hold: Box::new(move |is_held| held.hold(is_held)),
            remove_oldest: Box::new(move || removed.remove_before(&[(0, 10)])),
            keep: Box::new((proxy, topic)),
        }
    });
}
