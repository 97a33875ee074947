//! `tally bench count`: the pipeline over the embedded log, each row with all stages before it.

use std::sync::Arc;

use serde_json::json;
use tally_dataflow::{CountOptions, CountParts, CountProgress, Mode, Stages};
use tally_eventlog::{EventLog, ReadLimits};

use super::{Row, generate, measure, print};
use crate::cli::BenchCountArgs;
use crate::clock::SystemClock;
use crate::config::Settings;
use crate::count;
use crate::deployment::{Deployment, Missing};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::start::Start;
use crate::target::load_settings;

pub(super) fn run(args: &BenchCountArgs) -> Result<(), Failure> {
    let workers = i64::from(args.workers);
    let settings =
        load_settings(None, |layers| layers.add_flag("--workers", "pipeline.workers", workers))?;
    let folder = tempfile::tempdir()?;
    let clock = Arc::new(SystemClock::new());
    let deployment = Deployment::open(folder.path(), Missing::Create, &settings, clock)?;
    output::note(format!("writing {} records into {}", args.synth.events, folder.path().display()));
    let mut rows = vec![measure("generate", || generate::fill(&deployment, &args.synth, |_| {}))?];
    rows.extend(stages(&deployment, &settings, args.workers)?);
    print("count", &rows, args.output)
}

/// Reads the deployment's log again and again, each time with one stage more.
pub(super) fn stages(
    deployment: &Deployment,
    settings: &Settings,
    workers: u16,
) -> Result<Vec<Row>, Failure> {
    let log = deployment.event_log()?;
    let mut rows = vec![measure("raw", || raw(log.as_ref(), usize::from(workers)))?];
    for (name, stages, checkpoints) in [
        ("decode", Stages::Decode, false),
        ("dedup", Stages::Dedup, false),
        ("count", Stages::All, false),
        ("checkpoints", Stages::All, true),
    ] {
        let mut options = count::options(deployment, settings, Mode::Bounded, &Start::default());
        options.stages = stages;
        let progress = Arc::new(CountProgress::default());
        let start = Start::default();
        let mut parts = count::parts(deployment, settings, &start, progress, Arc::default())?;
        if !checkpoints {
            parts.checkpoints = None;
        }
        rows.push(stage(name, parts, options)?);
    }
    Ok(rows)
}

fn stage(name: &'static str, parts: CountParts, options: CountOptions) -> Result<Row, Failure> {
    let progress = Arc::clone(&parts.progress);
    let checkpoints = parts.checkpoints.is_some();
    let mut more = serde_json::Map::new();
    let mut row: Row = measure(name, || {
        let report = tally_dataflow::run(parts, options).map_err(count::failure)?;
        more.insert("counted".to_owned(), json!(report.totals.counted));
        more.insert("repeats".to_owned(), json!(report.totals.repeats));
        if checkpoints {
            more.insert("checkpoints".to_owned(), json!(progress.checkpoints().written()));
            let bytes = progress.checkpoints().bytes();
            more.insert("checkpoint_bytes".to_owned(), json!(bytes));
        }
        Ok(report.totals.records)
    })?;
    row.more = more;
    Ok(row)
}

/// Reads every record and does nothing with it: the ceiling of the log.
fn raw(log: &dyn EventLog, workers: usize) -> Result<u64, Failure> {
    const LIMITS: ReadLimits = ReadLimits { records: 10_000, bytes: 4 << 20 };
    let ends = log.end_offsets()?;
    let read_share = |worker: usize| -> Result<u64, Failure> {
        let share: Vec<_> =
            (0..log.partitions()).map(|p| (p, 0)).skip(worker).step_by(workers).collect();
        let mut reader = log.reader(&share)?;
        let mut sum = 0_u64;
        let mut records = 0;
        let done = |positions: &[(u32, u64)]| {
            positions.iter().all(|(p, at)| ends.get(*p as usize).is_none_or(|end| at >= end))
        };
        while !done(&reader.positions()) {
            reader.read(LIMITS, &mut |record| {
                records += 1;
                sum = sum.wrapping_add(u64::from(record.payload.last().copied().unwrap_or(0)));
            })?;
        }
        std::hint::black_box(sum);
        Ok(records)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..workers).map(|worker| scope.spawn(move || read_share(worker))).collect();
        let mut records = 0;
        for thread in threads {
            records += thread
                .join()
                .map_err(|_panic| Failure::message(Exit::Failed, "a reading thread panicked"))??;
        }
        Ok(records)
    })
}
