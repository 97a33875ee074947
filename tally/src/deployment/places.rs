//! Opening the log and the stores where the settings say that they rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tally_eventlog::kafka::{KafkaDemands, KafkaLog};
use tally_eventlog::segment::{SegmentLog, SegmentOptions};
use tally_eventlog::{EventLog, LogError, Partition};
use tally_model::bucket::DAY_MS;
use tally_model::clock::Clock;
use tally_model::rules::DedupRule;
use tally_sinks::counts::CountsStore;
use tally_sinks::cql::{CqlOpenError, CqlStore};
use tally_sinks::meta::MetaStore;
use tally_sinks::redb::{OpenError, RedbStore};

use crate::config::{CountsPlace, Log, LogPlace, Settings};
use crate::failure::{Exit, Failure};

/// The stores of a deployment.
pub(super) struct Stores {
    pub(super) counts: Arc<dyn CountsStore>,
    pub(super) meta: Arc<dyn MetaStore>,
    pub(super) keys: Arc<dyn MetaStore>,
    pub(super) ledger: Arc<dyn MetaStore>,
}

impl Stores {
    /// # Errors
    /// Exit 5 for a store that is damaged, foreign or of another release.
    pub(super) fn open(dir: &Path, place: &CountsPlace) -> Result<Self, Failure> {
        match place {
            CountsPlace::Embedded(folder) => {
                let store = open_store(&counts_file(dir, folder.as_deref()))?;
                Ok(Self {
                    counts: Arc::new(store.counts()),
                    meta: Arc::new(store.meta()),
                    keys: Arc::new(open_store(&dir.join("keys.redb"))?.meta()),
                    ledger: Arc::new(open_store(&dir.join("ledger.redb"))?.meta()),
                })
            }
            CountsPlace::Cql(options) => {
                let store = CqlStore::open(options).map_err(cql_failure)?;
                let meta: Arc<dyn MetaStore> = Arc::new(store.meta());
                Ok(Self {
                    counts: Arc::new(store.counts()),
                    keys: Arc::clone(&meta),
                    ledger: Arc::clone(&meta),
                    meta,
                })
            }
        }
    }
}

fn open_store(path: &Path) -> Result<RedbStore, Failure> {
    RedbStore::open(path).map_err(|error: OpenError| Failure::new(Exit::Refused, error))
}

fn counts_file(dir: &Path, folder: Option<&Path>) -> PathBuf {
    folder.unwrap_or(dir).join("counts.redb")
}

/// The failure that a keyspace which cannot be used stands for.
pub(crate) fn cql_failure(error: CqlOpenError) -> Failure {
    let exit = match &error {
        CqlOpenError::Unavailable { .. } => Exit::NotReady,
        _ => Exit::Refused,
    };
    Failure::new(exit, error)
}

/// What is needed to open the log, now or later.
pub(super) struct LogSite {
    pub(super) dir: PathBuf,
    pub(super) settings: Log,
    /// Partitions of the deployment's layout.
    pub(super) partitions: Partition,
    pub(super) dedup: DedupRule,
    pub(super) record_bytes_max: usize,
    pub(super) clock: Arc<dyn Clock>,
}

impl LogSite {
    /// # Errors
    /// Exit 5 for a log that is damaged, foreign or not safe.
    pub(super) fn open(&self) -> Result<Arc<dyn EventLog>, Failure> {
        match &self.settings.place {
            LogPlace::Embedded(folder) => {
                let options = SegmentOptions {
                    partitions: self.partitions,
                    segment_bytes: self.settings.segment_bytes,
                    retention_ms: self.settings.retention_ms,
                    ..SegmentOptions::default()
                };
                let folder = folder.clone().unwrap_or_else(|| self.dir.join("log"));
                let log = SegmentLog::open(&folder, options, Arc::clone(&self.clock));
                Ok(Arc::new(log.map_err(|error| Failure::new(Exit::Refused, error))?))
            }
            LogPlace::Kafka(options) => {
                let demands = KafkaDemands {
                    // All that there are: a topic may have more than the layout.
                    partitions: None,
                    partitions_to_create: self.partitions,
                    retention_ms_min: retention_ms_min(&self.dedup),
                    retention_ms_to_create: self.settings.retention_ms,
                    record_bytes_max: self.record_bytes_max,
                    accept_settings: self.settings.accept_settings,
                };
                let log = KafkaLog::open(options, &demands, Arc::clone(&self.clock));
                let log = log.map_err(kafka_failure)?;
                if log.partitions() < self.partitions {
                    return Err(Failure::refused(format!(
                        "the topic {} has {} partitions, the deployment was made with {}; a topic \
                         never loses partitions, so this is another one",
                        options.topic(),
                        log.partitions(),
                        self.partitions
                    )));
                }
                Ok(Arc::new(log))
            }
        }
    }
}

/// What a log has to keep so that a restart can rebuild the dedup state.
fn retention_ms_min(dedup: &DedupRule) -> i64 {
    dedup.window_ms() + dedup.width_ms() + DAY_MS
}

fn kafka_failure(error: LogError) -> Failure {
    let exit = match &error {
        LogError::Unavailable { .. } => Exit::NotReady,
        _ => Exit::Refused,
    };
    let is_about_settings = matches!(error, LogError::Settings { .. });
    let error = anyhow::Error::new(error);
    let error = if is_about_settings {
        error.context(
            "change the topic, or take the risk with log.accept_settings = true (a warning is \
             logged at each start)",
        )
    } else {
        error
    };
    Failure { exit, error }
}

/// The files that a complete deployment has on this machine.
pub(super) fn files(dir: &Path, settings: &Settings, master_key: &Path) -> Vec<PathBuf> {
    let mut files = vec![master_key.to_owned()];
    if let LogPlace::Embedded(log) = &settings.log.place {
        files.push(log.clone().unwrap_or_else(|| dir.join("log")).join("log.format"));
    }
    if let CountsPlace::Embedded(folder) = &settings.counts {
        files.push(counts_file(dir, folder.as_deref()));
        files.extend(["keys.redb", "ledger.redb"].map(|file| dir.join(file)));
    }
    files
}
