//! What runs beside the requests.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::health::Health;
use crate::service::Collector;

/// Polls the erasure ledger every `every`, for ever.
pub async fn poll_ledger_every(collector: Arc<Collector>, every: Duration) {
    let health = Health::of("polling the erasure ledger");
    let mut timer = tokio::time::interval(every);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let polling = Arc::clone(&collector);
        match tokio::task::spawn_blocking(move || polling.poll_ledger()).await {
            Ok(polled) => {
                let fault = polled.as_ref().err();
                health.note(fault.map(|fault| fault as &(dyn Error + 'static)));
            }
            Err(panic) => health.note(Some(&panic)),
        }
    }
}
