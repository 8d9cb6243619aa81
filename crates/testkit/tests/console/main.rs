//! The web console on a running `agentcube up`, in a real Chromium: `console/tests/console.mjs` has the trials and drives
//! the browser; here everything is started, and what it reports is counted. Screenshots are left in the cache.
//!
//! Most trials put in what the forge would build, so nobody else may look after it. Those of `forge.mjs` have an `up` of their
//! own, with the real forge and the real esbuild.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use agentcube_testkit::cluster::process::build_program;
use agentcube_testkit::cluster::up::Place;
use agentcube_testkit::suite::{Options, Report};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

/// Where `cargo xtask setup` puts the browser in the cache.
const BROWSER: &str = "chromium-debian/chromium-headless-shell";
/// The longest silence: longer than the limit of a trial, which `console.mjs` keeps itself.
const SILENCE: Duration = Duration::from_secs(20 * 60);

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    if let Err(error) = runtime.block_on(run(&options, &mut report)) {
        report.note("the console is tried", Err(error));
    }
    report.close(options.strict)
}

async fn run(options: &Options, report: &mut Report) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let tools = match Tools::find(&root, &options.cache) {
        Ok(tools) => tools,
        Err(error) => {
            let why = format!("{error:#}: `cargo xtask test console` gets it");
            report.skip("the console in a browser", 1, &why);
            return Ok(());
        }
    };
    let bundler = tools.bundler.display().to_string();
    with_up(&tools, Set::Pages, &["--no-forge".into()], options, report).await?;
    with_up(&tools, Set::Forge, &["--bundler".into(), bundler], options, report).await
}

/// Which trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Pages,
    Forge,
}

impl Set {
    fn name(self) -> &'static str {
        match self {
            Set::Pages => "pages",
            Set::Forge => "forge",
        }
    }

    /// What is noted of `up` itself.
    fn of_up(self, what: &str) -> String {
        match self {
            Set::Pages => what.to_owned(),
            Set::Forge => format!("with the forge, {what}"),
        }
    }
}

/// The trials of a set, on an `up` with these arguments.
async fn with_up(
    tools: &Tools,
    set: Set,
    arguments: &[String],
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let place = Place::new(&build_program()?)?;
    let up = place.start_with(arguments).await?;
    let console = std::fs::read_to_string(place.data().join("console")).context("up has no console")?;
    let told = up.log();
    report.note(
        &set.of_up("up prints where the console is"),
        match told.contains(&format!("http://{console}")) {
            true => Ok(()),
            false => Err(anyhow!("{told}")),
        },
    );
    let outcome = trials(tools, set, &place, &console, options, report);
    if outcome.is_err() {
        eprintln!("{}", up.log());
    }
    outcome?;
    let log = up.log();
    let kubeconfig = std::fs::read_to_string(place.kubeconfig())?;
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
    let token = token.context("the kubeconfig has no token")?;
    report.note(
        &set.of_up("no token is in the log"),
        match log.contains(token) {
            true => Err(anyhow!("it is")),
            false => Ok(()),
        },
    );
    report.note(&set.of_up("agentcube down ends it in order"), up.down(&place));
    Ok(())
}

/// What the trials run by.
struct Tools {
    node: PathBuf,
    browser: PathBuf,
    console: PathBuf,
    bundler: PathBuf,
    artifacts: PathBuf,
}

impl Tools {
    fn find(root: &Path, cache: &Path) -> Result<Tools> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let node = std::env::split_paths(&path).map(|place| place.join("node")).find(|node| node.is_file());
        let tools = Tools {
            node: node.context("there is no node")?,
            browser: cache.join(BROWSER),
            console: root.join("console"),
            bundler: root.join("console/node_modules/esbuild/bin/esbuild"),
            artifacts: cache.join("artifacts/console"),
        };
        ensure!(tools.browser.is_file(), "there is no Chromium in the cache");
        ensure!(
            tools.console.join("node_modules/playwright-core").is_dir(),
            "the console's modules are missing"
        );
        ensure!(tools.bundler.is_file(), "esbuild is not among the console's modules");
        Ok(tools)
    }
}

/// Runs the trials, and notes each as it is reported.
fn trials(
    tools: &Tools,
    set: Set,
    place: &Place,
    console: &str,
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let mut command = Command::new(&tools.node);
    command
        .arg(tools.console.join("tests/console.mjs"))
        .args(&options.filter)
        .env("CONSOLE", format!("http://{console}"))
        .env("KUBECONFIG", place.kubeconfig())
        .env("HOME", place.home())
        .env("AGENTCUBE", place.program())
        .env("CHROMIUM", &tools.browser)
        .env("MODULES", &tools.console)
        .env("ARTIFACTS", &tools.artifacts)
        .env("TRIALS", set.name())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run node")?;
    let mut seen = 0;
    let well = watch(&mut child, &mut seen, report);
    if well.is_err() {
        // It may have ended by itself; Chromium ends with it.
        let _ended = child.kill();
    }
    let status = child.wait()?;
    well?;
    if !status.success() {
        bail!("the trials broke off after {seen}");
    }
    ensure!(seen > 0 || options.filter.is_some(), "nothing was tried");
    Ok(())
}

/// Notes what is reported, until the end of it or until nothing comes any more.
fn watch(child: &mut Child, seen: &mut usize, report: &mut Report) -> Result<()> {
    let lines = lines(child)?;
    loop {
        let line = match lines.recv_timeout(SILENCE) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                bail!("after {seen} trials nothing was reported for {} s", SILENCE.as_secs())
            }
        };
        let Ok(trial) = serde_json::from_str::<Value>(&line) else {
            println!("{line}");
            continue;
        };
        let name = trial["name"].as_str().context("a trial without a name")?;
        let outcome = match trial["why"].as_str() {
            Some(why) => Err(anyhow!("{why}")),
            None => Ok(()),
        };
        report.note(name, outcome);
        *seen += 1;
    }
}

/// What it prints, line by line, by a thread that can be waited for with a limit.
fn lines(child: &mut Child) -> Result<Receiver<std::io::Result<String>>> {
    let output = child.stdout.take().context("node has no standard output")?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    Ok(receiver)
}
