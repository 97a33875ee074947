//! The admin port: `/livez`, `/readyz`, `/metrics`, open without a key and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::registry::Registry as Metrics;
use serde_json::json;
use tally_collector::Collector;

use crate::counting::Watched;

mod metrics;

pub(crate) use metrics::NodeMetrics;

/// What the admin port reports on.
pub(crate) struct Admin {
    pub(crate) metrics: Metrics,
    /// The counting pipeline; `None` where nothing is counted.
    pub(crate) counting: Option<Watched>,
    /// The node is going down.
    pub(crate) draining: Arc<AtomicBool>,
    /// Says whether requests can be answered with 202 now; `None` where nothing is taken in.
    pub(crate) collector: Option<Arc<Collector>>,
}

/// The routes of the admin port.
pub(crate) fn router(admin: Admin) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(Arc::new(admin))
}

impl Admin {
    /// Whether counting goes on where it should.
    fn counts(&self) -> bool {
        self.counting.as_ref().is_none_or(Watched::is_running)
    }
}

async fn livez(State(admin): State<Arc<Admin>>) -> Response {
    if admin.counts() || admin.draining.load(Ordering::Relaxed) {
        (StatusCode::OK, "ok\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the counting pipeline has ended\n").into_response()
    }
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    let draining = admin.draining.load(Ordering::Relaxed);
    let mut ready = admin.counts() && !draining;
    let mut body = json!({ "draining": draining });
    if let Some(counting) = &admin.counting {
        body["counting"] = counting.is_running().into();
        body["caughtUp"] = counting.progress.caught_up().into();
    }
    if let Some(collector) = &admin.collector {
        let state = collector.ready();
        ready &= state.is_ok();
        body["collector"] =
            state.map_or_else(|why| why.to_string(), |()| "ready".to_owned()).into();
    }
    body["ready"] = ready.into();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

async fn metrics_text(State(admin): State<Arc<Admin>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &admin.metrics) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
