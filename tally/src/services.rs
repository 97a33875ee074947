//! The HTTP services of one process, made from a deployment.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use prometheus_client::registry::Registry as MetricsRegistry;
use tally_collector::append::Appender;
use tally_collector::ingest::Preparer;
use tally_collector::limits::{Capture, ConsentRule};
use tally_collector::metrics::Metrics;
use tally_collector::{Collector, CollectorOptions, CollectorParts};
use tally_privacy::keys::{KeyStore, KeyStoreOptions};
use tally_privacy::ledger::ErasureLedger;
use tally_query_api::{QueryApi, QueryParts, QuerySettings};

use crate::config::Settings;
use crate::deployment::{Deployment, random};
use crate::failure::Failure;
use crate::keys_api::{self, KeysApi};

/// The query service with the registry's and the keys' routes.
pub(crate) fn query_router(
    deployment: &Deployment,
    settings: &Settings,
    metrics: &mut MetricsRegistry,
) -> Router {
    let parts = QueryParts {
        counts: Arc::clone(&deployment.counts),
        meta: Arc::clone(&deployment.meta),
        registry: Arc::clone(&deployment.registry),
        tokens: Arc::clone(&deployment.tokens),
        clock: Arc::clone(&deployment.clock),
    };
    let query = QuerySettings {
        minutes_days: settings.retention.minutes_days,
        hours_days: settings.retention.hours_days,
        suppress_below: settings.query.suppress_below,
        min_width_ms: settings.query.min_width_ms,
        cache_bytes: settings.query.cache_bytes,
        type_name_bytes_max: settings.collector.limits.type_bytes,
        ..QuerySettings::default()
    };
    let api = Arc::new(QueryApi::new(parts, query, metrics));
    let keys =
        KeysApi { tokens: Arc::clone(&deployment.tokens), clock: Arc::clone(&deployment.clock) };
    tally_query_api::router(api).merge(keys_api::router(keys))
}

/// What judges, seals and encodes events.
pub(crate) fn preparer(
    deployment: &Deployment,
    settings: &Settings,
) -> Result<Arc<Preparer>, Failure> {
    let keys = Arc::new(KeyStore::open(
        Arc::clone(&deployment.keys),
        deployment.master.clone(),
        &deployment.secrets,
        KeyStoreOptions::default(),
        Arc::clone(&deployment.clock),
    )?);
    let ledger = Arc::new(ErasureLedger::open(
        Arc::clone(&deployment.ledger),
        Arc::clone(&keys),
        Arc::clone(&deployment.clock),
    )?);
    let collector = &settings.collector;
    Ok(Arc::new(Preparer {
        registry: Arc::clone(&deployment.registry),
        keys,
        ledger,
        secrets: Arc::new(deployment.secrets.clone()),
        mixer: deployment.mixer(),
        shards: deployment.shards,
        partitions: deployment.partitions,
        limits: collector.limits.clone(),
        options: CollectorOptions {
            key_cache_ttl_ms: settings.privacy.key_cache_ttl_ms,
            capture: Capture { ip: collector.capture, user_agent: collector.capture },
            consent: if collector.consent_required {
                ConsentRule::Required
            } else {
                ConsentRule::Optional
            },
            ..CollectorOptions::default()
        },
    }))
}

/// What hands records to the log, as a run of its own.
pub(crate) fn appender(
    deployment: &Deployment,
    metrics: Arc<Metrics>,
) -> Result<Appender, Failure> {
    let run = u64::from_le_bytes(random()?);
    Ok(Appender::new(deployment.event_log()?, run, Arc::clone(&deployment.clock), metrics))
}

/// The collector.
pub(crate) fn collector(
    deployment: &Deployment,
    settings: &Settings,
    registry: &mut MetricsRegistry,
) -> Result<Arc<Collector>, Failure> {
    let metrics = Arc::new(Metrics::default());
    metrics.register(registry);
    Ok(Arc::new(Collector::new(CollectorParts {
        preparer: preparer(deployment, settings)?,
        appender: appender(deployment, Arc::clone(&metrics))?,
        tokens: Arc::clone(&deployment.tokens),
        clock: Arc::clone(&deployment.clock),
        metrics,
    })))
}

/// How often registry, keys and tokens are read again, and the erasure ledger is polled.
pub(crate) const REFRESH_EVERY: Duration = Duration::from_secs(5);

/// Keeps registry, keys and tokens young.
pub(crate) async fn refresh(deployment: Arc<Deployment>) {
    let mut timer = tokio::time::interval(REFRESH_EVERY);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let deployment = Arc::clone(&deployment);
        let refreshed = tokio::task::spawn_blocking(move || {
            if let Err(error) = deployment.registry.refresh() {
                tracing::warn!(%error, "the registry could not be refreshed");
            }
            if let Err(error) = deployment.tokens.refresh() {
                tracing::warn!(%error, "keys and tokens could not be refreshed");
            }
        });
        if refreshed.await.is_err() {
            tracing::error!("refreshing panicked");
        }
    }
}
