//! Where the keyspace is and how to talk to its servers: the URL of a CQL store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scylla::frame::types::{Consistency, SerialConsistency};

/// What every message about a wrong URL ends with.
const FORM: &str = "cql://host:port[,host:port]/keyspace[?setting=value&...]";
const SETTINGS: &str = "replication, read_consistency, write_consistency, serial_consistency, user, \
                        password_file, tls, ca, timeout";

/// Where a keyspace is, and how to use it. The password is never shown.
#[derive(Clone)]
pub struct CqlOptions {
    pub(super) hosts: Vec<String>,
    pub(super) keyspace: String,
    /// Replicas of a keyspace that has to be made; `None` = three, or one on fewer than three nodes.
    pub(super) replication: Option<u8>,
    pub(super) read: Consistency,
    pub(super) write: Consistency,
    pub(super) serial: SerialConsistency,
    pub(super) login: Option<(String, String)>,
    pub(super) tls: Tls,
    pub(super) timeout: Duration,
}

/// Whether connections are encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tls {
    Off,
    /// The servers' certificates are checked against this file, or what the system trusts.
    On(Option<PathBuf>),
}

/// Why a URL names no CQL store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; the form is {FORM}")]
pub struct CqlUrlError {
    what: String,
}

fn wrong(what: impl Into<String>) -> CqlUrlError {
    CqlUrlError { what: what.into() }
}

impl CqlOptions {
    /// Reads `cql://host:port[,host:port]/keyspace[?setting=value&…]`.
    ///
    /// Settings: `replication` (replicas in each data centre of a keyspace that has to be made),
    /// `read_consistency` and `write_consistency` (`LOCAL_QUORUM`), `serial_consistency`
    /// (`LOCAL_SERIAL`), `user` and `password_file`, `tls` (`true` or `false`) and `ca` (a file of
    /// certificates), `timeout` of a request in seconds (`5s`).
    ///
    /// # Errors
    /// [`CqlUrlError`] with what does not fit.
    pub fn parse(url: &str) -> Result<Self, CqlUrlError> {
        let rest = url.strip_prefix("cql://").ok_or_else(|| wrong("it is no cql URL"))?;
        let (place, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, keyspace) = place.split_once('/').ok_or_else(|| wrong("it has no keyspace"))?;
        if hosts.contains('@') {
            return Err(wrong("name and password go into user and password_file"));
        }
        if let Some(host) = hosts.split(',').find(|host| !is_host(host)) {
            return Err(wrong(format!("`{host}` is not host:port")));
        }
        if !is_keyspace(keyspace) {
            return Err(wrong(format!(
                "`{keyspace}` is no keyspace's name: up to 48 lowercase letters, digits and `_`, a \
                 letter first"
            )));
        }
        let mut options = Self {
            hosts: hosts.split(',').map(str::to_owned).collect(),
            keyspace: keyspace.to_owned(),
            replication: None,
            read: Consistency::LocalQuorum,
            write: Consistency::LocalQuorum,
            serial: SerialConsistency::LocalSerial,
            login: None,
            tls: Tls::Off,
            timeout: Duration::from_secs(5),
        };
        let (mut user, mut password) = (None, None);
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| wrong(format!("the setting `{setting}` has no value")))?;
            match name {
                "user" => user = Some(value.to_owned()),
                "password_file" => password = Some(read_password(Path::new(value))?),
                _ => options.set(name, value)?,
            }
        }
        options.login = match (user, password) {
            (Some(user), Some(password)) => Some((user, password)),
            (None, None) => None,
            _ => return Err(wrong("user and password_file go together")),
        };
        Ok(options)
    }

    /// The URL without its settings.
    #[must_use]
    pub fn address(&self) -> String {
        format!("cql://{}/{}", self.hosts.join(","), self.keyspace)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), CqlUrlError> {
        let refuse = |allowed: &str| wrong(format!("{name} = {value} is not allowed: {allowed}"));
        match name {
            "replication" => {
                let replicas = value.parse().ok().filter(|replicas| (1..=9).contains(replicas));
                self.replication = Some(replicas.ok_or_else(|| refuse("a number from 1 to 9"))?);
            }
            "read_consistency" => self.read = consistency(value).ok_or_else(|| refuse(LEVELS))?,
            "write_consistency" => self.write = consistency(value).ok_or_else(|| refuse(LEVELS))?,
            "serial_consistency" => {
                self.serial = match value {
                    "SERIAL" => SerialConsistency::Serial,
                    "LOCAL_SERIAL" => SerialConsistency::LocalSerial,
                    _ => return Err(refuse("SERIAL, LOCAL_SERIAL")),
                }
            }
            "tls" => match value {
                "true" if self.tls == Tls::Off => self.tls = Tls::On(None),
                "true" => {}
                "false" => self.tls = Tls::Off,
                _ => return Err(refuse("true, false")),
            },
            "ca" => self.tls = Tls::On(Some(PathBuf::from(value))),
            "timeout" => {
                let seconds = value.strip_suffix('s').and_then(|seconds| seconds.parse().ok());
                let seconds = seconds.filter(|seconds| (1..=60).contains(seconds));
                let seconds: u64 = seconds.ok_or_else(|| refuse("1s to 60s"))?;
                self.timeout = Duration::from_secs(seconds);
            }
            _ => return Err(wrong(format!("there is no setting {name}; there are {SETTINGS}"))),
        }
        Ok(())
    }
}

