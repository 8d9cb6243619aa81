//! `agentcube logs`: what containers wrote, of one Pod or of the Pods of a workload, once or as it comes.

use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::client::{Connection, Error, Kind, Server, query};
use crate::environment::Environment;
use crate::exit::{Outcome, Usage, say};
use crate::output;
use crate::pods::{self, Target};

/// Containers that are followed at once.
const MOST_STREAMS: usize = 50;
/// Lines that wait to be printed.
const BUFFERED: usize = 256;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube logs web-0
  agentcube logs deploy/web -f --tail 20
  agentcube logs web-0 -c sidecar --since 10m --timestamps
  agentcube logs web-0 -p            # of the run before the last restart
  agentcube logs -l app=web --all-containers")]
pub(crate) struct Arguments {
    /// A Pod, or KIND/NAME of what has Pods
    #[arg(value_name = "POD", required_unless_present = "selector")]
    target: Option<String>,
    /// The container; needed when a Pod has several
    #[arg(short, long, conflicts_with = "all_containers")]
    container: Option<String>,
    /// All containers of each Pod
    #[arg(long)]
    all_containers: bool,
    /// Go on as more is written
    #[arg(short, long)]
    follow: bool,
    /// Only so many last lines
    #[arg(long, value_name = "LINES")]
    tail: Option<u64>,
    /// Only what is newer than so long: 30s, 10m, 1h30m
    #[arg(long, value_name = "DURATION")]
    since: Option<String>,
    /// Of the container's previous run
    #[arg(short, long)]
    previous: bool,
    /// The time in front of each line
    #[arg(long)]
    timestamps: bool,
    /// The Pods with these labels
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "target")]
    selector: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

/// One container's log.
struct Source {
    /// Put in front of each line when there are several.
    label: String,
    path: String,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let since = match &arguments.since {
        Some(text) => Some(seconds(text)?.to_string()),
        None => None,
    };
    let server = arguments.connection.open(environment).await?;
    let pods = chosen(&arguments, &server).await?;
    if pods.is_empty() {
        say(&format!("No Pods found in {} namespace.", server.namespace));
        return Ok(Outcome::Absent);
    }
    let sources = sources(&arguments, &server, &pods, since.as_deref())?;
    if sources.len() > MOST_STREAMS {
        bail!(
            "{} containers are more than {MOST_STREAMS}: narrow the selection with -l or -c",
            sources.len()
        );
    }
    if let [source] = sources.as_slice() {
        let mut lines = server.lines(&source.path, "*/*").await?;
        while let Some(line) = lines.next().await? {
            output::write(&line)?;
        }
        return Ok(Outcome::Done);
    }
    if arguments.follow { together(server, sources).await } else { in_turn(&server, sources).await }
}

/// Whole seconds of a Go duration, rounded up.
fn seconds(text: &str) -> Result<u64, Usage> {
    let wrong = || Usage(format!("--since {text:?} is not a duration like 30s, 10m or 1h30m"));
    let nanoseconds = text.parse::<agentcube_api::GoDuration>().map_err(|_| wrong())?.as_nanos();
    u64::try_from(nanoseconds).map(|nanoseconds| nanoseconds.div_ceil(1_000_000_000)).map_err(|_| wrong())
}

async fn chosen(arguments: &Arguments, server: &Server) -> anyhow::Result<Vec<Value>> {
    match (&arguments.target, &arguments.selector) {
        (Some(target), _) => Target::find(server, target).await?.pods(server).await,
        (None, Some(labels)) => pods::selected(server, labels).await,
        (None, None) => Err(Usage("name a Pod, or choose Pods with -l".into()).into()),
    }
}

