//! What the clients know of the node: where it is now, and whether they are still wanted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::child::Ready;
use crate::target::Target;

/// How long a client waits for an answer. Short, because dead nodes do not answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// A node that clients can talk to.
pub(super) struct Reachable {
    /// Which life of the deployment this is, from 1.
    pub(super) life: u64,
    /// Takes events.
    pub(super) collector: Target,
    /// Answers questions.
    pub(super) query: Target,
    /// Registers types.
    pub(super) admin: Target,
}

impl Reachable {
    pub(super) fn new(life: u64, ready: Ready) -> Self {
        let target = |token: String| Target::Running {
            agent: ureq::Agent::config_builder()
                .http_status_as_error(false)
                .timeout_global(Some(ANSWER_DEADLINE))
                .build()
                .into(),
            url: ready.url.clone(),
            token,
        };
        Self {
            life,
            collector: target(ready.write_key),
            query: target(ready.read_token),
            admin: target(ready.admin_token),
        }
    }
}

/// Shared by the harness and its clients.
#[derive(Default)]
pub(super) struct Line {
    node: Mutex<Option<Arc<Reachable>>>,
    /// The latest life in which a client's events were acknowledged.
    acknowledged: AtomicU64,
    /// How many batches were acknowledged.
    batches: AtomicU64,
    /// Whether a reader has seen a count other than zero.
    read: AtomicBool,
    closed: AtomicBool,
}

impl Line {
    /// Where the node is; `None` while none is up.
    pub(super) fn node(&self) -> Option<Arc<Reachable>> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says where the node is.
    pub(super) fn connect(&self, node: Option<Arc<Reachable>>) {
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = node;
    }

    /// Notes that events were acknowledged in this life.
    pub(super) fn acknowledge(&self, life: u64) {
        self.acknowledged.fetch_max(life, Ordering::SeqCst);
        self.batches.fetch_add(1, Ordering::SeqCst);
    }

    /// How many batches were acknowledged so far.
    pub(super) fn batches(&self) -> u64 {
        self.batches.load(Ordering::SeqCst)
    }

    /// Whether events were acknowledged in this life or a later one.
    pub(super) fn is_acknowledged(&self, life: u64) -> bool {
        self.acknowledged.load(Ordering::SeqCst) >= life
    }

    /// Notes that a reader has seen a count other than zero.
    pub(super) fn note_read(&self) {
        self.read.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_read(&self) -> bool {
        self.read.load(Ordering::SeqCst)
    }

    /// Sends the clients home.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

/// Closes the line when the harness leaves, by whatever way: threads wait for that.
pub(super) struct CloseOnDrop<'a>(pub(super) &'a Line);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}
