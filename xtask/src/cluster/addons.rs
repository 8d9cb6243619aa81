//! What is installed into a cluster that runs: DNS, RuntimeClasses, the Gateway API and Envoy Gateway.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{fill, images, network};
use crate::process::{quietly, timed};
use crate::setup::cluster::Tools;

/// Gateways of this class are Envoy Gateway's.
pub(crate) const CLASS: &str = "eg";
pub(crate) const GATEWAY_NAMESPACE: &str = "envoy-gateway-system";
const RUNTIME_CLASSES: &str = include_str!("manifests/runtime-classes.yaml");

/// Asks the API server, with all rights.
pub(crate) struct Kubectl<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) kubeconfig: &'a Path,
}

impl Kubectl<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.tools.kubectl);
        command.env("KUBECONFIG", self.kubeconfig);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        quietly(self.command().args(arguments))
    }

    /// Creates or updates the objects of a text.
    fn apply(&self, manifests: &str) -> Result<()> {
        let mut command = self.command();
        command.args(["apply", "--server-side", "--force-conflicts", "-f", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run kubectl")?;
        let mut input = child.stdin.take().context("kubectl has an input")?;
        let written = input.write_all(manifests.as_bytes());
        drop(input);
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("kubectl apply: {}", String::from_utf8_lossy(&output.stderr));
        }
        written.context("kubectl apply did not read everything")
    }

    /// Waits until a Deployment has as many Pods ready as it shall have.
    pub(crate) fn rolled_out(&self, namespace: &str, name: &str) -> Result<()> {
        let deployment = format!("deployment/{name}");
        let waited = self.run(&["rollout", "status", "-n", namespace, &deployment, "--timeout=120s"]);
        waited.map(drop).map_err(|error| {
            let pods = self.run(&["get", "pods,events", "-n", namespace]).unwrap_or_default();
            error.context(format!("{name} does not get ready\n{pods}"))
        })
    }
}

/// Installs DNS and RuntimeClasses, which Pods depend on, then the Gateway API and Envoy Gateway. What has been installed
/// is written down in a directory, so that it is not done again.
pub(crate) fn install(kubectl: &Kubectl<'_>, directory: &Path) -> Result<()> {
    let values = [
        ("domain", network::DOMAIN),
        ("dns_service", network::DNS_SERVICE),
        ("coredns", images::COREDNS),
        ("envoy", images::ENVOY),
        ("envoy_gateway", images::ENVOY_GATEWAY),
        ("namespace", GATEWAY_NAMESPACE),
        ("class", CLASS),
    ];
    let basics = [fill(include_str!("manifests/coredns.yaml"), &values), RUNTIME_CLASSES.to_owned()].concat();
    let gateway = fill(include_str!("manifests/envoy-gateway.yaml"), &values);
    let namespace = fill("apiVersion: v1\nkind: Namespace\nmetadata: { name: \"{{namespace}}\" }\n", &values);
    // A directory that is a link is followed only so.
    let definitions = format!("{}/", kubectl.tools.definitions.display());
    let done = directory.join("installed");
    let all = [&*basics, &gateway, &definitions].concat();
    if std::fs::read_to_string(&done).is_ok_and(|earlier| earlier == all) {
        return Ok(());
    }
    timed("installing DNS", || kubectl.apply(&basics))?;
    timed("installing Envoy Gateway", || {
        kubectl.run(&["apply", "--server-side", "--force-conflicts", "-f", &definitions])?;
        kubectl.run(&["wait", "--for=condition=Established", "--timeout=60s", "-f", &definitions])?;
        kubectl.apply(&namespace)?;
        let mut certificates = Command::new(&kubectl.tools.envoy_gateway);
        certificates.args(["certgen", "--disable-topology-injector"]).env("KUBECONFIG", kubectl.kubeconfig);
        certificates.env("ENVOY_GATEWAY_NAMESPACE", GATEWAY_NAMESPACE);
        quietly(certificates.env("KUBERNETES_CLUSTER_DOMAIN", network::DOMAIN))?;
        kubectl.apply(&gateway)
    })?;
    std::fs::write(done, all)?;
    Ok(())
}
