//! `agentcube install`: the manifests of everything that runs on a Kubernetes cluster, printed, or applied. The same as the
//! Helm chart under deploy/chart, whose templates it renders.

mod chart;
mod schema;
#[cfg(test)]
mod tests;
pub(crate) mod uninstall;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use crate::client::{Connection, Discovery};
use crate::controllers::{Counting, Way};
use crate::environment::Environment;
use crate::exit::{Outcome, Usage};
use crate::output::{self, Machine};
use crate::{apply, manifest, up};
use chart::Scope;

/// On everything that is installed.
const PART_OF: &str = "app.kubernetes.io/part-of";
const US: &str = "agentcube";
/// Namespaces that are there without us, and stay.
const OF_KUBERNETES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube install --image agentcube:0.1 | kubectl apply --server-side -f -
  agentcube install --image agentcube:0.1 --apply          # and wait until everything runs
  agentcube install --envoy-gateway plain --gateway-class eg --replicas 3 --no-fastpath
  agentcube install --values values.yaml -o json

Envoy Gateway has to be there first. More: docs/operations/install.md.")]
pub(crate) struct Arguments {
    /// The operator's namespace
    #[arg(short, long, default_value = "agentcube-system")]
    namespace: String,
    /// The image that this program is in
    #[arg(long)]
    image: Option<String>,
    /// How many routers there are
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=100))]
    replicas: Option<u8>,
    /// How Envoy Gateway is told the instance of a request [default: patch]
    #[arg(long, value_enum)]
    envoy_gateway: Option<Way>,
    /// The class of TaskGateways that name none, which somebody else has made [default: one of its own]
    #[arg(long, value_name = "NAME")]
    gateway_class: Option<String>,
    /// The namespace of Envoy's Pods; empty where they are not in one [default: envoy-gateway-system]
    #[arg(long, value_name = "NAME")]
    gateway_namespace: Option<String>,
    /// Who counts requests for rate limits [default: service]
    #[arg(long, value_enum)]
    rate_limits: Option<Counting>,
    /// With sandboxes in milliseconds; the default
    #[arg(long, overrides_with = "no_fastpath")]
    fastpath: bool,
    /// Without them
    #[arg(long)]
    no_fastpath: bool,
    /// Without the janitor on each node: no pool has the runtime containerd
    #[arg(long)]
    no_janitor: bool,
    /// Without the web console
    #[arg(long)]
    no_console: bool,
    /// Without middleware: nobody looks after Apps
    #[arg(long)]
    no_middleware: bool,
    /// Look after the Apps of this namespace only [default: all]
    #[arg(long, value_name = "NAME")]
    watch_namespace: Option<String>,
    /// Without front ends: nobody looks after FrontendIntegrations, and there is no build service
    #[arg(long)]
    no_forge: bool,
    /// Further values, as for the Helm chart; what options say counts more
    #[arg(long, value_name = "FILE")]
    values: Option<PathBuf>,
    /// Print a stream of YAML, or a List in JSON
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Machine,
    /// Apply it instead of printing it, and wait until everything runs
    #[arg(long)]
    apply: bool,
    /// Do not wait
    #[arg(long, requires = "apply")]
    no_wait: bool,
    /// How long to wait, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
    /// The kubeconfig [default: $KUBECONFIG, else the running `agentcube up`, else ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, help_heading = "Connection")]
    context: Option<String>,
}

impl Arguments {
    fn values(&self) -> anyhow::Result<Value> {
        let mut values = chart::default_values()?;
        if let Some(path) = &self.values {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            let more: Value =
                serde_saphyr::from_str(&text).with_context(|| format!("{} is no YAML", path.display()))?;
            chart::merge(&mut values, &more, "")
                .map_err(|error| Usage(format!("{}: {error}", path.display())))?;
        }
        if let Some(image) = &self.image {
            values["image"] = json!(image);
        }
        if let Some(replicas) = self.replicas {
            values["router"]["replicas"] = json!(replicas);
        }
        let envoy = &mut values["envoyGateway"];
        if let Some(way) = self.envoy_gateway {
            envoy["mode"] = json!(way.as_str());
        }
        if let Some(class) = &self.gateway_class {
            (envoy["class"], envoy["createClass"]) = (json!(class), json!(false));
        }
        if let Some(namespace) = &self.gateway_namespace {
            envoy["namespace"] = json!(namespace);
        }
        if let Some(counting) = self.rate_limits {
            envoy["rateLimits"] = json!(counting.as_str());
        }
        if self.fastpath || self.no_fastpath {
            values["fastpath"]["enabled"] = json!(!self.no_fastpath);
        }
        if self.no_middleware {
            values["middleware"]["enabled"] = json!(false);
        }
        if let Some(namespace) = &self.watch_namespace {
            values["middleware"]["watchNamespace"] = json!(namespace);
        }
        if self.no_forge {
            values["forge"]["enabled"] = json!(false);
        }
        if self.no_janitor {
            values["janitor"]["enabled"] = json!(false);
        }
        if self.no_console {
            values["console"]["enabled"] = json!(false);
        }
        Ok(values)
    }

