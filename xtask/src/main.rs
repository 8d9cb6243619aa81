//! `cargo xtask`: the one entry for people and for CI. A fresh machine has cargo and a C compiler and nothing
//! else; whatever more is needed, this obtains. The environment is read here and nowhere else.

mod bench;
mod check;
mod cluster;
mod console;
mod demo;
mod generate;
mod policy;
mod process;
mod setup;
mod suites;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Sets up, generates, checks, tests, measures and shows AgentCube")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Obtains the real Kubernetes control plane, Envoy, the OCI runtimes, the clients of protocols, Go's templates, Redis and PostgreSQL that tests use
    Setup,
    /// Regenerates the golden files: definitions, built-in schemas, transcripts, documents
    Gen {
        /// Only says whether anything would change
        #[arg(long)]
        check: bool,
    },
    /// Format, lints, golden files, dependency policy
    Check,
    /// Runs all test suites, or one
    Test {
        /// The suite to run; all of them when absent
        suite: Option<String>,
        /// Names the suites
        #[arg(long)]
        list: bool,
    },
    /// Measures, always against a peer in the same run
    Bench {
        /// What to measure
        #[arg(value_parser = ["apiserver", "runtime", "fastpath", "up", "reserve", "router", "tasks"])]
        what: String,
        /// Prints JSON instead of a table
        #[arg(long)]
        json: bool,
        /// Fails when a target is missed
        #[arg(long)]
        enforce: bool,
    },
    /// A real Kubernetes on this machine, with Envoy Gateway and images of AgentCube
    Cluster {
        #[command(subcommand)]
        action: cluster::Action,
    },
    /// Starts AgentCube with an example and leaves it running
    Demo,
}

/// What the environment says, read once.
pub(crate) struct Settings {
    /// The workspace.
    root: PathBuf,
    /// Where programs that are not ours are kept, by version.
    cache: PathBuf,
    /// A directory with a Kubernetes control plane of the user's own.
    assets: Option<PathBuf>,
    /// Nothing may be skipped.
    strict: bool,
    path: std::ffi::OsString,
    state: PathBuf,
}

impl Settings {
    fn from_environment() -> Settings {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = variable("HOME").unwrap_or_default();
        let cache = variable("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache")).join("agentcube");
        let state = variable("XDG_STATE_HOME").unwrap_or_else(|| home.join(".local/state")).join("agentcube");
        let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        Settings {
            root: manifest.parent().map_or(manifest.clone(), PathBuf::from),
            cache: variable("AGENTCUBE_CACHE").unwrap_or(cache),
            assets: variable("KUBEBUILDER_ASSETS"),
            strict: std::env::var("CI").is_ok_and(|value| value == "true"),
            path: std::env::var_os("PATH").unwrap_or_default(),
            state,
        }
    }
}

fn main() -> ExitCode {
    let settings = Settings::from_environment();
    match run(&settings, Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings, command: Command) -> Result<bool> {
    match command {
        Command::Setup => {
            setup::run(settings)?;
            setup::envoy::run(settings)?;
            setup::protocols::run(settings)?;
            setup::proxy::run(settings)?;
            setup::containerd::run(settings)?;
            setup::templates::run(settings)?;
            setup::middleware::run(settings)?;
            setup::console::modules(settings)?;
            setup::console::browser(settings)?;
            setup::oci::run(settings)?;
            setup::cluster::run(settings).map(|_| true)
        }
        Command::Gen { check } => generate::run(settings, check),
        Command::Check => check::run(settings),
        Command::Test { list: true, .. } => {
            suites::list();
            Ok(true)
        }
        Command::Test { suite, .. } => suites::run(settings, suite.as_deref()),
        Command::Bench { what, json, enforce } => match what.as_str() {
            "runtime" => bench::runtime(settings, json, enforce),
            "fastpath" => bench::fastpath(settings, json, enforce),
            "up" => bench::up(settings, json, enforce),
            "reserve" => bench::reserve(settings, json, enforce),
            "router" => bench::router(settings, json, enforce),
            "tasks" => bench::tasks(settings, json, enforce),
            _ => bench::apiserver(settings, json, enforce),
        },
        Command::Cluster { action } => cluster::run(settings, action),
        Command::Demo => demo::run(settings).map(|()| true),
    }
}
