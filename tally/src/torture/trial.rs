//! One seed from its first start to the comparison at its end.

mod judge;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use tally_model::bucket::MINUTE_MS;
use tally_model::clock::Clock;

use super::child::{Node, Site, was_killed};
use super::faults::{CRASH_AT, CrashAt, OBJECTS_AWAY, Point, REACHED, STORE_AWAY};
use super::line::{CloseOnDrop, Line, Reachable};
use super::meddle::meddle;
use super::outage::{self, Outage, Outages, Server};
use super::schedule::{AWAY_MS, EARLY_MS, Life, Schedule};
use super::servers::ServerArgs;
use super::traffic::{TYPES, Traffic};
use super::watcher::Watcher;
use crate::failure::{Exit, Failure};

/// How long a node may take to start or to stop before the harness gives it up.
const GIVE_UP_MS: i64 = 60_000;
/// How long the last life runs once everything is well.
const LAST_LIFE_MS: i64 = 3_000;
/// The exit code of a node that a server did not answer, and how long a supervisor waits then.
const NOT_READY: i32 = 4;
const SUPERVISOR_WAITS: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What one seed came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) seed: u64,
    /// Kills by their point; `random` for those from outside, and those of servers by their name.
    pub(super) kills: BTreeMap<&'static str, usize>,
    /// How long each restart took, in ms. A life that is cut short before its first
    /// acknowledgement has none.
    pub(super) restarts_ms: Vec<i64>,
    pub(super) records: u64,
    pub(super) differences: Vec<String>,
}

/// Why a trial cannot go on.
enum Stop {
    /// The deployment did what it must not do.
    Differs(String),
    /// The harness itself failed.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Runs one seed. `killed` is called after each kill.
///
/// # Errors
/// If the harness cannot do its work; what is wrong with the deployment is in the outcome.
pub(super) fn run(
    schedule: &Schedule,
    site: &Site,
    servers: &ServerArgs,
    clock: &Arc<dyn Clock>,
    killed: &dyn Fn(),
) -> Result<Outcome, Failure> {
    let line = Line::default();
    let (broker, counts) = servers.has();
    let mut trial = Trial {
        schedule,
        site,
        clock,
        line: &line,
        rng: StdRng::seed_from_u64(schedule.seed ^ 0x3edd),
        outcome: Outcome { seed: schedule.seed, ..Outcome::default() },
        life: 0,
        registered: false,
        store: Store::Stays,
        deaths: outage::of_seed(schedule.seed, schedule.lives.len(), broker, counts),
        outages: Outages::new(servers.services.clone(), site.log_file()),
        batches_at_return: 0,
        misses_server: false,
        ended_at_ms: None,
    };
    let on_time_ms = schedule.timing.watermark_delay_ms + schedule.timing.lateness_ms;
    let traffic = Traffic::new(schedule.seed, schedule.dedup.window_ms(), on_time_ms);
    let (lived, acknowledged, seen) = std::thread::scope(|scope| {
        let open = CloseOnDrop(&line);
        let client = scope.spawn(|| traffic.run(&line, clock.as_ref()));
        let reader = scope.spawn(|| Watcher::default().run(&line, clock.as_ref()));
        let lived = trial.live(killed);
        drop(open);
        (lived, client.join(), reader.join())
    });
    let (Ok(acknowledged), Ok(seen)) = (acknowledged, seen) else {
        return Err(Failure::message(Exit::Failed, "a client of the harness panicked"));
    };
    trial.outcome.differences.extend(seen);
    let acknowledged = match acknowledged {
        Ok(acknowledged) => acknowledged,
        Err(difference) => {
            trial.outcome.differences.push(difference);
            return Ok(trial.outcome);
        }
    };
    match lived.and_then(|()| trial.judge(&acknowledged)) {
        Ok(()) => {}
        Err(Stop::Differs(difference)) => trial.outcome.differences.push(difference),
        Err(Stop::Failed(failure)) => return Err(failure),
    }
    Ok(trial.outcome)
}

/// Where the counts store is; times in ms on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    /// There, until then.
    LeavesAt(i64),
    /// Away, until then.
    ReturnsAt(i64),
    /// There.
    Stays,
}

struct Trial<'a> {
    schedule: &'a Schedule,
    site: &'a Site,
    clock: &'a Arc<dyn Clock>,
    line: &'a Line,
    rng: StdRng,
    outcome: Outcome,
    /// Number of the present life, from 1.
    life: u64,
    /// Whether the event types are registered; the deployment is complete then.
    registered: bool,
    store: Store,
    /// The server that dies in each life.
    deaths: Vec<Option<Outage>>,
    outages: Outages,
    /// How many batches were acknowledged when the last server was back.
    batches_at_return: u64,
    /// Whether a server was away at some time since the present process was started.
    misses_server: bool,
    /// When the last process ended, on the monotonic clock.
    ended_at_ms: Option<i64>,
}

