//! What was fixed when a deployment was made: in `deployment.json`, and where several processes share
//! a store, there.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tally_model::clock::Clock;
use tally_sinks::error::StoreError;
use tally_sinks::meta::{CasOutcome, MetaStore, Table};

use super::Missing;
use super::files::{random, write_whole};
use crate::config::Settings;
use crate::failure::{Exit, Failure};

const FORMAT: &str = "tally-deployment";
const VERSION: u32 = 1;

/// What was fixed when the deployment was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Descriptor {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) id: String,
    pub(super) created_at_ms: i64,
    pub(super) shards: u16,
    pub(super) partitions: u32,
    pub(super) dedup_window_ms: i64,
    pub(super) dedup_bucket_ms: i64,
    /// Which log its offsets belong to.
    #[serde(default = "embedded")]
    pub(super) log: String,
    /// Whether every part of the folder was made; from then on a missing one is a loss.
    #[serde(default)]
    pub(super) complete: bool,
}

/// The log of deployments that were made before there was a choice.
fn embedded() -> String {
    "embedded".to_owned()
}

impl Descriptor {
    /// A new deployment as the settings want it.
    fn new(settings: &Settings, clock: &dyn Clock) -> Result<Self, Failure> {
        let fixed = &settings.fixed;
        Ok(Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            id: new_id()?.to_string(),
            created_at_ms: clock.now_ms(),
            shards: fixed.shards.value.count(),
            partitions: fixed.partitions.value,
            dedup_window_ms: fixed.dedup.value.window_ms(),
            dedup_bucket_ms: fixed.dedup.value.width_ms(),
            log: settings.log.place.identity(),
            complete: false,
        })
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), Failure> {
        write_whole(&dir.join("deployment.json"), &serde_json::to_vec_pretty(self)?, 0o644)
    }

    /// The description of a data folder; `None` if there is none.
    fn read(dir: &Path) -> Result<Option<Self>, Failure> {
        let path = dir.join("deployment.json");
        if !path.exists() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let damaged = |what: &str| {
            Failure::refused(format!(
                "{} is damaged or foreign ({what}); restore the folder from a backup, or choose \
                 another one with --data-dir",
                path.display()
            ))
        };
        let descriptor: Descriptor =
            serde_json::from_str(&text).map_err(|error| damaged(&error.to_string()))?;
        if descriptor.format != FORMAT {
            return Err(damaged("it describes something else"));
        }
        if descriptor.version != VERSION {
            return Err(Failure::refused(format!(
                "{} has version {}; this program reads version {VERSION}",
                path.display(),
                descriptor.version
            )));
        }
        Ok(Some(descriptor))
    }
}

/// A command that needs a deployment found none.
pub(super) fn no_deployment(dir: &Path) -> Failure {
    Failure::message(
        Exit::NotFound,
        format!("{} is no data folder of Tally: there is no deployment.json", dir.display()),
    )
}

/// The id of the deployment in a data folder, which another process may have open.
///
/// # Errors
/// Exit 3 if there is none, exit 5 if its description is damaged.
pub(crate) fn id_of(dir: &Path) -> Result<String, Failure> {
    Ok(Descriptor::read(dir)?.ok_or_else(|| no_deployment(dir))?.id)
}

/// What was fixed in the data folder; fixed now if it is a new one.
pub(super) fn describe(
    dir: &Path,
    settings: &Settings,
    clock: &dyn Clock,
) -> Result<Descriptor, Failure> {
    if let Some(descriptor) = Descriptor::read(dir)? {
        return Ok(descriptor);
    }
    let descriptor = Descriptor::new(settings, clock)?;
    descriptor.write(dir)?;
    Ok(descriptor)
}

/// The table of a shared store that holds the description of its deployment.
const TABLE: Table = "deployment";
const KEY: &[u8] = b"descriptor";

