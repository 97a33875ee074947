//! Tally: exact counts of tracking events per event type and minute.
//!
//! One binary; every role and every operator command is a subcommand. This crate wires the others
//! together and holds what only a program has: the command line, the configuration, the system's
//! clock, signals and exit codes.

mod admin;
mod admin_api;
mod ask;
mod bench;
mod checkpoints;
mod cli;
mod clock;
mod config;
mod count;
mod counting;
mod dedup;
mod demo;
mod deployment;
mod failure;
mod import;
mod keys_api;
mod late;
mod logging;
mod node;
mod output;
mod process;
mod roles;
mod rollup;
mod savepoint;
mod serve;
mod services;
mod start;
mod store;
mod synth;
mod target;
mod torture;
mod units;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command, ConfigArgs, ConfigCommand};
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::roles::Role;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::note(format!("tally: {:#}", failure.error));
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Up(args) => roles::up(args),
        Command::Collector(args) => roles::service(Role::Collector, args),
        Command::Worker(args) => count::worker(args),
        Command::Query(args) => roles::service(Role::Query, args),
        Command::Import(args) => import::import(args),
        Command::Dedup(args) => dedup::dedup(args),
        Command::Top(args) => ask::top(args),
        Command::Series(args) => ask::series(args),
        Command::Types(command) => ask::types(command),
        Command::Keys(command) => ask::keys(command),
        Command::Late(command) => late::late(command),
        Command::Config(ConfigCommand::Check(args)) => check_config(args),
        Command::Config(ConfigCommand::Show { config, output }) => show_config(config, *output),
        Command::Checkpoints(command) => checkpoints::checkpoints(command),
        Command::Savepoint(args) => savepoint::savepoint(args),
        Command::Rollup(args) => rollup::rollup(args),
        Command::Store(command) => store::store(command),
        Command::Torture(args) => torture::torture(args),
        Command::Bench(command) => bench::bench(command),
    }
}

fn check_config(args: &ConfigArgs) -> Result<(), Failure> {
    target::load_settings(args.config.as_deref(), |_| Ok(()))?;
    output::line("the configuration is valid")
}

fn show_config(args: &ConfigArgs, format: output::Format) -> Result<(), Failure> {
    let layers = target::load_layers(args.config.as_deref(), |_| Ok(()))?;
    let rows: Vec<Vec<String>> = layers
        .all()
        .map(|(key, value, origin)| vec![key.to_owned(), value.to_string(), origin.to_string()])
        .collect();
    output::rows(format, &["setting", "value", "origin"], &rows)?;
    Settings::check(&layers).map_err(|error| Failure::new(Exit::Usage, error))?;
    Ok(())
}