impl Trial<'_> {
    /// All lives of the deployment, the last one ended with SIGTERM.
    fn live(&mut self, killed: &dyn Fn()) -> Result<(), Stop> {
        for (index, life) in self.schedule.lives.iter().enumerate() {
            if index == self.schedule.away_from {
                let in_ms = self.schedule.away_in_ms(self.clock.now_ms());
                self.store = Store::LeavesAt(self.clock.monotonic_ms() + in_ms);
            }
            if let Some(outage) = self.deaths[index] {
                self.outages.add(outage);
            }
            let mut node = self.start(life.workers, life.crash)?;
            let cause = match self.until_end(&mut node, life)? {
                Some(point) => point.name(),
                None => self.kill(&mut node)?,
            };
            self.end(cause);
            killed();
            if life.meddle && self.registered && !self.outages.is_under_way() {
                meddle(&self.open()?, &mut self.rng, self.clock.now_ms())?;
            }
        }
        let [workers, _] = self.schedule.last_workers;
        let mut node = self.start(workers, None)?;
        self.until_well(&mut node)?;
        self.stop(&mut node)
    }

    fn start(&mut self, workers: u16, crash: Option<CrashAt>) -> Result<Node, Stop> {
        self.site.faults.set(REACHED, None)?;
        self.site.faults.set(OBJECTS_AWAY, None)?;
        self.site.faults.set(CRASH_AT, crash.map(|crash| crash.to_string()).as_deref())?;
        self.life += 1;
        self.misses_server = self.outages.is_under_way();
        Ok(self.site.start(workers)?)
    }

    /// Watches a node until it ends itself at its crash point or it is time to kill it.
    fn until_end(&mut self, node: &mut Node, life: &Life) -> Result<Option<Point>, Stop> {
        let started_ms = self.clock.monotonic_ms();
        let run_ms = life.run_ms + self.schedule.patience_ms(life, self.clock.now_ms());
        let mut objects_away = false;
        loop {
            if let Some(point) = self.ended(node)? {
                return Ok(Some(point));
            }
            let well = self.look(node)?;
            let lived_ms = self.clock.monotonic_ms() - started_ms;
            if life.objects_away && well && !objects_away && lived_ms >= run_ms / 2 {
                objects_away = true;
                self.site.faults.set(OBJECTS_AWAY, Some(""))?;
            }
            // A start that is not to be cut short has to show first how long it takes.
            if lived_ms >= run_ms
                && (well || life.run_ms < EARLY_MS)
                && self.outages.let_node_die()
                && (self.flows() || self.outages.is_under_way())
            {
                return Ok(None);
            }
            self.give_up(started_ms, well)?;
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    /// Whether events have been acknowledged since the last server was back.
    fn flows(&self) -> bool {
        self.line.batches() > self.batches_at_return
    }

    /// Ends the trial if a node that has everything it needs does not acknowledge events.
    fn give_up(&self, started_ms: i64, well: bool) -> Result<(), Stop> {
        let since_ms = self.outages.back_at_ms().map_or(started_ms, |back| back.max(started_ms));
        let is_excused = (well && self.flows()) || self.outages.is_under_way();
        if !is_excused && self.clock.monotonic_ms() - since_ms > GIVE_UP_MS {
            return Err(self.by_itself("a node acknowledged no event"));
        }
        Ok(())
    }

    /// Watches the last node until it has run for a while with everything in its place: the counts
    /// store is back, and a reader has seen counts.
    fn until_well(&mut self, node: &mut Node) -> Result<(), Stop> {
        let started_ms = self.clock.monotonic_ms();
        let mut well_since_ms = None;
        loop {
            if self.ended(node)?.is_some() {
                return Err(self.by_itself("a node ended itself without being told to"));
            }
            let now_ms = self.clock.monotonic_ms();
            let well = self.look(node)? && self.flows() && self.outages.is_over();
            if well && self.store == Store::Stays && self.line.is_read() {
                let since_ms = *well_since_ms.get_or_insert(now_ms);
                if now_ms - since_ms >= LAST_LIFE_MS {
                    return Ok(());
                }
            }
            // The first whole minute may still have to pass.
            if well_since_ms.is_none() && now_ms - started_ms > GIVE_UP_MS + 2 * MINUTE_MS {
                return Err(self.by_itself("no event was acknowledged, or no count was readable,"));
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    /// The point at which the node ended itself; `None` while it runs.
    ///
    /// A node that does not find its servers when it starts ends, and is started again as a
    /// supervisor would do. One that runs has to survive their absence.
    fn ended(&mut self, node: &mut Node) -> Result<Option<Point>, Stop> {
        let Some(status) = node.ended()? else { return Ok(None) };
        let was_starting = node.ready().is_none();
        if was_starting && self.misses_server && status.code() == Some(NOT_READY) {
            std::thread::park_timeout(SUPERVISOR_WAITS);
            self.misses_server = self.outages.is_under_way();
            self.site.restart(node)?;
            return Ok(None);
        }
        match self.site.faults.reached().filter(|_| was_killed(status)) {
            Some(point) => Ok(Some(point)),
            None => Err(self.by_itself(&format!("a node ended by itself with {status}"))),
        }
    }

    fn by_itself(&self, what: &str) -> Stop {
        let log = self.site.log_file();
        Stop::Differs(format!("{what} in life {}; see {}", self.life, log.display()))
    }

    /// Does what is due. Returns whether the node has acknowledged an event.
    fn look(&mut self, node: &Node) -> Result<bool, Stop> {
        let now_ms = self.clock.monotonic_ms();
        self.look_at_servers(now_ms)?;
        match self.store {
            Store::LeavesAt(at_ms) if now_ms >= at_ms => {
                self.site.faults.set(STORE_AWAY, Some(""))?;
                self.store = Store::ReturnsAt(now_ms + AWAY_MS);
            }
            Store::ReturnsAt(at_ms) if now_ms >= at_ms => {
                self.site.faults.set(STORE_AWAY, None)?;
                self.store = Store::Stays;
            }
            Store::LeavesAt(_) | Store::ReturnsAt(_) | Store::Stays => {}
        }
        if self.line.node().is_none()
            && let Some(ready) = node.ready()
        {
            let reachable = Reachable::new(self.life, ready);
            self.registered = self.registered || register(&reachable);
            if self.registered {
                self.line.connect(Some(Arc::new(reachable)));
            }
        }
        if !self.line.is_acknowledged(self.life) {
            return Ok(false);
        }
        if let Some(ended_at_ms) = self.ended_at_ms.take() {
            // A node cannot be up before its servers are.
            let back_at_ms = self.outages.back_at_ms().unwrap_or(ended_at_ms);
            let since_ms = ended_at_ms.max(back_at_ms);
            self.outcome.restarts_ms.push(self.clock.monotonic_ms() - since_ms);
        }
        let schedule = self.schedule;
        let to_close_ms = schedule.next_close_ms(self.clock.now_ms()) - self.clock.now_ms();
        self.outages.plan(|outage| {
            let from_ms = match outage.server {
                Server::Broker => now_ms,
                Server::Counts => now_ms + to_close_ms,
            };
            from_ms + outage.after_ms
        });
        Ok(true)
    }

    /// Lets servers die and come back.
    fn look_at_servers(&mut self, now_ms: i64) -> Result<(), Stop> {
        let was_away = self.outages.is_under_way();
        if let Some(server) = self.outages.tick(now_ms)? {
            *self.outcome.kills.entry(server.name()).or_default() += 1;
        }
        let is_away = self.outages.is_under_way();
        self.misses_server |= is_away;
        if was_away && !is_away {
            self.batches_at_return = self.line.batches();
        }
        Ok(())
    }

    /// Kills a node. It may have reached its own end at the same moment.
    fn kill(&self, node: &mut Node) -> Result<&'static str, Stop> {
        let status = node.kill()?;
        if !was_killed(status) {
            return Err(self.by_itself(&format!("a node ended by itself with {status}")));
        }
        Ok(self.site.faults.reached().map_or("random", Point::name))
    }

    /// Notes the end of a node.
    fn end(&mut self, cause: &'static str) {
        self.ended_at_ms = Some(self.clock.monotonic_ms());
        self.line.connect(None);
        *self.outcome.kills.entry(cause).or_default() += 1;
    }

    /// Ends the last node with SIGTERM, while clients still send.
    fn stop(&mut self, node: &mut Node) -> Result<(), Stop> {
        node.terminate()?;
        let asked_ms = self.clock.monotonic_ms();
        loop {
            match node.ended()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(self.by_itself(&format!("SIGTERM ended a node with {status}")));
                }
                None if self.clock.monotonic_ms() - asked_ms > GIVE_UP_MS => {
                    return Err(self.by_itself("a node did not end after SIGTERM"));
                }
                None => std::thread::park_timeout(LOOK_EVERY),
            }
        }
    }
}

/// Registers the event types. Returns whether the node took all of them.
fn register(node: &Reachable) -> bool {
    TYPES.iter().all(|name| {
        let body = json!({ "name": name }).to_string();
        let answer = node.admin.send("POST", "/v1/event-types", Some(body.as_bytes()));
        answer.is_ok_and(|answer| matches!(answer.status, 200 | 201))
    })
}
