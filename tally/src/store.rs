//! `tally store`: the keyspace of counts on ScyllaDB or Cassandra.

use clap::Subcommand;
use serde_json::json;
use tally_sinks::cql::CqlStore;

use crate::cli::ConfigArgs;
use crate::config::CountsPlace;
use crate::deployment::cql_failure;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::target::load_settings;

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Bring the keyspace of counts.url to the layout of this release.
    #[command(
        after_help = "Example:\n  tally store migrate --config tally.toml\n\nStop every process \
                            of the deployment first. The keyspace is made if it is missing; a \
                            migration that broke off is gone on with."
    )]
    Migrate {
        #[command(flatten)]
        config: ConfigArgs,
        /// Form of the report.
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
}

/// `tally store`.
pub(crate) fn store(command: &StoreCommand) -> Result<(), Failure> {
    let StoreCommand::Migrate { config, output } = command;
    let settings = load_settings(config.config.as_deref(), |_| Ok(()))?;
    let CountsPlace::Cql(options) = &settings.counts else {
        return Err(Failure::usage(
            "counts.url names no keyspace, like cql://127.0.0.1:9042/tally; an embedded store has no \
             layout to migrate",
        ));
    };
    let migration = CqlStore::migrate(options).map_err(cql_failure)?;
    if *output == Format::Json {
        return output::json(&json!({ "from": migration.from, "to": migration.to }));
    }
    let address = options.address();
    output::line(if migration.from == migration.to {
        format!("{address} has layout {} already", migration.to)
    } else {
        format!("{address} went from layout {} to {}", migration.from, migration.to)
    })
}
