//! `tally checkpoints` and `tally savepoint`: what a deployment can start from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tally_checkpoints::manifest::Manifest;
use tally_checkpoints::objects::{LocalObjects, ObjectStore};
use tally_checkpoints::reader::{self, Found, Origin, Verified};
use tally_checkpoints::{CheckpointError, SavepointName};
use tally_model::time::format_rfc3339;

use crate::cli::ConfigArgs;
use crate::config::Settings;
use crate::deployment;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format};
use crate::target::load_settings;

/// Examples below `tally checkpoints --help`.
pub(crate) const HELP: &str = "\
Examples:
  tally checkpoints list --data-dir data
  tally checkpoints show --data-dir data                 the newest one
  tally checkpoints show before-upgrade --data-dir data
  tally checkpoints verify --data-dir data               reads every object
  tally checkpoints remove before-upgrade --data-dir data

Reading is safe while the deployment runs.";

/// `tally checkpoints`.
#[derive(Subcommand, Debug)]
pub(crate) enum CheckpointsCommand {
    /// List checkpoints and savepoints, the oldest first.
    List(Where),
    /// Show what is in one of them.
    Show {
        /// Id of a checkpoint or name of a savepoint; the newest checkpoint if it is left out.
        #[arg(value_name = "NAME", value_parser = crate::start::origin)]
        name: Option<Origin>,
        #[command(flatten)]
        place: Where,
    },
    /// Read every object that any of them names; exit 1 if something is missing or damaged.
    Verify(Where),
    /// Remove a savepoint; what only it needs is removed by the running deployment.
    Remove {
        /// Name of the savepoint.
        name: SavepointName,
        #[command(flatten)]
        place: Where,
    },
}

