//! Where the log, the counts and the checkpoints rest.

use std::path::PathBuf;

use tally_eventlog::kafka::KafkaOptions;
use tally_sinks::cql::CqlOptions;

use super::{Layers, SettingError};

/// Where events rest.
#[derive(Clone, Debug)]
pub(crate) enum LogPlace {
    /// In a folder; `None` = in the data folder.
    Embedded(Option<PathBuf>),
    /// In a topic of Apache Kafka.
    Kafka(KafkaOptions),
}

/// Where counts, registry, keys, tokens and marks rest.
#[derive(Clone, Debug)]
pub(crate) enum CountsPlace {
    /// In a folder; `None` = in the data folder.
    Embedded(Option<PathBuf>),
    /// In a keyspace of ScyllaDB or Cassandra.
    Cql(Box<CqlOptions>),
}

impl LogPlace {
    /// Whether it can be used by several processes at once.
    pub(crate) const fn is_shared(&self) -> bool {
        match self {
            Self::Embedded(_) => false,
            Self::Kafka(_) => true,
        }
    }

    /// What a deployment keeps of it: another log has other offsets.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Embedded(_) => "embedded".to_owned(),
            Self::Kafka(options) => format!("kafka:{}", options.topic()),
        }
    }

    pub(super) fn of(layers: &Layers) -> Result<Self, SettingError> {
        match layers.text("log.url")? {
            "auto" => Ok(Self::Embedded(None)),
            url if url.starts_with("kafka:") => match KafkaOptions::parse(url) {
                Ok(options) => Ok(Self::Kafka(options)),
                Err(error) => Err(layers.refuse("log.url", error.to_string())),
            },
            url => match folder(url, "embedded:") {
                Some(folder) => Ok(Self::Embedded(Some(folder))),
                None => Err(layers.refuse(
                    "log.url",
                    "auto, embedded:FOLDER, kafka://HOST:PORT/TOPIC".to_owned(),
                )),
            },
        }
    }
}

impl CountsPlace {
    /// Whether it can be used by several processes at once.
    pub(crate) const fn is_shared(&self) -> bool {
        match self {
            Self::Embedded(_) => false,
            Self::Cql(_) => true,
        }
    }

    pub(super) fn of(layers: &Layers) -> Result<Self, SettingError> {
        match layers.text("counts.url")? {
            "auto" => Ok(Self::Embedded(None)),
            url if url.starts_with("cql:") => match CqlOptions::parse(url) {
                Ok(options) => Ok(Self::Cql(Box::new(options))),
                Err(error) => Err(layers.refuse("counts.url", error.to_string())),
            },
            url => match folder(url, "embedded:") {
                Some(folder) => Ok(Self::Embedded(Some(folder))),
                None => Err(layers.refuse(
                    "counts.url",
                    "auto, embedded:FOLDER, cql://HOST:PORT/KEYSPACE".to_owned(),
                )),
            },
        }
    }
}

/// The folder of `objects.url`; `None` stands for the data folder.
pub(super) fn objects(layers: &Layers) -> Result<Option<PathBuf>, SettingError> {
    match layers.text("objects.url")? {
        "auto" => Ok(None),
        url => match folder(url, "file:") {
            Some(folder) => Ok(Some(folder)),
            None => Err(layers.refuse("objects.url", "auto, file:FOLDER".to_owned())),
        },
    }
}

fn folder(url: &str, scheme: &str) -> Option<PathBuf> {
    url.strip_prefix(scheme).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}
