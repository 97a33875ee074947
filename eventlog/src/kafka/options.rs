//! Where the topic is and how to talk to its brokers: the URL of a log in Kafka.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use rdkafka::ClientConfig;

/// What every message about a wrong URL ends with.
const FORM: &str = "kafka://host:port[,host:port]/topic[?setting=value&...]";
/// Most bytes of appends that wait for an acknowledgement, unless the URL says otherwise.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Longest `delivery.timeout.ms`: a later acknowledgement would come after the collector has
/// given up on the append after 30 s (ING-9), and librdkafka looks about once a second.
const DELIVERY_TIMEOUT_MS_MAX: u64 = 28_000;

/// Settings of the client that the log depends on, and why nobody else may set them.
const DECIDED: [(&str, &str); 28] = [
    ("acks", "every record is acknowledged by all replicas"),
    ("request.required.acks", "every record is acknowledged by all replicas"),
    ("enable.idempotence", "the producer is idempotent"),
    ("enable.gapless.guarantee", "the producer is idempotent"),
    ("max.in.flight", "the producer is idempotent"),
    ("max.in.flight.requests.per.connection", "the producer is idempotent"),
    ("retries", "delivery.timeout.ms limits how long a record is tried"),
    ("message.send.max.retries", "delivery.timeout.ms limits how long a record is tried"),
    ("message.timeout.ms", "set delivery.timeout.ms instead"),
    ("message.max.bytes", "it follows from the largest record"),
    ("queue.buffering.max.messages", "set queue.bytes instead"),
    ("queue.buffering.max.kbytes", "set queue.bytes instead"),
    ("transactional.id", "the log needs no transactions"),
    ("partitioner", "the partition of a record follows from its shard"),
    ("isolation.level", "only committed records are read"),
    ("auto.offset.reset", "a reader never jumps"),
    ("enable.auto.commit", "positions are kept in checkpoints"),
    ("auto.commit.enable", "positions are kept in checkpoints"),
    ("enable.auto.offset.store", "positions are kept in checkpoints"),
    ("enable.partition.eof", "a reader must know the end of its partitions"),
    ("group.id", "set mirror.group to name the group that lag tools see"),
    ("group.instance.id", "no consumer joins a group"),
    ("group.protocol", "no consumer joins a group"),
    ("allow.auto.create.topics", "the topic is made with checked settings"),
    ("bootstrap.servers", "it is the host part of the URL"),
    ("metadata.broker.list", "it is the host part of the URL"),
    ("log.queue", "the client's messages go to Tally's log"),
    ("plugin.library.paths", "nothing is loaded into the process"),
];

/// Where a log in Kafka is, and settings of its client.
///
/// No value of a setting is ever shown: passwords are among them.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaOptions {
    pub(super) brokers: String,
    pub(super) topic: String,
    pub(super) mirror_group: String,
    pub(super) queue_bytes_max: usize,
    /// Settings of librdkafka as the URL gives them, by name.
    client: BTreeMap<String, String>,
}

/// Why a URL names no log in Kafka.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; the form is {FORM}")]
pub struct KafkaUrlError {
    what: String,
}