/// What was fixed in a store that several processes share; fixed now if it holds no deployment. The
/// data folder keeps a copy, which tells whose it is.
///
/// # Errors
/// Exit 5 if the folder belongs to another deployment; exit 3 if there is none and none is made.
pub(super) fn describe_shared(
    dir: &Path,
    meta: &dyn MetaStore,
    missing: Missing,
    settings: &Settings,
    clock: &dyn Clock,
) -> Result<Descriptor, Failure> {
    let local = Descriptor::read(dir)?;
    let shared = match (read_shared(meta)?, missing) {
        (Some(shared), _) => shared,
        (None, Missing::Refuse) => return Err(no_deployment(dir)),
        (None, Missing::Create) => {
            if let Some(local) = local {
                return Err(Failure::refused(format!(
                    "{} belongs to deployment {}, and the store of counts.url holds none; choose \
                     another folder with --data-dir, or the right store",
                    dir.display(),
                    local.id
                )));
            }
            let fresh = Descriptor::new(settings, clock)?;
            let written = meta.put_if(TABLE, KEY, None, &serde_json::to_vec(&fresh)?);
            // Whoever came first has made it; an unknown outcome is known after reading it.
            if let Err(error) = written
                && !matches!(error, StoreError::Unknown { .. })
            {
                return Err(error.into());
            }
            read_shared(meta)?.unwrap_or(fresh)
        }
    };
    match local {
        Some(local) if local.id != shared.id => Err(Failure::refused(format!(
            "{} belongs to deployment {}, the store of counts.url to deployment {}; choose another \
             folder with --data-dir, or the right store",
            dir.display(),
            local.id,
            shared.id
        ))),
        Some(_) => Ok(shared),
        None => {
            shared.write(dir)?;
            Ok(shared)
        }
    }
}

fn read_shared(meta: &dyn MetaStore) -> Result<Option<Descriptor>, Failure> {
    let Some(text) = meta.get(TABLE, KEY)? else { return Ok(None) };
    let descriptor: Descriptor = serde_json::from_slice(&text).map_err(|error| {
        Failure::refused(format!("the description of the deployment in the store: {error}"))
    })?;
    if descriptor.version != VERSION {
        return Err(Failure::refused(format!(
            "the deployment in the store has version {}; this program reads version {VERSION}",
            descriptor.version
        )));
    }
    Ok(Some(descriptor))
}

/// Writes in a shared store what has changed about its deployment.
///
/// # Errors
/// Exit 5 if another process has changed it meanwhile.
pub(super) fn change_shared(
    meta: &dyn MetaStore,
    change: impl FnOnce(&mut Descriptor),
) -> Result<(), Failure> {
    let text = meta.get(TABLE, KEY)?;
    let mut descriptor = read_shared(meta)?
        .ok_or_else(|| Failure::refused("the store holds no deployment any more"))?;
    change(&mut descriptor);
    let changed = serde_json::to_vec(&descriptor)?;
    if text.as_ref() == Some(&changed) {
        return Ok(());
    }
    match meta.put_if(TABLE, KEY, text.as_deref(), &changed) {
        Ok(CasOutcome::Applied) => Ok(()),
        // Two first starts at once want the same change.
        Ok(CasOutcome::Refused { current }) if current.as_ref() == Some(&changed) => Ok(()),
        Ok(CasOutcome::Refused { .. }) => {
            Err(Failure::refused("another process changes the deployment at this moment"))
        }
        Err(StoreError::Unknown { .. }) if meta.get(TABLE, KEY)?.as_ref() == Some(&changed) => {
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// A folder that holds files but no deployment belongs to somebody else.
pub(super) fn refuse_foreign(dir: &Path) -> Result<(), Failure> {
    if !dir.exists() || dir.join("deployment.json").exists() {
        return Ok(());
    }
    let entries = std::fs::read_dir(dir)
        .with_context(|| format!("cannot read the data folder {}", dir.display()))?;
    for entry in entries {
        let name = entry?.file_name();
        // A start that was cut short before the descriptor was written leaves the lock alone.
        // A fresh ext4 volume has a lost+found.
        if name != "lock" && name != "deployment.json.new" && name != "lost+found" {
            return Err(Failure::refused(format!(
                "{} is not a data folder of Tally (it holds {} but no deployment.json); choose an \
                 empty or a new folder with --data-dir",
                dir.display(),
                Path::new(&name).display(),
            )));
        }
    }
    Ok(())
}

fn new_id() -> Result<uuid::Uuid, Failure> {
    Ok(uuid::Builder::from_random_bytes(random()?).into_uuid())
}
