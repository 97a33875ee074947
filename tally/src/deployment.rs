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
mod places;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tally_eventlog::{EventLog, Partition};
use tally_model::bucket::Granularity;
use tally_model::clock::Clock;
use tally_model::ids::{IdMixer, Shards};
use tally_model::rules::DedupRule;
use tally_privacy::master::MasterKey;
use tally_privacy::secrets::DeploymentSecrets;
use tally_sinks::counts::CountsStore;
use tally_sinks::marks;
use tally_sinks::meta::MetaStore;
use tally_sinks::registry::Registry;
use tally_sinks::tokens::{Scope, TokenError, TokenKind, Tokens, format_secret};

use crate::config::{Chosen, Settings};
use crate::failure::{Exit, Failure};

pub(crate) use descriptor::id_of;
use descriptor::{
    Descriptor, change_shared, describe, describe_shared, no_deployment, refuse_foreign,
};
use files::{lock, make_folder};
pub(crate) use files::{random, write_whole};
pub(crate) use places::cql_failure;
use places::{LogSite, Stores};

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
    /// Partitions of the layout: an event of shard `s` goes to partition `s % partitions`. The log
    /// may have more.
    pub(crate) partitions: Partition,
    pub(crate) dedup: DedupRule,
    log: OnceLock<Arc<dyn EventLog>>,
    log_site: LogSite,
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
    /// Held for as long as the folder is open; nothing in it is locked by a process that works beside
    /// others.
    _lock: Option<File>,
}

/// Whether a missing data folder is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Refuse,
}

