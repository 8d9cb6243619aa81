//! `agentcube sandbox create`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agentcube_protos::fastpath::{ConsistencyMode, CreateRequest, CreateResponse, FailurePolicy};
use agentcube_protos::session::{Egress, File, Resources};
use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::refusal;
use crate::client::Connection;
use crate::environment::Environment;
use crate::exit::{Outcome, Usage};
use crate::output::{self, Machine, Table, progress};

/// All files together; the server says the same.
const MOST_BYTES: usize = 256 << 10;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube sandbox create python:3.12 --pool fast -p 8000 -- python -m http.server
  agentcube sandbox create host --pool fast -e GREETING=hello --expire 10m -- sleep 60
  agentcube sandbox create host --pool fast --file /app/main.py=./main.py --egress closed -- python3 /app/main.py
  agentcube sandbox create host --pool fast --strong --request-id job-17 -q -- sleep 60")]
pub(super) struct Arguments {
    /// The image to run
    image: String,
    /// The SandboxPool whose agents run it
    #[arg(long)]
    pool: String,
    /// Its name; one is made when left out
    #[arg(long)]
    name: Option<String>,
    /// A variable, NAME=VALUE
    #[arg(short, long = "env", value_name = "NAME=VALUE")]
    envs: Vec<String>,
    /// A port on which it is reached
    #[arg(short, long = "port")]
    ports: Vec<u16>,
    /// A file of this machine to put there, PATH=FILE
    #[arg(long = "file", value_name = "PATH=FILE")]
    files: Vec<String>,
    /// The directory in which the command starts
    #[arg(short, long)]
    workdir: Option<String>,
    /// When it ends: 30s, 10m, 1h30m from now
    #[arg(long, value_name = "DURATION")]
    expire: Option<String>,
    /// Write the object before anything runs
    #[arg(long)]
    strong: bool,
    /// The same id gets the same sandbox, however often it is asked for
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// A label of the object, NAME=VALUE
    #[arg(short, long = "label", value_name = "NAME=VALUE")]
    labels: Vec<String>,
    /// CPU that it may use, such as 500m
    #[arg(long)]
    cpu: Option<String>,
    /// Memory that it may use, such as 256Mi
    #[arg(long)]
    memory: Option<String>,
    /// What it reaches
    #[arg(long)]
    egress: Option<Reach>,
    /// Its root file system can only be read
    #[arg(long)]
    read_only: bool,
    /// Start it elsewhere when its agent is lost
    #[arg(long)]
    recreate: bool,
    /// Answer when it runs, not when its ports answer
    #[arg(long)]
    no_wait: bool,
    /// Print the name only
    #[arg(short, long, conflicts_with = "output")]
    quiet: bool,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    /// The command and its arguments, after `--`; those of the image when left out
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reach {
    /// Nothing
    Closed,
    /// Addresses of the internet
    Public,
    /// What a Pod reaches
    Open,
}

pub(super) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let mut request = request(&arguments)?;
    let (mut fast_path, namespace) = arguments.connection.fast_path(environment).await?;
    request.namespace = namespace;
    let created = progress::during(environment, "starting the sandbox", fast_path.create_sandbox(request));
    let created = created.await.map_err(|status| refusal(&status))?.into_inner();
    match arguments.output {
        Some(machine) => machine.print(&machine_form(&created))?,
        None if arguments.quiet => output::write(format!("{}\n", created.sandbox_id).as_bytes())?,
        None => output::write(table(&created).as_bytes())?,
    }
    Ok(Outcome::Done)
}

