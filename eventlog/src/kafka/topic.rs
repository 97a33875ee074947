//! The topic itself: made, grown, deleted, and checked for settings that lose records.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rdkafka::admin::{
    AdminClient, AdminOptions, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};

use super::KafkaDemands;
use super::client::{Messages, RECORD_OVERHEAD_BYTES, cannot_make, reason, unavailable};
use super::options::KafkaOptions;
use super::watermarks::{ANSWER, Watermarks};
use crate::convert::to_index;
use crate::{LogError, Partition};

/// Replicas that a topic must have, and of these in sync for an append.
const REPLICAS: usize = 3;
const IN_SYNC: usize = 2;
/// How long a change of a topic may take.
const CHANGE: Duration = Duration::from_secs(15);
/// Most questions whether a new topic is there, [`PAUSE`] apart.
const LOOKS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(50);

/// What is there.
pub(super) struct Topic {
    pub(super) partitions: Partition,
    /// Largest batch that the topic takes, if the broker tells.
    pub(super) batch_bytes_max: Option<usize>,
}

/// A topic's shape as the brokers tell it.
struct Shape {
    partitions: usize,
    replicas: usize,
    brokers: usize,
    /// Whether every partition has a leader.
    is_led: bool,
}

/// Makes the topic if there is none, and checks its settings.
pub(super) fn open(
    options: &KafkaOptions,
    demands: &KafkaDemands,
    watermarks: &Watermarks,
) -> Result<Topic, LogError> {
    let mut shape = look(watermarks, options.topic())?;
    if shape.partitions == 0 {
        make(options, demands, shape.brokers)?;
        shape =
            await_partitions(watermarks, options.topic(), to_index(demands.partitions_to_create))?;
    }
    let partitions = Partition::try_from(shape.partitions).unwrap_or(Partition::MAX);
    if let Some(needed) = demands.partitions.filter(|needed| partitions < *needed) {
        return Err(LogError::Foreign {
            path: PathBuf::from(options.address()),
            what: format!(
                "the topic has {partitions} partitions, the deployment's layout {needed}"
            ),
        });
    }
    let settings = settings(options);
    let mut failing: Vec<String> = failing_shape(&shape).into_iter().collect();
    let mut batch_bytes_max = None;
    match &settings {
        Ok(settings) => {
            failing.extend(failing_settings(settings, demands));
            batch_bytes_max =
                number(settings, "max.message.bytes").and_then(|max| usize::try_from(max).ok());
        }
        Err(error) => failing.push(format!("its settings cannot be read ({})", reason(error))),
    }
    accept(options, demands, failing)?;
    Ok(Topic { partitions, batch_bytes_max })
}

/// Makes a topic with these settings.
///
/// # Errors
/// [`LogError::Unavailable`] as the broker says.
pub(super) fn create(
    options: &KafkaOptions,
    partitions: Partition,
    replicas: usize,
    settings: &[(&str, &str)],
) -> Result<(), LogError> {
    let replication = TopicReplication::Fixed(i32::try_from(replicas).unwrap_or(i32::MAX));
    let number = i32::try_from(partitions).unwrap_or(i32::MAX);
    let new = NewTopic::new(options.topic(), number, replication);
    let new = settings.iter().fold(new, |new, (name, value)| new.set(name, value));
    let made = wait_for(admin(options)?.create_topics([&new], &change()));
    match first(made) {
        // Another process of the same deployment was faster.
        Err(KafkaError::AdminOp(RDKafkaErrorCode::TopicAlreadyExists)) => Ok(()),
        made => made.map_err(unavailable("make the topic")),
    }
}

/// Removes a topic with everything in it.
pub(super) fn delete(options: &KafkaOptions) -> Result<(), LogError> {
    let deleted = wait_for(admin(options)?.delete_topics(&[options.topic()], &change()));
    first(deleted).map_err(unavailable("delete the topic"))
}

/// Raises the number of partitions, and waits until the brokers tell of them.
pub(super) fn grow(options: &KafkaOptions, partitions: Partition) -> Result<(), LogError> {
    let watermarks = Watermarks::new(options)?;
    if look(&watermarks, options.topic())?.partitions >= to_index(partitions) {
        return Ok(());
    }
    let new = NewPartitions::new(options.topic(), to_index(partitions));
    let grown = wait_for(admin(options)?.create_partitions([&new], &change()));
    first(grown).map_err(unavailable("add partitions to the topic"))?;
    await_partitions(&watermarks, options.topic(), to_index(partitions)).map(|_shape| ())
}

/// Waits until every partition has a leader.
fn await_partitions(
    watermarks: &Watermarks,
    topic: &str,
    partitions: usize,
) -> Result<Shape, LogError> {
    for _ in 0..LOOKS {
        let shape = look(watermarks, topic)?;
        if shape.partitions >= partitions && shape.is_led {
            return Ok(shape);
        }
        // Nothing comes from there; it is a wait that serves the client.
        if let Some(Err(error)) = watermarks.client().poll(PAUSE) {
            super::client::log_error(&error, "while a topic is made");
        }
    }
    Err(LogError::Unavailable {
        action: "make the topic",
        reason: format!("the brokers do not tell of its {partitions} partitions"),
    })
}

