//! `tally up`: every role in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use prometheus_client::registry::Registry as Metrics;
use serde_json::json;
use tally_collector::Collector;
use tally_collector::background::poll_ledger_every;
use tally_dataflow::{
    CountError, CountOptions, CountParts, CountProgress, CountReport, Mode, Savepoints, StopSignal,
};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot, watch};

use crate::admin::{self, Admin, NodeMetrics};
use crate::admin_api;
use crate::cli::UpArgs;
use crate::clock::SystemClock;
use crate::config::Settings;
use crate::count;
use crate::demo::Demo;
use crate::deployment::{Deployment, Missing, write_whole};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::rollup::RollupThread;
use crate::savepoint::{self, SavepointsApi};
use crate::serve::{self, ServeLimits};
use crate::services;
use crate::target::load_settings;

/// How long open requests may go on after SIGTERM; supervisors kill after 30 s.
const DRAIN_DEADLINE: Duration = Duration::from_secs(20);

/// How long a client may take nothing of its answer.
const WRITE_DEADLINE: Duration = Duration::from_secs(15);

/// `tally up`.
pub(crate) fn up(args: &UpArgs) -> Result<(), Failure> {
    let settings = settings(args)?;
    crate::logging::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(Node::run(args, settings));
    // A blocked store call must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(5));
    outcome
}

fn settings(args: &UpArgs) -> Result<Settings, Failure> {
    load_settings(args.config.config.as_deref(), |layers| {
        if let Some(workers) = args.workers {
            layers.add_flag("--workers", "pipeline.workers", i64::from(workers))?;
        }
        // A newcomer should not wait for three minutes; who sets a delay keeps it.
        if args.demo && !layers.is_set("pipeline.watermark_delay") {
            layers.add_flag("--demo", "pipeline.watermark_delay", "5s")?;
        }
        Ok(())
    })
}

/// Where the node listens.
struct Urls {
    services: String,
    admin: String,
}