impl KafkaOptions {
    /// Reads `kafka://host:port[,host:port]/topic[?setting=value&…]`.
    ///
    /// A setting is one of librdkafka, as `security.protocol`, or one of these:
    /// `sasl.password_file` names a file that holds the password, `mirror.group` the consumer group
    /// that lag tools see (`tally-` and the topic's name), `queue.bytes` how many bytes of appends
    /// may wait for an acknowledgement. Characters with a meaning in a URL are written as `%26`.
    ///
    /// # Errors
    /// [`KafkaUrlError`] with what does not fit, also for a setting that Tally decides itself.
    pub fn parse(url: &str) -> Result<Self, KafkaUrlError> {
        let rest = url.strip_prefix("kafka://").ok_or_else(|| wrong("it is no kafka URL"))?;
        let (place, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let (brokers, topic) = place.split_once('/').ok_or_else(|| wrong("it has no topic"))?;
        if brokers.contains('@') {
            return Err(wrong(
                "name and password go into sasl.username and sasl.password_file, not before the host",
            ));
        }
        if let Some(broker) = brokers.split(',').find(|broker| !is_broker(broker)) {
            return Err(wrong(format!("`{broker}` is not host:port")));
        }
        if !is_topic(topic) {
            return Err(wrong(format!(
                "`{topic}` is no topic's name: up to 249 letters, digits, `.`, `_` and `-`"
            )));
        }
        let mut options = Self {
            brokers: brokers.to_owned(),
            topic: topic.to_owned(),
            mirror_group: format!("tally-{topic}"),
            queue_bytes_max: QUEUE_BYTES_MAX,
            client: BTreeMap::new(),
        };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| wrong(format!("the setting `{setting}` has no value")))?;
            options.set(name, &decode(name, value)?)?;
        }
        Ok(options)
    }

    /// The topic's name.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The brokers' addresses, with commas between them.
    #[must_use]
    pub fn brokers(&self) -> &str {
        &self.brokers
    }

    /// The URL without its settings.
    #[must_use]
    pub fn address(&self) -> String {
        format!("kafka://{}/{}", self.brokers, self.topic)
    }

    /// What every client of this log is made with.
    pub(super) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("client.id", "tally");
        for (name, value) in &self.client {
            config.set(name, value);
        }
        config.set("bootstrap.servers", &self.brokers);
        config
    }

    /// A setting of the URL, or what Tally takes unless somebody has set it.
    pub(super) fn setting_or<'a>(&'a self, names: &[&str], default: &'a str) -> &'a str {
        names.iter().find_map(|name| self.client.get(*name)).map_or(default, String::as_str)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), KafkaUrlError> {
        if let Some((_, reason)) = DECIDED.iter().find(|(decided, _)| *decided == name) {
            return Err(wrong(format!("{name} cannot be set: {reason}")));
        }
        match name {
            "mirror.group" if value.is_empty() => return Err(wrong("mirror.group has no name")),
            "mirror.group" => value.clone_into(&mut self.mirror_group),
            "queue.bytes" => {
                self.queue_bytes_max = value.parse().map_err(|error| {
                    wrong(format!("queue.bytes is no number of bytes: {error}"))
                })?;
            }
            "sasl.password_file" => {
                self.pass_on("sasl.password", &password(Path::new(value))?)?;
            }
            // To librdkafka, 0 means for ever.
            "delivery.timeout.ms"
                if !value.parse().is_ok_and(|ms| (1..=DELIVERY_TIMEOUT_MS_MAX).contains(&ms)) =>
            {
                return Err(wrong(format!(
                    "{name} is between 1 and {DELIVERY_TIMEOUT_MS_MAX}: collectors wait no longer"
                )));
            }
            _ => self.pass_on(name, value)?,
        }
        Ok(())
    }

    /// A setting of librdkafka, which must know it.
    fn pass_on(&mut self, name: &str, value: &str) -> Result<(), KafkaUrlError> {
        let mut trial = ClientConfig::new();
        trial.set(name, value);
        // What the client says may hold the value.
        trial.create_native_config().map_err(|_with_value| {
            wrong(format!("the Kafka client knows no setting {name} with this value"))
        })?;
        match self.client.insert(name.to_owned(), value.to_owned()) {
            None => Ok(()),
            Some(_) => Err(wrong(format!("{name} is set twice"))),
        }
    }
}

impl fmt::Debug for KafkaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaOptions")
            .field("address", &self.address())
            .field("mirror_group", &self.mirror_group)
            .field("queue_bytes_max", &self.queue_bytes_max)
            .field("settings", &self.client.keys().collect::<Vec<_>>())
            .finish()
    }
}

fn wrong(what: impl Into<String>) -> KafkaUrlError {
    KafkaUrlError { what: what.into() }
}

fn is_broker(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse().is_ok_and(|port: u16| port > 0)
    })
}

fn is_topic(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=249).contains(&text.len()) && text.bytes().all(is_allowed) && ![".", ".."].contains(&text)
}

fn password(path: &Path) -> Result<String, KafkaUrlError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        wrong(format!("cannot read sasl.password_file {}: {error}", path.display()))
    })?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// A value with its `%26` and the like replaced. A `+` stays what it is: passwords have them.
