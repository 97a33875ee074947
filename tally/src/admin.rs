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
use tally_dataflow::CountProgress;

mod metrics;

pub(crate) use metrics::NodeMetrics;

/// What the admin port reports on.
pub(crate) struct Admin {
    pub(crate) metrics: Metrics,
    pub(crate) progress: Arc<CountProgress>,
    /// The counting pipeline is running.
    pub(crate) counting: Arc<AtomicBool>,
    /// The node is going down.
    pub(crate) draining: Arc<AtomicBool>,
    /// Says whether requests can be answered with 202 now.
    pub(crate) collector: Arc<Collector>,
}

/// The routes of the admin port.
pub(crate) fn router(admin: Admin) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(Arc::new(admin))
}

async fn livez(State(admin): State<Arc<Admin>>) -> Response {
    if admin.counting.load(Ordering::Relaxed) || admin.draining.load(Ordering::Relaxed) {
        (StatusCode::OK, "ok\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the counting pipeline has ended\n").into_response()
    }
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    let counting = admin.counting.load(Ordering::Relaxed);
    let draining = admin.draining.load(Ordering::Relaxed);
    let collector = admin.collector.ready();
    let ready = counting && !draining && collector.is_ok();
    let body = json!({
        "ready": ready,
        "counting": counting,
        "draining": draining,
        "collector": collector.map_or_else(|why| why.to_string(), |()| "ready".to_owned()),
        "caughtUp": admin.progress.caught_up(),
    });
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