/// Where the checkpoints are, and how to print.
#[derive(Args, Debug)]
pub(crate) struct Where {
    /// The data folder.
    #[arg(long, value_name = "DIR", default_value = "data")]
    data_dir: PathBuf,
    #[command(flatten)]
    config: ConfigArgs,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// The checkpoints of one deployment.
struct Place {
    objects: Arc<dyn ObjectStore>,
    deployment: String,
    format: Format,
}

/// The object store of a data folder, to look at.
///
/// # Errors
/// Exit 3 if its folder is not there: a wrong `objects.url` must not look like an empty store.
pub(crate) fn objects(dir: &Path, settings: &Settings) -> Result<Arc<dyn ObjectStore>, Failure> {
    let folder = folder(dir, settings);
    if !folder.is_dir() {
        let message = format!("there is no folder of checkpoints {}", folder.display());
        return Err(Failure::message(Exit::NotFound, message));
    }
    Ok(Arc::new(open_folder(&folder)?))
}

/// The same for the one process that writes there: what crashes left unfinished is removed.
///
/// # Errors
/// If its folder cannot be made or read.
pub(crate) fn objects_to_write(
    dir: &Path,
    settings: &Settings,
) -> Result<Arc<dyn ObjectStore>, Failure> {
    let folder = folder(dir, settings);
    let objects = open_folder(&folder)?;
    objects
        .remove_unfinished()
        .with_context(|| format!("cannot clean up the checkpoints in {}", folder.display()))?;
    Ok(Arc::new(objects))
}

/// Removes every checkpoint of a deployment that is empty, savepoints included: history is to be
/// counted from its beginning.
///
/// # Errors
/// If the store fails.
pub(crate) fn forget(dir: &Path, settings: &Settings) -> Result<(), Failure> {
    tally_checkpoints::writer::forget(&open_folder(&folder(dir, settings))?).map_err(failure)
}

fn folder(dir: &Path, settings: &Settings) -> PathBuf {
    settings.objects.clone().unwrap_or_else(|| dir.join("objects"))
}

fn open_folder(folder: &Path) -> Result<LocalObjects, Failure> {
    Ok(LocalObjects::open(folder)
        .with_context(|| format!("cannot use the folder of checkpoints {}", folder.display()))?)
}

/// The exit code of what is wrong with checkpoints.
pub(crate) fn failure(error: CheckpointError) -> Failure {
    let exit = match error {
        CheckpointError::NotFound { .. } => Exit::NotFound,
        CheckpointError::NothingUsable { .. }
        | CheckpointError::Damaged { .. }
        | CheckpointError::Foreign { .. }
        | CheckpointError::Version { .. }
        | CheckpointError::Shards { .. }
        | CheckpointError::Conflict { .. }
        | CheckpointError::SavepointExists { .. }
        | CheckpointError::TakenOver { .. } => Exit::Refused,
        _ => Exit::Failed,
    };
    Failure::new(exit, error)
}

/// `tally checkpoints`.
pub(crate) fn checkpoints(command: &CheckpointsCommand) -> Result<(), Failure> {
    match command {
        CheckpointsCommand::List(place) => list(&place.open()?),
        CheckpointsCommand::Show { name, place } => show(&place.open()?, name.as_ref()),
        CheckpointsCommand::Verify(place) => verify(&place.open()?),
        CheckpointsCommand::Remove { name, place } => {
            let place = place.open()?;
            tally_checkpoints::writer::remove_savepoint(place.objects.as_ref(), name)
                .map_err(failure)?;
            output::line(format!("savepoint {name} is removed"))
        }
    }
}

impl Where {
    fn open(&self) -> Result<Place, Failure> {
        let settings = load_settings(self.config.config.as_deref(), |_layers| Ok(()))?;
        Ok(Place {
            deployment: deployment::id_of(&self.data_dir)?,
            objects: objects(&self.data_dir, &settings)?,
            format: self.output,
        })
    }
}

fn list(place: &Place) -> Result<(), Failure> {
    let found = reader::list(place.objects.as_ref(), &place.deployment).map_err(failure)?;
    if place.format == Format::Json {
        return output::json(&Value::from_iter(found.iter().map(brief)));
    }
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    output::rows(place.format, &["name", "made", "watermark", "records", "bytes", "state"], &rows)
}

fn row(found: &Found) -> Vec<String> {
    let mut row = vec![name(found)];
    match &found.manifest {
        Ok(manifest) => row.extend([
            format_rfc3339(manifest.cut.created_at_ms),
            manifest.cut.watermark_ms.map(format_rfc3339).unwrap_or_default(),
            records(manifest).to_string(),
            bytes(manifest).to_string(),
            "ok".to_owned(),
        ]),
        Err(damage) => {
            row.extend(["", "", "", ""].map(ToOwned::to_owned));
            row.push(damage.to_string());
        }
    }
    row
}

fn brief(found: &Found) -> Value {
    let mut brief = json!({ "name": name(found), "savepoint": found.savepoint.is_some() });
    match &found.manifest {
        Ok(manifest) => {
            brief["checkpoint"] = json!(manifest.id().to_string());
            brief["createdAt"] = json!(format_rfc3339(manifest.cut.created_at_ms));
            brief["watermark"] = json!(manifest.cut.watermark_ms.map(format_rfc3339));
            brief["records"] = json!(records(manifest));
            brief["bytes"] = json!(bytes(manifest));
        }
        Err(damage) => brief["damage"] = json!(damage.to_string()),
    }
    brief
}

/// The name by which one starts from it.
fn name(found: &Found) -> String {
    match &found.savepoint {
        Some(savepoint) => savepoint.to_string(),
        None => found.name.as_str().trim_start_matches("manifests/").to_owned(),
    }
}

fn records(manifest: &Manifest) -> u64 {
    manifest.totals().get("records").copied().unwrap_or(0)
}

fn bytes(manifest: &Manifest) -> u64 {
    manifest.objects().map(|object| object.bytes).sum()
}

fn show(place: &Place, origin: Option<&Origin>) -> Result<(), Failure> {
    let found = reader::list(place.objects.as_ref(), &place.deployment).map_err(failure)?;
    let wanted = found.iter().rfind(|found| match origin {
        None | Some(Origin::Newest) => found.savepoint.is_none(),
        Some(Origin::Checkpoint(id)) => name(found) == id.to_string(),
        Some(Origin::Savepoint(savepoint)) => found.savepoint.as_ref() == Some(savepoint),
    });
    let Some(found) = wanted else {
        return Err(Failure::message(Exit::NotFound, "there is no such checkpoint or savepoint"));
    };
    let mut shown = brief(found);
    if let Ok(manifest) = &found.manifest {
        shown["generation"] = json!(manifest.generation.number());
        shown["epoch"] = json!(manifest.cut.epoch);
        shown["shards"] = json!(manifest.shards.len());
        shown["objects"] = json!(manifest.objects().count());
        shown["nextOffsets"] = json!(manifest.cut.next_offsets);
        shown["totals"] = json!(manifest.totals());
    }
    if place.format == Format::Json {
        return output::json(&shown);
    }
    let mut rows = Vec::new();
    for (key, value) in shown.as_object().into_iter().flatten() {
        match value {
            Value::Object(inner) => {
                rows.extend(inner.iter().map(|(of, v)| vec![format!("{key}.{of}"), plain(v)]));
            }
            other => rows.push(vec![key.clone(), plain(other)]),
        }
    }
    output::rows(place.format, &["what", "value"], &rows)
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn verify(place: &Place) -> Result<(), Failure> {
    let verified = reader::verify(place.objects.as_ref(), &place.deployment).map_err(failure)?;
    let damages = |verified: &Verified| {
        verified.damage.iter().map(ToString::to_string).collect::<Vec<String>>()
    };
    if place.format == Format::Json {
        let each = verified.iter().map(|verified| {
            let mut of = brief(&verified.found);
            of["damage"] = json!(damages(verified));
            of
        });
        output::json(&each.collect::<Value>())?;
    } else {
        let each = verified.iter().map(|verified| {
            let damage = damages(verified).join("; ");
            let state = if damage.is_empty() { "ok".to_owned() } else { damage };
            vec![name(&verified.found), state]
        });
        output::rows(place.format, &["name", "state"], &each.collect::<Vec<_>>())?;
    }
    let damaged = verified.iter().filter(|verified| !verified.damage.is_empty()).count();
    if damaged == 0 {
        return Ok(());
    }
    Err(Failure::message(Exit::Failed, format!("{damaged} of {} are damaged", verified.len())))
}
