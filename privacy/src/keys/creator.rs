//! Makes keys for new users, those of many callers in one durable commit.
//!
//! One thread commits. While it does, callers queue up, and the next commit takes what has queued.
//! A commit that finds callers still looking a user up waits a little for them; nobody who is alone
//! waits.
//!
//! Invariant K-1 of ARCHITECTURE.md.

use std::collections::hash_map::Entry;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tally_model::clock::Clock;
use tally_sinks::error::StoreError;
use tally_sinks::meta::{CasOutcome, MetaStore};
use zeroize::Zeroizing;

use super::cache::Cache;
use super::{ByUser, KEY_BYTES, KeyError, KeyFault, TABLE, UserIndex, UserKeys, row};
use crate::aead::NONCE_BYTES;
use crate::master::MasterKey;

/// Keys that are durable now.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) keys: Arc<UserKeys>,
    /// Whether this order made them; otherwise somebody else was first.
    pub(super) is_new: bool,
}

/// One entry per user ordered.
type Answer = Result<Vec<Result<Made, KeyFault>>, Arc<StoreError>>;

struct Order {
    users: Vec<UserIndex>,
    now_ms: i64,
    answer: SyncSender<Answer>,
}

#[derive(Default)]
struct Queue {
    /// Not more orders than callers, each of whom waits for its own.
    orders: Vec<Order>,
    /// Users of all orders.
    ordered_users: usize,
    /// Callers who look users up and may place an order next.
    arriving: usize,
    is_closed: bool,
}

#[derive(Default)]
struct Desk {
    queue: Mutex<Queue>,
    /// Something changed that the thread may wait for.
    changed: Condvar,
}

impl Desk {
    /// A panic elsewhere leaves the queue whole: every change of it is one assignment.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The orders of the next commit; `None` once the desk is closed and nothing waits.
    fn next_orders(&self, batch_users: usize, batch_wait: Duration) -> Option<Vec<Order>> {
        let queue = self
            .changed
            .wait_while(self.lock(), |queue| queue.orders.is_empty() && !queue.is_closed)
            .unwrap_or_else(PoisonError::into_inner);
        let (mut queue, _timeout) = self
            .changed
            .wait_timeout_while(queue, batch_wait, |queue| {
                queue.arriving > 0 && queue.ordered_users < batch_users && !queue.is_closed
            })
            .unwrap_or_else(PoisonError::into_inner);
        let mut users = 0;
        let fitting = queue.orders.iter().take_while(|order| {
            let is_first = users == 0;
            users += order.users.len();
            is_first || users <= batch_users
        });
        let count = fitting.count();
        let orders: Vec<Order> = queue.orders.drain(..count).collect();
        queue.ordered_users = queue.orders.iter().map(|order| order.users.len()).sum();
        (!orders.is_empty()).then_some(orders)
    }

    fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }
}

/// A caller who may place an order.
pub(super) struct Arrival<'a> {
    desk: &'a Desk,
}

impl Arrival<'_> {
    /// Has keys made for `users`, which are distinct; blocks until they are durable. One result per
    /// user, in the order given.
    pub(super) fn order(
        self,
        users: Vec<UserIndex>,
        now_ms: i64,
    ) -> Result<Vec<Result<Made, KeyFault>>, KeyError> {
        let (sender, answer) = sync_channel(1);
        {
            let mut queue = self.desk.lock();
            if queue.is_closed {
                return Err(KeyError::Stopped);
            }
            queue.ordered_users += users.len();
            queue.orders.push(Order { users, now_ms, answer: sender });
        }
        drop(self);
        match answer.recv() {
            Ok(made) => made.map_err(KeyError::Unavailable),
            Err(_gone) => Err(KeyError::Stopped),
        }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.desk.lock().arriving -= 1;
        self.desk.changed.notify_one();
    }
}

/// The thread that makes keys. Stops when dropped.
pub(super) struct Creator {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Creator {
    pub(super) fn start(
        mut minter: Minter,
        batch_users: usize,
        batch_wait: Duration,
    ) -> io::Result<Self> {
        let desk = Arc::new(Desk::default());
        let desk_of_thread = ClosedAtEnd(Arc::clone(&desk));
        let thread = std::thread::Builder::new().name("user-keys".to_owned()).spawn(move || {
            let ClosedAtEnd(desk) = &desk_of_thread;
            while let Some(orders) = desk.next_orders(batch_users, batch_wait) {
                minter.commit(&orders);
            }
        })?;
        Ok(Self { desk, thread: Some(thread) })
    }

    /// Announces a caller, so that a commit waits for its order a little.
    pub(super) fn arrive(&self) -> Arrival<'_> {
        self.desk.lock().arriving += 1;
        Arrival { desk: &self.desk }
    }

