//! `agentcube sandbox rm`, `pause`, `resume` and `reset`: the same for one name after the other.

use agentcube_protos::fastpath::update_request::Change;
use agentcube_protos::fastpath::{DeleteRequest, GetRequest, UpdateRequest};
use clap::Args;
use tonic::{Code, Status};

use super::refusal;
use crate::client::Connection;
use crate::client::grpc::FastPath;
use crate::environment::Environment;
use crate::exit::{Outcome, one_line, say};
use crate::output::{self, progress};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sandbox rm NAME
  agentcube sandbox rm NAME NAME --no-wait")]
pub(super) struct RemoveArguments {
    #[command(flatten)]
    which: Which,
    /// Do not wait until nothing of them is left
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sandbox pause NAME NAME
  agentcube sandbox resume NAME
  agentcube sandbox reset NAME")]
pub(super) struct Arguments {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Args)]
struct Which {
    /// The sandboxes
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    Delete { wait: bool },
    Pause(bool),
    Reset,
}

impl What {
    fn done(self) -> &'static str {
        match self {
            What::Delete { .. } => "deleted",
            What::Pause(true) => "paused",
            What::Pause(false) => "resumed",
            What::Reset => "reset",
        }
    }
}

pub(super) async fn remove(arguments: RemoveArguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let RemoveArguments { which, no_wait, connection } = arguments;
    run(Arguments { which, connection }, What::Delete { wait: !no_wait }, environment).await
}

pub(super) async fn run(
    arguments: Arguments,
    what: What,
    environment: &Environment,
) -> anyhow::Result<Outcome> {
    let (mut fast_path, namespace) = arguments.connection.fast_path(environment).await?;
    let mut outcome = Outcome::Done;
    for name in &arguments.which.names {
        let changed = change(&mut fast_path, &namespace, name, what);
        match progress::during(environment, &format!("waiting for {name}"), changed).await {
            Ok(()) => output::write(format!("sandbox/{name} {}\n", what.done()).as_bytes())?,
            Err(status) => {
                say(&format!("error: {}", one_line(&refusal(&status))));
                outcome = match (outcome, status.code()) {
                    (Outcome::Done | Outcome::Absent, Code::NotFound) => Outcome::Absent,
                    _ => Outcome::Failed,
                };
            }
        }
    }
    Ok(outcome)
}

async fn change(fast_path: &mut FastPath, namespace: &str, name: &str, what: What) -> Result<(), Status> {
    let (sandbox_id, namespace) = (name.to_owned(), namespace.to_owned());
    let change = match what {
        What::Delete { wait } => {
            let request = DeleteRequest { sandbox_id: sandbox_id.clone(), namespace: namespace.clone() };
            fast_path.delete_sandbox(request).await?;
            return if wait { gone(fast_path, GetRequest { sandbox_id, namespace }).await } else { Ok(()) };
        }
        What::Pause(paused) => Change::Paused(paused),
        What::Reset => {
            let request = GetRequest { sandbox_id: sandbox_id.clone(), namespace: namespace.clone() };
            let sandbox = fast_path.get_sandbox(request).await?.into_inner();
            Change::ResetRevision(sandbox.reset_revision.max(sandbox.accepted_reset_revision) + 1)
        }
    };
    let update = UpdateRequest { sandbox_id, namespace, change: Some(change), ..UpdateRequest::default() };
    fast_path.update_sandbox(update).await.map(drop)
}

/// Waits until there is no such sandbox any more.
async fn gone(fast_path: &mut FastPath, which: GetRequest) -> Result<(), Status> {
    let watched = async {
        let mut changes = fast_path.watch_sandbox(which).await?.into_inner();
        while changes.message().await?.is_some() {}
        Ok::<(), Status>(())
    };
    match watched.await {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        other => other,
    }
}
