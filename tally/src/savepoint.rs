//! Savepoints: `tally savepoint` and `/v1/savepoints`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use clap::Args;
use serde::Deserialize;
use serde_json::json;
use tally_checkpoints::reader::{self, Origin};
use tally_checkpoints::writer::keep_as_savepoint;
use tally_checkpoints::{CheckpointId, SavepointName};
use tally_dataflow::{SavepointError, Savepoints};
use tally_sinks::tokens::Tokens;
use tokio::sync::Notify;

use crate::admin_api::{admin, object, problem, unavailable};
use crate::checkpoints;
use crate::cli::TargetArgs;
use crate::clock::SystemClock;
use crate::deployment::{Deployment, Missing};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::target::{Place, Target, load_settings};

/// Examples below `tally savepoint --help`.
pub(crate) const HELP: &str = "\
Examples:
  tally savepoint before-upgrade --url http://127.0.0.1:8080 --token ta_...
  tally savepoint before-upgrade --stop --url http://127.0.0.1:8080 --token ta_...
  tally savepoint before-upgrade --data-dir data         of a node that is stopped
  tally up --from before-upgrade";

/// How long a savepoint may take.
const DEADLINE: Duration = Duration::from_secs(100);

/// `tally savepoint`.
#[derive(Args, Debug)]
pub(crate) struct SavepointArgs {
    /// Its name: lowercase letters, digits and hyphens.
    name: SavepointName,
    /// Stop the node once the savepoint is made. What arrives in between is counted after it.
    #[arg(long, conflicts_with = "data_dir")]
    stop: bool,
    #[command(flatten)]
    target: TargetArgs,
}

/// `tally savepoint`: asks a running node, or keeps the newest checkpoint of a stopped one.
pub(crate) fn savepoint(args: &SavepointArgs) -> Result<(), Failure> {
    let name = &args.name;
    match Place::of(&args.target)? {
        Place::Running { url, token } => {
            let target = Target::running(&url, token)?;
            let body = json!({ "name": name.to_string(), "stop": args.stop }).to_string();
            let answer = target.ask("POST", "/v1/savepoints", Some(body.as_bytes()))?;
            let made: serde_json::Value = serde_json::from_slice(&answer)?;
            let checkpoint = made.get("checkpoint").and_then(|id| id.as_str()).unwrap_or_default();
            let end = if args.stop { "; the node is stopping" } else { "" };
            output::line(format!("savepoint {name} is checkpoint {checkpoint}{end}"))
        }
        Place::Folder(dir) => {
            let settings = load_settings(args.target.config.config.as_deref(), |_| Ok(()))?;
            // The lock: nobody may collect meanwhile.
            let clock = Arc::new(SystemClock::new());
            let deployment = Deployment::open(&dir, Missing::Refuse, &settings, clock)?;
            let objects = checkpoints::objects(&dir, &settings)?;
            let newest = reader::restore(objects.as_ref(), &deployment.id, &Origin::Newest)
                .map_err(checkpoints::failure)?;
            let Some(newest) = newest else {
                return Err(Failure::message(Exit::NotFound, "there is no checkpoint yet"));
            };
            let id = newest.manifest().id();
            keep_as_savepoint(objects.as_ref(), id, name).map_err(checkpoints::failure)?;
            output::line(format!("savepoint {name} is checkpoint {id}"))
        }
    }
}

/// What the route works on.
#[derive(Debug)]
pub(crate) struct SavepointsApi {
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) savepoints: Arc<Savepoints>,
    /// Stops the node.
    pub(crate) stop: Arc<Notify>,
}

/// The route `POST /v1/savepoints`.
pub(crate) fn router(api: SavepointsApi) -> Router {
    Router::new().route("/v1/savepoints", post(create)).with_state(Arc::new(api))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewSavepoint {
    name: String,
    #[serde(default)]
    stop: bool,
}

async fn create(
    State(api): State<Arc<SavepointsApi>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    admin(&api.tokens, &headers)?;
    let new: NewSavepoint = object(body, "bad_savepoint", "name and stop").await?;
    let name: SavepointName =
        new.name.parse().map_err(|error: tally_checkpoints::BadSavepointName| {
            problem(StatusCode::BAD_REQUEST, "bad_savepoint", &error.to_string())
        })?;
    let answer = api.savepoints.request(name.clone());
    let wait = move || answer.recv_timeout(DEADLINE);
    let outcome = tokio::task::spawn_blocking(wait).await;
    let outcome = outcome.map_err(|panicked| unavailable(&panicked.to_string()))?;
    let outcome = outcome.map_err(|_timeout| unavailable("the savepoint takes too long"))?;
    let id = outcome.map_err(|error| refusal(&error))?;
    if new.stop {
        api.stop.notify_one();
    }
    Ok(made(&name, id))
}

fn made(name: &SavepointName, id: CheckpointId) -> Response {
    let body = json!({ "name": name.to_string(), "checkpoint": id.to_string() });
    (StatusCode::CREATED, Json(body)).into_response()
}

fn refusal(error: &SavepointError) -> Response {
    match error {
        SavepointError::Exists { .. } => {
            problem(StatusCode::CONFLICT, "savepoint_exists", &error.to_string())
        }
        _ => unavailable(&error.to_string()),
    }
}
