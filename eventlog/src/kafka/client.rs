//! What all clients of one log share: settings, and where librdkafka's messages go.

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::{ClientConfig, statistics::Statistics};

use super::options::KafkaOptions;
use crate::LogError;

/// Bytes that a batch of one record takes beside its key and payload, at most.
pub(super) const RECORD_OVERHEAD_BYTES: usize = 128;
/// A batch larger than this helps no codec.
const BATCH_BYTES_MAX: usize = 1_000_000;

/// Hands librdkafka's messages to `tracing`.
#[derive(Debug)]
pub(super) struct Messages;

impl Messages {
    fn write(level: RDKafkaLogLevel, facility: &str, message: &str) {
        // Every kind of client gets all settings of the URL; it says which of them are not for it.
        let level = if facility == "CONFWARN" { RDKafkaLogLevel::Debug } else { level };
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(facility, "kafka client: {message}");
            }
            // A broker that cannot be reached is one too: the client tries again by itself.
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => {
                tracing::warn!(facility, "kafka client: {message}");
            }
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
                tracing::info!(facility, "kafka client: {message}");
            }
            RDKafkaLogLevel::Debug => tracing::debug!(facility, "kafka client: {message}"),
        }
    }
}

impl ClientContext for Messages {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        Self::write(level, facility, message);
    }

    fn stats(&self, _statistics: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for Messages {
    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::warn!(%error, "cannot show lag tools how far the log was read");
        }
    }
}

/// An error that concerns a whole client. It goes on trying by itself.
pub(super) fn log_error(error: &KafkaError, reason: &str) {
    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::PartitionEOF) {
        return;
    }
    tracing::debug!(%error, reason, "kafka client");
}

/// Settings of a reader and of the client that asks for offsets.
pub(super) fn consumer_config(options: &KafkaOptions) -> ClientConfig {
    let mut config = options.client_config();
    // librdkafka wants a group before it takes an assignment; nothing ever joins it.
    config
        .set("group.id", &options.mirror_group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true")
        .set("allow.auto.create.topics", "false");
    for (name, default) in [
        // Costs nothing that can be measured.
        ("check.crcs", "true"),
        // One request covers all partitions of a broker: one that has just been added waits for it.
        ("fetch.wait.max.ms", "100"),
        ("fetch.message.max.bytes", "4194304"),
        ("fetch.queue.backoff.ms", "5"),
        ("queued.min.messages", "200000"),
        ("queued.max.messages.kbytes", "65536"),
        ("socket.nagle.disable", "true"),
        ("reconnect.backoff.max.ms", "2000"),
    ] {
        config.set(name, options.setting_or(&[name], default));
    }
    config
}

/// Settings of the producer, for records of at most so many bytes and a topic that takes batches of
/// at most `batch_bytes_max`.
pub(super) fn producer_config(
    options: &KafkaOptions,
    record_bytes_max: usize,
    batch_bytes_max: usize,
) -> ClientConfig {
    let mut config = options.client_config();
    let message_bytes = record_bytes_max.saturating_add(RECORD_OVERHEAD_BYTES);
    config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("message.max.bytes", message_bytes.max(1_000).to_string())
        // The log's own queue is the bound.
        .set("queue.buffering.max.messages", "0")
        .set("queue.buffering.max.kbytes", "2147483647");
    for (names, default) in [
        (&["delivery.timeout.ms"] as &[&str], "25000"),
        (&["compression.type", "compression.codec"], "lz4"),
        (&["linger.ms", "queue.buffering.max.ms"], "5"),
        // A batch that the topic refuses would fail all its records.
        (&["batch.size"], BATCH_BYTES_MAX.min(batch_bytes_max).to_string().as_str()),
        (&["socket.nagle.disable"], "true"),
        (&["reconnect.backoff.max.ms"], "2000"),
    ] {
        if let Some(name) = names.first() {
            for alias in names {
                config.remove(alias);
            }
            config.set(*name, options.setting_or(names, default));
        }
    }
    config
}

/// The client could not be made.
pub(super) fn cannot_make(action: &'static str) -> impl FnOnce(KafkaError) -> LogError {
    move |error| LogError::Client { action, reason: reason(&error) }
}

/// A broker did not answer or refused.
pub(super) fn unavailable(action: &'static str) -> impl FnOnce(KafkaError) -> LogError {
    move |error| LogError::Unavailable { action, reason: reason(&error) }
}

/// What an error says, without the values of settings.
pub(super) fn reason(error: &KafkaError) -> String {
    match (error, error.rdkafka_error_code()) {
        (KafkaError::ClientConfig(_, _, name, _), _) => {
            format!("the client does not take the setting {name}")
        }
        (_, Some(code)) => code.to_string(),
        (error, None) => error.to_string(),
    }
}
