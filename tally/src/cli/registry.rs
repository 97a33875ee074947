//! Commands about event types, keys and tokens.

use clap::{Subcommand, ValueEnum};

use super::TargetArgs;
use crate::output::Format;

#[derive(Debug, Subcommand)]
pub(crate) enum TypesCommand {
    /// List the registered event types.
    List {
        #[command(flatten)]
        target: TargetArgs,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Register an event type: it counts in its own slot from now on.
    Add {
        /// The name, as clients send it.
        name: String,
        /// Who answers for it.
        #[arg(long)]
        owner: Option<String>,
        /// Its properties may hold personal data.
        #[arg(long)]
        pii: bool,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Mark a type as deprecated: it keeps its slot and still counts, senders are warned.
    Deprecate {
        /// The name.
        name: String,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Undo a deprecation.
    Activate {
        /// The name.
        name: String,
        #[command(flatten)]
        target: TargetArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List keys and tokens. Secrets cannot be shown: only their digests are stored.
    List {
        #[command(flatten)]
        target: TargetArgs,
        /// Form of the answer.
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Make a key or token; its secret is printed once.
    Create {
        /// What it opens.
        #[arg(long, value_enum)]
        kind: KindArg,
        /// What a read token sees: all counts, or only whole hours without their small counts.
        #[arg(long, value_enum, value_name = "SCOPE")]
        scope: Option<ScopeArg>,
        /// What it is for.
        #[arg(long)]
        name: String,
        #[command(flatten)]
        target: TargetArgs,
    },
    /// Revoke a key or token; collectors and query services forget it within ten seconds.
    Revoke {
        /// Its number in `tally keys list`.
        number: u32,
        #[command(flatten)]
        target: TargetArgs,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScopeArg {
    /// Final counts by whole hours, small ones left out.
    Stats,
    /// Exact counts by minute.
    #[value(name = "stats:raw")]
    StatsRaw,
}

impl ScopeArg {
    /// The word of the API.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stats => "stats",
            Self::StatsRaw => "stats:raw",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindArg {
    /// Sends events.
    Write,
    /// Asks for statistics.
    Read,
    /// Manages types and keys.
    Admin,
}
