//! Importing into a running system: the lines are posted to its collector.

use std::time::Duration;

use serde_json::Value;
use tally_model::clock::Clock;
use tally_model::reasons::RejectReason;
use tally_model::time::{format_rfc3339, parse_rfc3339};

use super::lines::Lines;
use super::{LATE_NOTE, Report, UNREADABLE};
use crate::cli::{ImportArgs, ReceivedAtArg};
use crate::clock::SystemClock;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::target::{Place, Role, Target, encode};

/// Events of one request.
const BATCH: usize = 200;
/// Bytes of one request's lines.
const BATCH_BYTES: usize = 512 << 10;
/// A line over this is over any record's limit.
const LINE_BYTES: usize = 1 << 20;
/// How often a request is sent again after 429 or 503, a second apart.
const TRIES: u32 = 60;

/// Posts a file's lines.
///
/// # Errors
/// Exit 5 for `--received-at event-time`, which only works on a stopped, empty deployment.
pub(super) fn import(args: &ImportArgs) -> Result<Report, Failure> {
    if args.received_at == ReceivedAtArg::EventTime {
        return Err(Failure::refused(
            "--received-at event-time works on a stopped, empty deployment: use --data-dir",
        ));
    }
    if args.wait && args.read_token.is_none() {
        return Err(Failure::usage("--wait needs --read-token: a write key cannot ask for counts"));
    }
    let target = Target::open(&args.target, Role::Read)?;
    let mut lines = Lines::open(&args.file)?;
    let mut batch =
        Batch { target: &target, lines: Vec::new(), bytes: 0, report: Report::default() };
    while let Some(line) = lines.next()? {
        match line.text {
            // No collector takes such a request, and it may hang up before it is sent whole.
            Some(text) if text.len() > LINE_BYTES => {
                batch.report.reject(line.number, RejectReason::TooLarge.code());
            }
            // A line that is no JSON document would make its neighbours unreadable.
            Some(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => {
                batch.push(line.number, text)?;
            }
            Some(_) | None => batch.report.reject(line.number, UNREADABLE),
        }
    }
    batch.post()?;
    let report = batch.report;
    output::note(LATE_NOTE);
    if args.wait {
        wait_readable(args)?;
    }
    Ok(report)
}

struct Batch<'a> {
    target: &'a Target,
    lines: Vec<(u64, String)>,
    bytes: usize,
    report: Report,
}

impl Batch<'_> {
    fn push(&mut self, number: u64, text: &str) -> Result<(), Failure> {
        if self.lines.len() == BATCH || self.bytes + text.len() > BATCH_BYTES {
            self.post()?;
        }
        self.bytes += text.len();
        self.lines.push((number, text.to_owned()));
        Ok(())
    }

    fn post(&mut self) -> Result<(), Failure> {
        self.bytes = 0;
        let lines = std::mem::take(&mut self.lines);
        self.post_lines(&lines)
    }

    /// Posts lines; a collector with lower limits gets them in halves.
    fn post_lines(&mut self, lines: &[(u64, String)]) -> Result<(), Failure> {
        if lines.is_empty() {
            return Ok(());
        }
        let texts: Vec<&str> = lines.iter().map(|(_, text)| text.as_str()).collect();
        let body = format!("{{\"events\":[{}]}}", texts.join(","));
        match (self.answer(body.as_bytes())?, lines) {
            (Some(answer), _) => self.take(&answer, lines),
            (None, [(number, _)]) => {
                self.report.reject(*number, RejectReason::TooLarge.code());
                Ok(())
            }
            (None, _) => {
                let (first, second) = lines.split_at(lines.len() / 2);
                self.post_lines(first)?;
                self.post_lines(second)
            }
        }
    }

    fn take(&mut self, answer: &Value, lines: &[(u64, String)]) -> Result<(), Failure> {
        let odd = || Failure::message(Exit::Failed, format!("an answer without counts: {answer}"));
        self.report.accepted += answer["accepted"].as_u64().ok_or_else(odd)?;
        for warned in answer["warned"].as_array().into_iter().flatten() {
            let reason = warned["reason"].as_str().unwrap_or_default();
            self.report.repeats += u64::from(reason == "repeat");
            *self.report.warned.entry(reason.to_owned()).or_default() += 1;
        }
        for rejected in answer["rejected"].as_array().into_iter().flatten() {
            let index = rejected["index"].as_u64().and_then(|index| usize::try_from(index).ok());
            let line = index.and_then(|index| lines.get(index)).map_or(0, |(number, _)| *number);
            self.report.reject(line, rejected["reason"].as_str().unwrap_or_default());
        }
        Ok(())
    }

    /// The collector's answer; `None` if the request is too large for it. A refusal for load and a
    /// lost connection are no failures: the same ids are sent again, which is safe.
    fn answer(&self, body: &[u8]) -> Result<Option<Value>, Failure> {
        let mut lost = None;
        for _ in 0..TRIES {
            match self.target.send("POST", "/v1/events", Some(body)) {
                Ok(answer) => match answer.status {
                    202 => return Ok(Some(serde_json::from_slice(&answer.body)?)),
                    413 => return Ok(None),
                    429 | 503 => lost = None,
                    _ => return Err(answer.failure()),
                },
                Err(failure) => lost = Some(failure),
            }
            // Nothing tells when there is room again; a second is what the refusals ask for.
            std::thread::park_timeout(Duration::from_secs(1));
        }
        Err(lost.unwrap_or_else(|| {
            Failure::message(Exit::NotReady, "the collector refused a batch for a minute")
        }))
    }
}

/// Waits until the present minute is readable.
fn wait_readable(args: &ImportArgs) -> Result<(), Failure> {
    let Place::Running { url, token: _write_key } = Place::of(&args.target)? else {
        return Err(Failure::usage("--wait on a running system needs its --url"));
    };
    let reader = Target::running(&url, args.read_token.clone().unwrap_or_default())?;
    let clock = SystemClock::new();
    let now_ms = clock.now_ms();
    let [start, end] = [now_ms - 120_000, now_ms].map(format_rfc3339);
    let path = format!("/v1/stats/top?start={}&end={}&k=1&snap=true", encode(&start), encode(&end));
    loop {
        let answer: Value = serde_json::from_slice(&reader.ask("GET", &path, None)?)?;
        let until = answer["readableUntil"].as_str().and_then(|at| parse_rfc3339(at).ok());
        if until.is_some_and(|until| until > now_ms) {
            return Ok(());
        }
        if clock.monotonic_ms() > 30 * 60_000 {
            return Err(Failure::message(Exit::NotReady, "the counts were not readable in 30 min"));
        }
        std::thread::park_timeout(Duration::from_secs(1));
    }
}
