//! An OCI runtime of the machine, run as `runc run` with a bundle that was prepared before.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;

use super::bundle::{PROGRAM, RootFs};
use super::times::{Times, time};

/// Where `cargo xtask setup` keeps OCI runtimes in its cache, each to be started as if it were installed.
pub const CACHED: &str = "oci-20260224";

/// Where containers see the directory of their socket. A network namespace of theirs has nothing to reach it by.
const MEETING: &str = "/run";
const SOCKET: &str = "/run/socket";
/// `crun` refuses machines that have both versions of cgroups, even when it is told to leave them alone.
const UNIFIED: &str = "/sys/fs/cgroup/unified";
/// Hides that directory, says so, and becomes its other arguments when told to.
const HIDDEN: &str = "umount --lazy \"$0\" && echo && read -r _ && exec \"$@\"";

pub struct Oci {
    pub name: String,
    program: PathBuf,
    /// The configuration that `runc spec` suggests, with our program in it.
    config: Value,
    bundles: PathBuf,
    state: PathBuf,
}

impl Oci {
    /// Finds the program on the path; the error says why it cannot be compared with.
    pub fn find(name: &str, root: &RootFs) -> Result<Oci> {
        let program = on_the_path(name)?;
        let bundles = root.beside(name)?;
        let config = config(&program, &bundles, &root.path())?;
        let state = root.beside(&format!("{name}-state"))?;
        let oci = Oci { name: format!("{name} run"), program, config, bundles, state };
        oci.try_once()?;
        Ok(oci)
    }

    /// What has to be hidden from it is hidden before it is told to begin.
    fn command(&self, number: usize, bundle: &Path) -> Command {
        let mut command = if self.program.ends_with("crun") && Path::new(UNIFIED).exists() {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", HIDDEN, UNIFIED]).arg(&self.program);
            command.arg("--cgroup-manager=disabled").stdin(Stdio::piped());
            command
        } else {
            let mut command = Command::new(&self.program);
            command.stdin(Stdio::null());
            command
        };
        if self.program.ends_with("runsc") {
            // The socket is to be the machine's.
            command.arg("--host-uds=create");
        }
        command.arg("--root").arg(&self.state).arg("run").arg("--bundle").arg(bundle);
        command.arg(format!("bench-{}-{number}", std::process::id()));
        command.stderr(Stdio::piped());
        command
    }

    /// Whether this machine lets it run at all: the program says that it runs, finds no directory for its socket, and ends.
    fn try_once(&self) -> Result<()> {
        let bundle = self.bundle(usize::MAX)?;
        let mut config = self.config(&bundle);
        config["process"]["args"] = json!([PROGRAM, "serve", "/nowhere/socket"]);
        std::fs::write(bundle.join("config.json"), config.to_string())?;
        let mut child = self.command(usize::MAX, &bundle).stdout(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(b"\n")?;
        }
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.stdout.trim_ascii_start().starts_with(b"r"),
            "it cannot run containers here: {}",
            said.trim()
        );
        Ok(())
    }

    fn config(&self, bundle: &Path) -> Value {
        let mut config = self.config.clone();
        if let Some(mounts) = config["mounts"].as_array_mut() {
            let source = bundle.join("meeting");
            mounts.push(
                json!({"destination": MEETING, "type": "bind", "source": source, "options": ["bind", "rw"]}),
            );
        }
        config
    }

    /// The bundle of one container: its configuration, and the directory of its socket.
    fn bundle(&self, number: usize) -> Result<PathBuf> {
        let bundle = self.bundles.join(number.to_string());
        std::fs::create_dir_all(bundle.join("meeting"))?;
        std::fs::write(bundle.join("config.json"), self.config(&bundle).to_string())?;
        Ok(bundle)
    }

    pub async fn start(&self, number: usize) -> Result<(Times, Alive)> {
        let bundle = self.bundle(number)?;
        start(self.command(number, &bundle), bundle.join("meeting/socket")).await
    }
}

/// Where a program of the machine is.
pub fn on_the_path(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(name));
    candidates.find(|program| program.is_file()).context("not on the PATH")
}

/// A process that we have started: a runtime's, with a container in it, or the program itself.
pub struct Alive {
    child: tokio::process::Child,
    connection: UnixStream,
}

/// Runs a command that ends in the program, which listens on the socket given. A command with an input says when it is
/// ready, and begins when it is told to.
pub async fn start(command: Command, socket: PathBuf) -> Result<(Times, Alive)> {
    let (output, stdout) = std::io::pipe()?;
    let mut output = Receiver::from_owned_fd(output.into())?;
    let mut command = tokio::process::Command::from(command);
    command.stdout(stdout);
    let mut begun = Instant::now();
    let mut child = command.spawn()?;
    // It holds our end of the pipe, and the program's end must be seen.
    drop(command);
    if let Some(mut stdin) = child.stdin.take() {
        let word = output.read_u8().await.context("it does not get ready")?;
        ensure!(word == b'\n', "it says {word} instead of being ready");
        begun = Instant::now();
        stdin.write_all(b"\n").await?;
    }
    let connect = async { Ok(UnixStream::connect(socket).await?) };
    let (times, connection) = time(begun, &mut output, connect).await?;
    Ok((times, Alive { child, connection }))
}

impl Alive {
    /// Lets the program end, and the runtime clean up after it.
    pub async fn end(self) -> Result<()> {
        drop(self.connection);
        let ended = self.child.wait_with_output().await?;
        ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        Ok(())
    }
}

fn config(program: &Path, directory: &Path, root: &Path) -> Result<Value> {
    let output = Command::new(program).arg("spec").current_dir(directory).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = directory.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    std::fs::remove_file(&file)?;
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!([PROGRAM, SOCKET]);
    config["root"] = json!({"path": root, "readonly": true});
    Ok(config)
}
