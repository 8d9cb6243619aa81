//! The `agentcube` binary: parses, wires, runs. The environment is read here and nowhere else.

mod access_log;
mod admin;
mod apiserver;
mod app;
mod apply;
mod build_service;
mod bundle;
mod cli;
mod client;
mod console;
mod controllers;
mod delete;
mod deny;
mod describe;
mod doctor;
mod down;
mod environment;
mod exec;
mod exit;
mod fastpath;
mod forge;
mod forge_runner;
mod frontend;
mod get;
mod guests;
mod image;
mod install;
mod invoke;
mod janitor;
mod logs;
mod manifest;
mod memory;
mod middleware;
mod middleware_agent;
mod middleware_archive;
mod output;
mod paths;
mod plugin;
mod pods;
mod port_forward;
mod readiness;
mod reference;
mod router;
mod sample_agent;
mod sandbox;
mod sandbox_agent;
mod sessions;
mod status;
mod token;
mod up;
mod version;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};
use crate::environment::Environment;
use crate::exit::Outcome;

/// Synchronous on purpose: `up` starts processes while there is one thread, and only then a runtime.
fn main() -> ExitCode {
    // Before anything else: the spawner is to be small.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "__spawner") {
        return agentcube_runtime::spawner::main();
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == agentcube_runtime::confine::WORD) {
        return agentcube_runtime::confine::main();
    }
    let cli = Cli::parse();
    let environment = Environment::read();
    let outcome = match start_log(&cli, &environment) {
        Ok(()) => run(cli, &environment),
        Err(error) => Err(error),
    };
    exit::report(outcome)
}

fn start_log(cli: &Cli, environment: &Environment) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_new(&cli.log).map_err(|error| exit::Usage(format!("--log {:?}: {error}", cli.log)))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(environment.stderr.colour);
    match &cli.command {
        Command::Up(arguments) if arguments.background => {
            let log = up::log::Bounded::open(&arguments.data_dir(environment).log())?;
            builder.with_ansi(false).with_writer(log).init();
        }
        _ => builder.with_writer(std::io::stderr).init(),
    }
    Ok(())
}

fn run(cli: Cli, environment: &Environment) -> anyhow::Result<Outcome> {
    match cli.command {
        Command::Up(arguments) => up::run(arguments, &cli.log, environment),
        Command::Down(arguments) => small(down::run(arguments, environment)),
        Command::Status(arguments) => small(status::run(arguments, environment)),
        Command::Apply(arguments) => small(apply::run(arguments, environment)),
        Command::Get(arguments) => small(get::run(arguments, environment)),
        Command::Describe(arguments) => small(describe::run(arguments, environment)),
        Command::Delete(arguments) => small(delete::run(arguments, environment)),
        Command::Invoke(arguments) => small(invoke::run(arguments, environment)),
        Command::App(arguments) => small(app::run(arguments, environment)),
        Command::Frontend(arguments) => small(frontend::run(arguments, environment)),
        Command::Plugin(arguments) => large(plugin::run(arguments, environment)),
        Command::Sandbox(arguments) => small(sandbox::run(arguments, environment)),
        Command::SandboxAgent(arguments) => sandbox_agent::run(*arguments, environment),
        Command::Sessions(arguments) => small(sessions::run(arguments, environment)),
        Command::Logs(arguments) => small(logs::run(arguments, environment)),
        Command::Exec(arguments) => small(exec::run(arguments, environment)),
        Command::PortForward(arguments) => small(port_forward::run(arguments, environment)),
        Command::Image(arguments) => large(async {
            let data_dir = paths::default_data_dir(environment);
            image::run(arguments, data_dir.path()).await.map(|()| Outcome::Done)
        }),
        Command::Token(arguments) => small(token::run(arguments, environment)),
        Command::Version(arguments) => small(version::run(arguments, environment)),
        Command::Doctor(arguments) => doctor::run(arguments, environment),
        Command::Apiserver(arguments) => large(apiserver::run(arguments)),
        Command::Install(arguments) => small(install::run(arguments, environment)),
        Command::Uninstall(arguments) => small(install::uninstall::run(arguments, environment)),
        Command::Controllers(arguments) => large(controllers::run(*arguments, environment)),
        Command::Fastpath(arguments) => large(fastpath::run(*arguments, environment)),
        Command::Router(arguments) => large(router::run(arguments, environment)),
        Command::MiddlewareAgent(arguments) => small(middleware_agent::run(arguments)),
        Command::MiddlewareArchive(arguments) => small(middleware_archive::run(arguments)),
        Command::BuildService(arguments) => large(build_service::run(arguments, environment)),
        Command::ForgeRunner(arguments) => small(forge_runner::run(arguments, environment)),
        Command::Janitor(arguments) => small(janitor::run(arguments, environment)),
        Command::Console(arguments) => large(console::run(arguments, environment)),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "agentcube", &mut script);
            output::write(&script)?;
            Ok(Outcome::Done)
        }
        Command::Bundle(arguments) => small(bundle::run(arguments)),
        Command::SampleAgent(arguments) => large(sample_agent::run(arguments)),
        Command::Reference => {
            output::write(reference::render(&Cli::command()).as_bytes())?;
            Ok(Outcome::Done)
        }
    }
}

/// For commands that ask a server: one thread is enough.
fn small(work: impl Future<Output = anyhow::Result<Outcome>>) -> anyhow::Result<Outcome> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().context("cannot start a runtime")?;
    let outcome = runtime.block_on(work);
    // A thread may sit in a read of the terminal that never ends; it must not keep the process.
    runtime.shutdown_background();
    outcome
}

/// For what serves others.
fn large(work: impl Future<Output = anyhow::Result<Outcome>>) -> anyhow::Result<Outcome> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().build().context("cannot start a runtime")?.block_on(work)
}
