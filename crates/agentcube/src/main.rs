//! The `agentcube` binary: parses, wires, runs. The environment is read here and nowhere else.

mod apiserver;
mod image;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use tracing_subscriber::EnvFilter;

#[derive(Parser)]
#[command(name = "agentcube", version, about = "Runs AI agents on Kubernetes, or on one machine without it")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// What to log: a level, or levels per module
    #[arg(long, global = true, env = "AGENTCUBE_LOG", default_value = "warn")]
    log: String,
}

#[derive(Subcommand)]
enum Command {
    /// Run the embedded Kubernetes API server alone
    Apiserver(apiserver::Arguments),
    /// Import, pull, list and remove the images that Pods run
    Image(image::Arguments),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:\n  agentcube completion bash > /etc/bash_completion.d/agentcube")]
    Completion {
        /// The shell to complete in
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_new(&cli.log).unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let outcome = match cli.command {
        Command::Apiserver(arguments) => run(apiserver::run(arguments)),
        Command::Image(arguments) => run(image::run(arguments, &default_data_dir())),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "agentcube", &mut std::io::stdout());
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `$XDG_STATE_HOME/agentcube`, or `~/.local/state/agentcube`; the working directory's `.agentcube` without a home.
fn default_data_dir() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    state.map_or_else(|| PathBuf::from(".agentcube"), |state| state.join("agentcube"))
}

fn run(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}