/// The topic as the brokers tell it now; no partitions if there is no such topic.
fn look(watermarks: &Watermarks, topic: &str) -> Result<Shape, LogError> {
    const ACTION: &str = "ask for the topic";
    let metadata =
        watermarks.client().fetch_metadata(Some(topic), ANSWER).map_err(unavailable(ACTION))?;
    let brokers = metadata.brokers().len();
    let missing = Shape { partitions: 0, replicas: 0, brokers, is_led: false };
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(missing);
    };
    match found.error().map(RDKafkaErrorCode::from) {
        None => {}
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
            return Ok(missing);
        }
        Some(code) => return Err(unavailable(ACTION)(KafkaError::MetadataFetch(code))),
    }
    let partitions = found.partitions();
    let replicas = partitions.iter().map(|partition| partition.replicas().len()).min().unwrap_or(0);
    let is_led = partitions.iter().all(|partition| partition.leader() >= 0);
    Ok(Shape { partitions: partitions.len(), replicas, brokers, is_led })
}

fn make(options: &KafkaOptions, demands: &KafkaDemands, brokers: usize) -> Result<(), LogError> {
    let replicas = REPLICAS.min(brokers);
    if replicas < REPLICAS {
        let few = format!(
            "the cluster has {brokers} brokers, needed are {REPLICAS} for as many replicas"
        );
        accept(options, demands, vec![few])?;
    }
    let message_bytes = demands.record_bytes_max.saturating_add(RECORD_OVERHEAD_BYTES);
    create(
        options,
        demands.partitions_to_create,
        replicas,
        &[
            ("cleanup.policy", "delete"),
            ("retention.ms", &demands.retention_ms_to_create.to_string()),
            ("retention.bytes", "-1"),
            ("unclean.leader.election.enable", "false"),
            ("min.insync.replicas", &IN_SYNC.min(replicas).to_string()),
            // Retention counts from the append, whatever a producer's clock shows.
            ("message.timestamp.type", "LogAppendTime"),
            ("max.message.bytes", &message_bytes.max(1 << 20).to_string()),
        ],
    )
}

fn failing_shape(shape: &Shape) -> Option<String> {
    let replicas = shape.replicas;
    (replicas < REPLICAS)
        .then(|| format!("its replication factor is {replicas}, needed is at least {REPLICAS}"))
}

fn failing_settings(settings: &BTreeMap<String, String>, demands: &KafkaDemands) -> Vec<String> {
    let message_bytes = demands.record_bytes_max.saturating_add(RECORD_OVERHEAD_BYTES);
    let at_least = |name, needed: usize| {
        let is_enough = number(settings, name)
            .is_some_and(|value| usize::try_from(value).is_ok_and(|value| value >= needed));
        (!is_enough).then(|| (name, format!("at least {needed}")))
    };
    let keeps_ms = number(settings, "retention.ms");
    let retention_is_enough = keeps_ms.is_some_and(|ms| ms < 0 || ms > demands.retention_ms_min);
    let keeps_bytes = number(settings, "retention.bytes").is_some_and(|bytes| bytes < 0);
    let elects_safely =
        settings.get("unclean.leader.election.enable").is_none_or(|value| value == "false");
    let deletes = settings.get("cleanup.policy").is_some_and(|policy| policy == "delete");
    [
        at_least("min.insync.replicas", IN_SYNC),
        (!retention_is_enough)
            .then(|| ("retention.ms", format!("more than {}", demands.retention_ms_min))),
        (!keeps_bytes).then(|| ("retention.bytes", "-1 (no limit)".to_owned())),
        (!deletes).then(|| ("cleanup.policy", "delete".to_owned())),
        (!elects_safely).then(|| ("unclean.leader.election.enable", "false".to_owned())),
        at_least("max.message.bytes", message_bytes),
    ]
    .into_iter()
    .flatten()
    .map(|(name, needed)| {
        let value = settings.get(name).map_or("unknown", String::as_str);
        format!("{name} is {value}, needed is {needed}")
    })
    .collect()
}

/// Refuses a topic that fails, or warns of it.
fn accept(
    options: &KafkaOptions,
    demands: &KafkaDemands,
    failing: Vec<String>,
) -> Result<(), LogError> {
    if failing.is_empty() {
        return Ok(());
    }
    if !demands.accept_settings {
        return Err(LogError::Settings { topic: options.topic().to_owned(), failing });
    }
    for failing in failing {
        tracing::warn!(topic = options.topic(), "accepted, but not safe: {failing}");
    }
    Ok(())
}

fn settings(options: &KafkaOptions) -> KafkaResult<BTreeMap<String, String>> {
    let admin = options.client_config().create_with_context::<_, AdminClient<_>>(Messages)?;
    let topic = ResourceSpecifier::Topic(options.topic());
    let described = wait_for(
        admin.describe_configs([&topic], &AdminOptions::new().request_timeout(Some(ANSWER))),
    )?;
    let resource = described.into_iter().next().ok_or(KafkaError::NoMessageReceived)?;
    let resource = resource.map_err(KafkaError::AdminOp)?;
    Ok(resource.entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))).collect())
}

fn number(settings: &BTreeMap<String, String>, name: &str) -> Option<i64> {
    settings.get(name)?.parse().ok()
}

fn admin(options: &KafkaOptions) -> Result<AdminClient<Messages>, LogError> {
    options
        .client_config()
        .create_with_context(Messages)
        .map_err(cannot_make("make an admin client"))
}

fn change() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(CHANGE)).operation_timeout(Some(CHANGE))
}

/// The outcome of a change of one topic.
fn first(outcome: KafkaResult<Vec<Result<String, (String, RDKafkaErrorCode)>>>) -> KafkaResult<()> {
    let topic = outcome?.into_iter().next().ok_or(KafkaError::NoMessageReceived)?;
    topic.map(|_topic| ()).map_err(|(_topic, code)| KafkaError::AdminOp(code))
}

/// Waits for a future of the admin client, which has a thread of its own and a time limit.
fn wait_for<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
