//! `tally import`: events of an NDJSON file, judged and sealed by the collector's own rules.

mod lines;
mod remote;
mod sort;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tally_collector::append::{Appender, PendingAppend};
use tally_collector::ingest::{Prepared, Preparer, ReceivedAt, Sender, Verdict};
use tally_collector::parse::parse_event;
use tally_model::bucket::{DAY_MS, Granularity};
use tally_model::reasons::RejectReason;
use tally_model::time::parse_rfc3339;
use tally_privacy::seal::Nonces;
use tally_sinks::marks;
use tally_sinks::registry::NewType;

use crate::cli::{ImportArgs, ReceivedAtArg};
use crate::clock::SystemClock;
use crate::config::Settings;
use crate::count::bar;
use crate::deployment::{Deployment, Missing};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format};
use crate::services;
use crate::target::load_settings;

use lines::Lines;
use sort::{Keyed, Sorter};

/// Memory for sorting; beyond it, sorted runs go to the data folder.
const SORT_BYTES: usize = 256 << 20;
/// Events that are prepared and appended together.
const BATCH: usize = 2_000;
/// Batches that may wait for the log while the next one is prepared.
const IN_FLIGHT: usize = 8;
/// How many bad lines are named one by one.
const NAMED: u64 = 10;

/// `tally import`.
pub(crate) fn import(args: &ImportArgs) -> Result<(), Failure> {
    let report = match (&args.target.data_dir, &args.target.url) {
        (None, Some(_)) => remote::import(args)?,
        (Some(dir), _) => into_folder(dir, args)?,
        (None, None) => {
            return Err(Failure::usage(
                "say where to: --data-dir DIR (stopped), or --url URL and --token WRITE-KEY (running)",
            ));
        }
    };
    report.print(args.output)?;
    if report.rejected.is_empty() {
        return Ok(());
    }
    Err(Failure::message(
        Exit::Failed,
        format!("{} lines were not taken", report.rejected.values().sum::<u64>()),
    ))
}

/// What became of the lines of a file.
#[derive(Debug, Default)]
struct Report {
    accepted: u64,
    repeats: u64,
    warned: BTreeMap<String, u64>,
    rejected: BTreeMap<String, u64>,
    registered: u64,
}

/// The reason of a line that is no JSON at all; an event inside a request cannot have it.
const UNREADABLE: &str = "unreadable";

impl Report {
    fn reject(&mut self, line: u64, reason: &str) {
        if self.rejected.values().sum::<u64>() < NAMED {
            output::note(format!("line {line}: {reason}"));
        }
        *self.rejected.entry(reason.to_owned()).or_default() += 1;
    }

    fn print(&self, format: Format) -> Result<(), Failure> {
        if format == Format::Json {
            return output::json(&json!({
                "accepted": self.accepted,
                "repeats": self.repeats,
                "warned": self.warned,
                "rejected": self.rejected,
                "registered": self.registered,
            }));
        }
        let mut rows = vec![
            vec!["accepted".to_owned(), self.accepted.to_string()],
            vec!["of these repeats".to_owned(), self.repeats.to_string()],
            vec!["types registered".to_owned(), self.registered.to_string()],
        ];
        for (kind, reasons) in [("warned", &self.warned), ("rejected", &self.rejected)] {
            let cells = reasons.iter();
            rows.extend(cells.map(|(reason, n)| vec![format!("{kind}: {reason}"), n.to_string()]));
        }
        output::rows(format, &["events", "number"], &rows)
    }
}

fn into_folder(dir: &Path, args: &ImportArgs) -> Result<Report, Failure> {
    let settings = load_settings(args.target.config.config.as_deref(), |_| Ok(()))?;
    let mut lines = Lines::open(&args.file)?;
    let clock = Arc::new(SystemClock::new());
    let deployment = Deployment::open(dir, Missing::Create, &settings, clock)?;
    if args.received_at == ReceivedAtArg::Now {
        deployment.set_origin()?;
        let stamp = || ReceivedAt::Now(deployment.clock.now_ms());
        let mut importer = Importer::new(&deployment, &settings)?;
        while let Some(line) = lines.next()? {
            importer.push(line.number, line.text, &stamp)?;
        }
        let report = importer.finish(&stamp)?;
        output::note(
            "receivedAt is the time of the import: events older than the allowed lateness are \
             late; they rest in the log and wait for a recount",
        );
        return Ok(report);
    }
    if !deployment.is_empty()? {
        return Err(Failure::refused(format!(
            "--received-at event-time needs an empty deployment, and {} already holds events",
            dir.display()
        )));
    }
    let scan = Scan::read(lines)?;
    let registered = if args.no_register { 0 } else { scan.register(&deployment)? };
    scan.set_origin(&deployment)?;
    let mut report = by_event_time(&scan, args, &deployment, &settings)?;
    report.registered = registered;
    Ok(report)
}

