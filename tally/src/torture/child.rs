//! The processes that are tortured: this program again, on a folder of its own.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::Context;
use serde_json::Value;

use crate::failure::Failure;
use crate::torture::faults::FaultFolder;

/// How processes of one deployment are started.
#[derive(Debug)]
pub(super) struct Site {
    program: PathBuf,
    folder: PathBuf,
    variables: Vec<(String, String)>,
    pub(super) faults: FaultFolder,
}

/// What the ready file says.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) url: String,
    pub(super) write_key: String,
    pub(super) read_token: String,
    pub(super) admin_token: String,
}

/// A running `tally up`. Killed when it is dropped.
#[derive(Debug)]
pub(super) struct Node {
    child: Child,
    workers: u16,
    ready_file: PathBuf,
}

impl Site {
    /// Makes the folder of a deployment to be, with a file that holds its settings for people.
    pub(super) fn make(folder: &Path, variables: Vec<(String, String)>) -> Result<Self, Failure> {
        let cannot = || format!("cannot make {}", folder.display());
        std::fs::create_dir_all(folder).with_context(cannot)?;
        let lines: String =
            variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        std::fs::write(folder.join("settings.env"), lines).with_context(cannot)?;
        Ok(Self {
            program: std::env::current_exe().context("cannot find this program's own file")?,
            folder: folder.to_owned(),
            variables,
            faults: FaultFolder::make(folder.join("faults")).with_context(cannot)?,
        })
    }

    /// The data folder of the deployment.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The settings of the deployment, as variables of its processes' environment.
    pub(super) fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// Starts a node again that has ended, as a supervisor does.
    pub(super) fn restart(&self, node: &mut Node) -> Result<(), Failure> {
        *node = self.start(node.workers)?;
        Ok(())
    }

    /// Where everything goes that the processes print and log.
    pub(super) fn log_file(&self) -> PathBuf {
        self.folder.join("node.log")
    }

    /// Starts a node with this many workers.
    pub(super) fn start(&self, workers: u16) -> Result<Node, Failure> {
        let ready_file = self.folder.join("ready.json");
        if ready_file.exists() {
            std::fs::remove_file(&ready_file).context("cannot remove the ready file")?;
        }
        let log = self.open_log()?;
        let child = self
            .command("up", workers)
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-file"])
            .arg(&ready_file)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start a node")?;
        Ok(Node { child, workers, ready_file })
    }

    /// Counts the whole log and returns the report and the exit code.
    pub(super) fn count(&self, workers: u16) -> Result<(Value, Option<i32>), Failure> {
        let output = self
            .command("worker", workers)
            .args(["--bounded", "-o", "json"])
            .stderr(self.open_log()?)
            .output()
            .context("cannot start the bounded run")?;
        let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
        Ok((report, output.status.code()))
    }

    fn command(&self, role: &str, workers: u16) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"TALLY_") {
                command.env_remove(name);
            }
        }
        command
            .arg(role)
            .arg("--data-dir")
            .arg(self.data_dir())
            .arg("--torture")
            .arg(self.faults.path())
            .args(["--workers", &workers.to_string()])
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    fn open_log(&self) -> Result<File, Failure> {
        let path = self.log_file();
        let file = File::options().create(true).append(true).open(&path);
        Ok(file.with_context(|| format!("cannot write {}", path.display()))?)
    }
}

impl Node {
    /// How the node ended; `None` while it runs.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        Ok(self.child.try_wait().context("cannot ask for the end of a node")?)
    }

    /// What the ready file says, once it is there.
    pub(super) fn ready(&self) -> Option<Ready> {
        let answer: Value = serde_json::from_slice(&std::fs::read(&self.ready_file).ok()?).ok()?;
        let field = |name: &str| Some(answer.get(name)?.as_str()?.to_owned());
        Some(Ready {
            url: field("url")?,
            write_key: field("writeKey")?,
            read_token: field("readToken")?,
            admin_token: field("adminToken")?,
        })
    }

    /// Kills the node as a power cut would, and waits for its end.
    pub(super) fn kill(&mut self) -> Result<ExitStatus, Failure> {
        self.child.kill().context("cannot kill a node")?;
        Ok(self.child.wait().context("cannot wait for a node")?)
    }

    /// Asks the node to stop.
    pub(super) fn terminate(&self) -> Result<(), Failure> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("a process has a number")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("cannot signal a node")?;
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It has ended already unless the harness is going down itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether a process was killed with SIGKILL.
pub(super) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(rustix::process::Signal::KILL.as_raw())
}
