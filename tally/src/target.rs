//! Talking to a deployment: a running system over HTTP, or a data folder through the same API
//! inside this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use tally_sinks::tokens::{Scope, TokenKind, format_secret};
use tower::ServiceExt;

use crate::cli::TargetArgs;
use crate::clock::SystemClock;
use crate::config::{Layers, Settings};
use crate::deployment::{Deployment, Missing, random};
use crate::failure::{Exit, Failure};
use crate::services;

/// Whose rights a command needs on a data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Read,
    Admin,
}

/// A deployment that answers requests of the HTTP API.
pub(crate) enum Target {
    Running { agent: ureq::Agent, url: String, token: String },
    Folder { runtime: tokio::runtime::Runtime, router: Router, token: String },
}

/// Which deployment the flags, or else the environment, name.
pub(crate) enum Place {
    Folder(PathBuf),
    Running { url: String, token: String },
}

impl Place {
    /// # Errors
    /// Exit 2 if none is named, or a running one without a token.
    pub(crate) fn of(args: &TargetArgs) -> Result<Self, Failure> {
        if let Some(dir) = &args.data_dir {
            return Ok(Self::Folder(dir.clone()));
        }
        let or_variable = |flag: &Option<String>, name: &str| {
            flag.clone().or_else(|| std::env::var(name).ok()).filter(|value| !value.is_empty())
        };
        match (or_variable(&args.url, "TALLY_URL"), or_variable(&args.token, "TALLY_TOKEN")) {
            (Some(url), Some(token)) => Ok(Self::Running { url, token }),
            (Some(_), None) => Err(Failure::usage("--url needs a token: --token or TALLY_TOKEN")),
            (None, _) => Err(Failure::usage(
                "say which deployment: --data-dir DIR (stopped), or --url URL and --token TOKEN \
                 (running; also TALLY_URL and TALLY_TOKEN)",
            )),
        }
    }
}

/// An answer of the HTTP API.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Target {
    /// The deployment that the flags name.
    ///
    /// # Errors
    /// Exit 2 if they name none; what opening a data folder reports.
    pub(crate) fn open(args: &TargetArgs, role: Role) -> Result<Self, Failure> {
        match Place::of(args)? {
            Place::Folder(dir) => Self::folder(&dir, args.config.config.as_deref(), role),
            Place::Running { url, token } => Self::running(&url, token),
        }
    }

    pub(crate) fn running(url: &str, token: String) -> Result<Self, Failure> {
        if !url.starts_with("http://") {
            return Err(Failure::usage(format!(
                "{url} is no address of a running system; it looks like http://127.0.0.1:8080 \
                 (this program does not speak TLS yet)"
            )));
        }
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(std::time::Duration::from_secs(120)))
            .build()
            .into();
        Ok(Self::Running { agent, url: url.trim_end_matches('/').to_owned(), token })
    }

    fn folder(dir: &Path, config: Option<&Path>, role: Role) -> Result<Self, Failure> {
        let settings = load_settings(config, |_| Ok(()))?;
        let clock = Arc::new(SystemClock::new());
        let deployment = Deployment::open(dir, Missing::Refuse, &settings, clock)?;
        // Who can open the folder may do everything, whatever keys were revoked.
        let (kind, scopes): (_, &[Scope]) = match role {
            Role::Read => (TokenKind::Read, &[Scope::Stats, Scope::StatsRaw]),
            Role::Admin => (TokenKind::Admin, &[]),
        };
        let token = format_secret(kind, random()?);
        deployment.tokens.admit_here(kind, scopes, &token);
        let router = services::query_router(&deployment, &settings, &mut Default::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        // The lock on the folder lives as long as the router that works on it.
        let router = router.layer(axum::Extension(Arc::new(deployment)));
        Ok(Self::Folder { runtime, router, token })
    }

    /// Sends a request and returns the answer, whatever its status.
    ///
    /// # Errors
    /// Exit 1 if nothing answers.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer, Failure> {
        match self {
            Self::Running { agent, url, token } => {
                let request = Request::builder()
                    .method(method)
                    .uri(format!("{url}{path}"))
                    .header("authorization", format!("Bearer {token}"))
                    .header("content-type", "application/json")
                    .body(body.unwrap_or_default())
                    .context("cannot form the request")?;
                let mut response =
                    agent.run(request).with_context(|| format!("{url} does not answer"))?;
                let status = response.status().as_u16();
                let body = response
                    .body_mut()
                    .with_config()
                    .limit(1 << 30)
                    .read_to_vec()
                    .with_context(|| format!("the answer of {url} broke off"))?;
                Ok(Answer { status, body })
            }
            Self::Folder { runtime, router, token } => {
                let request = Request::builder()
                    .method(method)
                    .uri(path)
                    .header("authorization", format!("Bearer {token}"))
                    .header("content-type", "application/json")
                    .body(Body::from(body.unwrap_or_default().to_vec()))
                    .context("cannot form the request")?;
                runtime.block_on(async {
                    let Ok(response) = router.clone().oneshot(request).await;
                    let status = response.status().as_u16();
                    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await?;
                    Ok(Answer { status, body: body.into() })
                })
            }
        }
    }

    /// Sends a request and insists on success.
    ///
    /// # Errors
    /// What the answer says, with the exit code of its status.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Vec<u8>, Failure> {
        let answer = self.send(method, path, body)?;
        if (200..300).contains(&answer.status) { Ok(answer.body) } else { Err(answer.failure()) }
    }
}

impl Answer {
    /// The failure that an answer other than 2xx stands for.
    pub(crate) fn failure(&self) -> Failure {
        let exit = match self.status {
            400 | 413 | 415 | 422 => Exit::Usage,
            404 => Exit::NotFound,
            401 | 403 | 409 => Exit::Refused,
            429 | 503 => Exit::NotReady,
            _ => Exit::Failed,
        };
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let part = |name: &str| problem.get(name).and_then(|part| part.as_str()).map(str::to_owned);
        let detail = part("detail").or_else(|| part("title"));
        let detail = detail.unwrap_or_else(|| format!("status {}", self.status));
        Failure::message(exit, detail)
    }
}

/// Default, file, environment, and the flags that `flags` lays over them.
///
/// # Errors
/// Exit 2 with the name of the setting.
pub(crate) fn load_settings(
    file: Option<&Path>,
    flags: impl FnOnce(&mut Layers) -> Result<(), crate::config::SettingError>,
) -> Result<Settings, Failure> {
    let layers = load_layers(file, flags)?;
    Settings::check(&layers).map_err(|error| Failure::new(Exit::Usage, error))
}

/// The layers behind [`load_settings`], unchecked.
pub(crate) fn load_layers(
    file: Option<&Path>,
    flags: impl FnOnce(&mut Layers) -> Result<(), crate::config::SettingError>,
) -> Result<Layers, Failure> {
    let mut layers = Layers::defaults();
    let usage = |error| Failure::new(Exit::Usage, error);
    if let Some(file) = file {
        layers.add_file(file).map_err(usage)?;
    }
    let variables = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    layers.add_environment(variables).map_err(usage)?;
    flags(&mut layers).map_err(usage)?;
    Ok(layers)
}

/// Percent-encodes a query or path component.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
