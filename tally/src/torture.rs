//! `tally torture`: whether counts survive what can happen to a process.
//!
//! Each seed is a deployment of its own in a scratch folder. A client posts a seeded stream with
//! repeats, disorder and late events; the node is killed again and again, at random and at named
//! points, and started with another number of workers each time; the counts store goes away for a
//! while; a reader watches that no count ever falls. At the end every count is held against the
//! naive model, which reads the log and nothing else.
//!
//! The nodes are this program, with the settings scaled to seconds. Named crash points are made by
//! [`faults`] at the seams to the stores.

mod child;
mod compare;
mod faults;
mod line;
mod log;
mod meddle;
mod outage;
mod report;
mod schedule;
mod servers;
mod traffic;
mod trial;
mod verify;
mod watcher;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use tally_model::clock::Clock;

use crate::clock::SystemClock;
use crate::count;
use crate::deployment;
use crate::failure::{Exit, Failure};
use crate::output::{self, Format};

pub(crate) use faults::{FaultArgs, Faults};
use schedule::Schedule;
use servers::ServerArgs;
use trial::Outcome;

pub(crate) const HELP: &str = "\
Examples:
  tally torture
  tally torture --seeds 20 --kills 10
  tally torture --seeds 1 --first-seed 7 --dir ./scratch --keep -o json
  tally torture --log kafka://127.0.0.1:19092/torture --counts cql://127.0.0.1:19042/torture
  tally torture --log kafka://127.0.0.1:19092/torture --counts cql://127.0.0.1:19042/torture \
      --services scripts/services

With --log and --counts the deployments rest on these servers; with --services the servers are killed
as well, in turns and under load, which ends whatever else runs on them.

A seed with ten kills takes about two minutes, and some longer with servers that die. The schedule and the events are drawn from the seed;
when exactly a kill comes also depends on the machine.

Exit code 0 only if nothing differs.";

#[derive(Args, Debug)]
pub(crate) struct TortureArgs {
    /// How many seeds are tried, one after another.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
    /// The first seed; the others follow it. Even ones have 8 log partitions, odd ones 5 or 7.
    #[arg(long, value_name = "S", default_value_t = 1)]
    first_seed: u64,
    /// How often the node is killed in each seed.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u16).range(1..=1_000))]
    kills: u16,
    #[command(flatten)]
    servers: ServerArgs,
    /// Folder for the deployments, one subfolder each; without it a temporary one.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the deployments that passed, too; those that differ always stay.
    #[arg(long)]
    keep: bool,
    /// Makes the deployments wrong, to see that it is found.
    #[arg(long, value_enum, hide = true)]
    fault: Option<KnownFault>,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl TortureArgs {
    /// What makes another run like this one, whatever the seed.
    fn again(&self) -> String {
        format!("--kills {}{}", self.kills, self.servers.again())
    }

    fn check(&self) -> Result<(), Failure> {
        if self.servers.services.is_some() && self.servers.has() == (false, false) {
            return Err(Failure::usage(
                "--services kills servers, but no server is named: add --log or --counts",
            ));
        }
        Ok(())
    }
}

/// A fault that the harness has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KnownFault {
    /// The row of one minute has an event too few.
    Miscount,
}

/// `tally torture`.
pub(crate) fn torture(args: &TortureArgs) -> Result<(), Failure> {
    args.check()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (scratch, is_ours) = match &args.dir {
        Some(dir) => (dir.clone(), !dir.exists()),
        None => (temporary_folder()?, true),
    };
    let bar = count::bar(u64::from(args.seeds) * u64::from(args.kills), "kills");
    let mut outcomes = Vec::new();
    for seed in (args.first_seed..).take(usize::try_from(args.seeds).unwrap_or(usize::MAX)) {
        let outcome = one_seed(args, seed, &scratch, &clock, &|| bar.inc(1))?;
        bar.suspend(|| report::seed(&outcome, args.output))?;
        outcomes.push(outcome);
    }
    bar.finish_and_clear();
    if is_ours {
        // This fails, as it should, while a deployment is kept in it.
        drop(std::fs::remove_dir(&scratch));
    }
    report::all(&outcomes, &args.again(), args.output)?;
    match outcomes.iter().filter(|outcome| !outcome.differences.is_empty()).count() {
        0 => Ok(()),
        seeds => Err(Failure::message(
            Exit::Failed,
            format!(
                "{seeds} of {} seeds differ; their folders are kept in {}",
                outcomes.len(),
                scratch.display()
            ),
        )),
    }
}

fn temporary_folder() -> Result<PathBuf, Failure> {
    let folder = tempfile::Builder::new().prefix("tally-torture-").tempdir();
    Ok(folder.context("cannot make a temporary folder")?.keep())
}

/// Runs one seed in a folder of its own, which goes if the seed passed.
fn one_seed(
    args: &TortureArgs,
    seed: u64,
    scratch: &Path,
    clock: &Arc<dyn Clock>,
    killed: &dyn Fn(),
) -> Result<Outcome, Failure> {
    let folder = scratch.join(format!("seed-{seed}"));
    if folder.exists() {
        return Err(Failure::refused(format!(
            "{} is there already; remove it or choose another folder with --dir",
            folder.display()
        )));
    }
    let schedule = Schedule::of(seed, args.kills);
    let servers = args.servers.of_seed(seed, u32::from_ne_bytes(deployment::random()?))?;
    let mut settings = schedule.settings();
    settings.extend(servers.settings());
    let site = child::Site::make(&folder, schedule::variables(settings))?;
    match args.fault {
        Some(KnownFault::Miscount) => site.faults.set(faults::MISCOUNT, Some(""))?,
        None => {}
    }
    let outcome = trial::run(&schedule, &site, &args.servers, clock, killed)?;
    if outcome.differences.is_empty() && !args.keep {
        servers.remove()?;
        std::fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    } else if output::is_watched() {
        let mut kept = vec![folder.display().to_string()];
        kept.extend(servers.addresses());
        output::note(format!("seed {seed} is kept: {}", kept.join(", ")));
    }
    Ok(outcome)
}
