//! `agentcube uninstall`: takes away exactly what `install` has put there, in an order in which everything can still end:
//! first what users have made, while there are controllers to end it, last the definitions and the namespace.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use agentcube_api::labels;
use agentcube_instance::token::MASTER_SECRET;
use anyhow::{Context, bail};
use clap::Args;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{PART_OF, US, chart};
use crate::client::{Connection, Discovery, Kind, Server, query};
use crate::environment::Environment;
use crate::exit::{Outcome, Usage};
use crate::output::{self, progress};
use crate::{manifest, up};

/// How often what is to go is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Who is told by Helm that an object is Helm's.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// What the parts make for themselves in the operator's namespace.
const SECRETS: [&str; 4] =
    [MASTER_SECRET, "agentcube-admin-token", "agentcube-agent-keys", crate::forge::KEY_SECRET];
const LEASES: [&str; 2] = ["agentcube-controllers", "agentcube-fastpath"];
/// The kinds that users make, in the order in which they end: what is served, before what serves it. A sandbox whose agent
/// does not answer ends with that agent, which ends with its pool: these two go together. An App ends its Components, and these
/// their Groups; all of them need their Plugin for that.
const GROUPS: [&[&str]; 6] = [
    &["Task"],
    &["TaskGateway"],
    &["Sandbox", "SandboxPool"],
    &["App", "Backup"],
    &["Component"],
    &["Group"],
];

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube uninstall
  agentcube uninstall --all          # with all Tasks, gateways, sandboxes and Apps of the cluster
  agentcube uninstall --namespace agents --kubeconfig ./kubeconfig

Refuses while there are objects of AgentCube's kinds, unless --all is given: then they go first. A namespace that holds
something else stays.")]
pub(crate) struct Arguments {
    /// The operator's namespace
    #[arg(short, long, default_value = "agentcube-system")]
    namespace: String,
    /// Delete all Tasks, gateways, sandboxes, Apps and so on of the cluster as well
    #[arg(long)]
    all: bool,
    /// How long each step may take, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
    /// The kubeconfig [default: $KUBECONFIG, else the running `agentcube up`, else ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, help_heading = "Connection")]
    context: Option<String>,
}

/// An object that is to go.
struct Doomed {
    called: String,
    path: String,
    uid: Value,
}

struct Cluster<'a> {
    server: Server,
    discovery: Discovery,
    arguments: &'a Arguments,
    environment: &'a Environment,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let (kubeconfig, context) = (arguments.kubeconfig.clone(), arguments.context.clone());
    let server = Connection { kubeconfig, context, namespace: None }.open(environment).await?;
    let discovery = Discovery::fetch(&server).await?;
    let cluster = Cluster { server, discovery, arguments: &arguments, environment };
    cluster.refuse_helm().await?;
    cluster.users_objects().await?;
    let namespace_goes = cluster.namespace_is_ours().await?;
    // They give their Leases back, for which they need their roles.
    cluster.away("the parts", cluster.installed(&["Deployment", "DaemonSet"]).await?, "Foreground").await?;
    cluster.away("their Pods", cluster.of_us("Pod", "v1", true).await?, "Background").await?;
    cluster.away("what they made", cluster.made().await?, "Background").await?;
    cluster.away("the rest", cluster.installed(&[]).await?, "Background").await?;
    let definitions = cluster.of_us("CustomResourceDefinition", "apiextensions.k8s.io/v1", false).await?;
    cluster.away("the definitions", definitions, "Background").await?;
    if namespace_goes {
        let namespaces = cluster.of_us("Namespace", "v1", false).await?;
        let own = format!("/{}", arguments.namespace);
        let own: Vec<Doomed> = namespaces.into_iter().filter(|one| one.path.ends_with(&own)).collect();
        cluster.away("the namespace", own, "Background").await?;
    }
    Ok(Outcome::Done)
}