fn decode(name: &str, value: &str) -> Result<String, KafkaUrlError> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || {
            let digit = char::from(rest.next()?).to_digit(16)?;
            u8::try_from(digit).ok()
        };
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push(high << 4 | low),
            _ => return Err(wrong(format!("a % in {name} is not followed by two digits"))),
        }
    }
    String::from_utf8(bytes).map_err(|_not_utf8| wrong(format!("{name} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        KafkaOptions::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn a_url_gives_brokers_topic_and_settings() {
        let options = KafkaOptions::parse(
            "kafka://one:9092,[::1]:9093/events.v1?compression.type=zstd&ssl.ca.location=/etc/ca%26.pem\
             &linger.ms=1&mirror.group=lag&queue.bytes=1000",
        )
        .unwrap();
        assert_eq!(options.address(), "kafka://one:9092,[::1]:9093/events.v1");
        assert_eq!((options.topic(), options.mirror_group.as_str()), ("events.v1", "lag"));
        assert_eq!(options.queue_bytes_max, 1_000);
        let config = options.client_config();
        assert_eq!(config.get("ssl.ca.location"), Some("/etc/ca&.pem"));
        assert_eq!(config.get("bootstrap.servers"), Some("one:9092,[::1]:9093"));
        assert_eq!(options.setting_or(&["compression.type"], "lz4"), "zstd");
        assert_eq!(options.setting_or(&["batch.size"], "7"), "7");
        let plain = KafkaOptions::parse("kafka://one:9092/events").unwrap();
        assert_eq!(plain.mirror_group, "tally-events");
    }

    #[test]
    fn a_url_that_names_no_topic_is_refused_with_the_form() {
        for (url, what) in [
            ("http://one:9092/events", "it is no kafka URL"),
            ("kafka://one:9092", "it has no topic"),
            ("kafka://one:9092/", "`` is no topic's name"),
            ("kafka://one:9092/a/b", "`a/b` is no topic's name"),
            ("kafka:///events", "`` is not host:port"),
            ("kafka://one/events", "`one` is not host:port"),
            ("kafka://one:9092,two/events", "`two` is not host:port"),
            ("kafka://one:0/events", "`one:0` is not host:port"),
            ("kafka://me:secret@one:9092/events", "sasl.username and sasl.password_file"),
            ("kafka://one:9092/events?linger.ms", "`linger.ms` has no value"),
            ("kafka://one:9092/events?linger.ms=soon", "no setting linger.ms with this value"),
            ("kafka://one:9092/events?no.such=1", "no setting no.such"),
            ("kafka://one:9092/events?linger.ms=1&linger.ms=2", "linger.ms is set twice"),
            ("kafka://one:9092/events?delivery.timeout.ms=28001", "is between 1 and 28000"),
            ("kafka://one:9092/events?delivery.timeout.ms=0", "is between 1 and 28000"),
            ("kafka://one:9092/events?mirror.group=", "mirror.group has no name"),
            ("kafka://one:9092/events?client.id=%4", "not followed by two digits"),
            ("kafka://one:9092/events?queue.bytes=many", "no number of bytes"),
        ] {
            let message = refused(url);
            assert!(message.contains(what), "{url}: {message}");
            assert!(message.ends_with(FORM), "{url}: {message}");
            assert!(!message.contains("secret"), "{url}: {message}");
        }
    }

    #[test]
    fn what_the_log_depends_on_cannot_be_set() {
        for (name, reason) in DECIDED {
            let message = refused(&format!("kafka://one:9092/events?{name}=1"));
            assert!(message.contains(&format!("{name} cannot be set: {reason}")), "{message}");
        }
    }

    #[test]
    fn a_password_is_read_from_its_file_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        std::fs::write(&path, "hunter+2\n").unwrap();
        let url = format!("kafka://one:9092/events?sasl.password_file={}", path.display());
        let options = KafkaOptions::parse(&url).unwrap();
        assert_eq!(options.client_config().get("sasl.password"), Some("hunter+2"));
        assert!(!format!("{options:?}").contains("hunter"), "{options:?}");
        assert!(format!("{options:?}").contains("sasl.password"), "{options:?}");
        let twice = format!("{url}&sasl.password=hunter");
        assert!(!refused(&twice).contains("hunter"));
        assert!(refused("kafka://one:9092/events?sasl.password_file=/none").contains("/none"));
        assert!(!refused("kafka://one:9092/events?sasl.mechanisms%=hunter").contains("hunter"));
    }
}
