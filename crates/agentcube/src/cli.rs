//! The command line as a whole. Each command's own arguments are with the command.

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::{
    apiserver, app, apply, build_service, bundle, console, controllers, delete, describe, doctor, down, exec,
    exit, fastpath, forge_runner, frontend, get, image, install, invoke, janitor, logs, middleware_agent,
    middleware_archive, plugin, port_forward, router, sample_agent, sandbox, sandbox_agent, sessions, status,
    token, up, version,
};

/// Clients of ours say themselves what goes wrong.
pub(crate) const DEFAULT_LOG: &str = "warn,kube_client=off";
/// A process in the background has a log to fill.
pub(crate) const BACKGROUND_LOG: &str = "info,kube_client=off";

#[derive(Parser)]
#[command(
    name = "agentcube",
    version,
    about = "Runs AI agents on Kubernetes, or on one machine without it",
    after_help = exit::CODES,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// What to log: a level, or levels per module
    #[arg(
        long,
        global = true,
        env = "AGENTCUBE_LOG",
        hide_env_values = true,
        default_value = DEFAULT_LOG
    )]
    pub(crate) log: String,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run everything on this machine: a Kubernetes API, a node for its Pods, Tasks and their gateway
    Up(up::Arguments),
    /// Stop what `up` runs
    Down(down::Arguments),
    /// Say whether `up` runs, where, and what it holds
    Status(status::Arguments),
    /// Create or change objects so that they are as files say
    Apply(apply::Arguments),
    /// Show objects as a table, JSON or YAML
    Get(get::Arguments),
    /// Show one object in full, with its conditions and events
    Describe(describe::Arguments),
    /// Delete objects by name, label or file
    Delete(delete::Arguments),
    /// Send a request to a Task through its gateway
    Invoke(invoke::Arguments),
    /// Show middleware and its changes; retry or cancel them; keep its data, and restore them
    App(app::Arguments),
    /// Show front ends, how their builds went and what they said; build them again
    Frontend(frontend::Arguments),
    /// Check a recipe of middleware, render it, and show what it would change
    Plugin(plugin::Arguments),
    /// Start, enter, pause and delete sandboxes on the fast path
    Sandbox(sandbox::Arguments),
    /// Show the live sessions of Tasks, and their instances
    Sessions(sessions::Arguments),
    /// Show what a Pod's containers wrote
    Logs(logs::Arguments),
    /// Run a command in a container
    Exec(exec::Arguments),
    /// Reach a port of a Pod from this machine
    PortForward(port_forward::Arguments),
    /// Import, pull, list and remove the images that Pods run
    Image(image::Arguments),
    /// Check the tokens that instances get with requests
    Token(token::Arguments),
    /// Print the versions of this program and of the server
    Version(version::Arguments),
    /// Say what this machine lacks for running Pods, and how to get it
    Doctor(doctor::Arguments),
    /// Run the embedded Kubernetes API server alone
    Apiserver(apiserver::Arguments),
    /// Print what runs AgentCube on a Kubernetes cluster, or put it there
    Install(install::Arguments),
    /// Take away from a cluster what `install` has put there
    Uninstall(install::uninstall::Arguments),
    /// Run the controllers of Tasks, their gateways, middleware and front ends, beside a cluster
    Controllers(Box<controllers::Arguments>),
    /// Find the instance of every request for Envoys, in front of a cluster
    Router(router::Arguments),
    /// Run the controllers of sandboxes and serve the fast path, beside a cluster
    Fastpath(Box<fastpath::Arguments>),
    /// Run the sandboxes of a pool on this machine, for a controller elsewhere
    SandboxAgent(Box<sandbox_agent::Arguments>),
    /// Run a middleware's process in its Pod, and the plugin's tools for the controllers
    MiddlewareAgent(middleware_agent::Arguments),
    /// Pack the data of a middleware in the Pod of a backup, or unpack them
    MiddlewareArchive(middleware_archive::Arguments),
    /// Build the pages of front ends for the runners of a cluster
    BuildService(build_service::Arguments),
    /// Build a front end and write its bundle, in the Job that the controllers make
    ForgeRunner(forge_runner::Arguments),
    /// Remove what agents of sandboxes have left in the containerd of this machine
    Janitor(janitor::Arguments),
    /// Serve the web console of a cluster
    Console(console::Arguments),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:
  agentcube completion bash > /etc/bash_completion.d/agentcube
  agentcube completion zsh > ~/.zfunc/_agentcube
  agentcube completion fish > ~/.config/fish/completions/agentcube.fish")]
    Completion {
        /// The shell to complete in
        shell: Shell,
    },
    /// Fetch the code of a Task, in the Pod that is to run it
    #[command(hide = true)]
    Bundle(bundle::Arguments),
    /// Serve as the small agent of the examples and of the demonstration
    #[command(hide = true)]
    SampleAgent(sample_agent::Arguments),
    /// Print docs/CLI.md
    #[command(hide = true, name = "__reference")]
    Reference,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_examples() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  agentcube "), "{}", subcommand.get_name());
        }
    }
}
