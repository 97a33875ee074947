//! Faults at the seams to the stores, for `tally torture` only.
//!
//! `tally up` and `tally worker` take a hidden flag `--torture DIR`. With it the counts store and
//! the object store are wrapped here; without it nothing is, so no production code knows of faults.
//! The folder says what happens:
//!
//! ```text
//! DIR/crash-at      a point and a number, "before-manifest 3": read once at start; the process
//!                   ends itself with SIGKILL when it is there for the third time
//! DIR/reached       written by the process right before that: the name of the point
//! DIR/store-away    while it exists, every call of the counts store fails as unavailable
//! DIR/objects-away  while it exists, every call of the object store does
//! DIR/miscount      while it exists, one minute's row is stored with an event too few; this is how
//!                   the harness is shown to find a fault. (A row that is not stored at all is found
//!                   by the pipeline itself, which reads back what it put.)
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use clap::Args;
use tally_checkpoints::objects::ObjectStore;
use tally_model::bucket::{Bucket, Period};
use tally_model::types::TypeId;
use tally_sinks::counts::{CountsStore, PutCondition, PutOutcome, Row, SmallRow};
use tally_sinks::error::StoreError;

use crate::failure::Failure;

mod objects;

#[cfg(test)]
mod tests;

pub(super) const CRASH_AT: &str = "crash-at";
pub(super) const REACHED: &str = "reached";
pub(super) const STORE_AWAY: &str = "store-away";
pub(super) const MISCOUNT: &str = "miscount";
pub(super) const OBJECTS_AWAY: &str = "objects-away";

/// Says where this process has to fail. Given by `tally torture` to the processes that it starts.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FaultArgs {
    /// Folder of `tally torture` that says where this process has to fail.
    #[arg(long = "torture", value_name = "DIR", hide = true)]
    folder: Option<PathBuf>,
}

/// A place in the program at which it can be made to die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Point {
    /// Rows are durable, and the pipeline does not know it yet.
    BetweenPutAndAck,
    /// Nothing of a checkpoint is stored yet.
    BeforeUpload,
    /// Some data objects of a checkpoint are stored.
    BetweenObjects,
    /// All data objects are stored, the manifest is not.
    BeforeManifest,
    /// The manifest is stored, and the pipeline does not know it yet.
    AfterManifest,
    /// Some data objects were read at a start.
    DuringRestore,
    /// Some objects of a collected checkpoint are gone.
    DuringCollection,
}

impl Point {
    pub(super) const ALL: [Self; 7] = [
        Self::BetweenPutAndAck,
        Self::BeforeUpload,
        Self::BetweenObjects,
        Self::BeforeManifest,
        Self::AfterManifest,
        Self::DuringRestore,
        Self::DuringCollection,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::BetweenPutAndAck => "between-put-and-ack",
            Self::BeforeUpload => "before-upload",
            Self::BetweenObjects => "between-objects",
            Self::BeforeManifest => "before-manifest",
            Self::AfterManifest => "after-manifest",
            Self::DuringRestore => "during-restore",
            Self::DuringCollection => "during-collection",
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a process dies: at which point, and at the how manieth time that it is there, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CrashAt {
    pub(super) point: Point,
    pub(super) occurrence: u32,
}

impl fmt::Display for CrashAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.point, self.occurrence)
    }
}

impl CrashAt {
    /// Reads what [`Display`](fmt::Display) wrote.
    fn parse(text: &str) -> Option<Self> {
        let (name, occurrence) = text.trim().split_once(' ')?;
        let point = Point::ALL.into_iter().find(|point| point.name() == name)?;
        Some(Self { point, occurrence: occurrence.parse().ok()? })
    }
}

/// The faults of this process; none at all unless it was started by `tally torture`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    plan: Option<Arc<Plan>>,
}

impl Faults {
    /// Reads what the folder says, if one was given.
    ///
    /// # Errors
    /// If it names no crash point.
    pub(crate) fn read(args: &FaultArgs) -> Result<Self, Failure> {
        let Some(folder) = &args.folder else { return Ok(Self::default()) };
        die_with_the_harness();
        let path = folder.join(CRASH_AT);
        let crash = match std::fs::read_to_string(&path) {
            Ok(text) => Some(
                CrashAt::parse(&text)
                    .with_context(|| format!("{} names no crash point: {text}", path.display()))?,
            ),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display()))?,
        };
        let plan = Plan { folder: folder.clone(), crash, passed: AtomicU32::new(0), die };
        Ok(Self { plan: Some(Arc::new(plan)) })
    }

    /// The store with this process's faults.
    pub(crate) fn counts(&self, inner: Arc<dyn CountsStore>) -> Arc<dyn CountsStore> {
        match &self.plan {
            None => inner,
            Some(plan) => Arc::new(CrashingCounts { inner, plan: Arc::clone(plan) }),
        }
    }

    /// The object store with this process's faults.
    pub(crate) fn objects(&self, inner: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        match &self.plan {
            None => inner,
            Some(plan) => Arc::new(objects::CrashingObjects::new(inner, Arc::clone(plan))),
        }
    }
}