fn sources(
    arguments: &Arguments,
    server: &Server,
    pods: &[Value],
    since: Option<&str>,
) -> anyhow::Result<Vec<Source>> {
    let tail = arguments.tail.map(|lines| lines.to_string());
    let mut sources = Vec::new();
    for pod in pods {
        let name = pods::name(pod);
        for container in containers(arguments, pod, name)? {
            let flag = |on: bool| on.then_some("true");
            let options = query(&[
                ("container", Some(&container)),
                ("follow", flag(arguments.follow)),
                ("previous", flag(arguments.previous)),
                ("timestamps", flag(arguments.timestamps)),
                ("tailLines", tail.as_deref()),
                ("sinceSeconds", since),
            ]);
            let path = Kind::pods().path(Some(&server.namespace), Some(name));
            sources.push(Source {
                label: format!("[{name}/{container}] "),
                path: format!("{path}/log{options}"),
            });
        }
    }
    Ok(sources)
}

fn containers(arguments: &Arguments, pod: &Value, name: &str) -> anyhow::Result<Vec<String>> {
    if let Some(container) = &arguments.container {
        return Ok(vec![container.clone()]);
    }
    let names = |list: &str| -> Vec<String> {
        let list = pod["spec"][list].as_array().into_iter().flatten();
        list.filter_map(|container| container["name"].as_str().map(str::to_owned)).collect()
    };
    let main = names("containers");
    if arguments.all_containers {
        return Ok(names("initContainers").into_iter().chain(main).collect());
    }
    let preferred = pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str();
    match (preferred, main.as_slice()) {
        (Some(container), _) => Ok(vec![container.to_owned()]),
        (None, [only]) => Ok(vec![only.clone()]),
        (None, several) => Err(Usage(format!(
            "Pod {name} has several containers: choose one of {} with -c, or --all-containers",
            several.join(", ")
        ))
        .into()),
    }
}

/// One container after the other; one that has no log does not keep the others from being shown.
async fn in_turn(server: &Server, sources: Vec<Source>) -> anyhow::Result<Outcome> {
    let mut failed = false;
    for source in sources {
        let shown = async {
            let mut lines = server.lines(&source.path, "*/*").await?;
            while let Some(line) = lines.next().await? {
                output::write(&labelled(&source.label, &line))?;
            }
            anyhow::Ok(())
        };
        match shown.await {
            Err(error) if error.downcast_ref::<Error>().is_some_and(|error| error.refusal().is_some()) => {
                say(&format!("error: {}{error}", source.label));
                failed = true;
            }
            other => other?,
        }
    }
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

/// All at once, line by line as they come.
async fn together(server: Server, sources: Vec<Source>) -> anyhow::Result<Outcome> {
    let (sender, mut receiver) = mpsc::channel::<Result<Vec<u8>, String>>(BUFFERED);
    let server = Arc::new(server);
    for source in sources {
        let (server, sender) = (server.clone(), sender.clone());
        tokio::spawn(async move {
            let followed = async {
                let mut lines = server.lines(&source.path, "*/*").await?;
                while let Some(line) = lines.next().await? {
                    if sender.send(Ok(labelled(&source.label, &line))).await.is_err() {
                        break;
                    }
                }
                Ok::<(), Error>(())
            };
            if let Err(error) = followed.await {
                // The printer is gone only when the command ends.
                let _ended = sender.send(Err(format!("error: {}{error}", source.label))).await;
            }
        });
    }
    drop(sender);
    let mut failed = false;
    while let Some(line) = receiver.recv().await {
        match line {
            Ok(line) => output::write(&line)?,
            Err(message) => {
                say(&message);
                failed = true;
            }
        }
    }
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

fn labelled(label: &str, line: &[u8]) -> Vec<u8> {
    let mut bytes = label.as_bytes().to_vec();
    bytes.extend_from_slice(line);
    if !line.ends_with(b"\n") {
        bytes.push(b'\n');
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_become_whole_seconds() {
        for (text, expected) in [("30s", 30), ("1h30m", 5400), ("1500ms", 2), ("0s", 0)] {
            assert_eq!(seconds(text).unwrap(), expected, "{text}");
        }
        for text in ["", "5", "-5s", "soon"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
