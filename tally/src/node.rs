//! A process that serves one role or all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use prometheus_client::registry::Registry as Metrics;
use tally_collector::Collector;
use tally_collector::background::poll_ledger_every;
use tally_dataflow::Savepoints;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot, watch};

use crate::admin::{self, Admin, NodeMetrics};
use crate::admin_api;
use crate::cli::DemoArgs;
use crate::clock::SystemClock;
use crate::config::Settings;
use crate::count;
use crate::counting::Counting;
use crate::demo::Demo;
use crate::deployment::{Deployment, Missing};
use crate::failure::{Exit, Failure};
use crate::roles::{Plan, Role};
use crate::rollup::RollupThread;
use crate::savepoint::{self, SavepointsApi};
use crate::serve::{self, ServeLimits};
use crate::services;

mod announce;

/// How long open requests may go on after SIGTERM; supervisors kill after 30 s.
const DRAIN_DEADLINE: Duration = Duration::from_secs(20);

/// How long a client may take nothing of its answer.
const WRITE_DEADLINE: Duration = Duration::from_secs(15);

/// Where the node listens.
struct Urls {
    /// `None` for a role without an HTTP service.
    services: Option<String>,
    admin: String,
}

impl Urls {
    fn of(services: Option<&TcpListener>, admin: &TcpListener) -> Result<Self, Failure> {
        let url = |listener| -> Result<String, Failure> {
            Ok(format!("http://{}", serve::local(listener)?))
        };
        Ok(Self { services: services.map(url).transpose()?, admin: url(admin)? })
    }
}

/// A node that has everything open and running.
pub(crate) struct Node {
    deployment: Arc<Deployment>,
    collector: Option<Arc<Collector>>,
    counting: Option<Counting>,
    /// Never heard of where nothing is counted.
    counting_ended: oneshot::Receiver<()>,
    rollup: Option<RollupThread>,
    /// Somebody asked over HTTP to stop.
    stop_asked: Arc<Notify>,
    services: Option<Serving>,
    /// Goes down last: while the node drains, it says so there.
    admin: Serving,
    draining: Arc<AtomicBool>,
    demo: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    /// Keeps `counting_ended` silent where nothing is counted.
    _nothing_ends: Option<oneshot::Sender<()>>,
}

/// A listening service and the way to end it.
struct Serving {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<bool>,
}

impl Serving {
    fn start(listener: TcpListener, router: axum::Router, limits: ServeLimits) -> Self {
        let (stop, stopped) = watch::channel(false);
        Self { stop, task: tokio::spawn(serve::serve(listener, router, limits, stopped)) }
    }

    /// Takes no more connections and lets open requests end. Returns whether all did.
    async fn end(self) -> bool {
        // The receiver is the serving task; one that has ended needs no telling.
        let _it_has_ended = self.stop.send(true);
        self.task.await.unwrap_or(false)
    }
}

/// Why a node goes down.
enum End {
    Signal,
    CountingEnded,
}

impl Node {
    /// Runs until a signal, a request to stop, or the end of counting.
    ///
    /// # Errors
    /// Why it could not start, or did not end well.
    pub(crate) async fn run(plan: Plan<'_>, settings: &Settings) -> Result<(), Failure> {
        // A program that waits for the file must not read that of an earlier start.
        if let Some(path) = &plan.process.ready_file
            && path.exists()
        {
            std::fs::remove_file(path)
                .with_context(|| format!("cannot replace {}", path.display()))?;
        }
        // Until the handlers are there, a signal ends the process at once, which is safe: opening
        // a folder heals whatever a cut start left.
        let (mut node, urls) = Self::start(&plan, settings).await?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let begun = tokio::select! {
            () = node.has_begun() => true,
            _ = terminate.recv() => false,
            _ = interrupt.recv() => false,
        };
        if begun && let Err(failure) = node.announce(&plan, settings, &urls) {
            node.stop(End::Signal).await?;
            return Err(failure);
        }
        let end = tokio::select! {
            () = std::future::ready(()), if !begun => End::Signal,
            _ = terminate.recv() => End::Signal,
            _ = interrupt.recv() => End::Signal,
            () = node.stop_asked.notified() => End::Signal,
            _ = &mut node.counting_ended => End::CountingEnded,
        };
        let stopping = node.stop(end);
        tokio::select! {
            outcome = stopping => outcome,
            _ = terminate.recv() => Err(Failure::message(Exit::Failed, "stopped at once")),
            _ = interrupt.recv() => Err(Failure::message(Exit::Failed, "stopped at once")),
        }
    }

