//! The servers that the log and the counts rest on, if they rest on any: a topic and a keyspace of
//! their own for each seed.

use std::path::PathBuf;

use clap::Args;
use tally_eventlog::kafka::{KafkaLog, KafkaOptions};
use tally_sinks::cql::{CqlOptions, CqlStore};

use crate::failure::Failure;

/// How long the client of Kafka tries to deliver a record, in ms. It looks about once a second; with
/// that this lies below the append grace.
const DELIVERY_TIMEOUT_MS: i64 = 3_000;

/// Where the log and the counts of the deployments rest.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct ServerArgs {
    /// Keep the log in Kafka. Each seed makes a topic of its own, whose name begins with TOPIC, and
    /// removes it if it passed.
    #[arg(long, value_name = "kafka://HOST:PORT/TOPIC")]
    log: Option<String>,
    /// Keep the counts in Cassandra or ScyllaDB. Each seed makes a keyspace of its own, whose name
    /// begins with KEYSPACE, and removes it if it passed.
    #[arg(long, value_name = "cql://HOST:PORT/KEYSPACE")]
    counts: Option<String>,
    /// Kill these servers, too: the program is called as `CMD kill kafka`, `CMD resume kafka` and
    /// the same with `cassandra`, as scripts/services.
    #[arg(long, value_name = "CMD")]
    pub(super) services: Option<PathBuf>,
}

/// The topic and the keyspace of one seed.
#[derive(Debug, Default)]
pub(super) struct Servers {
    log: Option<(String, KafkaOptions)>,
    counts: Option<(String, CqlOptions)>,
}

impl ServerArgs {
    /// The topic and the keyspace of a seed. Names end with the seed and with `run`, which tells
    /// this run of the harness from others at the same servers.
    ///
    /// # Errors
    /// If a URL is none.
    pub(super) fn of_seed(&self, seed: u64, run: u32) -> Result<Servers, Failure> {
        let log = match &self.log {
            None => None,
            Some(url) => {
                let url = with_suffix(url, &format!("-{seed}-{run:08x}"));
                let url = with_delivery_timeout(&url);
                let options = KafkaOptions::parse(&url);
                let options = options.map_err(|error| refused("--log", &error))?;
                Some((url, options))
            }
        };
        let counts = match &self.counts {
            None => None,
            Some(url) => {
                let url = with_suffix(url, &format!("_{seed}_{run:08x}"));
                let options = CqlOptions::parse(&url);
                let options = options.map_err(|error| refused("--counts", &error))?;
                Some((url, options))
            }
        };
        Ok(Servers { log, counts })
    }

    /// Whether there is a broker, and whether there is a server of the counts.
    pub(super) const fn has(&self) -> (bool, bool) {
        (self.log.is_some(), self.counts.is_some())
    }

    /// The same as arguments of a command line, each with a space in front.
    pub(super) fn again(&self) -> String {
        let services = self.services.as_ref().map(|path| path.display().to_string());
        let given = [("--log", &self.log), ("--counts", &self.counts), ("--services", &services)];
        let given = given.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        given.map(|(name, value)| format!(" {name} '{value}'")).collect()
    }
}

impl Servers {
    /// The settings that say where everything is.
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = Vec::new();
        if let Some((url, _)) = &self.log {
            settings.push(("log.url", url.clone()));
            // One broker is enough to find out whether counts survive.
            settings.push(("log.accept_settings", "true".to_owned()));
        }
        if let Some((url, _)) = &self.counts {
            settings.push(("counts.url", url.clone()));
        }
        settings
    }

    /// Where everything is, for people.
    pub(super) fn addresses(&self) -> Vec<String> {
        let log = self.log.iter().map(|(_, options)| options.address());
        log.chain(self.counts.iter().map(|(_, options)| options.address())).collect()
    }

    /// Removes the topic and the keyspace.
    ///
    /// # Errors
    /// If a server does not answer.
    pub(super) fn remove(&self) -> Result<(), Failure> {
        if let Some((_, options)) = &self.log {
            KafkaLog::delete_topic(options)?;
        }
        if let Some((_, options)) = &self.counts {
            CqlStore::drop_keyspace(options)?;
        }
        Ok(())
    }
}

/// A URL whose last name ends with `suffix`.
fn with_suffix(url: &str, suffix: &str) -> String {
    match url.split_once('?') {
        Some((place, settings)) => format!("{place}{suffix}?{settings}"),
        None => format!("{url}{suffix}"),
    }
}

/// A URL of a log whose records are given up before the append grace has passed, as they are with
/// the settings that users have. A record that came later would find its minute retired, or the
/// copies of its id forgotten.
fn with_delivery_timeout(url: &str) -> String {
    let between = if url.contains('?') { '&' } else { '?' };
    if url.contains("delivery.timeout.ms=") {
        url.to_owned()
    } else {
        format!("{url}{between}delivery.timeout.ms={DELIVERY_TIMEOUT_MS}")
    }
}

fn refused(argument: &str, error: &dyn std::error::Error) -> Failure {
    Failure::usage(format!("{argument}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_has_a_topic_and_a_keyspace_of_its_own() {
        let args = ServerArgs {
            log: Some("kafka://127.0.0.1:9092/torture?queue.bytes=1048576".to_owned()),
            counts: Some("cql://127.0.0.1:9042/torture".to_owned()),
            services: None,
        };
        let servers = args.of_seed(7, 0xab).unwrap();
        assert_eq!(
            servers.settings(),
            [
                (
                    "log.url",
                    "kafka://127.0.0.1:9092/torture-7-000000ab?queue.bytes=1048576\
                     &delivery.timeout.ms=3000"
                ),
                ("log.accept_settings", "true"),
                ("counts.url", "cql://127.0.0.1:9042/torture_7_000000ab"),
            ]
            .map(|(key, value)| (key, value.to_owned()))
        );
        assert_eq!(
            servers.addresses(),
            [
                "kafka://127.0.0.1:9092/torture-7-000000ab",
                "cql://127.0.0.1:9042/torture_7_000000ab"
            ]
        );
        assert!(ServerArgs::default().of_seed(7, 1).unwrap().settings().is_empty());
    }

    #[test]
    fn a_url_without_a_name_is_refused_with_its_argument() {
        let args = ServerArgs { log: Some("kafka://127.0.0.1:9092".to_owned()), ..<_>::default() };
        let failure = args.of_seed(7, 1).unwrap_err();
        assert!(failure.error.to_string().starts_with("--log: "), "{:#}", failure.error);
    }
}
