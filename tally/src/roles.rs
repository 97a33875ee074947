//! The roles: `tally up`, `tally collector`, `tally worker`, `tally query`.

use std::time::Duration;

use anyhow::Context;

use crate::cli::{DemoArgs, ProcessArgs, ServiceArgs, UpArgs, WorkerArgs};
use crate::config::{Layers, SettingError, Settings};
use crate::failure::Failure;
use crate::node::Node;
use crate::start::Start;
use crate::target::load_settings;

/// What a process does for the deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything.
    Node,
    Collector,
    Worker,
    Query,
}

impl Role {
    /// What people call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Node => "Tally",
            Self::Collector => "The collector",
            Self::Worker => "The worker",
            Self::Query => "The query service",
        }
    }

    pub(crate) const fn collects(self) -> bool {
        matches!(self, Self::Node | Self::Collector)
    }

    pub(crate) const fn counts(self) -> bool {
        matches!(self, Self::Node | Self::Worker)
    }

    pub(crate) const fn answers(self) -> bool {
        matches!(self, Self::Node | Self::Query)
    }
}

/// How a process is started.
pub(crate) struct Plan<'a> {
    pub(crate) role: Role,
    pub(crate) process: &'a ProcessArgs,
    /// `None` for a role without an HTTP service.
    pub(crate) listen: Option<&'a str>,
    pub(crate) start: Start,
    pub(crate) demo: Option<DemoArgs>,
}

/// `tally up`.
pub(crate) fn up(args: &UpArgs) -> Result<(), Failure> {
    let settings = load_settings(args.service.process.config.config.as_deref(), |layers| {
        add_workers(layers, args.workers)?;
        // A newcomer should not wait for three minutes; who sets a delay keeps it.
        if args.demo.demo && !layers.is_set("pipeline.watermark_delay") {
            layers.add_flag("--demo", "pipeline.watermark_delay", "5s")?;
        }
        Ok(())
    })?;
    let plan = Plan {
        role: Role::Node,
        process: &args.service.process,
        listen: Some(&args.service.listen),
        start: args.start.start()?,
        demo: args.demo.demo.then_some(args.demo),
    };
    run(plan, &settings)
}

/// `tally collector` and `tally query`.
pub(crate) fn service(role: Role, args: &ServiceArgs) -> Result<(), Failure> {
    let settings = load_settings(args.process.config.config.as_deref(), |_| Ok(()))?;
    let listen = Some(args.listen.as_str());
    let start = Start::default();
    run(Plan { role, process: &args.process, listen, start, demo: None }, &settings)
}

/// `tally worker` without `--bounded`.
pub(crate) fn worker(args: &WorkerArgs, settings: &Settings) -> Result<(), Failure> {
    let (role, start) = (Role::Worker, args.start.start()?);
    run(Plan { role, process: &args.process, listen: None, start, demo: None }, settings)
}

/// Lays the flag `--workers` over the settings.
pub(crate) fn add_workers(layers: &mut Layers, workers: Option<u16>) -> Result<(), SettingError> {
    match workers {
        Some(workers) => layers.add_flag("--workers", "pipeline.workers", i64::from(workers)),
        None => Ok(()),
    }
}

fn run(plan: Plan<'_>, settings: &Settings) -> Result<(), Failure> {
    crate::logging::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(Node::run(plan, settings));
    // A blocked store call must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}
