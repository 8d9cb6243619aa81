//! `agentcube invoke`: a request to a Task through its gateway, as any client would send it. The answer is passed on as
//! it comes.

pub(crate) mod request;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::client::{Connection, Server};
use crate::environment::Environment;
use crate::exit::{Absent, Outcome, say};
use crate::output;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube invoke hello --session ada -d 'I am Ada'
  agentcube invoke hello --session ada            # what was said last
  agentcube invoke hello /stream --session ada -d 'tell me more'
  agentcube invoke tool /v1/run -X PUT -H 'content-type: application/json' -d @body.json
  echo hello | agentcube invoke hello --session ada -d @-

The key of the session is put where the Task looks for it. The body of the answer goes to standard
output as it comes. Exits with 1 when the answer's status is not 2xx.")]
pub(crate) struct Arguments {
    /// The Task
    #[arg(value_name = "TASK")]
    task: String,
    /// The path below that of the Task, with a query if need be
    #[arg(value_name = "PATH", default_value = "/")]
    path: String,
    /// The session to talk in
    #[arg(short, long, value_name = "KEY")]
    session: Option<String>,
    /// What to send: text, @FILE, or @- for standard input
    #[arg(short, long, value_name = "BODY")]
    data: Option<String>,
    /// The method [default: POST with a body, else GET]
    #[arg(short = 'X', long)]
    method: Option<http::Method>,
    /// A header as `name: value`; may be given several times
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// Print status and headers of the answer to standard error
    #[arg(short, long)]
    include: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let server = arguments.connection.open(environment).await?;
    let path =
        format!("/apis/agentcube.io/v1alpha1/namespaces/{}/tasks/{}", server.namespace, arguments.task);
    let task = server.get(&path).await?;
    let address = task["status"]["address"].as_str().map(str::to_owned).with_context(|| not_served(&task))?;
    let body = match &arguments.data {
        Some(data) => Some(body(data).await?),
        None => None,
    };
    let wanted = request::Wanted {
        path: &arguments.path,
        session: arguments.session.as_deref(),
        method: arguments.method.as_ref(),
        headers: &arguments.headers,
        body,
    };
    let (request, host, port) = request::build(&address, &task, wanted)?;
    let target = gateway_address(&server, &task).await.unwrap_or(host);
    let stream = TcpStream::connect((target.as_str(), port))
        .await
        .with_context(|| format!("the gateway of {} does not listen on {target}:{port}", arguments.task))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await.context("the gateway gave no answer")?;
    let status = response.status();
    if arguments.include {
        say(&format!("{:?} {status}", response.version()));
        for (name, value) in response.headers() {
            say(&format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())));
        }
    }
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.context("the answer broke off")?.into_data() {
            output::write(&data)?;
        }
    }
    drop(sender);
    connection.abort();
    if !status.is_success() {
        bail!("{} answered {status}", arguments.task);
    }
    Ok(Outcome::Done)
}

/// Where the gateway listens: a Task's address may be a name that this machine cannot resolve.
async fn gateway_address(server: &Server, task: &Value) -> Option<String> {
    let gateway = task["spec"]["routing"]["gatewayRefs"][0].as_str().unwrap_or("default");
    let path = format!("/apis/agentcube.io/v1alpha1/namespaces/{}/taskgateways/{gateway}", server.namespace);
    let gateway = server.get(&path).await.ok()?;
    gateway["status"]["addresses"][0]["value"].as_str().map(str::to_owned)
}

fn not_served(task: &Value) -> Absent {
    let conditions = task["status"]["conditions"].as_array().into_iter().flatten();
    let trouble: Vec<String> = conditions
        .filter(|condition| condition["status"] != "True" && condition["type"] != "Ready")
        .map(|condition| {
            let text = |key: &str| condition[key].as_str().unwrap_or_default();
            format!("{}: {}", text("type"), text("message"))
        })
        .collect();
    let name = task["metadata"]["name"].as_str().unwrap_or_default();
    Absent(match trouble.as_slice() {
        [] => format!("the Task {name} has no address yet: `agentcube describe task {name}` says more"),
        some => format!("the Task {name} is not served: {}", some.join("; ")),
    })
}

async fn body(data: &str) -> anyhow::Result<Full<Bytes>> {
    let bytes = match data.strip_prefix('@') {
        None => data.as_bytes().to_vec(),
        Some("-") => {
            let mut bytes = Vec::new();
            tokio::io::stdin().read_to_end(&mut bytes).await.context("cannot read standard input")?;
            bytes
        }
        Some(file) => tokio::fs::read(file).await.with_context(|| format!("cannot read {file}"))?,
    };
    Ok(Full::new(Bytes::from(bytes)))
}