impl Cluster<'_> {
    fn kind(&self, version: &str, kind: &str) -> Option<&Kind> {
        self.discovery.of(version, kind)
    }

    /// Objects of a kind, in the operator's namespace or everywhere.
    async fn list(&self, kind: &Kind, here: bool, selector: Option<&str>) -> anyhow::Result<Vec<Value>> {
        let namespace = Some(self.arguments.namespace.as_str()).filter(|_| here && kind.namespaced);
        let path = format!("{}{}", kind.path(namespace, None), query(&[("labelSelector", selector)]));
        let mut list = match self.server.get(&path).await {
            Ok(list) => list,
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    fn doomed(kind: &Kind, object: &Value) -> Doomed {
        let text = |name: &str| object["metadata"][name].as_str();
        let name = text("name").unwrap_or_default();
        Doomed {
            called: kind.called(name),
            path: kind.path(text("namespace"), Some(name)),
            uid: object["metadata"]["uid"].clone(),
        }
    }

    /// What has our label.
    async fn of_us(&self, kind: &str, version: &str, here: bool) -> anyhow::Result<Vec<Doomed>> {
        let Some(kind) = self.kind(version, kind) else { return Ok(Vec::new()) };
        let found = self.list(kind, here, Some(&format!("{PART_OF}={US}"))).await?;
        Ok(found.iter().map(|object| Cluster::doomed(kind, object)).collect())
    }

    /// What the templates may have put there; of these kinds, or of all.
    async fn installed(&self, only: &[&str]) -> anyhow::Result<Vec<Doomed>> {
        let mut found = Vec::new();
        for (version, kind) in kinds()? {
            if only.is_empty() || only.contains(&kind.as_str()) {
                found.extend(self.of_us(&kind, &version, true).await?);
            }
        }
        Ok(found)
    }

    /// What the parts have made in the operator's namespace.
    async fn made(&self) -> anyhow::Result<Vec<Doomed>> {
        let routers = format!("{}={}", labels::LEASE, labels::LEASE_OF_ROUTER);
        let mut found = Vec::new();
        for (version, name, names, selector) in [
            ("v1", "Secret", &SECRETS[..], None),
            ("coordination.k8s.io/v1", "Lease", &LEASES[..], None),
            ("coordination.k8s.io/v1", "Lease", &[], Some(routers.as_str())),
        ] {
            let kind = self.kind(version, name).with_context(|| format!("the server has no {name}"))?;
            let objects = self.list(kind, true, selector).await?;
            let ours = objects.iter().filter(|object| {
                selector.is_some()
                    || object["metadata"]["name"].as_str().is_some_and(|name| names.contains(&name))
            });
            found.extend(ours.map(|object| Cluster::doomed(kind, object)));
        }
        Ok(found)
    }

    /// What Helm has put there, Helm has to take away: it would believe it to be there.
    async fn refuse_helm(&self) -> anyhow::Result<()> {
        let Some(kind) = self.kind("apps/v1", "Deployment") else { return Ok(()) };
        let by_helm = format!("{PART_OF}={US},{MANAGED_BY}=Helm");
        if self.list(kind, true, Some(&by_helm)).await?.is_empty() {
            return Ok(());
        }
        let namespace = &self.arguments.namespace;
        bail!(
            "Helm has installed AgentCube in namespace {namespace}: `helm uninstall` it, with -n {namespace}"
        )
    }

    /// The objects of our own kinds: none, or all of them go now.
    async fn users_objects(&self) -> anyhow::Result<()> {
        let kinds = own_kinds(&self.discovery)?;
        let group = |kind: &Kind| {
            GROUPS.iter().position(|group| group.contains(&&*kind.kind)).unwrap_or(GROUPS.len())
        };
        let mut told = Vec::new();
        for number in 0..=GROUPS.len() {
            let (mut names, mut doomed) = (Vec::new(), Vec::new());
            for kind in kinds.iter().filter(|kind| group(kind) == number) {
                let found = self.list(kind, false, None).await?;
                if !found.is_empty() {
                    names.push(kind.plural.as_str());
                    told.push(format!("{} {}", found.len(), kind.plural));
                }
                doomed.extend(found.iter().map(|object| Cluster::doomed(kind, object)));
            }
            if self.arguments.all {
                self.away(&names.join(" and "), doomed, "Background").await?;
            }
        }
        if told.is_empty() || self.arguments.all {
            return Ok(());
        }
        let told = told.join(", ");
        Err(Usage(format!("the cluster has {told}: delete them first, or give --all, and they go with it"))
            .into())
    }

    /// Whether the operator's namespace was made by `install`, and holds nothing else by now.
    async fn namespace_is_ours(&self) -> anyhow::Result<bool> {
        let ours = self.of_us("Namespace", "v1", false).await?;
        if !ours.iter().any(|one| one.path.ends_with(&format!("/{}", self.arguments.namespace))) {
            return Ok(false);
        }
        for (version, name) in [
            ("v1", "Pod"),
            ("v1", "Service"),
            ("v1", "ConfigMap"),
            ("v1", "Secret"),
            ("v1", "PersistentVolumeClaim"),
        ] {
            let Some(kind) = self.kind(version, name) else { continue };
            for object in self.list(kind, true, Some(&format!("{PART_OF}!={US}"))).await? {
                let called = object["metadata"]["name"].as_str().unwrap_or_default();
                if called == "kube-root-ca.crt" || SECRETS.contains(&called) {
                    continue;
                }
                let namespace = &self.arguments.namespace;
                crate::exit::say(&format!("namespace {namespace} stays: it holds {}", kind.called(called)));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Deletes objects, and waits until they are gone.
    async fn away(&self, what: &str, doomed: Vec<Doomed>, propagation: &str) -> anyhow::Result<()> {
        let body = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation });
        let mut waiting = Vec::new();
        for one in doomed {
            match self.server.send(Method::DELETE, &one.path, "application/json", &body).await {
                Ok(_) => output::write(format!("{} deleted\n", one.called).as_bytes())?,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(anyhow::Error::new(error).context(one.called)),
            }
            waiting.push(one);
        }
        let deadline = Instant::now() + Duration::from_secs(self.arguments.timeout);
        let gone = async {
            while let Some(one) = waiting.last() {
                match self.server.get(&one.path).await {
                    Ok(object) if object["metadata"]["uid"] == one.uid => {
                        if Instant::now() > deadline {
                            return Ok(Some(one.called.clone()));
                        }
                        tokio::time::sleep(LOOK).await;
                    }
                    Ok(_) => drop(waiting.pop()),
                    Err(error) if error.is_not_found() => drop(waiting.pop()),
                    Err(error) => return Err(error),
                }
            }
            Ok(None)
        };
        match progress::during(self.environment, &format!("waiting for {what} to be gone"), gone).await? {
            None => Ok(()),
            Some(called) => bail!(
                "{called} is still there after {} s: see whether the controllers run (kubectl -n {} get pods), and call \
                 this again",
                self.arguments.timeout,
                self.arguments.namespace
            ),
        }
    }
}

/// Version and name of each kind of the templates, each after those that it may need.
fn kinds() -> anyhow::Result<Vec<(String, String)>> {
    let mut values = chart::default_values()?;
    let all = json!({ "envoyGateway": { "mode": "patch" }, "fastpath": { "enabled": true }, "janitor": { "enabled": true },
        "middleware": { "enabled": true }, "forge": { "enabled": true } });
    chart::merge(&mut values, &all, "")?;
    let text = super::parts(&values, "default")?;
    let mut seen = BTreeMap::new();
    for (number, document) in manifest::parse("agentcube install", &text)?.iter().enumerate() {
        let key = (document.text(&["apiVersion"]).to_owned(), document.text(&["kind"]).to_owned());
        seen.entry(key).or_insert(number);
    }
    let mut kinds: Vec<_> = seen.into_iter().collect();
    kinds.sort_by_key(|(_, first)| std::cmp::Reverse(*first));
    Ok(kinds.into_iter().map(|(key, _)| key).collect())
}

/// Those of our own kinds that the server has.
fn own_kinds(discovery: &Discovery) -> anyhow::Result<Vec<Kind>> {
    let mut kinds = Vec::new();
    for line in up::definitions::DEFINITIONS.lines() {
        let definition: Value = serde_json::from_str(line).context("a definition is not JSON")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &definition["spec"];
        let version = format!("{}/{}", text(&spec["group"]), text(&spec["versions"][0]["name"]));
        kinds.extend(discovery.of(&version, &text(&spec["names"]["kind"])).cloned());
    }
    Ok(kinds)
}
