//! `tally import`: events of an NDJSON file, judged and sealed by the collector's own rules.

mod importer;
mod lines;
mod remote;
mod scan;
mod sort;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tally_collector::ingest::ReceivedAt;
use tally_sinks::marks;

use crate::checkpoints;
use crate::cli::{ImportArgs, ReceivedAtArg};
use crate::clock::SystemClock;
use crate::config::Settings;
use crate::count::{self, bar};
use crate::deployment::{Deployment, Missing};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format};
use crate::start::Start;
use crate::target::{Place, load_settings};

use importer::Importer;
use lines::Lines;
use scan::{Peek, Scan};
use sort::{Keyed, Sorter};

/// Memory for sorting; beyond it, sorted runs go to the data folder.
const SORT_BYTES: usize = 256 << 20;
/// How many bad lines are named one by one.
const NAMED: u64 = 10;

/// `tally import`.
pub(crate) fn import(args: &ImportArgs) -> Result<(), Failure> {
    let report = match Place::of(&args.target)? {
        Place::Running { .. } => remote::import(args)?,
        Place::Folder(dir) => into_folder(&dir, args)?,
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

/// What an import with receivedAt = now must say until late events are recounted.
const LATE_NOTE: &str = "receivedAt is the time of the import: events older than the allowed \
                         lateness are late; they rest in the log and wait for a recount";

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
    let lines = Lines::open(&args.file)?;
    let clock = Arc::new(SystemClock::new());
    let deployment = Deployment::open(dir, Missing::Create, &settings, clock)?;
    let report = match args.received_at {
        ReceivedAtArg::Now => as_of_now(lines, &deployment, &settings)?,
        ReceivedAtArg::EventTime => history(lines, args, &deployment, &settings)?,
    };
    if args.wait {
        count::bounded(&deployment, &settings, &Start::default())?;
    }
    Ok(report)
}

fn as_of_now(
    mut lines: Lines,
    deployment: &Deployment,
    settings: &Settings,
) -> Result<Report, Failure> {
    deployment.set_origin()?;
    let stamp = || ReceivedAt::Now(deployment.clock.now_ms());
    let mut importer = Importer::new(deployment, settings)?;
    while let Some(line) = lines.next()? {
        importer.push(line.number, line.text, &stamp)?;
    }
    let report = importer.finish(&stamp)?;
    output::note(LATE_NOTE);
    Ok(report)
}

/// Imports what happened before this deployment was there.
fn history(
    lines: Lines,
    args: &ImportArgs,
    deployment: &Deployment,
    settings: &Settings,
) -> Result<Report, Failure> {
    if !deployment.is_empty()? {
        return Err(Failure::refused(format!(
            "--received-at event-time needs an empty deployment, and {} already holds events; if \
             an import broke off, remove the folder and import again",
            deployment.dir.display()
        )));
    }
    let scan = Scan::read(lines)?;
    let registered = if args.no_register {
        0
    } else {
        scan.register(deployment, settings.collector.limits.type_bytes)?
    };
    scan.set_origin(deployment)?;
    // What an earlier start has seen of the present must not make history late.
    marks::forget_progress(deployment.meta.as_ref())?;
    checkpoints::forget(&deployment.dir, settings)?;
    let mut report = by_event_time(&scan, args, deployment, settings)?;
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
