//! `cargo demo`: builds AgentCube, starts it in the background, deploys a small agent, talks to it in two sessions,
//! shows what happened, and leaves it running. Everything goes through the program itself, as a user would do it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Settings;
use crate::process::{cargo, succeeds};

const AGENT: &str = "examples/agents/hello.yaml";
/// Where Pods of the image `host` find the program.
const PROGRAM_IN_PODS: &str = "/.agentcube/agentcube";
/// Who says what to which instance. Each session has an instance of its own, and is remembered there.
const CONVERSATION: [(&str, &str, &str); 4] = [
    ("hello-0", "ada", "I am Ada"),
    ("hello-1", "bob", "My name is Bob"),
    ("hello-0", "ada", "Who am I?"),
    ("hello-1", "bob", "And I?"),
];

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
    stage.ask(&["get", "pods,services"])?;
    for (pod, session, message) in CONVERSATION {
        let command = [PROGRAM_IN_PODS, "sample-agent", "--session", session, "--ask", message];
        stage.ask(&[&["exec", pod, "--"], command.as_slice()].concat())?;
    }
    stage.ask(&["get", "events"])?;
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

    fn farewell(&self) {
        let kubeconfig = self.data.join("kubeconfig");
        let program = self.program.display();
        println!("\nIt is left running. To go on:");
        println!("    export KUBECONFIG={}", kubeconfig.display());
        println!("    {program} get pods");
        println!("    {program} logs hello-0 -f");
        println!("    {program} exec -it hello-0 -- sh");
        println!("To stop it:");
        println!("    {program} down --data-dir {}", self.data.display());
    }
}

/// Arguments as one would type them.
fn shown(args: &[&str]) -> String {
    let word = |word: &&str| if word.contains(' ') { format!("'{word}'") } else { (*word).to_owned() };
    args.iter().map(word).collect::<Vec<_>>().join(" ")
}
