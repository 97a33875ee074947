//! Servers that are killed under the node and come back a few seconds later.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::failure::{Exit, Failure};

/// A server that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Server {
    /// The broker that keeps the log.
    Broker,
    /// The server that keeps the counts.
    Counts,
}

impl Server {
    /// What a report calls it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Broker => "broker",
            Self::Counts => "counts server",
        }
    }

    /// What the command that kills it calls it.
    const fn service(self) -> &'static str {
        match self {
            Self::Broker => "kafka",
            Self::Counts => "cassandra",
        }
    }
}

/// One death of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outage {
    pub(super) server: Server,
    /// When it is killed, in ms: a broker that long after events flow, a counts server that long
    /// after a minute closes, when rows are put.
    pub(super) after_ms: i64,
    /// How long it is away before it is started again, in ms.
    pub(super) away_ms: i64,
    /// Whether the node is killed, too, before the server is back.
    pub(super) with_node: bool,
}

/// What dies in each life of a seed, in the order of the lives: two of three lives see a server die,
/// in turns broker and counts server.
pub(super) fn of_seed(seed: u64, lives: usize, broker: bool, counts: bool) -> Vec<Option<Outage>> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5e7e);
    let mut servers = [broker.then_some(Server::Broker), counts.then_some(Server::Counts), None];
    let mut outages = Vec::new();
    while outages.len() < lives {
        servers.shuffle(&mut rng);
        outages.extend(servers.map(|server| server.map(|server| outage(server, &mut rng))));
    }
    outages.truncate(lives);
    outages
}

fn outage(server: Server, rng: &mut StdRng) -> Outage {
    let after_ms = match server {
        Server::Broker => rng.random_range(500..4_000),
        // Asking for the death takes a moment as well.
        Server::Counts => rng.random_range(-150..600),
    };
    let away_ms = rng.random_range(1_000..5_000);
    Outage { server, after_ms, away_ms, with_node: rng.random_bool(0.5) }
}

/// Kills servers and brings them back, one at a time.
#[derive(Debug)]
pub(super) struct Outages {
    command: Option<PathBuf>,
    log_file: PathBuf,
    waiting: VecDeque<Outage>,
    state: State,
    /// When the last server was back, on the monotonic clock.
    back_at_ms: Option<i64>,
}

#[derive(Debug)]
enum State {
    /// Every server is there, and none is to die.
    Calm,
    DueAt(i64, Outage),
    Dying(Child, Outage),
    AwayUntil(i64, Outage),
    Returning(Child, Outage),
}

impl Outages {
    /// `command` kills and resumes; what it prints goes to the end of `log_file`.
    pub(super) const fn new(command: Option<PathBuf>, log_file: PathBuf) -> Self {
        let waiting = VecDeque::new();
        Self { command, log_file, waiting, state: State::Calm, back_at_ms: None }
    }

    /// Lets a server die as soon as it is its turn.
    pub(super) fn add(&mut self, outage: Outage) {
        if self.command.is_some() {
            self.waiting.push_back(outage);
        }
    }

    /// Takes the next outage if none is under way and events flow. `at_ms` says when it is due.
    pub(super) fn plan(&mut self, at_ms: impl FnOnce(Outage) -> i64) {
        if matches!(self.state, State::Calm)
            && let Some(outage) = self.waiting.pop_front()
        {
            self.state = State::DueAt(at_ms(outage), outage);
        }
    }

    /// Does what is due. Returns the server that has just died.
    ///
    /// # Errors
    /// If the command cannot be run or fails.
    pub(super) fn tick(&mut self, now_ms: i64) -> Result<Option<Server>, Failure> {
        match std::mem::replace(&mut self.state, State::Calm) {
            State::DueAt(at_ms, outage) if now_ms >= at_ms => {
                self.state = State::Dying(self.call("kill", outage.server)?, outage);
            }
            State::Dying(mut child, outage) => {
                if is_done(&mut child, "kill", outage.server)? {
                    self.state = State::AwayUntil(now_ms + outage.away_ms, outage);
                    return Ok(Some(outage.server));
                }
                self.state = State::Dying(child, outage);
            }
            State::AwayUntil(at_ms, outage) if now_ms >= at_ms => {
                self.state = State::Returning(self.call("resume", outage.server)?, outage);
            }
            State::Returning(mut child, outage) => {
                if is_done(&mut child, "resume", outage.server)? {
                    self.back_at_ms = Some(now_ms);
                } else {
                    self.state = State::Returning(child, outage);
                }
            }
            state => self.state = state,
        }
        Ok(None)
    }

    /// Whether a server is not there.
    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self.state, State::Dying(..) | State::AwayUntil(..) | State::Returning(..))
    }

    /// Whether no server is away and none is to die.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Calm) && self.waiting.is_empty()
    }

    /// Whether the node may be killed now as far as servers are concerned: not while one is still to
    /// die, nor before the node has shown that it survives a death that it is to survive.
    pub(super) fn let_node_die(&self) -> bool {
        match &self.state {
            State::AwayUntil(_, outage) | State::Returning(_, outage) => outage.with_node,
            State::Calm => self.waiting.is_empty(),
            State::DueAt(..) | State::Dying(..) => false,
        }
    }

    /// When the last server was back, on the monotonic clock; `None` while one is away, or if none
    /// has died yet.
    pub(super) fn back_at_ms(&self) -> Option<i64> {
        self.back_at_ms.filter(|_| !self.is_under_way())
    }

    fn call(&self, verb: &str, server: Server) -> Result<Child, Failure> {
        let command = self.command.as_deref().unwrap_or(Path::new(""));
        let cannot = || format!("cannot run {}", command.display());
        let log = File::options().create(true).append(true).open(&self.log_file)?;
        let child = Command::new(command)
            .args([verb, server.service()])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn();
        Ok(child.with_context(cannot)?)
    }
}