fn request(arguments: &Arguments) -> anyhow::Result<CreateRequest> {
    let expire_seconds = arguments.expire.as_deref().map(seconds).transpose()?.unwrap_or_default();
    let egress = match arguments.egress {
        None => Egress::Unset,
        Some(Reach::Closed) => Egress::Closed,
        Some(Reach::Public) => Egress::Public,
        Some(Reach::Open) => Egress::Open,
    };
    let limited = arguments.cpu.is_some() || arguments.memory.is_some();
    let resources = limited.then(|| Resources {
        cpu: arguments.cpu.clone().unwrap_or_default(),
        memory: arguments.memory.clone().unwrap_or_default(),
        disk: String::new(),
    });
    let policy = if arguments.recreate { FailurePolicy::AutoRecreate } else { FailurePolicy::PolicyUnset };
    let mode = if arguments.strong { ConsistencyMode::Strong } else { ConsistencyMode::Fast };
    Ok(CreateRequest {
        image: arguments.image.clone(),
        pool_ref: arguments.pool.clone(),
        ports: arguments.ports.iter().copied().map(i32::from).collect(),
        command: arguments.command.clone(),
        consistency_mode: mode.into(),
        name: arguments.name.clone().unwrap_or_default(),
        envs: pairs("--env", &arguments.envs)?,
        working_dir: arguments.workdir.clone().unwrap_or_default(),
        request_id: arguments.request_id.clone().unwrap_or_default(),
        expire_seconds,
        failure_policy: policy.into(),
        labels: pairs("--label", &arguments.labels)?,
        resources,
        files: files(&arguments.files)?,
        egress: egress.into(),
        read_only_root: arguments.read_only,
        wait_ready: !arguments.no_wait,
        ..CreateRequest::default()
    })
}

fn pairs(option: &str, texts: &[String]) -> Result<BTreeMap<String, String>, Usage> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Usage(format!("{option} {text:?} is not NAME=VALUE"))),
    };
    texts.iter().map(pair).collect()
}

fn files(texts: &[String]) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut bytes = 0;
    for (path, local) in pairs("--file", texts)? {
        let local = PathBuf::from(local);
        let content = std::fs::read(&local).with_context(|| format!("cannot read {}", local.display()))?;
        bytes += content.len();
        if bytes > MOST_BYTES {
            return Err(Usage(format!("files have more than {} KiB together", MOST_BYTES >> 10)).into());
        }
        files.push(File { path, content, ..File::default() });
    }
    Ok(files)
}

/// Whole seconds of a Go duration, rounded up.
fn seconds(text: &str) -> Result<i64, Usage> {
    let wrong = || Usage(format!("--expire {text:?} is not a duration like 30s, 10m or 1h30m"));
    let nanoseconds = text.parse::<agentcube_api::GoDuration>().map_err(|_| wrong())?.as_nanos();
    let seconds = (i128::from(nanoseconds) + 999_999_999) / 1_000_000_000;
    i64::try_from(seconds).ok().filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

fn machine_form(created: &CreateResponse) -> Value {
    let timings = created.timings.unwrap_or_default();
    json!({
        "name": created.sandbox_id,
        "agent": created.agent_pod,
        "endpoints": created.endpoints,
        "run": created.run_id,
        "existed": created.existed,
        "microseconds": {
            "allocate": timings.allocate, "admit": timings.admit, "start": timings.start,
            "ready": timings.ready, "log": timings.log,
        },
    })
}

fn table(created: &CreateResponse) -> String {
    let timings = created.timings.unwrap_or_default();
    let total = timings.allocate + timings.admit + timings.start + timings.ready;
    let took = if created.existed { "existed".to_owned() } else { format!("{:.1} ms", total as f64 / 1e3) };
    let endpoints = match created.endpoints.is_empty() {
        true => "<none>".to_owned(),
        false => created.endpoints.join(","),
    };
    let mut table = Table::with_header(["NAME", "AGENT", "ENDPOINTS", "TOOK"]);
    table.row([created.sandbox_id.clone(), created.agent_pod.clone(), endpoints, took]);
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_and_durations_are_checked() {
        let env = pairs("--env", &["A=b=c".into(), "D=".into()]).unwrap();
        assert_eq!(env, BTreeMap::from([("A".into(), "b=c".into()), ("D".into(), String::new())]));
        assert!(pairs("--env", &["=b".into()]).unwrap_err().to_string().contains("NAME=VALUE"));
        assert_eq!((seconds("1500ms").unwrap(), seconds("1h").unwrap()), (2, 3600));
        assert!(seconds("-1s").is_err() && seconds("soon").is_err());
    }
}