    /// Users whose keys wait for the next commit.
    #[cfg(test)]
    pub(super) fn ordered_users(&self) -> usize {
        self.desk.lock().ordered_users
    }
}

impl Drop for Creator {
    fn drop(&mut self) {
        self.desk.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that makes keys for users had panicked");
        }
    }
}

/// Turns everybody away when the thread ends, also by a panic: nobody waits for ever.
struct ClosedAtEnd(Arc<Desk>);

impl Drop for ClosedAtEnd {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.is_closed = true;
        queue.orders.clear();
    }
}

/// What the thread works with.
pub(super) struct Minter {
    pub(super) meta: Arc<dyn MetaStore>,
    pub(super) master: MasterKey,
    pub(super) cache: Arc<Cache>,
    pub(super) generator: StdRng,
    pub(super) clock: Arc<dyn Clock>,
}

/// Keys made for one commit, at the place of their row.
#[derive(Default)]
struct Minted {
    place: ByUser<usize>,
    keys: Vec<(UserIndex, Arc<UserKeys>)>,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Minter {
    /// Makes and stores the keys of all orders, then answers them.
    fn commit(&mut self, orders: &[Order]) {
        let mut minted = Minted::default();
        for order in orders {
            for user in &order.users {
                if let Entry::Vacant(vacant) = minted.place.entry(*user) {
                    vacant.insert(minted.keys.len());
                    let (keys, row) = self.mint(user, order.now_ms);
                    minted.keys.push((*user, keys));
                    minted.rows.push((user.0.to_vec(), row));
                }
            }
        }
        let started_ms = self.clock.monotonic_ms();
        match self.meta.insert_many(TABLE, &minted.rows) {
            Ok(outcomes) => {
                let took_ms = self.clock.monotonic_ms() - started_ms;
                tracing::debug!(users = minted.rows.len(), took_ms, "keys of new users are stored");
                let mut made: Vec<_> = std::iter::zip(&minted.keys, outcomes)
                    .map(|((user, keys), outcome)| self.settle(user, keys, outcome))
                    .collect();
                for order in orders {
                    answer(order, Ok(share_out(&order.users, &minted.place, &mut made)));
                }
            }
            Err(error) => {
                let users = minted.rows.len();
                tracing::warn!(users, %error, "keys of new users could not be stored");
                let error = Arc::new(error);
                for order in orders {
                    answer(order, Err(Arc::clone(&error)));
                }
            }
        }
    }

    /// New keys and their row. They are never older than the last erasure of the user: clocks of
    /// different machines differ, and these keys come after it.
    fn mint(&mut self, user: &UserIndex, now_ms: i64) -> (Arc<UserKeys>, Vec<u8>) {
        let created_at_ms =
            self.cache.revoked_at_ms(user).map_or(now_ms, |at_ms| at_ms.max(now_ms));
        let mut data_key = Zeroizing::new([0; KEY_BYTES]);
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        let mut nonce = [0; NONCE_BYTES];
        self.generator.fill_bytes(data_key.as_mut());
        self.generator.fill_bytes(secret.as_mut());
        self.generator.fill_bytes(&mut nonce);
        let keys = UserKeys::new(created_at_ms, *data_key, *secret);
        let row = row::encode(&self.master, user, &keys, nonce);
        (Arc::new(keys), row)
    }

    /// The keys that hold for a user after the commit.
    fn settle(
        &self,
        user: &UserIndex,
        ours: &Arc<UserKeys>,
        outcome: CasOutcome,
    ) -> Result<Made, KeyFault> {
        let (keys, is_new) = match outcome {
            CasOutcome::Applied => (Arc::clone(ours), true),
            CasOutcome::Refused { current: Some(theirs) } => {
                (Arc::new(row::decode(&self.master, user, &theirs)?), false)
            }
            // Another process destroyed the row that was in the way.
            CasOutcome::Refused { current: None } => return Err(KeyFault::Destroyed),
        };
        Ok(Made { keys: self.cache.admit(*user, keys)?, is_new })
    }
}

/// The part of one order. Who comes first is told that the keys are new, later ones are not.
fn share_out(
    users: &[UserIndex],
    place: &ByUser<usize>,
    made: &mut [Result<Made, KeyFault>],
) -> Vec<Result<Made, KeyFault>> {
    let part = users.iter().map(|user| {
        let Some(made) = place.get(user).and_then(|place| made.get_mut(*place)) else {
            return Err(KeyFault::Corrupt("the store answered for fewer rows than it was given"));
        };
        let share = made.clone();
        if let Ok(made) = made {
            made.is_new = false;
        }
        share
    });
    part.collect()
}

fn answer(order: &Order, answer: Answer) {
    if order.answer.send(answer).is_err() {
        // The caller panicked while it waited: the keys are stored, the next one finds them.
    }
}
