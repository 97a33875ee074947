//! What runs beside the requests.

use std::sync::Arc;
use std::time::Duration;

use crate::service::Collector;

/// Polls the erasure ledger every `every`, for ever. Each change between reachable and not is
/// logged once.
pub async fn poll_ledger_every(collector: Arc<Collector>, every: Duration) {
    let mut timer = tokio::time::interval(every);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut was_reachable = true;
    loop {
        timer.tick().await;
        let polling = Arc::clone(&collector);
        let is_reachable = match tokio::task::spawn_blocking(move || polling.poll_ledger()).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                if was_reachable {
                    tracing::error!(%error, "the erasure ledger cannot be read");
                }
                false
            }
            Err(panic) => {
                tracing::error!(%panic, "polling the erasure ledger panicked");
                false
            }
        };
        if is_reachable && !was_reachable {
            tracing::info!("the erasure ledger can be read again");
        }
        was_reachable = is_reachable;
    }
}