    /// The values, if they can be used.
    fn checked(&self) -> anyhow::Result<Value> {
        let values = self.values()?;
        schema::check(&values).map_err(|error| Usage(error.to_string()))?;
        for (option, text) in [
            ("--image", &values["image"]),
            ("--namespace", &json!(self.namespace)),
            ("--gateway-class", &values["envoyGateway"]["class"]),
            ("--watch-namespace", &values["middleware"]["watchNamespace"]),
        ] {
            let text = text.as_str().unwrap_or_default();
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/:@".contains(&byte);
            let may_be_empty = option == "--watch-namespace";
            if (text.is_empty() && !may_be_empty) || !text.bytes().all(plain) {
                return Err(Usage(format!("{option} {text:?} is none")).into());
            }
        }
        let settings = values["middleware"]["config"].to_string();
        agentcube_middleware::options::Settings::read(&settings)
            .map_err(|error| Usage(format!("the value middleware.config cannot be used: {error}")))?;
        Ok(values)
    }

    fn connection(&self) -> Connection {
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        Connection { kubeconfig, context, namespace: None }
    }
}

/// Everything, as a stream of YAML: the definitions, the namespace, then the chart's templates.
fn render(values: &Value, namespace: &str) -> anyhow::Result<String> {
    Ok(format!("{}{}", definitions()?, parts(values, namespace)?))
}

fn definitions() -> anyhow::Result<String> {
    let mut text = String::new();
    for line in up::definitions::DEFINITIONS.lines() {
        let mut definition: Value = serde_json::from_str(line).context("a definition is not JSON")?;
        definition["metadata"]["labels"][PART_OF] = json!(US);
        text.push_str("---\n");
        text.push_str(&agentcube_api::yaml::render(&definition));
    }
    Ok(text)
}

fn parts(values: &Value, namespace: &str) -> anyhow::Result<String> {
    let mut documents = Vec::new();
    if !OF_KUBERNETES.contains(&namespace) {
        documents.push(agentcube_api::yaml::render(&namespace_object(values, namespace)));
    }
    let scope = Scope { values, namespace };
    for (name, template) in chart::TEMPLATES {
        documents.push(scope.render(template).with_context(|| format!("template {name}"))?);
    }
    documents.retain(|text| !text.trim().is_empty());
    Ok(format!("---\n{}", documents.join("---\n")))
}

fn namespace_object(values: &Value, name: &str) -> Value {
    let janitor = values["fastpath"]["enabled"] == true && values["janitor"]["enabled"] == true;
    // The janitor has a directory of its node; nothing else needs anything.
    let level = if janitor { "privileged" } else { "restricted" };
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": { PART_OF: US, "pod-security.kubernetes.io/enforce": level },
        },
    })
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let text = render(&arguments.checked()?, &arguments.namespace)?;
    if arguments.apply {
        return put(&arguments, &text, environment).await;
    }
    match arguments.output {
        Machine::Yaml => output::write(text.as_bytes())?,
        Machine::Json => {
            let documents = manifest::parse("agentcube install", &text)?;
            let items: Vec<Value> = documents.into_iter().map(|document| document.object).collect();
            Machine::Json.print(&json!({ "apiVersion": "v1", "kind": "List", "items": items }))?;
        }
    }
    Ok(Outcome::Done)
}

async fn put(arguments: &Arguments, text: &str, environment: &Environment) -> anyhow::Result<Outcome> {
    let values = arguments.values()?;
    let server = arguments.connection().open(environment).await?;
    check(&Discovery::fetch(&server).await?, values["envoyGateway"]["mode"] != "none")?;
    let documents = manifest::parse("agentcube install", text)?;
    let how = apply::Arguments::whole(arguments.connection(), !arguments.no_wait, arguments.timeout);
    apply::put(&how, documents, false, environment).await
}

/// Says before anything is applied what would never run.
fn check(discovery: &Discovery, envoy: bool) -> anyhow::Result<()> {
    if discovery.of("gateway.networking.k8s.io/v1", "HTTPRoute").is_none() {
        anyhow::bail!(
            "the cluster has no Gateway API: install Envoy Gateway, or the definitions of the Gateway API"
        );
    }
    if envoy && discovery.of("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy").is_none() {
        anyhow::bail!("the cluster has no Envoy Gateway: install it first, or say --envoy-gateway none");
    }
    Ok(())
}
