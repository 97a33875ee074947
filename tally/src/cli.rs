//! The command line: what can be asked for, with examples.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::output::Format;
use crate::start::StartArgs;
use crate::units::duration_argument;

mod registry;

pub(crate) use registry::{KeysCommand, KindArg, TypesCommand};

/// Exact event counts per type and minute: events in over HTTP, top-K out in milliseconds.
#[derive(Debug, Parser)]
#[command(name = "tally", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed or different, 2 usage, 3 not found, \
                          4 not ready or pending, 5 refused.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run every role in one process on the embedded log and store.
    #[command(after_help = "Examples:\n  tally up --demo\n  tally up --data-dir /var/lib/tally \
                            --listen 0.0.0.0:8080\n  TALLY__PIPELINE__WORKERS=2 tally up")]
    Up(UpArgs),
    /// Take events over HTTP and append them to the log; needs a log of its own server.
    #[command(after_help = "Example:\n  tally collector --config tally.toml --data-dir \
                            /var/lib/tally --listen 0.0.0.0:8080\n\nlog.url and counts.url must \
                            name servers: an embedded log or store belongs to one process, tally up.")]
    Collector(ServiceArgs),
    /// Count the log: for as long as it runs, or to its present end.
    #[command(after_help = "Examples:\n  tally worker --config tally.toml --data-dir \
                            /var/lib/tally\n  tally worker --bounded --data-dir ./data\n  tally \
                            worker --bounded --workers 4 -o json\n\nWith --bounded, exit code 1 if \
                            any event was late, a straggler or past the dedup window; the counts \
                            are put all the same.")]
    Worker(WorkerArgs),
    /// Answer questions over HTTP; needs a counts store of its own server.
    #[command(after_help = "Example:\n  tally query --config tally.toml --data-dir \
                            /var/lib/tally --listen 127.0.0.1:8081")]
    Query(ServiceArgs),
    /// Take events from an NDJSON file (plain, .gz or .zst).
    #[command(after_help = "Examples:\n  tally import events.ndjson.gz --data-dir ./data \
                            --received-at event-time\n  tally import more.ndjson --url \
                            http://127.0.0.1:8080 --token tw_...\n\nOn a live system receivedAt is \
                            now, so events older than the allowed lateness are late: they rest \
                            in the log and wait for a recount.")]
    Import(ImportArgs),
    /// Write the first copy of each event of NDJSON lines: a file or standard input.
    #[command(after_help = crate::dedup::HELP)]
    Dedup(crate::dedup::DedupArgs),
    /// The event types with the highest counts in [start, end).
    #[command(after_help = "Examples:\n  tally top --last 1h --url http://127.0.0.1:8080 --token \
                            tr_...\n  tally top --start 2026-03-01T00:00:00Z --end \
                            2026-03-02T00:00:00Z -k 5 --data-dir ./data -o csv")]
    Top(TopArgs),
    /// The counts of one event type over time.
    #[command(after_help = "Example:\n  tally series page_view --last 2h --granularity minute \
                            --data-dir ./data -o csv")]
    Series(SeriesArgs),
    /// The registry of event types.
    #[command(subcommand)]
    Types(TypesCommand),
    /// Write keys, read tokens and admin tokens.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Events that came too late to be counted.
    #[command(subcommand)]
    Late(crate::late::LateCommand),
    /// Look at the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Checkpoints and savepoints.
    #[command(subcommand, after_help = crate::checkpoints::HELP)]
    Checkpoints(crate::checkpoints::CheckpointsCommand),
    /// Make a checkpoint now and keep it under a name.
    #[command(after_help = crate::savepoint::HELP)]
    Savepoint(crate::savepoint::SavepointArgs),
    /// Fold minutes into hours and hours into days.
    #[command(after_help = crate::rollup::HELP)]
    Rollup(crate::rollup::RollupArgs),
    /// The keyspace of counts on ScyllaDB or Cassandra.
    #[command(subcommand)]
    Store(crate::store::StoreCommand),
    /// Kill a deployment again and again and compare its counts with a model.
    #[command(after_help = crate::torture::HELP)]
    Torture(crate::torture::TortureArgs),
    /// Measure.
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// Where settings come from.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ConfigArgs {
    /// Read settings from this TOML file; `tally config show` lists all.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// What a process of the deployment is started with, whatever its role.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProcessArgs {
    /// Folder of the deployment: embedded log and store, master key, ids, checkpoints; made if it is
    /// missing.
    #[arg(long, value_name = "DIR", default_value = "data")]
    pub(crate) data_dir: PathBuf,
    /// Address of /livez, /readyz and /metrics; port 0 = any.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9090")]
    pub(crate) admin: String,
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Write URLs and keys to this file (0600) once everything is ready.
    #[arg(long, value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ServiceArgs {
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
    /// Address of the HTTP service; port 0 = any.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,
}

