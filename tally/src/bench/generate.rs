//! `tally bench generate`: a synthetic deployment, and what the naive model says about it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tally_model::bucket::Granularity;
use tally_model::rules::Timing;
use tally_model::time::format_rfc3339;
use tally_model::truth::Truth;
use tally_sinks::marks;
use tally_sinks::registry::NewType;

use crate::cli::{GenerateArgs, SynthArgs};
use crate::clock::SystemClock;
use crate::count::bar;
use crate::deployment::{Deployment, Missing};
use crate::failure::Failure;
use crate::output;
use crate::synth::SynthLog;
use crate::target::load_settings;

pub(super) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let settings = load_settings(args.config.config.as_deref(), |_| Ok(()))?;
    let clock = Arc::new(SystemClock::new());
    let deployment = Deployment::open(&args.data_dir, Missing::Create, &settings, clock)?;
    if !deployment.is_empty()? {
        return Err(Failure::refused(format!(
            "{} already holds events; generate into a new folder",
            args.data_dir.display()
        )));
    }
    let mut truth = args
        .truth
        .as_ref()
        .map(|path| (path, Truth::new(deployment.dedup, settings.pipeline.timing)));
    let written = fill(&deployment, &args.synth, |event| {
        if let Some((_, truth)) = &mut truth {
            truth.append(event);
        }
    })?;
    if let Some((path, truth)) = &truth {
        write_truth(path, truth).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output::line(format!("{written} records written to {}", args.data_dir.display()))
}

/// Fills an empty deployment: types first, then the log; its origin is the first minute.
pub(super) fn fill(
    deployment: &Deployment,
    args: &SynthArgs,
    mut each: impl FnMut(&tally_model::truth::LoggedEvent),
) -> Result<u64, Failure> {
    let names = (1..=args.types).map(|number| NewType::named(type_name(number)));
    for registered in deployment.registry.register_many(&names.collect::<Vec<_>>())? {
        registered?;
    }
    let end_ms =
        Granularity::Minute.floor(deployment.clock.now_ms()) - Timing::DEFAULT.retire_after_ms();
    let log = deployment.event_log()?;
    let target =
        SynthLog { log: log.as_ref(), mixer: &deployment.mixer(), shards: deployment.shards };
    let bar = bar(args.events, "writing");
    let mut first_ms = i64::MAX;
    let written = target.write(args, end_ms, |event| {
        first_ms = first_ms.min(event.event_time_ms);
        bar.inc(1);
        each(event);
    })?;
    bar.finish_and_clear();
    if written > 0 {
        let origin_ms = Granularity::Minute.floor(first_ms);
        marks::set_origin_if_absent(deployment.meta.as_ref(), origin_ms)?;
    }
    Ok(written)
}

fn type_name(number: u16) -> String {
    format!("type_{number:04}")
}

fn write_truth(path: &Path, truth: &Truth) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(file, "minute,eventType,count")?;
    for ((minute, slot), count) in truth.streaming_counts() {
        writeln!(file, "{},{},{count}", format_rfc3339(minute.start_ms()), type_name(slot.0))?;
    }
    file.flush()
}
