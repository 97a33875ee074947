//! Topics of a test's own, and plain clients to do to them what others do.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{Offset as Place, TopicPartitionList};
use tally_eventlog::contract::DEADLINE;
use tally_eventlog::kafka::{KafkaDemands, KafkaLog, KafkaOptions};
use tally_eventlog::{
    AppendError, EventLog, LogError, LogReader, NewRecord, Offset, Partition, ReadLimits,
};
use tally_model::clock::{Clock, ManualClock};

pub(crate) const NO_LIMITS: ReadLimits = ReadLimits { records: usize::MAX, bytes: usize::MAX };
pub(crate) const RECORD_BYTES_MAX: usize = 100_000;
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

pub(crate) type Outcomes = Vec<Result<Offset, AppendError>>;

/// The broker of the tests.
pub(crate) fn broker() -> SocketAddr {
    let address =
        std::env::var("TALLY_TEST_KAFKA").unwrap_or_else(|_| "127.0.0.1:19092".to_owned());
    let found = address.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    let found = found.unwrap_or_else(|| panic!("TALLY_TEST_KAFKA is no address: {address}"));
    if let Err(error) = TcpStream::connect(found) {
        panic!("no broker at {address} ({error}): start it with scripts/services start kafka");
    }
    found
}

/// A name that no other topic has.
#[expect(clippy::disallowed_methods, reason = "names must differ between runs")]
pub(crate) fn topic_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    format!("tally-test-{}-{}-{number}", std::process::id(), since.as_micros())
}

pub(crate) fn options_at(
    address: impl std::fmt::Display,
    topic: &str,
    settings: &str,
) -> KafkaOptions {
    KafkaOptions::parse(&format!("kafka://{address}/{topic}?{settings}")).unwrap()
}

pub(crate) fn demands(partitions: Partition) -> KafkaDemands {
    KafkaDemands {
        partitions: Some(partitions),
        partitions_to_create: partitions,
        retention_ms_min: 9 * DAY_MS,
        retention_ms_to_create: 10 * DAY_MS,
        record_bytes_max: RECORD_BYTES_MAX,
        accept_settings: true,
    }
}

pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::new(0))
}

/// A topic of a test's own. Deleted when dropped.
pub(crate) struct OwnTopic {
    pub(crate) name: String,
    pub(crate) options: KafkaOptions,
}

impl OwnTopic {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// With settings of the client.
    pub(crate) fn with(settings: &str) -> Self {
        let name = topic_name();
        let options = options_at(broker(), &name, settings);
        Self { name, options }
    }

    pub(crate) fn open(&self, partitions: Partition) -> KafkaLog {
        KafkaLog::open(&self.options, &demands(partitions), clock()).unwrap()
    }

    /// Has the broker remove everything before these offsets.
    pub(crate) fn remove_before(&self, places: &[(Partition, Offset)]) {
        let admin: AdminClient<DefaultClientContext> = plain_client().create().unwrap();
        let list = self.list(places);
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        wait_for(admin.delete_records(&list, &options)).unwrap();
    }

    /// Changes a setting of the topic.
    pub(crate) fn configure(&self, name: &str, value: &str) {
        let admin: AdminClient<DefaultClientContext> = plain_client().create().unwrap();
        let change = AlterConfig::new(ResourceSpecifier::Topic(&self.name)).set(name, value);
        let changed = wait_for(admin.alter_configs([&change], &AdminOptions::new())).unwrap();
        assert!(changed.iter().all(Result::is_ok), "{changed:?}");
    }

    pub(crate) fn list(&self, places: &[(Partition, Offset)]) -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in places {
            let place = Place::Offset(i64::try_from(*offset).unwrap());
            let partition = i32::try_from(*partition).unwrap();
            list.add_partition_offset(&self.name, partition, place).unwrap();
        }
        list
    }
}

impl Drop for OwnTopic {
    fn drop(&mut self) {
        if let Err(error) = KafkaLog::delete_topic(&self.options) {
            println!("{} stays: {error}", self.name);
        }
    }
}

/// A client that knows nothing of Tally.
pub(crate) fn plain_client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker().to_string());
    config
}

/// Appends without waiting for the outcome.
pub(crate) fn append(log: &dyn EventLog, records: Vec<NewRecord>) -> mpsc::Receiver<Outcomes> {
    let (sender, receiver) = mpsc::channel();
    log.append(records, Box::new(move |outcomes| sender.send(outcomes).unwrap_or(()))).unwrap();
    receiver
}

/// Reads until every position has reached the end as it is now. Returns partition, offset and
/// payload of each record.
pub(crate) fn read_to_end(
    log: &dyn EventLog,
    reader: &mut dyn LogReader,
) -> Vec<(Partition, Offset, Vec<u8>)> {
    let ends = log.end_offsets().unwrap();
    let mut found = Vec::new();
    await_that("the end of the log", || {
        let taken = reader.read(NO_LIMITS, &mut |record| {
            found.push((record.partition, record.offset, record.payload.to_vec()));
        });
        taken.unwrap();
        reader
            .positions()
            .iter()
            .all(|(partition, next)| *next >= ends[usize::try_from(*partition).unwrap()])
    });
    found
}

/// Waits until something is so.
#[expect(clippy::disallowed_methods, reason = "a deadline in real time")]
pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < DEADLINE, "waited in vain for {what}");
        thread::park_timeout(Duration::from_millis(2));
    }
}

pub(crate) fn out_of_range<T>(
    outcome: Result<T, LogError>,
) -> Option<(Partition, Offset, Offset, Offset)> {
    match outcome {
        Err(LogError::OutOfRange { partition, offset, low, end }) => {
            Some((partition, offset, low, end))
        }
        Ok(_) | Err(_) => None,
    }
}

/// Waits for a future of the admin client.
fn wait_for<T>(future: impl Future<Output = KafkaResult<T>>) -> KafkaResult<T> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