/// Imports with receivedAt := eventTime, in order of time.
fn by_event_time(
    scan: &Scan,
    args: &ImportArgs,
    deployment: &Deployment,
    settings: &Settings,
) -> Result<Report, Failure> {
    let now_ms = deployment.clock.now_ms();
    let stamp = || ReceivedAt::EventTime { now_ms };
    let mut importer = Importer::new(deployment, settings)?;
    let mut lines = Lines::open(&args.file)?;
    let bar = bar(scan.lines, "importing");
    if scan.is_sorted {
        while let Some(line) = lines.next()? {
            importer.push(line.number, line.text, &stamp)?;
            bar.inc(1);
        }
    } else {
        let mut sorter = Sorter::new(&deployment.dir, SORT_BYTES);
        let mut time_ms = i64::MIN;
        while let Some(line) = lines.next()? {
            // A line without a time keeps its place; it is rejected with its reason later.
            let text = line.text.unwrap_or("");
            time_ms = Peek::of(text).time_ms.unwrap_or(time_ms);
            sorter.push(Keyed { time_ms, number: line.number, text: text.to_owned() })?;
        }
        let mut sorted = sorter.finish()?;
        while let Some(line) = sorted.next()? {
            importer.push(line.number, Some(&line.text), &stamp)?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    importer.finish(&stamp)
}

/// What a first look at a file finds.
#[derive(Debug)]
struct Scan {
    lines: u64,
    is_sorted: bool,
    first_ms: Option<i64>,
    /// Names of event types in order of first appearance.
    types: Vec<String>,
}

impl Scan {
    fn read(mut lines: Lines) -> Result<Self, Failure> {
        let mut scan = Self { lines: 0, is_sorted: true, first_ms: None, types: Vec::new() };
        let mut known = HashSet::new();
        let mut last_ms = i64::MIN;
        while let Some(line) = lines.next()? {
            scan.lines += 1;
            let peek = Peek::of(line.text.unwrap_or(""));
            if let Some(time_ms) = peek.time_ms {
                scan.is_sorted &= last_ms <= time_ms;
                last_ms = time_ms;
                scan.first_ms = Some(scan.first_ms.map_or(time_ms, |first| first.min(time_ms)));
            }
            if let Some(name) = peek.event_type
                && !known.contains(name.as_ref())
            {
                known.insert(name.clone().into_owned());
                scan.types.push(name.into_owned());
            }
        }
        Ok(scan)
    }

    /// Registers the file's types. Names that no registry takes stay out: their events are rejected
    /// with their reason.
    fn register(&self, deployment: &Deployment) -> Result<u64, Failure> {
        let before = deployment.registry.snapshot();
        let new: Vec<NewType> = self
            .types
            .iter()
            .filter(|name| before.get(name).is_none())
            .filter(|name| tally_model::types::normal_name(name, 128).is_ok())
            .map(|name| NewType::named(name.clone()))
            .collect();
        let registered = deployment.registry.register_many(&new)?;
        let count = registered.len();
        for outcome in registered {
            outcome.map_err(|error| Failure::new(Exit::Refused, error))?;
        }
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }

    /// The first event's minute, or the 90 days that events may be old, whichever is later.
    fn set_origin(&self, deployment: &Deployment) -> Result<(), Failure> {
        let now_ms = deployment.clock.now_ms();
        let first_ms = self.first_ms.unwrap_or(now_ms).clamp(now_ms - 90 * DAY_MS, now_ms);
        let minute_ms = Granularity::Minute.floor(first_ms);
        marks::set_origin_if_absent(deployment.meta.as_ref(), minute_ms)?;
        marks::lower_origin(deployment.meta.as_ref(), minute_ms)?;
        Ok(())
    }
}

/// The two fields that ordering and registering need.
#[derive(Debug, Default)]
struct Peek<'a> {
    event_type: Option<std::borrow::Cow<'a, str>>,
    time_ms: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PeekFields<'a> {
    #[serde(borrow, default)]
    event_type: Option<&'a RawValue>,
    #[serde(borrow, default)]
    event_time: Option<&'a RawValue>,
}

impl<'a> Peek<'a> {
    /// Reads what is readable; everything else is judged when the line is prepared.
    fn of(line: &'a str) -> Self {
        let Ok(fields) = serde_json::from_str::<PeekFields<'a>>(line) else {
            return Self::default();
        };
        let text = |value: &'a RawValue| serde_json::from_str::<String>(value.get()).ok();
        let time_ms = fields.event_time.and_then(|value| match text(value) {
            Some(written) => parse_rfc3339(&written).ok(),
            None => value.get().parse().ok(),
        });
        Self { event_type: fields.event_type.and_then(text).map(Into::into), time_ms }
    }
}