    async fn start(plan: &Plan<'_>, settings: &Settings) -> Result<(Self, Urls), Failure> {
        let listener = match plan.listen {
            Some(listen) => Some(serve::bind(listen, "--listen").await?),
            None => None,
        };
        let admin_listener = serve::bind(&plan.process.admin, "--admin").await?;
        let urls = Urls::of(listener.as_ref(), &admin_listener)?;
        let deployment = Arc::new(open(plan, settings)?);
        let mut metrics = Metrics::with_prefix("tally");
        let collector = if plan.role.collects() {
            Some(services::collector(&deployment, settings, &mut metrics)?)
        } else {
            None
        };
        let stop_asked = Arc::new(Notify::new());
        let savepoints = Arc::new(Savepoints::default());
        let mut router = router(plan.role, &deployment, settings, collector.as_ref(), &mut metrics);
        if plan.role.counts() {
            router = router.merge(savepoint::router(SavepointsApi {
                tokens: Arc::clone(&deployment.tokens),
                savepoints: Arc::clone(&savepoints),
                stop: Arc::clone(&stop_asked),
            }));
        }
        let router = router.fallback(admin_api::not_found);
        let (counting, counting_ended, nothing_ends) = if plan.role.counts() {
            let (counting, ended) = count::start(&deployment, settings, &plan.start, &savepoints)?;
            let report = NodeMetrics::new(Arc::clone(&counting.progress), deployment.event_log()?);
            metrics.register_collector(Box::new(report));
            (Some(counting), ended, None)
        } else {
            let (nothing_ends, ended) = oneshot::channel();
            (None, ended, Some(nothing_ends))
        };
        let draining = Arc::new(AtomicBool::new(false));
        let folds = plan.role.counts();
        let rollup = folds.then(|| RollupThread::start(&deployment, settings, &mut metrics));
        let rollup = rollup.transpose()?;
        let admin = admin::router(Admin {
            metrics,
            counting: counting.as_ref().map(Counting::watched),
            draining: Arc::clone(&draining),
            collector: collector.clone(),
        });
        let limits = limits(settings);
        tokio::spawn(services::refresh(Arc::clone(&deployment)));
        if let Some(collector) = &collector {
            tokio::spawn(poll_ledger_every(Arc::clone(collector), services::REFRESH_EVERY));
        }
        let demo = plan.demo.zip(urls.services.as_deref());
        let node = Self {
            services: listener.map(|listener| Serving::start(listener, router, limits)),
            admin: Serving::start(admin_listener, admin, limits),
            demo: demo.map(|(demo, url)| start_demo(demo, &deployment, url)),
            deployment,
            collector,
            counting,
            counting_ended,
            rollup,
            stop_asked,
            draining,
            _nothing_ends: nothing_ends,
        };
        Ok((node, urls))
    }

    /// Waits until it is decided from where counting goes on, or that it does not.
    async fn has_begun(&self) {
        let Some(counting) = &self.counting else { return };
        let mut timer = tokio::time::interval(Duration::from_millis(5));
        while !counting.has_begun() {
            timer.tick().await;
        }
    }

    /// Drains: no new requests, open ones end, then the pipeline stops and the log is closed.
    async fn stop(self, end: End) -> Result<(), Failure> {
        tracing::info!("stopping");
        self.draining.store(true, Ordering::Relaxed);
        if let Some(collector) = &self.collector {
            collector.drain();
        }
        if let Some((stop, demo)) = self.demo {
            stop.store(true, Ordering::Relaxed);
            demo.thread().unpark();
        }
        let drained = match self.services {
            Some(services) => services.end().await,
            None => true,
        };
        if let Some(rollup) = self.rollup {
            let stopped = tokio::task::spawn_blocking(move || rollup.stop()).await;
            stopped.map_err(|error| Failure::new(Exit::Failed, error))?;
        }
        let counted = match self.counting {
            Some(counting) => {
                counting.stop();
                let joined = tokio::task::spawn_blocking(move || counting.join()).await;
                joined
                    .map_err(|error| Failure::new(Exit::Failed, error))
                    .and_then(|of| of.map(Some))
            }
            None => Ok(None),
        };
        self.admin.end().await;
        if let Some(report) = counted? {
            tracing::info!(report = %count::describe(&report), "stopped");
        }
        match end {
            End::Signal if drained => Ok(()),
            End::Signal => {
                Err(Failure::message(Exit::Failed, "some requests were still open and were cut"))
            }
            End::CountingEnded => {
                Err(Failure::message(Exit::Failed, "the counting pipeline ended by itself"))
            }
        }
    }
}

/// Opens the deployment as the role needs it.
fn open(plan: &Plan<'_>, settings: &Settings) -> Result<Deployment, Failure> {
    let (dir, clock) = (&plan.process.data_dir, Arc::new(SystemClock::new()));
    if !plan.role.counts() {
        return Deployment::open_beside_others(dir, settings, clock);
    }
    let deployment = Deployment::open(dir, Missing::Create, settings, clock)?;
    deployment.set_origin()?;
    Ok(deployment)
}

/// The HTTP routes of a role, without those of savepoints.
fn router(
    role: Role,
    deployment: &Deployment,
    settings: &Settings,
    collector: Option<&Arc<Collector>>,
    metrics: &mut Metrics,
) -> axum::Router {
    let router = if role.answers() {
        services::query_router(deployment, settings, metrics)
    } else {
        axum::Router::new()
    };
    match collector {
        Some(collector) => router.merge(tally_collector::router(Arc::clone(collector))),
        None => router,
    }
}

fn limits(settings: &Settings) -> ServeLimits {
    ServeLimits {
        // Half of the open files stay for the log, the stores and the admin port.
        connections: settings.collector.connections.min(
            usize::try_from(crate::process::raise_open_files() / 2).unwrap_or(usize::MAX).max(1),
        ),
        header_deadline: Duration::from_millis(settings.collector.header_deadline_ms),
        write_deadline: WRITE_DEADLINE,
        drain_deadline: DRAIN_DEADLINE,
    }
}

fn start_demo(
    args: DemoArgs,
    deployment: &Deployment,
    url: &str,
) -> (Arc<AtomicBool>, JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let demo = Demo {
        url: url.to_owned(),
        keys: deployment.bootstrap.clone(),
        clock: Arc::clone(&deployment.clock),
        seed: args.demo_seed,
        rate: args.demo_rate,
        stop: Arc::clone(&stop),
    };
    (stop, std::thread::spawn(move || demo.run()))
}
