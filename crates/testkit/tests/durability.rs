//! A killed server loses no acknowledged write: 30 times, writers create, update and delete objects while
//! the process is killed with SIGKILL, and a new one on the same directory must hold exactly what was
//! acknowledged. A write without an answer may or may not have happened. Versions only grow.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agentcube_testkit::cluster::process::{ServerProcess, Storage, build_program};
use agentcube_testkit::suite::{Options, Report};
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;

const ROUNDS: u64 = 30;
const WRITERS: u64 = 8;
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// What is known of one object.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The last acknowledged value; none when it was deleted or never created.
    value: Option<u64>,
    /// A write that got no answer: what it would have led to.
    unanswered: Option<Option<u64>>,
}

/// What one writer knows: its objects, and the highest version it was told.
#[derive(Default)]
struct Journal {
    objects: BTreeMap<String, Known>,
    version: u64,
}

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    let outcome = runtime.block_on(async {
        let program = build_program()?;
        let directory = tempfile::tempdir()?;
        let mut journals: Vec<Journal> = (0..WRITERS).map(|_| Journal::default()).collect();
        for round in 0..ROUNDS {
            let outcome = one_round(&program, directory.path(), round, &mut journals).await;
            let failed = outcome.is_err();
            report.note(&format!("round {:02} of kill -9 under load", round + 1), outcome);
            if failed {
                bail!("the rounds after a loss say nothing");
            }
        }
        check(&program, directory.path(), &mut journals).await.map(|_| ())
    });
    report.note("everything acknowledged is there in the end", outcome);
    report.close(options.strict)
}

/// Starts the server, checks it against the journals, writes, and kills it in the middle.
async fn one_round(
    program: &std::path::Path,
    data: &std::path::Path,
    round: u64,
    journals: &mut Vec<Journal>,
) -> Result<()> {
    let server = check(program, data, journals).await?;
    let written = Arc::new(AtomicU64::new(0));
    let enough = Arc::new(Notify::new());
    // Another number each round, so that the kill falls at ever other moments of the writing.
    let limit = 40 + round * 37 % 300;
    let mut running = tokio::task::JoinSet::new();
    for (writer, journal) in std::mem::take(journals).into_iter().enumerate() {
        let (http, written, enough) = (server.http.clone(), written.clone(), enough.clone());
        running.spawn(async move {
            let journal = write_until_killed(http, writer, round, journal, limit, &written, &enough).await;
            (writer, journal)
        });
    }
    enough.notified().await;
    server.kill();
    let mut ended = BTreeMap::new();
    while let Some(result) = running.join_next().await {
        let (writer, journal) = result?;
        ended.insert(writer, journal?);
    }
    journals.extend(ended.into_values());
    Ok(())
}

async fn write_until_killed(
    http: HttpClient,
    writer: usize,
    round: u64,
    mut journal: Journal,
    limit: u64,
    written: &AtomicU64,
    enough: &Notify,
) -> Result<Journal> {
    for number in 0.. {
        let name = format!("w{writer}-{}", (number * 7 + round) % 40);
        let value = round * 1_000_000 + number;
        let known = journal.objects.entry(name.clone()).or_default();
        let (request, result) = match known.value {
            None => (Request::new(Method::POST, CONFIG_MAPS).json(&config_map(&name, value)), Some(value)),
            Some(_) if number % 5 == 4 => {
                (Request::new(Method::DELETE, format!("{CONFIG_MAPS}/{name}")), None)
            }
            Some(_) => {
                let path = format!("{CONFIG_MAPS}/{name}");
                (Request::new(Method::PUT, path).json(&config_map(&name, value)), Some(value))
            }
        };
        known.unanswered = Some(result);
        // No answer means that the server was killed.
        let Ok(reply) = http.send(request).await else { break };
        ensure!(reply.is_success(), "a write was refused: {}", reply.value());
        *known = Known { value: result, unanswered: None };
        if let Some(version) = reply.value()["metadata"]["resourceVersion"].as_str() {
            let version = version.parse()?;
            ensure!(version > journal.version, "version {version} came after {}", journal.version);
            journal.version = version;
        }
        if written.fetch_add(1, Ordering::Relaxed) + 1 == limit {
            enough.notify_one();
        }
    }
    Ok(journal)
}

fn config_map(name: &str, value: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {"value": value.to_string(), "padding": "x".repeat(500)},
    })
}

/// Starts the server and compares everything in it with what was acknowledged.
async fn check(
    program: &std::path::Path,
    data: &std::path::Path,
    journals: &mut [Journal],
) -> Result<ServerProcess> {
    let server = ServerProcess::start(program, Storage::Directory(data)).await?;
    let list = server.http.send(Request::new(Method::GET, CONFIG_MAPS)).await?.value();
    let mut stored = BTreeMap::new();
    for item in list["items"].as_array().context("no list")? {
        let name = item["metadata"]["name"].as_str().context("no name")?;
        let value: u64 = item["data"]["value"].as_str().context("no value")?.parse()?;
        stored.insert(name.to_owned(), value);
    }
    let version: u64 = list["metadata"]["resourceVersion"].as_str().context("no version")?.parse()?;
    for journal in journals.iter_mut() {
        ensure!(version >= journal.version, "version {version} after {} was acknowledged", journal.version);
        for (name, known) in &mut journal.objects {
            let got = stored.remove(name);
            let agrees = got == known.value || known.unanswered == Some(got);
            ensure!(
                agrees,
                "{name} is {got:?}, acknowledged was {:?}, unanswered {:?}",
                known.value,
                known.unanswered
            );
            *known = Known { value: got, unanswered: None };
        }
    }
    ensure!(stored.keys().all(|name| !name.starts_with('w')), "objects that nobody made: {stored:?}");
    Ok(server)
}