#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
    #[command(flatten)]
    pub(crate) demo: DemoArgs,
    /// Worker threads of the dataflow.
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<u16>,
    #[command(flatten)]
    pub(crate) start: StartArgs,
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DemoArgs {
    /// Send a realistic stream of events to the own collector, with short delays.
    #[arg(long)]
    pub(crate) demo: bool,
    /// Seed of the demo's stream.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "demo")]
    pub(crate) demo_seed: u64,
    /// Events per second of the demo.
    #[arg(long, value_name = "N", default_value_t = 500, requires = "demo",
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) demo_rate: u32,
}

#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// Count to the present end of the log, put every window, and stop.
    #[arg(long, conflicts_with_all = ["admin", "ready_file"])]
    pub(crate) bounded: bool,
    #[command(flatten)]
    pub(crate) process: ProcessArgs,
    /// Worker threads of the dataflow.
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<u16>,
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Form of the report of a bounded run.
    #[arg(short, long, value_enum, default_value_t, requires = "bounded")]
    pub(crate) output: Format,
}

/// Which deployment a command works on: a data folder, or a running system.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct TargetArgs {
    /// A data folder that no process has open.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["url", "token"])]
    pub(crate) data_dir: Option<PathBuf>,
    /// Address of a running system, like http://127.0.0.1:8080; without --data-dir also TALLY_URL.
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// A key or token of the running system; without --data-dir also TALLY_TOKEN.
    #[arg(long)]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// NDJSON: one event a line, `{"eventId","eventType","userId","eventTime","properties"}`.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// What receivedAt becomes; event-time only works on an empty deployment.
    #[arg(long, value_enum, default_value_t = ReceivedAtArg::Now)]
    pub(crate) received_at: ReceivedAtArg,
    /// Leave types that the registry lacks unregistered: they are counted as `__other`.
    #[arg(long)]
    pub(crate) no_register: bool,
    /// Wait until the counts are readable; on a running system this needs --read-token.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Token that --wait asks with; a write key cannot ask.
    #[arg(long)]
    pub(crate) read_token: Option<String>,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReceivedAtArg {
    /// The time of the import.
    Now,
    /// The event's own time: history is counted as if it had arrived when it happened.
    EventTime,
}

/// A range of time.
#[derive(Args, Clone, Debug)]
pub(crate) struct RangeArgs {
    /// First instant, RFC 3339 with an offset.
    #[arg(long, required_unless_present = "last", requires = "end")]
    pub(crate) start: Option<String>,
    /// First instant after the range.
    #[arg(long, requires = "start")]
    pub(crate) end: Option<String>,
    /// The last whole minutes instead, like 1h or 7d.
    #[arg(long, value_name = "DURATION", value_parser = duration_argument, conflicts_with = "start")]
    pub(crate) last: Option<i64>,
    /// Widen bounds to whole buckets instead of refusing them.
    #[arg(long)]
    pub(crate) snap: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) range: RangeArgs,
    /// How many event types.
    #[arg(short, default_value_t = 10)]
    pub(crate) k: u16,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Args, Debug)]