impl Deployment {
    /// Opens the data folder for this process alone, or makes a new one.
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
        let shared = settings.counts.is_shared();
        if missing == Missing::Refuse && !shared && !dir.join("deployment.json").exists() {
            return Err(no_deployment(dir));
        }
        Self::open_as(dir, missing, Access::Alone, settings, clock)
    }

    /// Opens a deployment whose log and stores are servers, for a process that keeps nothing in the
    /// data folder but the key file and the description.
    ///
    /// # Errors
    /// As [`open`](Self::open); exit 2 if something of it is embedded.
    pub(crate) fn open_beside_others(
        dir: &Path,
        settings: &Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        for (key, is_shared) in [
            ("log.url", settings.log.place.is_shared()),
            ("counts.url", settings.counts.is_shared()),
        ] {
            if !is_shared {
                return Err(Failure::usage(format!(
                    "{key} names no server: an embedded log or store belongs to one process, \
                     which plays every role: tally up"
                )));
            }
        }
        Self::open_as(dir, Missing::Create, Access::BesideOthers, settings, clock)
    }

    fn open_as(
        dir: &Path,
        missing: Missing,
        access: Access,
        settings: &Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Failure> {
        refuse_foreign(dir)?;
        make_folder(dir)
            .with_context(|| format!("cannot make the data folder {}", dir.display()))?;
        let lock = match access {
            Access::Alone => Some(lock(dir)?),
            Access::BesideOthers => None,
        };
        let (mut descriptor, stores) = describe_and_open(dir, missing, settings, clock.as_ref())?;
        let (shards, dedup) = fixed(dir, &descriptor, settings)?;
        let master_key = settings.privacy.master_key.clone();
        let master_key = master_key.unwrap_or_else(|| dir.join("master.key"));
        if descriptor.complete {
            refuse_incomplete(&places::files(dir, settings, &master_key), settings)?;
        }
        let Stores { counts, meta, keys, ledger } = match stores {
            Some(stores) => stores,
            None => Stores::open(dir, &settings.counts)?,
        };
        let master = MasterKey::load_or_create(&master_key)
            .map_err(|error| Failure::new(Exit::Refused, error))?;
        let secrets = DeploymentSecrets::load_or_create(keys.as_ref(), &master)
            .map_err(|error| Failure::unless_away(Exit::Refused, error))?;
        let registry = Arc::new(Registry::open(Arc::clone(&meta))?);
        let tokens = Arc::new(Tokens::open(Arc::clone(&meta))?);
        let log_site = LogSite {
            dir: dir.to_owned(),
            settings: settings.log.clone(),
            partitions: descriptor.partitions,
            dedup,
            record_bytes_max: settings.collector.limits.record_bytes,
            clock: Arc::clone(&clock),
        };
        let log = if settings.log.place.is_shared() {
            OnceLock::new()
        } else {
            // It is part of the folder: whoever opens the folder hears of damage.
            OnceLock::from(log_site.open()?)
        };
        let bootstrap = bootstrap_keys(dir, &tokens, descriptor.complete, clock.now_ms())?;
        if !descriptor.complete {
            descriptor.complete = true;
            if settings.counts.is_shared() {
                change_shared(meta.as_ref(), |shared| shared.complete = true)?;
            }
            descriptor.write(dir)?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            id: descriptor.id,
            shards,
            partitions: descriptor.partitions,
            dedup,
            log,
            log_site,
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

    /// The log. One on a server is reached for when it is first asked for.
    ///
    /// # Errors
    /// Exit 5 for a log that is not safe; exit 4 if its server does not answer.
    pub(crate) fn event_log(&self) -> Result<Arc<dyn EventLog>, Failure> {
        if let Some(log) = self.log.get() {
            return Ok(Arc::clone(log));
        }
        let opened = self.log_site.open()?;
        Ok(Arc::clone(self.log.get_or_init(|| opened)))
    }

    /// The log, opened once more: with the partitions that it has by now.
    ///
    /// # Errors
    /// As [`event_log`](Self::event_log).
    pub(crate) fn reopen_log(&self) -> Result<Arc<dyn EventLog>, Failure> {
        self.log_site.open()
    }

    /// The bijection from event ids to mixed ids.
    pub(crate) fn mixer(&self) -> IdMixer {
        IdMixer::new(self.secrets.id_key)
    }

    /// Whether nothing was ever recorded: no record in the log and no bucket row.
    pub(crate) fn is_empty(&self) -> Result<bool, Failure> {
        let ends = self.event_log()?.end_offsets()?;
        Ok(ends.iter().all(|end| *end == 0) && self.counts.is_empty()?)
    }

    /// Sets the origin, the first minute that can hold an event, unless it is set.
    pub(crate) fn set_origin(&self) -> Result<(), Failure> {
        let minute = Granularity::Minute.floor(self.clock.now_ms());
        marks::set_origin_if_absent(self.meta.as_ref(), minute)?;
        Ok(())
    }
}

/// Whether other processes may have the folder open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Alone,
    BesideOthers,
}

/// What was fixed when the deployment was made; with it the stores if it rests in them.
fn describe_and_open(
    dir: &Path,
    missing: Missing,
    settings: &Settings,
    clock: &dyn Clock,
) -> Result<(Descriptor, Option<Stores>), Failure> {
    if !settings.counts.is_shared() {
        return Ok((describe(dir, settings, clock)?, None));
    }
    let stores = Stores::open(dir, &settings.counts)?;
    let descriptor = describe_shared(dir, stores.meta.as_ref(), missing, settings, clock)?;
    Ok((descriptor, Some(stores)))
}

/// A part that is gone must not be made anew: counts would lose their names, sealed events their
/// keys, erased users their erasure.
fn refuse_incomplete(files: &[PathBuf], settings: &Settings) -> Result<(), Failure> {
    let Some(missing) = files.iter().find(|file| !file.exists()) else { return Ok(()) };
    let missing = missing.display();
    Err(Failure::refused(if settings.counts.is_shared() {
        format!(
            "{missing} is missing; copy it from the process that was started first, or say where \
             it is with privacy.master_key"
        )
    } else {
        format!("{missing} is missing; restore the whole folder from a backup")
    }))
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
    if descriptor.log != settings.log.place.identity() {
        return Err(Failure::refused(format!(
            "log.url is fixed when a deployment is made: {} counts the log {}, the configuration \
             says {}",
            dir.display(),
            descriptor.log,
            settings.log.place.identity()
        )));
    }
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
