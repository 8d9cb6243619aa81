//! `cargo demo`: builds AgentCube, starts it in the background, deploys a small agent as a Task, talks to it in two
//! sessions, shows that each has an instance of its own and what becomes of it, and leaves everything running. All of it
//! goes through the program itself, as a user would do it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::Settings;
use crate::process::{cargo, succeeds};

const AGENT: &str = "examples/agents/hello.yaml";
const TASK: &str = "hello";
/// Who says what. Each session has an instance of its own, and is remembered there.
const CONVERSATION: [(&str, &str); 4] =
    [("ada", "I am Ada"), ("bob", "My name is Bob"), ("ada", "Who am I?"), ("bob", "And I?")];
/// The Task's idle timeout is 15 s; a busy machine takes a little longer.
const RECLAIM_LIMIT: Duration = Duration::from_secs(120);

/// Runs the demonstration.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    eprintln!("building AgentCube (a few minutes the first time)");
    let built = succeeds(cargo(&settings.root).args(["build", "--quiet", "--release", "-p", "agentcube"]))?;
    ensure!(built, "agentcube does not build");
    let stage = Stage {
        program: settings.root.join("target/release/agentcube"),
        root: &settings.root,
        data: settings.state.with_file_name("agentcube-demo"),
    };
    stage.clear()?;
    stage.say(&["up", "--detach", "--data-dir", &stage.data.display().to_string()])?;
    stage.ask(&["apply", "-f", AGENT, "--wait", "--timeout", "60"])?;
    stage.ask(&["get", "tasks"])?;
    println!(
        "\nNobody has asked yet, so nothing runs. The first request of each session starts an instance:"
    );
    for (session, message) in CONVERSATION {
        stage.ask(&["invoke", TASK, "--session", session, "-d", message])?;
    }
    println!("\nTwo sessions, two instances, and each remembers its own conversation:");
    stage.ask(&["sessions"])?;
    stage.ask(&["get", "pods"])?;
    println!("\nSessions that fall silent end, and give their instances back (this takes 15 s):");
    stage.until_silent()?;
    stage.ask(&["get", "events", "--field-selector", "involvedObject.kind=Task"])?;
    stage.ask(&["get", "pods"])?;
    println!("\nThe next request starts afresh:");
    stage.ask(&["invoke", TASK, "--session", "ada", "-d", "Do you remember me?"])?;
    stage.farewell();
    Ok(())
}

struct Stage<'a> {
    program: PathBuf,
    root: &'a Path,
    data: PathBuf,
}

impl Stage<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(self.root).args(args);
        command
    }

    /// A demonstration that still runs is replaced, so that repeating the command leaves only one.
    fn clear(&self) -> Result<()> {
        let stopped = self.command(&["down", "--data-dir"]).arg(&self.data).output()?;
        let code = stopped.status.code();
        // 3: it did not run.
        ensure!(matches!(code, Some(0 | 3)), "{}", String::from_utf8_lossy(&stopped.stderr));
        match std::fs::remove_dir_all(&self.data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.data.display()))
            }
            _ => Ok(()),
        }
    }

    /// Runs a command that shows itself and its output.
    fn say(&self, args: &[&str]) -> Result<()> {
        println!("\n$ agentcube {}", shown(args));
        ensure!(succeeds(&mut self.command(args))?, "agentcube {} failed", args[0]);
        Ok(())
    }

    /// The same, of the cluster on stage.
    fn ask(&self, args: &[&str]) -> Result<()> {
        println!("\n$ agentcube {}", shown(args));
        let kubeconfig = self.data.join("kubeconfig");
        ensure!(succeeds(self.command(args).env("KUBECONFIG", kubeconfig))?, "agentcube {} failed", args[0]);
        Ok(())
    }

    /// Waits until no session is left.
    fn until_silent(&self) -> Result<()> {
        let deadline = Instant::now() + RECLAIM_LIMIT;
        loop {
            let mut command = self.command(&["sessions", "-o", "json"]);
            let output = command.env("KUBECONFIG", self.data.join("kubeconfig")).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            if output.stdout.trim_ascii() == b"[]" {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the sessions do not end");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn farewell(&self) {
        let kubeconfig = self.data.join("kubeconfig");
        let program = self.program.display();
        println!("\nIt is left running. To go on:");
        println!("    export KUBECONFIG={}", kubeconfig.display());
        println!("    {program} invoke {TASK} --session you -d 'Hello'");
        println!("    {program} invoke {TASK} /stream --session you -d 'Tell me more'");
        println!("    {program} sessions");
        println!("    {program} get tasks,pods");
        if let Some(address) = self.address() {
            println!("    curl -H 'X-Session-ID: you' -d 'Hello' {address}/");
        }
        if let Ok(console) = std::fs::read_to_string(self.data.join("console")) {
            println!(
                "To see it in a browser, log in at http://{} with {}",
                console.trim(),
                kubeconfig.display()
            );
        }
        println!("To stop it:");
        println!("    {program} down --data-dir {}", self.data.display());
    }

    /// Where the Task is served; the demonstration is not spoilt for want of it.
    fn address(&self) -> Option<String> {
        let mut command = self.command(&["get", "task", TASK, "-o", "json"]);
        let output = command.env("KUBECONFIG", self.data.join("kubeconfig")).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let (_, rest) = text.split_once("\"address\": \"")?;
        rest.split_once('"').map(|(address, _)| address.to_owned())
    }
}

/// Arguments as one would type them.
fn shown(args: &[&str]) -> String {
    let word = |word: &&str| if word.contains(' ') { format!("'{word}'") } else { (*word).to_owned() };
    args.iter().map(word).collect::<Vec<_>>().join(" ")
}