pub(crate) struct SeriesArgs {
    /// Name of the event type.
    #[arg(value_name = "TYPE")]
    pub(crate) event_type: String,
    #[command(flatten)]
    pub(crate) range: RangeArgs,
    /// Width of a point: minute, hour or day.
    #[arg(long, default_value = "minute")]
    pub(crate) granularity: String,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the settings and say what is wrong.
    Check(ConfigArgs),
    /// Show every setting with its value and where it comes from.
    Show {
        #[command(flatten)]
        config: ConfigArgs,
        /// Form of the list.
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// The counting pipeline over an embedded log, stage by stage.
    #[command(after_help = "Example:\n  tally bench count --events 5000000 --workers 2 -o json")]
    Count(BenchCountArgs),
    /// The counting pipeline over a topic of its own, with the plain Kafka client beside it.
    #[command(
        after_help = "Examples:\n  tally bench kafka --events 5000000 --workers 2 -o json\n  tally \
                            bench kafka --log kafka://127.0.0.1:9092 --counts \
                            cql://127.0.0.1:9042"
    )]
    Kafka(BenchKafkaArgs),
    /// The dedup state alone, on one core.
    #[command(after_help = "Example:\n  tally bench dedup --held 50000000 -o json")]
    Dedup(BenchDedupArgs),
    /// Top-K answers over three years of rows in the embedded store.
    #[command(after_help = "Example:\n  tally bench query --slots 1000 -o json\n\nThe rows are \
                            written into a temporary folder (about 8 bytes a slot and row, 105,000 \
                            rows) and removed afterwards.")]
    Query(crate::bench::BenchQueryArgs),
    /// Write a seeded synthetic log into a new data folder, for tests and trials.
    Generate(GenerateArgs),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct SynthArgs {
    /// Number of records, repeats included.
    #[arg(long, default_value_t = 5_000_000)]
    pub(crate) events: u64,
    /// Seed: the same seed gives the same records.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How long a time the records span: many events a minute make what a busy system sees, few
    /// make every event a row of its own.
    #[arg(long, value_name = "DURATION", value_parser = duration_argument, default_value = "1h")]
    pub(crate) span: i64,
    /// Number of event types; the first has 40 % of the events.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) types: u16,
    /// Bytes of a record.
    #[arg(long, default_value_t = 500)]
    pub(crate) record_bytes: usize,
    /// Thousandths of the records that repeat an earlier one.
    #[arg(long, default_value_t = 20)]
    pub(crate) repeats: u32,
    /// Largest distance of eventTime behind receivedAt, in seconds.
    #[arg(long, default_value_t = 900)]
    pub(crate) disorder_seconds: u32,
    /// Leave this partition empty.
    #[arg(long, value_name = "PARTITION")]
    pub(crate) empty_partition: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct BenchCountArgs {
    #[command(flatten)]
    pub(crate) synth: SynthArgs,
    /// Worker threads of the dataflow.
    #[arg(long, default_value_t = 2)]
    pub(crate) workers: u16,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Args, Debug)]
pub(crate) struct BenchKafkaArgs {
    #[command(flatten)]
    pub(crate) synth: SynthArgs,
    /// Worker threads of the dataflow, and consumers of the plain client.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,
    /// Brokers, without a topic; by default those of scripts/services.
    #[arg(long, value_name = "URL", default_value = "kafka://127.0.0.1:19092")]
    pub(crate) log: String,
    /// Servers for the counts, without a keyspace; by default an embedded store.
    #[arg(long, value_name = "URL")]
    pub(crate) counts: Option<String>,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Args, Debug)]
pub(crate) struct BenchDedupArgs {
    /// Ids held before the measurement starts.
    #[arg(long, default_value_t = 5_000_000)]
    pub(crate) held: u64,
    /// Ids measured.
    #[arg(long, default_value_t = 5_000_000)]
    pub(crate) events: u64,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// The data folder to make.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    #[command(flatten)]
    pub(crate) synth: SynthArgs,
    /// Also write the counts that the naive model finds, as CSV of minute,eventType,count.
    #[arg(long, value_name = "FILE")]
    pub(crate) truth: Option<PathBuf>,
}