impl Drop for Outages {
    /// The servers are left as they were found.
    fn drop(&mut self) {
        let server = match &mut self.state {
            State::Calm | State::DueAt(..) => return,
            State::Dying(child, outage) => {
                drop(child.wait());
                outage.server
            }
            State::AwayUntil(_, outage) => outage.server,
            State::Returning(child, _) => {
                drop(child.wait());
                return;
            }
        };
        if let Ok(mut child) = self.call("resume", server) {
            drop(child.wait());
        }
    }
}

fn is_done(child: &mut Child, verb: &str, server: Server) -> Result<bool, Failure> {
    match child.try_wait()? {
        None => Ok(false),
        Some(status) if status.success() => Ok(true),
        Some(status) => Err(Failure::message(
            Exit::Failed,
            format!("the command that was to {verb} {} ended with {status}", server.service()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_three_lives_see_each_server_die_once() {
        for seed in 1..=20 {
            let outages = of_seed(seed, 9, true, true);
            for three in outages.chunks(3) {
                let mut servers: Vec<_> =
                    three.iter().map(|outage| outage.map(|outage| outage.server)).collect();
                servers.sort();
                assert_eq!(servers, [None, Some(Server::Broker), Some(Server::Counts)]);
            }
            assert_eq!(outages, of_seed(seed, 9, true, true));
        }
        let all: Vec<_> =
            (1..=20).flat_map(|seed| of_seed(seed, 9, true, true)).flatten().collect();
        assert!(all.iter().any(|outage| outage.with_node));
        assert!(all.iter().any(|outage| !outage.with_node));
        assert!(of_seed(1, 9, false, false).iter().all(Option::is_none));
        assert!(of_seed(1, 9, true, false).iter().flatten().all(|o| o.server == Server::Broker));
    }

    /// Ticks until the state is reached.
    fn until(outages: &mut Outages, now_ms: i64, mut is: impl FnMut(&Outages) -> bool) -> usize {
        let mut died = 0;
        for _ in 0..2_000 {
            died += usize::from(outages.tick(now_ms).unwrap().is_some());
            if is(outages) {
                return died;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        panic!("not reached: {outages:?}");
    }

    #[test]
    fn a_server_is_killed_when_it_is_due_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let log_file = folder.path().join("log");
        let mut outages = Outages::new(Some(PathBuf::from("/bin/echo")), log_file.clone());
        let outage =
            Outage { server: Server::Counts, after_ms: 0, away_ms: 1_000, with_node: false };
        outages.add(outage);
        assert!(!outages.is_over() && !outages.let_node_die());
        outages.plan(|_| 50);
        assert_eq!(outages.tick(49).unwrap(), None);
        assert!(!outages.is_under_way() && !outages.let_node_die());
        let died = until(&mut outages, 50, |outages| matches!(outages.state, State::AwayUntil(..)));
        assert_eq!(died, 1);
        assert!(outages.is_under_way() && !outages.let_node_die() && !outages.is_over());
        until(&mut outages, 1_050, Outages::is_over);
        assert_eq!(outages.back_at_ms(), Some(1_050));
        assert!(outages.let_node_die());
        let called = std::fs::read_to_string(log_file).unwrap();
        assert_eq!(called, "kill cassandra\nresume cassandra\n");
    }

    #[test]
    fn a_server_that_is_away_at_the_end_is_brought_back() {
        let folder = tempfile::tempdir().unwrap();
        let log_file = folder.path().join("log");
        let mut outages = Outages::new(Some(PathBuf::from("/bin/echo")), log_file.clone());
        let outage =
            Outage { server: Server::Broker, after_ms: 0, away_ms: 1_000, with_node: true };
        outages.add(outage);
        outages.plan(|_| 0);
        until(&mut outages, 0, |outages| matches!(outages.state, State::AwayUntil(..)));
        assert!(outages.let_node_die());
        drop(outages);
        assert_eq!(std::fs::read_to_string(log_file).unwrap(), "kill kafka\nresume kafka\n");
    }

    #[test]
    fn a_command_that_fails_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let command = Some(PathBuf::from("/bin/false"));
        let mut outages = Outages::new(command, folder.path().join("log"));
        outages.state = State::Dying(
            outages.call("kill", Server::Broker).unwrap(),
            Outage { server: Server::Broker, after_ms: 0, away_ms: 0, with_node: false },
        );
        let failure = (0..2_000).find_map(|_| {
            std::thread::park_timeout(std::time::Duration::from_millis(5));
            outages.tick(0).err()
        });
        let text = failure.unwrap().error.to_string();
        assert!(text.starts_with("the command that was to kill kafka ended with"), "{text}");
    }
}
