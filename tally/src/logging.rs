//! Logs of long-running roles: on standard error, as JSON unless a terminal is there.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging. `TALLY_LOG` sets the level, `info` by default; the CQL driver says less.
///
/// Logs hold no personal data and no secrets: nothing of a request but its status, no user id, no
/// property, no key.
pub(crate) fn start() {
    let filter =
        EnvFilter::try_from_env("TALLY_LOG").unwrap_or_else(|_| EnvFilter::new("info,scylla=warn"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() {
        builder.with_target(false).try_init()
    } else {
        builder.json().flatten_event(true).with_ansi(false).try_init()
    };
    // A second start in one process keeps the first.
    drop(started);
}