/// A node that has everything open and running.
struct Node {
    deployment: Arc<Deployment>,
    collector: Arc<Collector>,
    stop_counting: Arc<StopSignal>,
    counting: JoinHandle<Result<CountReport, CountError>>,
    counting_ended: oneshot::Receiver<()>,
    rollup: RollupThread,
    /// Somebody asked over HTTP to stop.
    stop_asked: Arc<Notify>,
    services: Serving,
    /// Goes down last: while the node drains, it says so there.
    admin: Serving,
    draining: Arc<AtomicBool>,
    demo: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
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
    async fn run(args: &UpArgs, settings: Settings) -> Result<(), Failure> {
        // A program that waits for the file must not read that of an earlier start.
        if let Some(path) = &args.ready_file
            && path.exists()
        {
            std::fs::remove_file(path)
                .with_context(|| format!("cannot replace {}", path.display()))?;
        }
        // Until the handlers are there, a signal ends the process at once, which is safe: opening
        // a folder heals whatever a cut start left.
        let (mut node, urls) = Self::start(args, &settings).await?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        if let Err(failure) = node.announce(args, &settings, &urls) {
            node.stop(End::Signal).await?;
            return Err(failure);
        }
        let end = tokio::select! {
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

    async fn start(args: &UpArgs, settings: &Settings) -> Result<(Self, Urls), Failure> {
        let listener = serve::bind(&args.listen, "--listen").await?;
        let admin_listener = serve::bind(&args.admin, "--admin").await?;
        let urls = Urls {
            services: format!("http://{}", serve::local(&listener)?),
            admin: format!("http://{}", serve::local(&admin_listener)?),
        };
        let clock = Arc::new(SystemClock::new());
        let deployment =
            Arc::new(Deployment::open(&args.data_dir, Missing::Create, settings, clock)?);
        deployment.set_origin()?;
        let mut metrics = Metrics::with_prefix("tally");
        let collector = services::collector(&deployment, settings, &mut metrics)?;
        let stop_asked = Arc::new(Notify::new());
        let savepoints = Arc::new(Savepoints::default());
        let router = services::query_router(&deployment, settings, &mut metrics)
            .merge(tally_collector::router(Arc::clone(&collector)))
            .merge(savepoint::router(SavepointsApi {
                tokens: Arc::clone(&deployment.tokens),
                savepoints: Arc::clone(&savepoints),
                stop: Arc::clone(&stop_asked),
            }))
            .fallback(admin_api::not_found);

        let progress = Arc::new(CountProgress::default());
        let stop_counting = Arc::new(StopSignal::default());
        let start = args.start.start()?;
        let mut parts = count::parts(
            &deployment,
            settings,
            &start,
            Arc::clone(&progress),
            Arc::clone(&stop_counting),
        )?;
        parts.savepoints = savepoints;
        let options = count::options(&deployment, settings, Mode::Continuous, &start);
        let (counting, counting_ended, running) = start_counting(parts, options)?;

        let draining = Arc::new(AtomicBool::new(false));
        let report = NodeMetrics::new(Arc::clone(&progress), Arc::clone(&deployment.log));
        metrics.register_collector(Box::new(report));
        let rollup = RollupThread::start(&deployment, settings, &mut metrics)?;
        let admin = admin::router(Admin {
            metrics,
            progress,
            counting: running,
            draining: Arc::clone(&draining),
            collector: Arc::clone(&collector),
        });

        let limits = limits(settings);
        tokio::spawn(services::refresh(Arc::clone(&deployment)));
        let poll = poll_ledger_every(Arc::clone(&collector), services::REFRESH_EVERY);
        tokio::spawn(poll);
        let node = Self {
            services: Serving::start(listener, router, limits),
            admin: Serving::start(admin_listener, admin, limits),
            demo: args.demo.then(|| start_demo(args, &deployment, &urls.services)),
            deployment,
            collector,
            stop_counting,
            counting,
            counting_ended,
            rollup,
            stop_asked,
            draining,
        };
        Ok((node, urls))
    }

    /// Tells people and programs that the node is ready, and how to talk to it.
    fn announce(&self, args: &UpArgs, settings: &Settings, urls: &Urls) -> Result<(), Failure> {
        let Urls { services: url, admin } = urls;
        let keys = self.deployment.valid_bootstrap_keys();
        // Who started this binary by its path has no `tally` to call.
        let program = std::env::args().next().unwrap_or_else(|| "tally".to_owned());
        if let Some(path) = &args.ready_file {
            let ready = json!({
                "url": url,
                "admin": admin,
                "writeKey": keys.write_key,
                "readToken": keys.read_token,
                "adminToken": keys.admin_token,
            });
            write_whole(path, &serde_json::to_vec(&ready)?, 0o600)?;
        }
        let wait_s = 60 + settings.pipeline.timing.watermark_delay_ms / 1_000;
        let demo = if args.demo {
            format!(
                "The demo sends {} events/s. The first top-K appears here in {wait_s} to {} s.",
                args.demo_rate,
                wait_s + 60
            )
        } else {
            format!("A minute's counts are readable {wait_s} s after it began.")
        };
        output::line(format!(
            "Tally is up.\n\
             \n  data folder   {}\n  collector     {url}/v1/events\n  query API     {url}/v1/stats/top\n  \
             metrics       {admin}/metrics\n  write key     {}\n  read token    {}\n\
             \nSend an event:\n\n  curl -sS {url}/v1/events -H 'Authorization: Bearer {}' \\\n    \
             -H 'Content-Type: application/json' -d '{{\"events\":[{{\"eventId\":\"'$(cat \
             /proc/sys/kernel/random/uuid)'\",\n    \
             \"eventType\":\"page_view\",\"userId\":\"u1\",\"eventTime\":\"'$(date -u \
             +%Y-%m-%dT%H:%M:%SZ)'\",\"properties\":{{}}}}]}}'\n\
             \nAsk for the last hour:\n\n  {program} top --last 1h --url {url} --token {}\n\
             \n{demo} Ctrl-C stops the node; nothing is lost.\n",
            self.deployment.dir.display(),
            keys.write_key,
            keys.read_token,
            keys.write_key,
            keys.read_token,
        ))
    }

    /// Drains: no new requests, open ones end, then the pipeline stops and the log is closed.
    async fn stop(self, end: End) -> Result<(), Failure> {
        tracing::info!("stopping");
        self.draining.store(true, Ordering::Relaxed);
        self.collector.drain();
        if let Some((stop, demo)) = self.demo {
            stop.store(true, Ordering::Relaxed);
            demo.thread().unpark();
        }
        let drained = self.services.end().await;
        self.stop_counting.stop();
        let (counting, rollup) = (self.counting, self.rollup);
        let report = tokio::task::spawn_blocking(move || {
            rollup.stop();
            counting.join()
        })
        .await;
        self.admin.end().await;
        let report = match report {
            Ok(Ok(Ok(report))) => report,
            Ok(Ok(Err(error))) => return Err(count::failure(error)),
            Ok(Err(_)) | Err(_) => {
                return Err(Failure::message(Exit::Failed, "the counting pipeline panicked"));
            }
        };
        tracing::info!(report = %count::describe(&report), "stopped");
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

type Counting =
    (JoinHandle<Result<CountReport, CountError>>, oneshot::Receiver<()>, Arc<AtomicBool>);

fn start_counting(parts: CountParts, options: CountOptions) -> Result<Counting, Failure> {
    let running = Arc::new(AtomicBool::new(true));
    let (ended, counting_ended) = oneshot::channel();
    let flag = Arc::clone(&running);
    let counting = std::thread::Builder::new().name("counting".to_owned()).spawn(move || {
        let outcome = tally_dataflow::run(parts, options);
        flag.store(false, Ordering::Relaxed);
        // Nobody waits for this once the node is stopping.
        let _nobody_waits = ended.send(());
        outcome
    })?;
    Ok((counting, counting_ended, running))
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
    args: &UpArgs,
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
