//! kubectl as a user runs it. No command may take for ever.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// A debug build on a busy machine is slow.
const LIMIT: Duration = Duration::from_secs(180);

pub(crate) struct Kubectl {
    pub(crate) program: PathBuf,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) home: PathBuf,
}

/// A command that goes on printing; killed when dropped.
pub(crate) struct Following {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Kubectl {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("HOME", &self.home)
            .env("KUBECONFIG", &self.kubeconfig)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command that reads `input`, and returns how it ended.
    pub(crate) async fn output(&self, args: &[&str], input: &[u8]) -> Result<Output> {
        let what = args.join(" ");
        let mut child = self.command(args).spawn().context("cannot start kubectl")?;
        let mut stdin = child.stdin.take().context("kubectl has no standard input")?;
        let write = async {
            // One that does not read its input may close it; how it ends is what counts.
            let _ = stdin.write_all(input).await;
            drop(stdin);
        };
        let both = async { tokio::join!(write, child.wait_with_output()).1 };
        Ok(timeout(LIMIT, both).await.with_context(|| format!("kubectl {what} does not end"))??)
    }

    /// Runs a command that must succeed, and returns what it printed.
    pub(crate) async fn run(&self, args: &[&str]) -> Result<String> {
        self.piped(args, b"").await
    }

    pub(crate) async fn piped(&self, args: &[&str], input: &[u8]) -> Result<String> {
        let output = self.output(args, input).await?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {}\n{said}", args.join(" "), output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(crate) fn follow(&self, args: &[&str]) -> Result<Following> {
        let mut child = self.command(args).spawn().context("cannot start kubectl")?;
        let output = child.stdout.take().context("kubectl has no standard output")?;
        Ok(Following { _child: child, lines: BufReader::new(output).lines() })
    }
}

impl Following {
    /// The next line; `None` at the end.
    pub(crate) async fn line(&mut self) -> Result<Option<String>> {
        Ok(timeout(LIMIT, self.lines.next_line()).await.context("nothing more is printed")??)
    }
}
