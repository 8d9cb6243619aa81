//! `agentcube sandbox`: sandboxes on the fast path, from the command line.

mod change;
mod create;
mod list;
mod session;

use agentcube_protos::refused;
use clap::{Args, Subcommand};
use tonic::{Code, Status};

use crate::environment::Environment;
use crate::exit::{Absent, Outcome};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sandbox create python:3.12 --pool fast -p 8000 -- python -m http.server
  agentcube sandbox ls
  agentcube sandbox shell NAME
  agentcube sandbox exec NAME -- pip list
  agentcube sandbox rm NAME")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a sandbox on an agent of a pool
    Create(Box<create::Arguments>),
    /// List sandboxes
    Ls(list::Arguments),
    /// Run a command in a sandbox
    Exec(session::ExecArguments),
    /// Open a shell in a sandbox
    Shell(session::ShellArguments),
    /// Show what a sandbox wrote
    Logs(session::LogsArguments),
    /// Delete sandboxes
    Rm(change::RemoveArguments),
    /// Let sandboxes stand still; they keep their memory
    Pause(change::Arguments),
    /// Let sandboxes go on
    Resume(change::Arguments),
    /// Start sandboxes afresh
    Reset(change::Arguments),
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::Create(arguments) => create::run(*arguments, environment).await,
        Command::Ls(arguments) => list::run(arguments, environment).await,
        Command::Exec(arguments) => session::exec(arguments, environment).await,
        Command::Shell(arguments) => session::shell(arguments, environment).await,
        Command::Logs(arguments) => session::logs(arguments, environment).await,
        Command::Rm(arguments) => change::remove(arguments, environment).await,
        Command::Pause(arguments) => change::run(arguments, change::What::Pause(true), environment).await,
        Command::Resume(arguments) => change::run(arguments, change::What::Pause(false), environment).await,
        Command::Reset(arguments) => change::run(arguments, change::What::Reset, environment).await,
    }
}

/// What the fast path refused, for people.
pub(crate) fn refusal(status: &Status) -> anyhow::Error {
    let message = match (status.message(), refused::retry_of(status)) {
        ("", _) => format!("the fast path answered {:?}", status.code()),
        (message, None) => message.to_owned(),
        (message, Some(after)) => format!("{message} (try again in {} s)", after.as_secs().max(1)),
    };
    match status.code() {
        Code::NotFound => Absent(message).into(),
        Code::InvalidArgument => crate::exit::Usage(message).into(),
        _ => anyhow::anyhow!(message),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        let full =
            refused::retry_after(Code::ResourceExhausted, "pool fast is full", Duration::from_millis(200));
        assert_eq!(refusal(&full).to_string(), "pool fast is full (try again in 1 s)");
        assert!(refusal(&Status::not_found("no sandbox a")).is::<Absent>());
        assert_eq!(refusal(&Status::unavailable("")).to_string(), "the fast path answered Unavailable");
    }
}
