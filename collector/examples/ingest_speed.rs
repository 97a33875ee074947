//! How fast one thread takes events in: parsing, judging, sealing and encoding, without HTTP and
//! without the log.
//!
//! `cargo run --release -p tally-collector --example ingest_speed [EVENTS]`
//!
//! Batches of 20 events of 10,000 users whose keys are cached, with properties of about 250 bytes.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]
#![expect(clippy::disallowed_methods, reason = "it measures real time")]

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tally_collector::ingest::{Preparer, ReceivedAt, Sender};
use tally_collector::limits::{CollectorOptions, Limits};
use tally_collector::parse::parse_batch;
use tally_model::clock::{Clock, ManualClock};
use tally_model::ids::{IdMixer, Shards};
use tally_privacy::keys::{KeyStore, KeyStoreOptions};
use tally_privacy::ledger::ErasureLedger;
use tally_privacy::master::MasterKey;
use tally_privacy::seal::Nonces;
use tally_privacy::secrets::DeploymentSecrets;
use tally_sinks::meta::MetaStore;
use tally_sinks::meta::memory::MemoryMeta;
use tally_sinks::registry::{NewType, Registry};

const NOW_MS: i64 = 1_773_136_800_000;
const BATCH: usize = 20;
const USERS: usize = 10_000;
const TYPES: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let events: usize = match std::env::args().nth(1) {
        Some(count) => count.parse()?,
        None => 1_000_000,
    };
    let preparer = preparer()?;
    let bodies: Vec<String> = (0..USERS / BATCH).map(body).collect();
    let mut nonces = Nonces::from_os()?;
    let stamp = ReceivedAt::Now(NOW_MS);
    let sender = Sender { write_key: 1, ..Sender::default() };

    // Once for the keys, so that all users are cached.
    let mut payload_bytes = 0;
    for body in &bodies {
        let parsed = parse_batch(body.as_bytes(), &preparer.limits)?;
        let prepared = preparer.prepare(parsed, stamp, &sender, &mut nonces)?;
        payload_bytes += prepared.records.iter().map(|record| record.payload.len()).sum::<usize>();
    }
    let body_bytes: usize = bodies.iter().map(String::len).sum();
    println!(
        "{} bytes of JSON and {} bytes of record per event",
        body_bytes / USERS,
        payload_bytes / USERS
    );

    let batches = events / BATCH;
    let started = Instant::now();
    for body in bodies.iter().cycle().take(batches) {
        black_box(parse_batch(body.as_bytes(), &preparer.limits)?);
    }
    report("parse", batches, started);

    let started = Instant::now();
    for body in bodies.iter().cycle().take(batches) {
        let parsed = parse_batch(body.as_bytes(), &preparer.limits)?;
        black_box(preparer.prepare(parsed, stamp, &sender, &mut nonces)?);
    }
    report("parse and prepare", batches, started);
    Ok(())
}

fn report(what: &str, batches: usize, started: Instant) {
    let elapsed = started.elapsed();
    let events = u128::try_from(batches * BATCH).unwrap_or(u128::MAX);
    let nanoseconds = elapsed.as_nanos().max(1);
    println!(
        "{what}: {} events/s, {} ns per event",
        events * 1_000_000_000 / nanoseconds,
        nanoseconds / events.max(1)
    );
}

fn preparer() -> Result<Preparer, Box<dyn Error>> {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(NOW_MS));
    let meta: Arc<dyn MetaStore> = Arc::new(MemoryMeta::default());
    let master = MasterKey::from_bytes([9; 32]);
    let secrets = DeploymentSecrets::load_or_create(meta.as_ref(), &master)?;
    let keys = Arc::new(KeyStore::open(
        Arc::clone(&meta),
        master,
        &secrets,
        KeyStoreOptions::default(),
        Arc::clone(&clock),
    )?);
    let ledger = ErasureLedger::open(Arc::clone(&meta), Arc::clone(&keys), clock)?;
    let registry = Registry::open(meta)?;
    for number in 0..TYPES {
        registry.register(NewType::named(format!("type_{number}")))?;
    }
    Ok(Preparer {
        registry: Arc::new(registry),
        keys,
        ledger: Arc::new(ledger),
        mixer: IdMixer::new(secrets.id_key),
        secrets: Arc::new(secrets),
        shards: Shards::DEFAULT,
        partitions: 8,
        limits: Limits::default(),
        options: CollectorOptions::default(),
    })
}

fn body(batch: usize) -> String {
    let events: Vec<String> = (batch * BATCH..(batch + 1) * BATCH).map(event).collect();
    format!("{{\"events\":[{}]}}", events.join(","))
}

fn event(number: usize) -> String {
    format!(
        "{{\"eventId\":\"0195f3a0-5b1c-7c3e-8a4d-{number:012x}\",\"eventType\":\"type_{}\",\
         \"userId\":\"user-{number:08}\",\"eventTime\":\"2026-03-10T09:59:30.123Z\",\
         \"properties\":{{\"path\":\"/shop/items/{number}\",\"referrer\":\
         \"https://search.example/?q=shoes\",\"title\":\"Item {number} in the shop\",\
         \"screen\":{{\"width\":1920,\"height\":1080}},\"locale\":\"en-GB\",\"position\":{},\
         \"tags\":[\"sale\",\"summer\",\"shoes\"],\"price\":49.95,\"currency\":\"EUR\"}}}}",
        number % TYPES,
        number % 40
    )
}
