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
use tally_dataflow::{CountError, CountProgress, CountReport, Mode, StopSignal};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::admin::{self, Admin, NodeMetrics};
use crate::cli::UpArgs;
use crate::clock::SystemClock;
use crate::config::Settings;
use crate::count;
use crate::demo::Demo;
use crate::deployment::{Deployment, Missing, write_whole};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::serve::{self, ServeLimits};
use crate::services;
use crate::target::load_settings;

/// How long open requests may go on after SIGTERM.
const DRAIN_DEADLINE: Duration = Duration::from_secs(35);

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

/// A node that has everything open and running.
struct Node {
    deployment: Arc<Deployment>,
    collector: Arc<Collector>,
    stop_counting: Arc<StopSignal>,
    counting: JoinHandle<Result<CountReport, CountError>>,
    counting_ended: oneshot::Receiver<()>,
    stop_serving: watch::Sender<bool>,
    services: tokio::task::JoinHandle<bool>,
    admin: tokio::task::JoinHandle<bool>,
    draining: Arc<AtomicBool>,
    demo: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

/// Why a node goes down.
enum End {
    Signal,
    CountingEnded,
}

impl Node {
    async fn run(args: &UpArgs, settings: Settings) -> Result<(), Failure> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut node = Self::start(args, &settings).await?;
        let end = tokio::select! {
            _ = terminate.recv() => End::Signal,
            _ = interrupt.recv() => End::Signal,
            _ = &mut node.counting_ended => End::CountingEnded,
        };
        let stopping = node.stop(end);
        tokio::select! {
            outcome = stopping => outcome,
            _ = terminate.recv() => Err(Failure::message(Exit::Failed, "stopped at once")),
            _ = interrupt.recv() => Err(Failure::message(Exit::Failed, "stopped at once")),
        }
    }

    async fn start(args: &UpArgs, settings: &Settings) -> Result<Self, Failure> {
        let listener = serve::bind(&args.listen, "--listen").await?;
        let admin_listener = serve::bind(&args.admin, "--admin").await?;
        let clock = Arc::new(SystemClock::new());
        let deployment =
            Arc::new(Deployment::open(&args.data_dir, Missing::Create, settings, clock)?);
        deployment.set_origin()?;
        let mut metrics = Metrics::with_prefix("tally");
        let collector = services::collector(&deployment, settings, &mut metrics)?;
        let router = services::query_router(&deployment, settings, &mut metrics)
            .merge(tally_collector::router(Arc::clone(&collector)));

        let progress = Arc::new(CountProgress::default());
        let stop_counting = Arc::new(StopSignal::default());
        let (counting, counting_ended, running) =
            start_counting(args, &deployment, settings, &progress, &stop_counting)?;

        let draining = Arc::new(AtomicBool::new(false));
        let report = NodeMetrics::new(Arc::clone(&progress), Arc::clone(&deployment.log));
        metrics.register_collector(Box::new(report));
        let admin = admin::router(Admin {
            metrics,
            progress,
            counting: running,
            draining: Arc::clone(&draining),
            collector: Arc::clone(&collector),
        });

        let (stop_serving, stop) = watch::channel(false);
        let limits = limits(settings);
        let url = format!("http://{}", serve::local(&listener)?);
        let admin_url = format!("http://{}", serve::local(&admin_listener)?);
        tokio::spawn(services::refresh(Arc::clone(&deployment)));
        let poll = poll_ledger_every(Arc::clone(&collector), services::REFRESH_EVERY);
        tokio::spawn(poll);
        let node = Self {
            services: spawn_serving(listener, router, limits, stop.clone()),
            admin: spawn_serving(admin_listener, admin, limits, stop),
            demo: args.demo.then(|| start_demo(args, &deployment, &url)),
            deployment,
            collector,
            stop_counting,
            counting,
            counting_ended,
            stop_serving,
            draining,
        };
        node.announce(args, settings, &url, &admin_url)?;
        Ok(node)
    }

    /// Tells people and programs that the node is ready, and how to talk to it.
    fn announce(
        &self,
        args: &UpArgs,
        settings: &Settings,
        url: &str,
        admin: &str,
    ) -> Result<(), Failure> {
        let keys = &self.deployment.bootstrap;
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
        // The receivers are the two serving tasks; one that has ended needs no telling.
        let _both_ended = self.stop_serving.send(true);
        let drained = self.services.await.unwrap_or(false) && self.admin.await.unwrap_or(false);
        self.stop_counting.stop();
        let counting = self.counting;
        let report = tokio::task::spawn_blocking(move || counting.join()).await;
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

fn start_counting(
    args: &UpArgs,
    deployment: &Deployment,
    settings: &Settings,
    progress: &Arc<CountProgress>,
    stop: &Arc<StopSignal>,
) -> Result<Counting, Failure> {
    let generation = count::claim(deployment)?;
    let parts = count::parts(deployment, generation, Arc::clone(progress), Arc::clone(stop))?;
    let options = count::options(deployment, settings, Mode::Continuous, args.accept_hole);
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
        connections: settings.collector.connections,
        header_deadline: Duration::from_millis(settings.collector.header_deadline_ms),
        drain_deadline: DRAIN_DEADLINE,
    }
}

fn spawn_serving(
    listener: TcpListener,
    router: axum::Router,
    limits: ServeLimits,
    stop: watch::Receiver<bool>,
) -> tokio::task::JoinHandle<bool> {
    tokio::spawn(serve::serve(listener, router, limits, stop))
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