/// What the folder says.
#[derive(Debug)]
struct Plan {
    folder: PathBuf,
    crash: Option<CrashAt>,
    /// How often the process has been at the crash point.
    passed: AtomicU32,
    /// Ends the process; tests put something else here.
    die: fn(),
}

impl Plan {
    fn is_away(&self, what: &str) -> bool {
        self.folder.join(what).exists()
    }

    /// Notes that the process is at `point`. Returns whether it dies there this time: the caller
    /// then leaves things in the state that the point is about and calls [`crash`](Self::crash).
    fn is_last(&self, point: Point) -> bool {
        let Some(crash) = self.crash.filter(|crash| crash.point == point) else { return false };
        self.passed.fetch_add(1, Ordering::SeqCst) + 1 == crash.occurrence
    }

    /// Ends the process as a power cut would.
    fn crash(&self, point: Point) {
        // The harness tells by this file that nobody else killed the process.
        drop(std::fs::write(self.folder.join(REACHED), point.name()));
        (self.die)();
    }

    /// Dies at `point` if this is the time.
    fn reach(&self, point: Point) {
        if self.is_last(point) {
            self.crash(point);
        }
    }

    /// The minute that is miscounted: the first one with an event that was put while the file was
    /// there. It stands in that file, so that it stays the same in later processes.
    fn miscounted(&self, puts: &[(Row, PutCondition)]) -> Option<Bucket> {
        let path = self.folder.join(MISCOUNT);
        let text = std::fs::read_to_string(&path).ok()?;
        if let Ok(start_ms) = text.trim().parse() {
            return Some(Bucket::minute(start_ms));
        }
        let (row, _) = puts.iter().find(|(row, _)| busiest(row).is_some())?;
        let bucket = row.small.bucket;
        std::fs::write(&path, bucket.start_ms().to_string()).ok()?;
        Some(bucket)
    }
}

/// The slot with the most events, if there is any event.
fn busiest(row: &Row) -> Option<(TypeId, u64)> {
    let slots = (0..).map(TypeId).zip(row.vector.counts().iter().copied());
    slots.max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 0)
}

fn die() {
    // If the system refuses this, the harness kills the process itself after a while.
    let _refused =
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

/// No process of the harness may outlive it.
fn die_with_the_harness() {
    #[cfg(target_os = "linux")]
    {
        let signal = Some(rustix::process::Signal::KILL);
        let _refused = rustix::process::set_parent_process_death_signal(signal);
    }
}

/// A counts store with faults on order.
#[derive(Debug)]
struct CrashingCounts {
    inner: Arc<dyn CountsStore>,
    plan: Arc<Plan>,
}

impl CrashingCounts {
    fn here(&self, action: &'static str) -> Result<(), StoreError> {
        if !self.plan.is_away(STORE_AWAY) {
            return Ok(());
        }
        Err(StoreError::Unavailable { action, source: "the store is away on order".into() })
    }

    /// Puts all rows, those of the minute `wrong` with an event too few.
    fn put_wrong(
        &self,
        wrong: Bucket,
        puts: &[(Row, PutCondition)],
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let mut puts = puts.to_vec();
        for (row, _) in puts.iter_mut().filter(|(row, _)| row.small.bucket == wrong) {
            if let Some((slot, count)) = busiest(row) {
                row.vector.set(slot, count - 1);
            }
        }
        self.inner.put_many(&puts)
    }
}

impl CountsStore for CrashingCounts {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        if self.here("put rows").is_err() {
            return puts
                .iter()
                .map(|_| self.here("put rows").map(|()| PutOutcome::Stored))
                .collect();
        }
        let outcomes = match self.plan.miscounted(puts) {
            None => self.inner.put_many(puts),
            Some(wrong) => self.put_wrong(wrong, puts),
        };
        if outcomes.iter().any(|outcome| matches!(outcome, Ok(PutOutcome::Stored))) {
            self.plan.reach(Point::BetweenPutAndAck);
        }
        outcomes
    }

    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        self.here("read small rows")?;
        self.inner.small_rows(period, from_ms, to_ms)
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.here("read rows")?;
        self.inner.rows(buckets)
    }

    fn settled_rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.here("read rows back")?;
        self.inner.settled_rows(buckets)
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        self.here("look for rows")?;
        self.inner.is_empty()
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        self.here("delete a period")?;
        self.inner.delete_period(period)
    }
}

/// The folder's files, from the harness's side.
#[derive(Debug)]
pub(super) struct FaultFolder(PathBuf);

impl FaultFolder {
    /// Makes the folder.
    pub(super) fn make(path: PathBuf) -> std::io::Result<Self> {
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a file, or takes it away.
    pub(super) fn set(&self, name: &str, text: Option<&str>) -> std::io::Result<()> {
        let path = self.0.join(name);
        match text {
            Some(text) => std::fs::write(path, text),
            None => match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            },
        }
    }

    /// The crash point at which the last process ended itself, if it did.
    pub(super) fn reached(&self) -> Option<Point> {
        let text = std::fs::read_to_string(self.0.join(REACHED)).ok()?;
        Point::ALL.into_iter().find(|point| point.name() == text)
    }
}
