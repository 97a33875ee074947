//! Support for the end-to-end tests: real processes of the real binary, talked to as users do.
//!
//! Nothing here knows the inside of Tally but the log's format, which one test reads directly to
//! see what a crash left. Every wait is for a thing, with a deadline.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    reason = "support for tests: a failure is a panic, and real processes run on real time"
)]

pub mod servers;

use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a test waits for something that must happen.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// The binary under test: `TALLY_BIN`, or the one beside this test in the target folder.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TALLY_BIN") {
        return PathBuf::from(path);
    }
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join("tally");
    assert!(path.exists(), "{} is missing: cargo build --release -p tally", path.display());
    path
}

/// The binary, without what the environment of whoever runs the tests would add.
fn command() -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("TALLY_") {
            command.env_remove(name);
        }
    }
    command
}

/// What a finished command left.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; -1 after a signal.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs the binary to its end.
pub fn tally(args: &[&str]) -> Finished {
    tally_with(&[], args)
}

fn finished(command: &mut Command) -> Finished {
    let output = command.output().unwrap();
    Finished {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs the binary to its end with variables in its environment.
pub fn tally_with(variables: &[(&str, &str)], args: &[&str]) -> Finished {
    let mut command = command();
    command.envs(variables.iter().copied()).args(args).stdin(Stdio::null());
    finished(&mut command)
}

/// Runs the binary and insists on exit code 0.
pub fn tally_ok(args: &[&str]) -> String {
    let finished = tally(args);
    assert_eq!(finished.code, 0, "tally {args:?}: {}", finished.stderr);
    finished.stdout
}

/// Calls `probe` until it gives something.
///
/// # Panics
/// If nothing came within [`DEADLINE`].
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "{what} did not happen within {DEADLINE:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A running `tally up`.
#[derive(Debug)]
pub struct Node {
    child: Child,
    /// Address of collector and query API.
    pub url: String,
    /// Address of the admin port.
    pub admin: String,
    /// The bootstrap write key.
    pub write_key: String,
    /// The bootstrap read token.
    pub read_token: String,
    /// The bootstrap admin token.
    pub admin_token: String,
    log: PathBuf,
}

impl Node {
    /// Starts a node on `dir` with settings `KEY=VALUE` (`pipeline.lateness=1s`) and waits until it
    /// is ready. Its logs go to `dir`'s sibling `NAME.log`.
    pub fn start(dir: &Path, settings: &[(&str, &str)], flags: &[&str]) -> Self {
        Self::role("up", dir, settings, flags)
    }

    /// The same for a process of one role: `collector`, `worker`, `query`. Its logs go to
    /// `NAME.ROLE.log`; one that serves nothing has an empty `url`.
    pub fn role(role: &str, dir: &Path, settings: &[(&str, &str)], flags: &[&str]) -> Self {
        let of_role = |kind: &str| match role {
            "up" => dir.with_extension(kind),
            role => dir.with_extension(format!("{role}.{kind}")),
        };
        let (ready, log) = (of_role("ready"), of_role("log"));
        drop(std::fs::remove_file(&ready));
        let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let mut child = Self::spawn(role, dir, &ready, settings, flags, file);
        let answer: Value = wait_for("the ready file", || {
            if let Some(status) = child.try_wait().unwrap() {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                panic!("the node ended at its start with {status}: {log}");
            }
            serde_json::from_slice(&std::fs::read(&ready).ok()?).ok()
        });
        let field = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        Self {
            child,
            url: field("url"),
            admin: field("admin"),
            write_key: field("writeKey"),
            read_token: field("readToken"),
            admin_token: field("adminToken"),
            log,
        }
    }

    fn spawn(
        role: &str,
        dir: &Path,
        ready: &Path,
        settings: &[(&str, &str)],
        flags: &[&str],
        log: std::fs::File,
    ) -> Child {
        let mut command = command();
        command.arg(role);
        if role != "worker" {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command
            .args(["--admin", "127.0.0.1:0", "--data-dir"])
            .arg(dir)
            .arg("--ready-file")
            .arg(ready)
            .args(flags)
            .envs(settings.iter().map(|(key, value)| (variable(key), *value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        command.spawn().unwrap()
    }

    /// Starts a node that ends by itself; returns its exit code and all that it said.
    pub fn refused(dir: &Path, settings: &[(&str, &str)], flags: &[&str]) -> (Option<i32>, String) {
        let log = dir.with_extension("refused");
        let file = std::fs::File::create(&log).unwrap();
        let ready = dir.with_extension("ready");
        let mut child = Self::spawn("up", dir, &ready, settings, flags, file);
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() && started.elapsed() < DEADLINE {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        drop(child.kill());
        (child.wait().unwrap().code(), std::fs::read_to_string(&log).unwrap())
    }

    /// Waits until the node has ended by itself.
    pub fn ended(mut self) -> ExitStatus {
        wait_for("the end of the node", || self.child.try_wait().unwrap())
    }

    /// A number of `/metrics`, by its name with labels as it stands there; 0 if it is not there.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        let metrics = self.metrics();
        let mut lines = metrics.lines().filter_map(|line| line.rsplit_once(' '));
        lines.find(|(of, _)| *of == name).map_or(0.0, |(_, value)| value.parse().unwrap())
    }

    /// Everything that the node printed and logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, then waits for the end.
    pub fn terminate(mut self) -> ExitStatus {
        self.signal("TERM");
        wait_for("the end of the node", || self.child.try_wait().unwrap())
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Sends a request with a token and returns status, headers of interest and body.
    pub fn request(&self, method: &str, path: &str, token: &str, body: Option<&str>) -> Reply {
        request(&format!("{}{path}", self.url), method, Some(token), body).unwrap()
    }

    /// Posts a body to `/v1/events`.
    pub fn post(&self, body: &str) -> Reply {
        self.request("POST", "/v1/events", &self.write_key, Some(body))
    }

    /// Asks for JSON with the read token and insists on 200.
    #[must_use]
    pub fn get(&self, path: &str) -> Value {
        let reply = self.request("GET", path, &self.read_token, None);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        serde_json::from_str(&reply.body).unwrap()
    }

    /// Registers event types.
    pub fn register(&self, names: &[&str]) {
        for name in names {
            let body = serde_json::json!({ "name": name }).to_string();
            let reply = self.request("POST", "/v1/event-types", &self.admin_token, Some(&body));
            assert!(matches!(reply.status, 200 | 201), "{name}: {}", reply.body);
        }
    }

    /// Waits until every minute before `until_ms` is readable.
    pub fn wait_readable(&self, until_ms: i64) {
        let end = time(until_ms);
        let start = time(until_ms - 60_000);
        let path = format!("/v1/stats/top?start={start}&end={end}&k=1");
        wait_for("readable minutes", || {
            let answer = self.get(&path);
            let at = answer["readableUntil"].as_str()?;
            (tally_model::time::parse_rfc3339(at).unwrap() >= until_ms).then_some(())
        });
    }

    /// Metrics as text.
    #[must_use]
    pub fn metrics(&self) -> String {
        request(&format!("{}/metrics", self.admin), "GET", None, None).unwrap().body
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A node that a test has not stopped itself is in the way of the next one.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The environment variable of a setting.
#[must_use]
pub fn variable(key: &str) -> String {
    format!("TALLY__{}", key.to_uppercase().replace('.', "__"))
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Content-Type, ETag and Retry-After where present.
    pub headers: BTreeMap<String, String>,
    /// The body as text.
    pub body: String,
}

impl Reply {
    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Sends one request; `None` if nobody answers.
#[must_use]
pub fn request(url: &str, method: &str, token: Option<&str>, body: Option<&str>) -> Option<Reply> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(DEADLINE))
        .build()
        .into();
    let mut request = ureq::http::Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut response = agent.run(request.body(body.unwrap_or_default()).unwrap()).ok()?;
    let headers = response
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()))
        .collect();
    Some(Reply {
        status: response.status().as_u16(),
        headers,
        body: response.body_mut().with_config().limit(1 << 30).read_to_string().ok()?,
    })
}

/// Now, in ms since the Unix epoch.
#[must_use]
pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// An instant as a query parameter.
#[must_use]
pub fn time(at_ms: i64) -> String {
    tally_model::time::format_rfc3339(at_ms)
}

/// One JSON event.
#[must_use]
pub fn event(id: &str, event_type: &str, event_time_ms: i64) -> Value {
    serde_json::json!({
        "eventId": id,
        "eventType": event_type,
        "userId": "someone",
        "eventTime": time(event_time_ms),
        "properties": {"page": "/start"},
    })
}

/// A fresh random event id.
#[must_use]
pub fn fresh_id() -> String {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}

/// Counts by (minute, type) as the HTTP API tells them, through one series a type and stretch of at
/// most 10,000 minutes. Zeros are left out.
#[must_use]
pub fn counts_by_minute(
    node: &Node,
    types: &[String],
    start_ms: i64,
    end_ms: i64,
) -> BTreeMap<(i64, String), u64> {
    const STRETCH_MS: i64 = 10_000 * 60_000;
    let mut counts = BTreeMap::new();
    let mut from = start_ms;
    // Stretch by stretch, so that the node reads each one's rows once.
    while from < end_ms {
        let to = (from + STRETCH_MS).min(end_ms);
        for name in types {
            let path = format!(
                "/v1/stats/series?type={name}&start={}&end={}&granularity=minute&format=csv",
                time(from),
                time(to)
            );
            let reply = node.request("GET", &path, &node.read_token, None);
            assert_eq!(reply.status, 200, "{path}: {}", reply.body);
            let points = reply.body.lines().skip(1);
            assert_eq!(i64::try_from(points.clone().count()).unwrap(), (to - from) / 60_000);
            for line in points {
                let (at, rest) = line.split_once(',').unwrap();
                let count: u64 = rest.split(',').next().unwrap().parse().unwrap();
                if count > 0 {
                    let minute_ms = tally_model::time::parse_rfc3339(at).unwrap();
                    counts.insert((minute_ms, name.clone()), count);
                }
            }
        }
        from = to;
    }
    counts
}

/// Says something to whoever reads the tests' output.
pub fn note(text: &str) {
    let mut out = std::io::stderr().lock();
    writeln!(out, "{text}").unwrap();
}

/// Copies a folder with everything in it.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Reads a `.gz` or `.zst` file line by line.
pub fn read_lines(path: &Path, mut each: impl FnMut(&str)) {
    let file = std::fs::File::open(path).unwrap();
    let reader: Box<dyn Read> = match path.extension().and_then(|e| e.to_str()) {
        Some("gz") => Box::new(flate2::read::MultiGzDecoder::new(file)),
        Some("zst") => Box::new(zstd::Decoder::new(file).unwrap()),
        _ => Box::new(file),
    };
    for line in std::io::BufReader::with_capacity(1 << 20, reader).lines() {
        each(&line.unwrap());
    }
}

/// Writes lines to a file.
pub fn write_lines<S: AsRef<str>>(path: &Path, lines: impl IntoIterator<Item = S>) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    for line in lines {
        writeln!(file, "{}", line.as_ref()).unwrap();
    }
    file.flush().unwrap();
}
