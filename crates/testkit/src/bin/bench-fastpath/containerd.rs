//! `ctr run` on a containerd of our own, with its state in a temporary directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agentcube_testkit::containers::bundle::{PROGRAM, RootFs};
use agentcube_testkit::containers::oci::{self, Alive};
use agentcube_testkit::containers::times::Times;
use agentcube_testkit::supervise::Process;
use anyhow::{Context, Result, bail, ensure};

use crate::pool::IMAGE;

const READY_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

pub(crate) struct Containerd {
    socket: PathBuf,
    meetings: PathBuf,
    process: Process,
}

impl Containerd {
    /// The error says why it cannot be compared with.
    pub(crate) fn start(root: &RootFs, archive: &Path) -> Result<Containerd> {
        let directory = root.beside("containerd")?;
        let socket = directory.join("socket");
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = {:?}\n",
            directory.join("root"),
            directory.join("state"),
            socket
        );
        let file = directory.join("config.toml");
        std::fs::write(&file, config)?;
        let args = ["--config".to_owned(), file.display().to_string()];
        let process = Process::start(Path::new("containerd"), &args, &directory.join("log"))?;
        let meetings = directory.join("meetings");
        let containerd = Containerd { socket, meetings, process };
        containerd.ready().with_context(|| containerd.process.log_tail())?;
        containerd.ctr(&[
            "images",
            "import",
            "--snapshotter",
            "overlayfs",
            &archive.display().to_string(),
        ])?;
        Ok(containerd)
    }

    fn ready(&self) -> Result<()> {
        let begun = Instant::now();
        while let Err(error) = self.ctr(&["version"]) {
            if self.process.has_ended() || begun.elapsed() > READY_LIMIT {
                bail!("containerd does not answer: {error:#}");
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(&self.socket).stdin(Stdio::null());
        command
    }

    fn ctr(&self, args: &[&str]) -> Result<()> {
        let output = self.command().args(args).output().context("ctr cannot be run")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    pub(crate) async fn start_one(&self, number: usize) -> Result<(Times, Alive)> {
        let meeting = self.meetings.join(number.to_string());
        std::fs::create_dir_all(&meeting)?;
        let mount = format!("type=bind,src={},dst=/run,options=rbind:rw", meeting.display());
        let mut command = self.command();
        command.args(["run", "--rm", "--mount", &mount]);
        command.arg(format!("docker.io/library/{IMAGE}")).arg(format!("bench-{number}"));
        command.args([PROGRAM, "/run/socket"]).stderr(Stdio::piped());
        oci::start(command, meeting.join("socket")).await
    }
}
