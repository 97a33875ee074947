//! `deployment.json`: what was fixed when a deployment was made.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tally_model::clock::Clock;

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
    /// Whether every part of the folder was made; from then on a missing one is a loss.
    #[serde(default)]
    pub(super) complete: bool,
}

impl Descriptor {
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
    let fixed = &settings.fixed;
    let descriptor = Descriptor {
        format: FORMAT.to_owned(),
        version: VERSION,
        id: new_id()?.to_string(),
        created_at_ms: clock.now_ms(),
        shards: fixed.shards.value.count(),
        partitions: fixed.partitions.value,
        dedup_window_ms: fixed.dedup.value.window_ms(),
        dedup_bucket_ms: fixed.dedup.value.width_ms(),
        complete: false,
    };
    descriptor.write(dir)?;
    Ok(descriptor)
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
