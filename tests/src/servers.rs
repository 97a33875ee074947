//! A topic and a keyspace of a test's own, on the servers that `scripts/services` starts.

use std::fmt;

use tally_eventlog::kafka::{KafkaLog, KafkaOptions};
use tally_sinks::cql::{CqlOptions, CqlStore};

/// Address of the Kafka broker of the tests.
#[must_use]
pub fn broker() -> String {
    address("TALLY_TEST_KAFKA", "127.0.0.1:19092")
}

/// Address of the Cassandra node of the tests.
#[must_use]
pub fn counts_server() -> String {
    address("TALLY_TEST_CQL", "127.0.0.1:19042")
}

fn address(variable: &str, default: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_unset| default.to_owned())
}

/// Where a deployment over servers rests; topic and keyspace go with this.
pub struct Servers {
    log: KafkaOptions,
    counts: CqlOptions,
    settings: Vec<(&'static str, String)>,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Servers {
    /// Names that nobody else has. Topic and keyspace are made by the first process.
    #[must_use]
    pub fn new() -> Self {
        let name = format!("test_{:016x}", rand::random::<u64>());
        let log = format!("kafka://{}/{name}", broker());
        let counts = format!("cql://{}/{name}", counts_server());
        Self {
            log: KafkaOptions::parse(&log).unwrap(),
            counts: CqlOptions::parse(&counts).unwrap(),
            settings: vec![
                ("log.url", log),
                // One broker cannot keep three copies.
                ("log.accept_settings", "true".to_owned()),
                ("counts.url", counts),
            ],
        }
    }

    /// The topic.
    #[must_use]
    pub const fn log(&self) -> &KafkaOptions {
        &self.log
    }

    /// The settings of every process of the deployment, with more of the test.
    #[must_use]
    pub fn settings<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let own = self.settings.iter().map(|(key, value)| (*key, value.as_str()));
        own.chain(more.iter().copied()).collect()
    }
}

impl Default for Servers {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // A test that failed may have left nothing to remove.
        drop(KafkaLog::delete_topic(&self.log));
        drop(CqlStore::drop_keyspace(&self.counts));
    }
}
