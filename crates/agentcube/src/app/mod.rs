//! `agentcube app`: middleware from the command line. What an App is made of, what is being done with it, and what users may
//! ask of it: that tasks are retried or cancelled, that its data are kept, and that another is made of them.

mod backup;
mod control;
mod describe;
mod list;
mod tree;
mod world;

use agentcube_api::middleware::change::{ChangeStatus, ChangeTask, ChangeType};
use clap::{Args, Subcommand};

use crate::environment::Environment;
use crate::exit::Outcome;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube app ls -A
  agentcube app describe sessions              # its parts, down to Pods, and what each waits for
  agentcube app describe sessions --watch      # until nothing is under way any more
  agentcube app tasks sessions
  agentcube app cancel sessions                # all that is under way
  agentcube app retry sessions --wait          # all that failed, and what was skipped because of it
  agentcube app backup sessions --name monday --wait
  agentcube app restore monday sessions-again

`agentcube apply -f app.yaml` makes and changes Apps, `agentcube delete app NAME` removes them.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List Apps
    Ls(list::Arguments),
    /// Show an App with its components, groups and Pods, and what each waits for
    Describe(describe::Arguments),
    /// Show the changes of an App: those under way, those to come, and the latest
    Tasks(describe::TasksArguments),
    /// Carry out tasks again that failed, were skipped or cancelled
    Retry(control::RetryArguments),
    /// Cancel tasks that are under way or to come; what is half done is undone
    Cancel(control::CancelArguments),
    /// Keep the data of an App as an archive
    Backup(backup::BackupArguments),
    /// Make another App from a Backup
    Restore(backup::RestoreArguments),
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::Ls(arguments) => list::run(arguments, environment).await,
        Command::Describe(arguments) => describe::run(arguments, environment).await,
        Command::Tasks(arguments) => describe::tasks(arguments, environment).await,
        Command::Retry(arguments) => control::retry(arguments, environment).await,
        Command::Cancel(arguments) => control::cancel(arguments, environment).await,
        Command::Backup(arguments) => backup::backup(arguments, environment).await,
        Command::Restore(arguments) => backup::restore(arguments, environment).await,
    }
}

/// Where a task stands, in a word.
fn state_word(task: &ChangeTask) -> &'static str {
    match task.status {
        ChangeStatus::Pending => "waiting",
        ChangeStatus::InProgress if !task.in_force => "going back",
        ChangeStatus::InProgress => "running",
        ChangeStatus::Done => "done",
        ChangeStatus::Failed => "failed",
        ChangeStatus::RetryPending => "trying again",
        ChangeStatus::Skipped => "skipped",
        ChangeStatus::Cancelled => "cancelled",
    }
}

fn type_word(type_: ChangeType) -> &'static str {
    match type_ {
        ChangeType::Provision => "install",
        ChangeType::K8sResources => "resources",
        ChangeType::MiddlewareConfig => "configuration",
        ChangeType::StorageVolume => "storage",
        ChangeType::VersionUpgrade => "upgrade",
    }
}

/// The tasks of the latest change.
fn latest(tasks: &[ChangeTask]) -> impl Iterator<Item = &ChangeTask> {
    let generation = tasks.iter().filter_map(|task| task.generation).max();
    tasks.iter().filter(move |task| task.generation == generation)
}
