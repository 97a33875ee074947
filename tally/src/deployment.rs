//! The data folder: what is in it, who may open it, and what is fixed for its life.
//!
//! ```text
//! DIR/deployment.json  what was fixed when the deployment was made
//! DIR/lock             held by the one process that has the folder open
//! DIR/log/             the event log
//! DIR/dedup/           ids of the dedup state, as the last checkpoint or the log gives them
//! DIR/objects/         checkpoints and savepoints, unless objects.url says where
//! DIR/counts.redb      counts, registry, tokens, marks
//! DIR/keys.redb        wrapped keys of users, wrapped secrets of the deployment
//! DIR/ledger.redb      erasure ledger, apart from the keys that it destroys
//! DIR/master.key       the key that wraps all others (0600)
//! DIR/bootstrap.json   the three keys of the first start (0600)
//! ```

mod descriptor;
mod files;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tally_eventlog::EventLog;
use tally_eventlog::segment::{SegmentLog, SegmentOptions};
use tally_model::bucket::Granularity;
use tally_model::clock::Clock;
use tally_model::ids::{IdMixer, Shards};
use tally_model::rules::DedupRule;
use tally_privacy::master::MasterKey;
use tally_privacy::secrets::DeploymentSecrets;
use tally_sinks::counts::CountsStore;
use tally_sinks::marks;
use tally_sinks::meta::MetaStore;
use tally_sinks::redb::{OpenError, RedbStore};
use tally_sinks::registry::Registry;
use tally_sinks::tokens::{Scope, TokenError, TokenKind, Tokens, format_secret};

use crate::config::{Chosen, Settings};
use crate::failure::{Exit, Failure};

pub(crate) use descriptor::id_of;
use descriptor::{Descriptor, describe, no_deployment, refuse_foreign};
use files::{lock, make_folder};
pub(crate) use files::{random, write_whole};

/// The parts of a complete folder.
const PARTS: [&str; 5] =
    ["log/log.format", "counts.redb", "keys.redb", "ledger.redb", "master.key"];

/// The keys made on first start; empty where their file was taken away.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BootstrapKeys {
    pub(crate) write_key: String,
    pub(crate) read_token: String,
    pub(crate) admin_token: String,
}

/// A data folder that this process has open.
pub(crate) struct Deployment {
    pub(crate) dir: PathBuf,
    pub(crate) id: String,
    pub(crate) shards: Shards,
    pub(crate) dedup: DedupRule,
    pub(crate) log: Arc<dyn EventLog>,
    pub(crate) counts: Arc<dyn CountsStore>,
    pub(crate) meta: Arc<dyn MetaStore>,
    pub(crate) keys: Arc<dyn MetaStore>,
    pub(crate) ledger: Arc<dyn MetaStore>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) master: MasterKey,
    pub(crate) secrets: DeploymentSecrets,
    pub(crate) bootstrap: BootstrapKeys,
    pub(crate) clock: Arc<dyn Clock>,
    /// Held for as long as the folder is open.
    _lock: File,
}

/// Whether a missing data folder is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Refuse,
}

impl Deployment {
    /// Opens the data folder, or makes a new one.
    ///
    /// # Errors
    /// Exit 5 for a folder that is in use, foreign, damaged or made with other fixed settings;
    /// exit 3 if it is missing and must not be made.
    pub(crate) fn open(
        dir: &Path,
        missing: Missing,
        settings: &Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        if missing == Missing::Refuse && !dir.join("deployment.json").exists() {
            return Err(no_deployment(dir));
        }
        refuse_foreign(dir)?;
        make_folder(dir)
            .with_context(|| format!("cannot make the data folder {}", dir.display()))?;
        let lock = lock(dir)?;
        let mut descriptor = describe(dir, settings, clock.as_ref())?;
        let (shards, dedup) = fixed(dir, &descriptor, settings)?;
        if descriptor.complete {
            refuse_incomplete(dir)?;
        }
        let options = SegmentOptions {
            partitions: descriptor.partitions,
            segment_bytes: settings.log.segment_bytes,
            retention_ms: settings.log.retention_ms,
            ..SegmentOptions::default()
        };
        let log = SegmentLog::open(&dir.join("log"), options, Arc::clone(&clock))
            .map_err(|error| Failure::new(Exit::Refused, error))?;
        let store = open_store(&dir.join("counts.redb"))?;
        let (counts, meta): (Arc<dyn CountsStore>, Arc<dyn MetaStore>) =
            (Arc::new(store.counts()), Arc::new(store.meta()));
        let keys: Arc<dyn MetaStore> = Arc::new(open_store(&dir.join("keys.redb"))?.meta());
        let ledger: Arc<dyn MetaStore> = Arc::new(open_store(&dir.join("ledger.redb"))?.meta());
        let master = MasterKey::load_or_create(&dir.join("master.key"))
            .map_err(|error| Failure::new(Exit::Refused, error))?;
        let secrets = DeploymentSecrets::load_or_create(keys.as_ref(), &master)
            .map_err(|error| Failure::new(Exit::Refused, error))?;
        let registry = Arc::new(Registry::open(Arc::clone(&meta))?);
        let tokens = Arc::new(Tokens::open(Arc::clone(&meta))?);
        let bootstrap = bootstrap_keys(dir, &tokens, descriptor.complete, clock.now_ms())?;
        if !descriptor.complete {
            descriptor.complete = true;
            descriptor.write(dir)?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            id: descriptor.id,
            shards,
            dedup,
            log: Arc::new(log),
            counts,
            meta,
            keys,
            ledger,
            registry,
            tokens,
            master,
            secrets,
            bootstrap,
            clock,
            _lock: lock,
        })
    }

    /// The bootstrap keys, with a word in place of each that was revoked or is not known here.
    pub(crate) fn valid_bootstrap_keys(&self) -> BootstrapKeys {
        let valid = |secret: &String| match self.tokens.authenticate(secret) {
            Some(_) => secret.clone(),
            None => "(revoked)".to_owned(),
        };
        BootstrapKeys {
            write_key: valid(&self.bootstrap.write_key),
            read_token: valid(&self.bootstrap.read_token),
            admin_token: valid(&self.bootstrap.admin_token),
        }
    }

    /// The log behind its seam.
    pub(crate) fn event_log(&self) -> Arc<dyn EventLog> {
        Arc::clone(&self.log)
    }

    /// The bijection from event ids to mixed ids.
    pub(crate) fn mixer(&self) -> IdMixer {
        IdMixer::new(self.secrets.id_key)
    }

    /// Whether nothing was ever recorded: no record in the log and no bucket row.
    pub(crate) fn is_empty(&self) -> Result<bool, Failure> {
        let ends = self.log.end_offsets()?;
        Ok(ends.iter().all(|end| *end == 0) && self.counts.is_empty()?)
    }

    /// Sets the origin, the first minute that can hold an event, unless it is set.
    pub(crate) fn set_origin(&self) -> Result<(), Failure> {
        let minute = Granularity::Minute.floor(self.clock.now_ms());
        marks::set_origin_if_absent(self.meta.as_ref(), minute)?;
        Ok(())
    }
}

