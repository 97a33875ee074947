//! What sealing costs: `cargo run --release -p tally-privacy --example seal_speed`.
//!
//! Prints ns per seal, row tag, look-up of cached keys and HMAC, and how many new users' keys a
//! second become durable in the embedded store, singly and by many callers at once.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement on a terminal: it reads the clock and stops at the first error"
)]

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tally_model::clock::Clock;
use tally_model::ids::EventId;
use tally_privacy::keys::{KeyStore, KeyStoreOptions, UserKeys};
use tally_privacy::master::MasterKey;
use tally_privacy::seal::{Nonces, Personal, seal};
use tally_privacy::secrets::DeploymentSecrets;
use tally_sinks::redb::RedbStore;

/// 2026-03-10T00:00:00Z.
const NOW_MS: i64 = 1_773_100_800_000;
/// Users whose keys are used in turn: more than fit in the processor's caches.
const USERS: usize = 100_000;

/// The clock of this process, for the time that commits take.
struct Running(Instant);

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running")
    }
}

impl Clock for Running {
    fn now_ms(&self) -> i64 {
        NOW_MS + self.monotonic_ms()
    }

    fn monotonic_ms(&self) -> i64 {
        i64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

fn main() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let store = RedbStore::open(&folder.path().join("keys.redb")).unwrap();
    let meta: Arc<dyn tally_sinks::meta::MetaStore> = Arc::new(store.meta());
    let master = MasterKey::load_or_create(&folder.path().join("master.key")).unwrap();
    let secrets = DeploymentSecrets::load_or_create(meta.as_ref(), &master).unwrap();
    let clock = Arc::new(Running(Instant::now()));
    let options = KeyStoreOptions::default();
    let keys = KeyStore::open(meta, master, &secrets, options, clock).unwrap();

    let users: Vec<String> = (0..USERS).map(|user| format!("user-{user:08}")).collect();
    let made = new_keys(&keys, &users);
    look_ups(&keys, &secrets, &users);
    seals(&made);
}

fn new_keys(keys: &KeyStore, users: &[String]) -> Vec<Arc<UserKeys>> {
    let all: Vec<&str> = users.iter().map(String::as_str).collect();
    let started = Instant::now();
    let mut made = Vec::with_capacity(users.len());
    for part in all.chunks(1_000) {
        made.extend(keys.user_keys(part, NOW_MS).unwrap().keys);
    }
    rate("new keys, one caller, 1,000 at once", all.len(), started);

    for (what, callers, each, total) in [
        ("new keys, one caller, 1 at once", 1, 1, 500),
        ("new keys, 64 callers, 1 at once", 64, 1, 6_400),
        ("new keys, 64 callers, 20 at once", 64, 20, 64_000),
    ] {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for caller in 0..callers {
                scope.spawn(move || {
                    for batch in 0..total / callers / each {
                        let name = |user| format!("{what}/{caller}/{batch}/{user}");
                        let names: Vec<String> = (0..each).map(name).collect();
                        let names: Vec<&str> = names.iter().map(String::as_str).collect();
                        black_box(keys.user_keys(&names, NOW_MS).unwrap());
                    }
                });
            }
        });
        rate(what, total, started);
    }
    made
}

fn look_ups(keys: &KeyStore, secrets: &DeploymentSecrets, users: &[String]) {
    each("look-up of cached keys, with its HMAC", |at| {
        black_box(keys.cached(&users[at % USERS]).unwrap());
    });
    each("HMAC of a name", |_| {
        black_box(secrets.name_hash(black_box("checkout_v9")));
    });
}

fn seals(made: &[Arc<UserKeys>]) {
    let mut nonces = Nonces::from_os().unwrap();
    let personal = Personal {
        user_id: "user-00000001".to_owned(),
        properties: "x".repeat(500 - 20),
        ..Personal::default()
    };
    let mut plaintext = Vec::new();
    personal.append_to(&mut plaintext);
    let mut sealed = Vec::with_capacity(600);
    for (what, users) in [("one user", 1), ("100,000 users in turn", USERS)] {
        each(&format!("row tag of a day seen before, {what}"), |at| {
            black_box(made[at % users].row_tag(NOW_MS));
        });
        each(&format!("seal of {} bytes, {what}", plaintext.len()), |at| {
            sealed.clear();
            let (id, tag) = (EventId([1; 16]), [2; 16]);
            seal(&made[at % users], id, &tag, &plaintext, nonces.next(), &mut sealed).unwrap();
            black_box(&sealed);
        });
    }
    let day_ms = 86_400_000;
    each("row tag of another day", |at| {
        black_box(made[0].row_tag(i64::try_from(at % 2).unwrap() * day_ms));
    });
    each("nonce", |_| {
        black_box(nonces.next());
    });
}

/// Prints the best of some rounds: what else runs on the machine shows least in it.
fn each(what: &str, mut work: impl FnMut(usize)) {
    const ROUNDS: usize = 20;
    const TIMES: u32 = 50_000;
    let mut at = 0;
    let best = (0..ROUNDS).map(|_| {
        let started = Instant::now();
        for _ in 0..TIMES {
            work(at);
            at += 1;
        }
        started.elapsed()
    });
    let best = best.min().unwrap_or_default();
    println!("{what:<50} {:>10.0} ns", best.as_secs_f64() * 1e9 / f64::from(TIMES));
}

fn rate(what: &str, count: usize, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    let per_second = f64::from(u32::try_from(count).unwrap()) / seconds;
    println!("{what:<50} {per_second:>10.0} /s");
}