impl fmt::Debug for CqlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqlOptions").field("address", &self.address()).finish_non_exhaustive()
    }
}

const LEVELS: &str = "ONE, LOCAL_ONE, QUORUM, LOCAL_QUORUM, EACH_QUORUM, ALL";

fn consistency(name: &str) -> Option<Consistency> {
    Some(match name {
        "ONE" => Consistency::One,
        "LOCAL_ONE" => Consistency::LocalOne,
        "QUORUM" => Consistency::Quorum,
        "LOCAL_QUORUM" => Consistency::LocalQuorum,
        "EACH_QUORUM" => Consistency::EachQuorum,
        "ALL" => Consistency::All,
        _ => return None,
    })
}

fn is_host(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse().is_ok_and(|port: u16| port > 0)
    })
}

/// Such a name needs no quotes in CQL.
fn is_keyspace(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=48).contains(&text.len())
        && text.bytes().all(is_allowed)
        && text.starts_with(|first: char| first.is_ascii_lowercase())
}

fn read_password(path: &Path) -> Result<String, CqlUrlError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| wrong(format!("cannot read password_file {}: {error}", path.display())))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_how() {
        let options = CqlOptions::parse(
            "cql://one:9042,two:9043/tally?replication=2&read_consistency=LOCAL_ONE&timeout=7s&tls=true",
        )
        .unwrap();
        assert_eq!(options.address(), "cql://one:9042,two:9043/tally");
        assert_eq!(options.replication, Some(2));
        assert_eq!(
            (options.read, options.write),
            (Consistency::LocalOne, Consistency::LocalQuorum)
        );
        assert_eq!(options.timeout, Duration::from_secs(7));
        assert_eq!(options.tls, Tls::On(None));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (url, want) in [
            ("http://one:9042/tally", "no cql URL"),
            ("cql://one:9042", "no keyspace"),
            ("cql://one/tally", "`one` is not host:port"),
            ("cql://u:p@one:9042/tally", "user and password_file"),
            ("cql://one:9042/Tally", "`Tally` is no keyspace's name"),
            ("cql://one:9042/tally?colour=red", "there is no setting colour"),
            ("cql://one:9042/tally?replication=0", "1 to 9"),
            ("cql://one:9042/tally?read_consistency=ANY", "LOCAL_QUORUM"),
            ("cql://one:9042/tally?serial_consistency=QUORUM", "LOCAL_SERIAL"),
            ("cql://one:9042/tally?user=me", "go together"),
            ("cql://one:9042/tally?timeout=0s", "1s to 60s"),
            ("cql://one:9042/tally?tls", "has no value"),
        ] {
            let error = CqlOptions::parse(url).unwrap_err().to_string();
            assert!(error.contains(want) && error.contains("the form is"), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_is_read_from_its_file_and_never_shown() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, b"s3cret\n").unwrap();
        let url = format!("cql://one:1/t?user=me&password_file={}", file.path().display());
        let options = CqlOptions::parse(&url).unwrap();
        assert_eq!(options.login, Some(("me".to_owned(), "s3cret".to_owned())));
        assert!(!format!("{options:?}").contains("s3cret"));
    }
}
