//! `agentcube up` as a process of its own, in a place of its own, so that it can be killed, measured, and searched for
//! what it left.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::process::client;
use crate::http_client::HttpClient;
use crate::supervise::{Account, Process};

/// A debug build on a busy machine is slow.
const READY_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_micros(500);
const READY: &str = "AgentCube is ready";

/// A directory with a program, a data directory and a home, all of one user.
pub struct Place {
    directory: tempfile::TempDir,
    account: Option<Account>,
}

impl Place {
    /// A place for whoever runs this.
    pub fn new(program: &Path) -> Result<Place> {
        Self::make(program, None)
    }

    /// A place for somebody without any rights; only root can make one.
    pub fn unprivileged(program: &Path, uid: u32) -> Result<Place> {
        Self::make(program, Some(uid))
    }

    fn make(program: &Path, uid: Option<u32>) -> Result<Place> {
        let directory = tempfile::Builder::new().prefix("up-").tempdir()?;
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
        let home = directory.path().join("home");
        std::fs::create_dir(&home)?;
        let account = uid.map(|uid| Account { uid, gid: uid, home: home.clone() });
        if let Some(account) = &account {
            chown(&home, Some(account.uid), Some(account.gid))?;
        }
        let place = Place { directory, account };
        // A name of its own for the program: its processes are known by it.
        if std::fs::hard_link(program, place.program()).is_err() {
            std::fs::copy(program, place.program())?;
        }
        Ok(place)
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn program(&self) -> PathBuf {
        self.directory.path().join("agentcube")
    }

    pub fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub fn data(&self) -> PathBuf {
        self.home().join("data")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data().join("kubeconfig")
    }

    pub fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// Starts `up` and waits until it is ready.
    pub async fn start(&self) -> Result<Up> {
        self.start_with(&[]).await
    }

    /// The same with more arguments.
    pub async fn start_with(&self, more: &[String]) -> Result<Up> {
        let data = self.data().display().to_string();
        let mut args = ["up", "--data-dir", &data].map(str::to_owned).to_vec();
        args.extend_from_slice(more);
        let begun = Instant::now();
        let log = self.path().join("log");
        let process = Process::start_as(self.account.as_ref(), &self.program(), &args, &log)?;
        while !process.log().contains(READY) {
            ensure!(!process.has_ended(), "agentcube up has ended:\n{}", process.log_tail());
            if begun.elapsed() > READY_LIMIT {
                bail!("agentcube up is not ready:\n{}", process.log_tail());
            }
            tokio::time::sleep(POLL).await;
        }
        let ready_after = begun.elapsed();
        let kubeconfig = std::fs::read_to_string(self.kubeconfig())?;
        let server = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: https://"));
        let http = client(&self.kubeconfig(), server.context("a kubeconfig without a server")?)?;
        Ok(Up { http, begun, ready_after, process })
    }

    /// Runs the program on this place's data directory, as its user.
    pub fn run(&self, command: &str) -> Result<Output> {
        use std::os::unix::process::CommandExt;
        let mut process = Command::new(self.program());
        process.arg(command).arg("--data-dir").arg(self.data()).env("HOME", self.home()).current_dir("/");
        if let Some(account) = &self.account {
            process.uid(account.uid).gid(account.gid);
        }
        Ok(process.output()?)
    }

    /// The process that starts Pods, as the running node has recorded it.
    pub fn spawner(&self) -> Result<u32> {
        let pid = self.runtime_record()?["spawner"]["pid"].as_u64().context("no spawner is recorded")?;
        Ok(u32::try_from(pid)?)
    }

    /// The cgroups of this place's node, one in each hierarchy that it may use.
    pub fn cgroups(&self) -> Result<Vec<PathBuf>> {
        let record = self.runtime_record()?;
        let hierarchies = record["cgroups"]["hierarchies"].as_array().context("no cgroups are recorded")?;
        Ok(hierarchies.iter().filter_map(|it| it["directory"].as_str().map(PathBuf::from)).collect())
    }

    fn runtime_record(&self) -> Result<Value> {
        let record = std::fs::read(self.data().join("runtime/record")).context("no record of the runtime")?;
        Ok(serde_json::from_slice(&record)?)
    }
}

/// A running `agentcube up`; killed when dropped.
pub struct Up {
    pub http: HttpClient,
    pub begun: Instant,
    /// From its start until it said that it is ready.
    pub ready_after: Duration,
    process: Process,
}

impl Up {
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Kills it with SIGKILL.
    pub fn kill(self) {
        self.process.kill();
    }

    /// Asks it to stop with `agentcube down`, which waits.
    pub fn down(self, place: &Place) -> Result<()> {
        let output = place.run("down")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "agentcube down failed: {said}\n{}", self.process.log_tail());
        Ok(())
    }

    /// Waits until it ends by itself, and returns all it said.
    pub async fn ended(self, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        while !self.process.has_ended() {
            ensure!(Instant::now() < deadline, "agentcube up runs on:\n{}", self.process.log_tail());
            tokio::time::sleep(POLL).await;
        }
        Ok(self.process.log())
    }
}
