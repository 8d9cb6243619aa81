//! Child processes that cannot outlive the test: each runs under a small shell that waits on a pipe held by
//! us and kills the child when the pipe closes, be it by drop, panic or `kill -9` of the test.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The child is a background job of the shell, so its standard input is `/dev/null`; the shell reports its
/// process id on its own standard output and then waits for the pipe to close.
const SUPERVISOR: &str =
    r#"log=$1; shift; "$@" >"$log" 2>&1 & pid=$!; echo $pid; read _; kill -9 $pid 2>/dev/null; wait $pid"#;

/// How long a child may take to say what it is waited for to say.
const TOLD_LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

/// Somebody else to run a child as.
#[derive(Clone, Debug)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
}

/// A supervised child process.
pub struct Process {
    shell: Child,
    pid: u32,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with everything it prints going to `log`.
    pub fn start(command: &Path, args: &[String], log: &Path) -> Result<Process> {
        Self::start_as(None, command, args, log)
    }

    /// The same as another user, if one is given: with that user's rights and home from the first instruction on.
    pub fn start_as(
        account: Option<&Account>,
        command: &Path,
        args: &[String],
        log: &Path,
    ) -> Result<Process> {
        File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut shell = Command::new("sh");
        if let Some(account) = account {
            std::os::unix::fs::chown(log, Some(account.uid), Some(account.gid))?;
            shell.uid(account.uid).gid(account.gid).env("HOME", &account.home).current_dir("/");
        }
        let mut shell = shell
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(log)
            .arg(command)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", command.display()))?;
        let stdout = shell.stdout.take().context("the supervisor has no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let pid = line.trim().parse().with_context(|| format!("no process id for {}", command.display()))?;
        Ok(Process { shell, pid, log: log.to_owned() })
    }

    /// The process id of the child (not of its supervisor).
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Resident memory of the child in bytes, as the kernel counts it.
    pub fn resident_bytes(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kib: u64 = line.split_whitespace().nth(1).context("no number in VmRSS")?.parse()?;
        Ok(kib * 1024)
    }

    /// Whether the child has ended, by itself or not.
    pub fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // Its supervisor has not waited for it yet, so a child that has ended still is there, as a zombie.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    }

    /// All that the child printed so far.
    pub fn log(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The last lines that the child printed.
    pub fn log_tail(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// What follows these words on the line that begins with them, once the child has printed it.
    pub async fn told(&self, words: &str) -> Result<String> {
        let told = async {
            loop {
                // A line may not be whole yet.
                let log = self.log();
                let lines = log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
                if let Some(rest) = lines.filter_map(|line| line.strip_prefix(words)).next() {
                    return Ok(rest.trim().to_owned());
                }
                ensure!(!self.has_ended(), "it has ended: {}", self.log_tail());
                tokio::time::sleep(LOOK).await;
            }
        };
        let limited = tokio::time::timeout(TOLD_LIMIT, told).await;
        limited.with_context(|| format!("it never says {words:?}: {}", self.log_tail()))?
    }

    /// Kills the child with SIGKILL and waits until it is gone.
    pub fn kill(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        drop(self.shell.stdin.take());
        // The supervisor waits for the child, so after this no port and no file of it is in use.
        let _ = self.shell.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.finish();
    }
}