/// Prepares lines in batches and appends them, a few batches ahead of the log.
struct Importer {
    preparer: Arc<Preparer>,
    appender: Appender,
    nonces: Nonces,
    lines: Vec<(u64, String)>,
    in_flight: VecDeque<Waiting>,
    report: Report,
}

/// A batch that the log has not confirmed yet.
struct Waiting {
    pending: PendingAppend,
    /// Line and verdict, in the order of the batch.
    verdicts: Vec<(u64, Verdict)>,
    /// Index in `verdicts` of each record.
    of_record: Vec<usize>,
}

impl Importer {
    fn new(deployment: &Deployment, settings: &Settings) -> Result<Self, Failure> {
        let metrics = Arc::new(tally_collector::metrics::Metrics::default());
        let preparer = services::preparer(deployment, settings)?;
        // One process, one look: the ledger cannot change while this folder is locked.
        preparer.ledger.poll()?;
        Ok(Self {
            appender: services::appender(deployment, metrics)?,
            preparer,
            nonces: Nonces::from_os()?,
            lines: Vec::with_capacity(BATCH),
            in_flight: VecDeque::with_capacity(IN_FLIGHT),
            report: Report::default(),
        })
    }

    fn push(
        &mut self,
        number: u64,
        text: Option<&str>,
        stamp: &dyn Fn() -> ReceivedAt,
    ) -> Result<(), Failure> {
        match text {
            Some(text) => self.lines.push((number, text.to_owned())),
            None => self.report.reject(number, UNREADABLE),
        }
        if self.lines.len() == BATCH { self.flush(stamp()) } else { Ok(()) }
    }

    fn flush(&mut self, stamp: ReceivedAt) -> Result<(), Failure> {
        let lines = std::mem::take(&mut self.lines);
        let mut numbers = Vec::with_capacity(lines.len());
        let mut events = Vec::with_capacity(lines.len());
        for (number, text) in &lines {
            match parse_event(text, &self.preparer.limits) {
                Ok(event) => {
                    numbers.push(*number);
                    events.push(event);
                }
                Err(_syntax) => self.report.reject(*number, UNREADABLE),
            }
        }
        if events.is_empty() {
            return Ok(());
        }
        // The copy of the ledger grows old during a long import; this folder is locked, so that a
        // fresh look costs nothing and finds what it found before.
        self.preparer.ledger.poll()?;
        let prepared =
            self.preparer.prepare(events, stamp, &Sender::default(), &mut self.nonces)?;
        self.queue(prepared, &numbers)
    }

    fn queue(&mut self, mut prepared: Prepared<'_>, numbers: &[u64]) -> Result<(), Failure> {
        let of_record = prepared.indexes().to_vec();
        let records = std::mem::take(&mut prepared.records);
        let verdicts: Vec<(u64, Verdict)> = numbers
            .iter()
            .zip(&prepared.answers)
            .map(|(number, answer)| (*number, answer.verdict))
            .collect();
        if self.in_flight.len() == IN_FLIGHT {
            self.confirm_oldest()?;
        }
        let pending = self.appender.append(records)?;
        self.in_flight.push_back(Waiting { pending, verdicts, of_record });
        Ok(())
    }

    fn confirm_oldest(&mut self) -> Result<(), Failure> {
        let Some(waiting) = self.in_flight.pop_front() else { return Ok(()) };
        let mut verdicts = waiting.verdicts;
        for position in waiting.pending.wait_blocking()? {
            let index = waiting.of_record.get(position).copied();
            if let Some((_, verdict)) = index.and_then(|index| verdicts.get_mut(index)) {
                *verdict = Verdict::Rejected(RejectReason::TooLarge);
            }
        }
        for (number, verdict) in verdicts {
            match verdict {
                Verdict::Rejected(reason) => self.report.reject(number, reason.code()),
                Verdict::Accepted(warnings) => {
                    self.report.accepted += 1;
                    self.report.repeats += u64::from(warnings.is_repeat());
                    for reason in warnings.iter() {
                        let code = reason.code().to_owned();
                        *self.report.warned.entry(code).or_default() += 1;
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, stamp: &dyn Fn() -> ReceivedAt) -> Result<Report, Failure> {
        self.flush(stamp())?;
        while !self.in_flight.is_empty() {
            self.confirm_oldest()?;
        }
        Ok(self.report)
    }
}
