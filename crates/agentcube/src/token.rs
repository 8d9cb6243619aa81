//! `agentcube token`: tells whether the token of a reservation is genuine, as an instance would. A token is never taken
//! from the command line, which other users of the machine can see, and never printed.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use agentcube_instance::token::{self, TaskKeys, Verified, task_secret_name};
use anyhow::Context;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use crate::client::Connection;
use crate::environment::Environment;
use crate::exit::{Absent, Outcome, say};
use crate::manifest;
use crate::output::{self, Machine};

/// How the program exits when it could check the token and the token is not good.
const REFUSED: u8 = 4;
/// More than any token has.
const MOST_READ: u64 = 64 << 10;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube token verify --task agent --token-file token
  agentcube token verify --task agent -n prod --instance \"$UID_OF_POD\" < token
  agentcube token verify --keys /var/run/agentcube/token -o json < token

Exit codes:
  0  the token is genuine
  1  it could not be checked
  2  the command line is wrong
  3  there are no keys of this Task
  4  the token is not genuine, has expired, or is for another Task or instance")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a token (X-Reserved-Token), which is read from standard input, and show what it says
    Verify(Verify),
}

#[derive(Args)]
struct Verify {
    /// The Task that the token is for; its keys are read from the Secret TASK-token
    #[arg(long, required_unless_present = "keys", conflicts_with = "keys")]
    task: Option<String>,
    /// The Task's keys: the directory of its Secret in a volume, or a file with the Secret
    #[arg(long, value_name = "PATH")]
    keys: Option<PathBuf>,
    /// UID of the Pod that the token has to be for
    #[arg(long, value_name = "UID")]
    instance: Option<String>,
    /// Read the token from this file instead
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let Command::Verify(arguments) = arguments.command;
    let keys = match (&arguments.keys, &arguments.task) {
        (Some(path), _) => keys_from_files(path)?,
        (None, task) => {
            keys_from_server(&arguments.connection, task.as_deref().unwrap_or_default(), environment).await?
        }
    };
    let text = read(arguments.token_file.as_deref())?;
    let checked = keys.verify(text.trim(), Timestamp::now());
    let checked = checked.and_then(|verified| match &arguments.instance {
        Some(uid) => verified.for_instance(uid),
        None => Ok(verified),
    });
    show(&checked, arguments.output)?;
    Ok(if checked.is_ok() { Outcome::Done } else { Outcome::Remote(REFUSED) })
}

fn read(file: Option<&Path>) -> anyhow::Result<String> {
    let mut text = String::new();
    match file {
        Some(path) => {
            let file =
                std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            let read = file.take(MOST_READ).read_to_string(&mut text);
            read.with_context(|| format!("cannot read a token from {}", path.display()))?;
        }
        None => {
            let read = std::io::stdin().lock().take(MOST_READ).read_to_string(&mut text);
            read.context("cannot read a token from standard input")?;
        }
    }
    Ok(text)
}

async fn keys_from_server(
    connection: &Connection,
    task: &str,
    environment: &Environment,
) -> anyhow::Result<TaskKeys> {
    let server = connection.open(environment).await?;
    let name = task_secret_name(task);
    let path = format!("/api/v1/namespaces/{}/secrets/{name}", server.namespace);
    let secret = server.get(&path).await.with_context(|| format!("the keys of the Task {task:?}"))?;
    read_secret(secret, &format!("the Secret {}/{name}", server.namespace))
}

fn keys_from_files(path: &Path) -> anyhow::Result<TaskKeys> {
    let shown = path.display().to_string();
    if !path.exists() {
        return Err(Absent(format!("there is no {shown}; --keys names a directory or a file")).into());
    }
    if !path.is_dir() {
        let (documents, problems) = manifest::load(&[path.to_owned()], false);
        if let Some(problem) = problems.into_iter().next() {
            anyhow::bail!("{problem}");
        }
        let secret = documents.into_iter().find(|document| document.text(&["kind"]) == "Secret");
        let secret = secret.ok_or_else(|| Absent(format!("{shown} has no Secret")))?;
        return read_secret(secret.object, &shown);
    }
    let mut entries = BTreeMap::new();
    for entry in path.read_dir().with_context(|| format!("cannot read {shown}"))? {
        let file = entry.with_context(|| format!("cannot read {shown}"))?.path();
        // A volume also has links to directories, by which it is changed at once.
        if let Some(name) = file.file_name().and_then(|name| name.to_str())
            && file.is_file()
        {
            let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            entries.insert(name.to_owned(), ByteString(bytes));
        }
    }
    TaskKeys::from_entries(&entries).with_context(|| not_keys(&shown))
}

fn read_secret(object: Value, place: &str) -> anyhow::Result<TaskKeys> {
    let secret: Secret = serde_json::from_value(object).with_context(|| format!("{place} is malformed"))?;
    TaskKeys::from_secret(&secret).with_context(|| not_keys(place))
}

fn not_keys(place: &str) -> String {
    format!("{place} does not have the keys of a Task")
}

fn show(checked: &Result<Verified, token::Error>, output: Option<Machine>) -> anyhow::Result<()> {
    match (checked, output) {
        (Ok(verified), Some(machine)) => machine.print(&described(verified))?,
        (Ok(verified), None) => {
            let Verified { task, claims, key_id, .. } = verified;
            let session = claims.key.as_ref().map_or("(none)", |key| key.as_str());
            let text = format!(
                "genuine\nTask:      {task}\nInstance:  {}\nSession:   {session}\nExpires:   {}\nKey:       {key_id}\n",
                claims.instance, claims.expires
            );
            output::write(text.as_bytes())?;
        }
        (Err(error), Some(machine)) => {
            machine.print(&json!({
                "valid": false, "reason": error.reason(), "message": error.to_string(),
            }))?;
        }
        (Err(error), None) => say(&format!("error: {error}")),
    }
    Ok(())
}

fn described(verified: &Verified) -> Value {
    let Verified { task, claims, key_id, .. } = verified;
    json!({
        "valid": true,
        "task": &**task,
        "instance": &*claims.instance,
        "session": claims.key.as_ref().map(|key| key.as_str()),
        "expires": claims.expires.to_string(),
        "key": key_id.as_str(),
    })
}
