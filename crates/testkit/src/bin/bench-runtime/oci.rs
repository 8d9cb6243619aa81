//! An OCI runtime of the machine, run as `runc run` with a bundle that was prepared before.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;

use crate::bundle::{PROGRAM, RootFs};
use crate::{Times, time};

/// Where containers see the directory of their socket. A network namespace of theirs has nothing to reach it by.
const MEETING: &str = "/run";
const SOCKET: &str = "/run/socket";
const WITHOUT_CGROUPS: &[&str] = &["--cgroup-manager=disabled"];

pub(crate) struct Oci {
    pub(crate) name: String,
    program: PathBuf,
    /// Options before the command.
    options: &'static [&'static str],
    /// The configuration that `runc spec` suggests, with our program in it.
    config: Value,
    bundles: PathBuf,
    state: PathBuf,
}

impl Oci {
    /// Finds the program on the path; the error says why it cannot be compared with.
    pub(crate) fn find(name: &str, root: &RootFs) -> Result<Oci> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut candidates = std::env::split_paths(&path).map(|directory| directory.join(name));
        let program = candidates.find(|program| program.is_file()).context("not on the PATH")?;
        let bundles = root.beside(name)?;
        let config = config(&program, &bundles, &root.path())?;
        let state = root.beside(&format!("{name}-state"))?;
        let mut oci = Oci { name: format!("{name} run"), program, options: &[], config, bundles, state };
        if let Err(error) = oci.try_once() {
            // crun refuses machines that have cgroups of both versions. Without any, it has less to do.
            oci.options = WITHOUT_CGROUPS;
            oci.name = format!("{name} run, no cgroups");
            if name != "crun" || oci.try_once().is_err() {
                return Err(error);
            }
        }
        Ok(oci)
    }

    fn command(&self, number: usize, bundle: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.options).arg("--root").arg(&self.state).arg("run").arg("--bundle").arg(bundle);
        command.arg(format!("bench-{}-{number}", std::process::id()));
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Whether this machine lets it run at all: the program says that it runs, finds no directory for its socket, and ends.
    fn try_once(&self) -> Result<()> {
        let bundle = self.bundle(usize::MAX)?;
        let mut config = self.config(&bundle);
        config["process"]["args"] = json!([PROGRAM, "serve", "/nowhere/socket"]);
        std::fs::write(bundle.join("config.json"), config.to_string())?;
        let output = self.command(usize::MAX, &bundle).stdout(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.stdout.starts_with(b"r"), "it cannot run containers here: {}", said.trim());
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

    pub(crate) async fn run(&self, number: usize) -> Result<Times> {
        let bundle = self.bundle(number)?;
        let (output, stdout) = std::io::pipe()?;
        let mut output = Receiver::from_owned_fd(output.into())?;
        let mut command = tokio::process::Command::from(self.command(number, &bundle));
        command.stdout(stdout);
        let begun = Instant::now();
        let child = command.spawn()?;
        // It holds our end of the pipe, and the program's end must be seen.
        drop(command);
        let connect = async { Ok(UnixStream::connect(bundle.join("meeting/socket")).await?) };
        let times = time(begun, &mut output, connect).await;
        let ended = child.wait_with_output().await?;
        ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        times
    }
}

fn config(program: &Path, directory: &Path, root: &Path) -> Result<Value> {
    let output = Command::new(program).arg("spec").current_dir(directory).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = directory.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    std::fs::remove_file(&file)?;
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!([PROGRAM, "serve", SOCKET]);
    config["root"] = json!({"path": root, "readonly": true});
    Ok(config)
}