fn open_store(path: &Path) -> Result<RedbStore, Failure> {
    RedbStore::open(path).map_err(|error: OpenError| Failure::new(Exit::Refused, error))
}

/// A part that is gone must not be made anew: counts would lose their names, sealed events their
/// keys, erased users their erasure.
fn refuse_incomplete(dir: &Path) -> Result<(), Failure> {
    match PARTS.iter().map(|part| dir.join(part)).find(|part| !part.exists()) {
        None => Ok(()),
        Some(part) => Err(Failure::refused(format!(
            "{} is missing; restore the whole folder from a backup",
            part.display()
        ))),
    }
}

fn fixed(
    dir: &Path,
    descriptor: &Descriptor,
    settings: &Settings,
) -> Result<(Shards, DedupRule), Failure> {
    let damaged = || {
        Failure::refused(format!(
            "{} holds values that no deployment can have",
            dir.join("deployment.json").display()
        ))
    };
    let shards = Shards::new(descriptor.shards).ok_or_else(damaged)?;
    let dedup = DedupRule::new(descriptor.dedup_window_ms, descriptor.dedup_bucket_ms)
        .map_err(|_not_whole| damaged())?;
    let fixed = &settings.fixed;
    agree(dir, "pipeline.shards", fixed.shards, shards, |shards| shards.count().to_string())?;
    agree(dir, "log.partitions", fixed.partitions, descriptor.partitions, ToString::to_string)?;
    settings.check_retention(&dedup).map_err(|error| Failure::new(Exit::Refused, error))?;
    agree(dir, "dedup.window and dedup.bucket", fixed.dedup, dedup, |rule| {
        let [window, bucket] = [rule.window_ms(), rule.width_ms()].map(crate::units::show_duration);
        format!("{window} in buckets of {bucket}")
    })?;
    Ok((shards, dedup))
}

/// A fixed setting that somebody asked for must be the one that the deployment was made with.
fn agree<T: PartialEq>(
    dir: &Path,
    key: &str,
    asked: Chosen<T>,
    made_with: T,
    show: impl Fn(&T) -> String,
) -> Result<(), Failure> {
    if !asked.asked_for || asked.value == made_with {
        return Ok(());
    }
    Err(Failure::refused(format!(
        "{key} is fixed when a deployment is made: {} was made with {}, the configuration says {}",
        dir.display(),
        show(&made_with),
        show(&asked.value),
    )))
}

/// The keys of the first start: made once, kept in the folder, known to the store as digests only.
///
/// The file comes first: a start that is cut short before the store knows them all leaves no key
/// that is valid and known to nobody.
fn bootstrap_keys(
    dir: &Path,
    tokens: &Tokens,
    complete: bool,
    now_ms: i64,
) -> Result<BootstrapKeys, Failure> {
    let path = dir.join("bootstrap.json");
    let keys = if path.exists() {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::refused(format!("{} is damaged: {error}", path.display())))?
    } else if complete {
        // Somebody took the file away, as one should after noting the keys. They are made once.
        return Ok(BootstrapKeys::default());
    } else {
        let secret = |kind| -> Result<String, Failure> { Ok(format_secret(kind, random()?)) };
        let keys = BootstrapKeys {
            write_key: secret(TokenKind::Write)?,
            read_token: secret(TokenKind::Read)?,
            admin_token: secret(TokenKind::Admin)?,
        };
        write_whole(&path, &serde_json::to_vec_pretty(&keys)?, 0o600)?;
        keys
    };
    let read: &[Scope] = &[Scope::Stats, Scope::StatsRaw];
    for (kind, scopes, secret) in [
        (TokenKind::Write, &[] as &[Scope], &keys.write_key),
        (TokenKind::Read, read, &keys.read_token),
        (TokenKind::Admin, &[], &keys.admin_token),
    ] {
        match tokens.create(kind, "bootstrap", scopes, secret, now_ms) {
            // Known since an earlier start; perhaps revoked, and then it stays so.
            Ok(_) | Err(TokenError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(keys)
}
