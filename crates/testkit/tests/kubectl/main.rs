//! A scripted kubectl session. What it prints on the real server is committed; both servers must still make
//! kubectl print exactly that, ages and identities aside.

mod script;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use agentcube_testkit::suite::{Options, Report};
use agentcube_testkit::{Cluster, Kind, golden};
use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

use script::{SCRIPT, Step};

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    match options.binaries() {
        Err(error) => {
            report.skip("the kubectl session on both servers", 2 * SCRIPT.len(), &format!("{error:#}"))
        }
        Ok(binaries) => {
            if options.wants(Kind::Real) || options.record {
                match runtime.block_on(Cluster::real(&binaries)) {
                    Err(error) => report.note("real kube-apiserver starts", Err(error)),
                    Ok(cluster) => run(&cluster, &binaries.kubectl, &options, &mut report),
                }
            }
            if options.wants(Kind::Embedded) && !options.record {
                match runtime.block_on(Cluster::embedded()) {
                    Err(error) => report.note("embedded server starts", Err(error)),
                    Ok(cluster) => run(&cluster, &binaries.kubectl, &options, &mut report),
                }
            }
        }
    }
    report.close(options.strict)
}

fn golden_path() -> PathBuf {
    golden::root().join("kubectl/session.txt")
}

/// Runs every step in order, even after one has failed: later steps say more about what is wrong.
fn run(cluster: &Cluster, kubectl: &Path, options: &Options, report: &mut Report) {
    let home = match tempfile::tempdir() {
        Ok(home) => home,
        Err(error) => return report.note("a directory for kubectl", Err(error.into())),
    };
    let session = Session {
        kubectl,
        kubeconfig: cluster.kubeconfig(),
        home: home.path(),
        addr: cluster.http.addr().to_string(),
    };
    let expected = std::fs::read_to_string(golden_path()).unwrap_or_default();
    let expected: Vec<&str> = expected.split_inclusive("\n\n$ ").collect();
    let mut transcript = String::new();
    for (index, step) in SCRIPT.iter().enumerate() {
        let shown = session.run(step).unwrap_or_else(|error| format!("could not run: {error:#}\n"));
        let entry = format!("{}\n{shown}", step.command());
        if !options.record {
            let golden =
                expected.get(index).map(|text| text.trim_start_matches("$ ").trim_end_matches("$ ").trim());
            let outcome = compare(golden, entry.trim());
            report.note(&format!("{}/{:02} kubectl {}", cluster.kind, index + 1, step.command()), outcome);
        }
        transcript.push_str(&format!("$ {}\n\n", entry.trim()));
    }
    if options.record {
        report.note("recording", golden::write_text(&golden_path(), &format!("{}\n", transcript.trim())));
    }
}

fn compare(expected: Option<&str>, got: &str) -> Result<()> {
    let expected = expected.context("no golden output for this step: record it")?;
    if expected == got {
        return Ok(());
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (left, right) = (lines(expected), lines(got));
    let mut shown = String::new();
    for index in 0..left.len().max(right.len()) {
        let (a, b) = (left.get(index), right.get(index));
        if a != b {
            for (sign, line) in [('-', a), ('+', b)] {
                shown.extend(line.map(|line| format!("\n      {sign} {line}")));
            }
        }
        if shown.len() > 3000 {
            break;
        }
    }
    bail!("another output (- expected, + got):{shown}")
}

struct Session<'a> {
    kubectl: &'a Path,
    kubeconfig: &'a Path,
    home: &'a Path,
    addr: String,
}

impl Session<'_> {
    fn command(&self, line: &str) -> Result<Command> {
        let mut command = Command::new(self.kubectl);
        command
            .env_clear()
            .env("HOME", self.home)
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("KUBECONFIG", self.kubeconfig)
            .env("KUBE_EDITOR", "sed -i s/blue/green/")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubectl/manifests"))
            .arg("--cache-dir")
            .arg(self.home.join("cache"))
            // No command may wait for ever, a watch for lines that never come least of all.
            .args(["--namespace", "session", "--request-timeout=30s"])
            .args(words(line))
            .stdin(Stdio::null());
        Ok(command)
    }

    fn run(&self, step: &Step) -> Result<String> {
        match step {
            Step::Run(line) | Step::Eventually(line) => {
                let deadline = Instant::now() + Duration::from_secs(20);
                let mut output = self.command(line)?.output()?;
                while matches!(step, Step::Eventually(_))
                    && !output.status.success()
                    && Instant::now() < deadline
                {
                    output = self.command(line)?.output()?;
                }
                let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
                text.push_str(&String::from_utf8_lossy(&output.stderr));
                if !output.status.success() {
                    text.push_str(&format!("(exit code {})\n", output.status.code().unwrap_or(-1)));
                }
                Ok(self.mask(&text))
            }
            Step::Filtered(line, wanted) => {
                let output = self.command(line)?.output()?;
                ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let first = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
                let kept: Vec<&str> =
                    text.lines().filter(|line| wanted.contains(&first(line).as_str())).collect();
                Ok(self.mask(&kept.join("\n")))
            }
            Step::Watch { command, lines, meanwhile } => self.watch(command, *lines, meanwhile),
        }
    }

    /// Reads the first line of a watch, runs another command, and reads on until `lines` have come.
    fn watch(&self, line: &str, lines: usize, meanwhile: &str) -> Result<String> {
        let mut child = self.command(line)?.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("kubectl has no standard output")?;
        let mut reader = BufReader::new(stdout);
        let mut text = String::new();
        // The header and the first row: from here on the watch is open.
        reader.read_line(&mut text)?;
        reader.read_line(&mut text)?;
        let status = self.command(meanwhile)?.output()?.status;
        for _ in 2..lines {
            reader.read_line(&mut text)?;
        }
        child.kill()?;
        child.wait()?;
        ensure!(status.success(), "kubectl {meanwhile} failed");
        Ok(self.mask(&text))
    }

    fn mask(&self, text: &str) -> String {
        static MASKS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
            [
                // What kubectl logs about its own watches depends on the moment.
                (r"(?m)^[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ .*\n", ""),
                (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "{uid}"),
                (r"20(2[4-9]|[3-9]\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "{time}"),
                (r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} 20\d\d \d\d:\d\d:\d\d \+\d{4}", "{time}"),
                (r#"(resourceVersion: |"resourceVersion": )"\d+""#, r#"${1}"{rv}""#),
                (r"Resource Version:(\s+)\d+", "Resource Version:${1}{rv}"),
                (r"\b(\d+m)?\d+(s|ms)\b", "{age}"),
                (r"\b\d+y(\d+d)?\b", "{years}"),
                (r"\b10\.\d+\.\d+\.\d+\b", "{ip}"),
                (r"(\S)[ \t]{2,}", "${1}   "),
                (r"[ \t]+\n", "\n"),
            ]
            .map(|(pattern, mask)| (Regex::new(pattern).expect("a constant"), mask))
            .into()
        });
        let text = format!("{}\n", text.trim_end()).replace(&self.addr, "{address}");
        let text = text.replace(&self.home.display().to_string(), "{home}");
        MASKS.iter().fold(text, |text, (pattern, mask)| pattern.replace_all(&text, *mask).into_owned())
    }
}

/// Splits a command line at spaces, except within single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for character in line.chars() {
        match character {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            other => words.last_mut().expect("there is always one").push(other),
        }
    }
    words
}
