//! Every example of the project, applied to both servers: all documents are accepted, except that the last
//! document of a file under `examples/refused` is refused with the words of its first comment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agentcube_testkit::suite::{Options, Report};
use agentcube_testkit::tape::MERGE_PATCH;
use agentcube_testkit::{Cluster, HttpClient, Kind, Reply, Request};
use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

const SERVED_LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let options = Options::from_environment();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let mut report = Report::default();
    runtime.block_on(run(&options, &mut report));
    report.close(options.strict)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

async fn run(options: &Options, report: &mut Report) {
    let files = match yaml_files(&root().join("examples")) {
        Ok(files) if !files.is_empty() => files,
        Ok(_) => return report.note("there are examples", Err(anyhow::anyhow!("none found"))),
        Err(error) => return report.note("there are examples", Err(error)),
    };
    if options.wants(Kind::Embedded) {
        match Cluster::embedded().await {
            Err(error) => report.note("embedded server starts", Err(error)),
            Ok(cluster) => run_on(&cluster, &files, options, report).await,
        }
    }
    if options.wants(Kind::Real) {
        match options.binaries() {
            Err(error) => {
                report.skip("examples on the real kube-apiserver", files.len(), &format!("{error:#}"))
            }
            Ok(binaries) => match Cluster::real(&binaries).await {
                Err(error) => report.note("real kube-apiserver starts", Err(error)),
                Ok(cluster) => run_on(&cluster, &files, options, report).await,
            },
        }
    }
}

/// All YAML files below a directory, the accepted ones first.
fn yaml_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                found.push(path);
            }
        }
    }
    found.sort_by_key(|path| (is_refused(path), path.clone()));
    Ok(found)
}

fn is_refused(path: &Path) -> bool {
    path.parent().is_some_and(|parent| parent.ends_with("refused"))
}

async fn run_on(cluster: &Cluster, files: &[PathBuf], options: &Options, report: &mut Report) {
    let mut applier = Applier { http: cluster.http.clone(), resources: BTreeMap::new() };
    let definitions = applier.define(&root().join("deploy/crds")).await;
    report.note(&format!("{}/deploy/crds", cluster.kind), definitions);
    for path in files {
        let shown = path.strip_prefix(root()).unwrap_or(path);
        let name = format!("{}/{}", cluster.kind, shown.display());
        if options.selects(&name) {
            report.note(&name, applier.file(path).await);
        }
    }
}

struct Applier {
    http: HttpClient,
    /// Kinds by group and version: their plural, and whether they live in namespaces.
    resources: BTreeMap<(String, String), (String, bool)>,
}

impl Applier {
    /// Applies the definitions and waits until each is served.
    async fn define(&mut self, directory: &Path) -> Result<()> {
        for path in yaml_files(directory)? {
            for (document, text) in documents(&std::fs::read_to_string(&path)?)? {
                let reply = self.apply(&document, &text).await?;
                ensure!(reply.is_success(), "{} was refused: {}", path.display(), reply.value());
                let group = document["spec"]["group"].as_str().context("a definition has a group")?;
                let plural =
                    document["spec"]["names"]["plural"].as_str().context("a definition has a plural")?;
                for version in document["spec"]["versions"].as_array().context("a definition has versions")? {
                    let version = version["name"].as_str().context("a version has a name")?;
                    self.wait_served(&format!("/apis/{group}/{version}/{plural}")).await?;
                }
            }
        }
        Ok(())
    }

    async fn wait_served(&self, path: &str) -> Result<()> {
        let deadline = Instant::now() + SERVED_LIMIT;
        loop {
            if self.http.send(Request::new(Method::GET, path)).await?.is_success() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{path} is never served");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn file(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path)?;
        let documents = documents(&text)?;
        let (last, before) = documents.split_last().context("an empty example")?;
        for (document, text) in before {
            let reply = self.apply(document, text).await?;
            ensure!(reply.is_success(), "refused: {}", reply.value()["message"]);
        }
        let reply = self.apply(&last.0, &last.1).await?;
        let message = reply.value()["message"].as_str().unwrap_or_default().to_owned();
        if !is_refused(path) {
            ensure!(reply.is_success(), "refused: {message}");
            return Ok(());
        }
        let first = text.lines().next().unwrap_or_default();
        let expected = first.strip_prefix("# refused: ").context("the first line must be `# refused: …`")?;
        ensure!(!reply.is_success(), "accepted, but should be refused with {expected:?}");
        ensure!(message.contains(expected), "refused with {message:?}, not with {expected:?}");
        Ok(())
    }

    /// Creates what is described, or changes what is there, as `kubectl apply` does.
    async fn apply(&mut self, document: &Value, text: &str) -> Result<Reply> {
        let api_version = document["apiVersion"].as_str().context("no apiVersion")?;
        let kind = document["kind"].as_str().context("no kind")?;
        let name = document["metadata"]["name"].as_str().context("no name")?;
        let (plural, namespaced) = self.resource(api_version, kind).await?;
        let base = if api_version.contains('/') { "/apis/" } else { "/api/" };
        let namespace = document["metadata"]["namespace"].as_str().unwrap_or("default");
        let mut path = format!("{base}{api_version}");
        if namespaced {
            self.ensure_namespace(namespace).await?;
            path.push_str(&format!("/namespaces/{namespace}"));
        }
        let create = format!("{path}/{plural}?fieldValidation=Strict");
        let reply = self
            .http
            .send(Request::new(Method::POST, create).body("application/yaml", text.to_owned()))
            .await?;
        if reply.status != 409 {
            return Ok(reply);
        }
        let change = format!("{path}/{plural}/{name}?fieldValidation=Strict");
        self.http.send(Request::new(Method::PATCH, change).body(MERGE_PATCH, document.to_string())).await
    }

    async fn ensure_namespace(&self, name: &str) -> Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let reply = self.http.send(Request::new(Method::POST, "/api/v1/namespaces").json(&body)).await?;
        ensure!(reply.is_success() || reply.status == 409, "{}", reply.value());
        Ok(())
    }

    async fn resource(&mut self, api_version: &str, kind: &str) -> Result<(String, bool)> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(known) = self.resources.get(&key) {
            return Ok(known.clone());
        }
        let base = if api_version.contains('/') { "/apis/" } else { "/api/" };
        let reply = self.http.send(Request::new(Method::GET, format!("{base}{api_version}"))).await?.value();
        for resource in reply["resources"].as_array().into_iter().flatten() {
            let name = resource["name"].as_str().unwrap_or_default();
            if resource["kind"] == kind && !name.contains('/') {
                let found = (name.to_owned(), resource["namespaced"] == true);
                self.resources.insert(key, found.clone());
                return Ok(found);
            }
        }
        bail!("the server has no {kind} in {api_version}")
    }
}

/// The documents of a YAML file, parsed and as text.
fn documents(text: &str) -> Result<Vec<(Value, String)>> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    let has_content =
        |part: &String| part.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#'));
    parts.into_iter().filter(has_content).map(|part| Ok((serde_saphyr::from_str(&part)?, part))).collect()
}
