//! A client of PostgreSQL: `psql` in a Pod of its own, which gets address and password from the App's Secret, and is talked to over
//! its standard streams.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::AttachParams;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader, Lines};

use crate::world::{PODS, World};

const ANSWER: Duration = Duration::from_secs(10);

/// Makes the Pod that `psql` runs in.
pub(crate) async fn install(world: &World, name: &str, app: &str, programs: &std::path::Path) -> Result<()> {
    let from = |key: &str| json!({ "secretKeyRef": { "name": format!("{app}-connection"), "key": key } });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "client", "image": "host", "command": ["sleep", "100000"],
            "env": [
                { "name": "PATH", "value": format!("{}:/usr/bin:/bin", programs.display()) },
                { "name": "PGHOST", "valueFrom": from("host") },
                { "name": "PGPORT", "valueFrom": from("port") },
                { "name": "PGUSER", "valueFrom": from("user") },
                { "name": "PGPASSWORD", "valueFrom": from("password") },
                { "name": "PGCONNECT_TIMEOUT", "value": "5" },
                { "name": "HOME", "value": "/tmp" },
            ],
        }] },
    });
    world.create(PODS, &pod).await?;
    world.until(PODS, name, "it runs", |pod| pod["status"]["phase"] == "Running").await.map(drop)
}

/// A session. Ends with the first error.
pub(crate) struct Session {
    input: Box<dyn AsyncWrite + Send + Unpin>,
    output: Lines<BufReader<Box<dyn tokio::io::AsyncRead + Send + Unpin>>>,
    _process: kube::api::AttachedProcess,
    asked: u64,
}

impl Session {
    /// A session of whoever is behind the Service.
    pub(crate) async fn open(world: &World, pod: &str) -> Result<Session> {
        let words = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", "postgres"];
        let parameters = AttachParams::default().stdin(true).stdout(true).stderr(false);
        let mut process = world.kube_pods().exec(pod, words, &parameters).await?;
        let input = Box::new(process.stdin().context("a pipe")?);
        let output: Box<dyn tokio::io::AsyncRead + Send + Unpin> =
            Box::new(process.stdout().context("a pipe")?);
        let output = BufReader::new(output).lines();
        Ok(Session { input, output, _process: process, asked: 0 })
    }

    /// Runs a statement; the lines that it gives. What comes back was committed.
    pub(crate) async fn run(&mut self, statement: &str) -> Result<Vec<String>> {
        self.asked += 1;
        let mark = format!("done {}", self.asked);
        let running = async {
            self.input.write_all(format!("{statement};\n\\echo {mark}\n").as_bytes()).await?;
            self.input.flush().await?;
            let mut lines = Vec::new();
            loop {
                // A session that has failed says nothing more.
                let line = self.output.next_line().await?.context("the session has ended")?;
                if line == mark {
                    return anyhow::Ok(lines);
                }
                lines.push(line);
            }
        };
        tokio::time::timeout(ANSWER, running).await.context("no answer")?
    }
}

/// What a statement gives at a Pod itself, without a Service.
pub(crate) async fn at(world: &World, pod: &str, statement: &str) -> Result<String> {
    let said = world.exec(pod, &["psql", "-X", "-A", "-t", "-c", statement]).await?;
    ensure!(!said.contains("ERROR"), "{pod}: {said}");
    Ok(said.trim().to_owned())
}
