//! A whole cluster, as `cargo xtask cluster up` leaves it: kubelet, containerd, Services, DNS, Envoy Gateway. AgentCube is
//! installed into it as its users do.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};

use crate::http_client::{HttpClient, Request};
use crate::watch::{self, Objects};

/// The image of our own program, which the cluster has.
pub const IMAGE: &str = "agentcube:dev";
/// An image with Python and a shell.
pub const PYTHON: &str = "python:dev";
/// This machine, as Pods see it.
pub const MACHINE: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 1);
/// Where everything of ours is installed.
pub const SYSTEM: &str = "agentcube-system";
/// Where Envoys run.
const ENVOYS: &str = "envoy-gateway-system";
const GATEWAYS: &str = "/apis/agentcube.io/v1alpha1/namespaces/default/taskgateways";
const PORT: u16 = 8080;
/// A debug build on a busy machine is slow.
const LIMIT: Duration = Duration::from_secs(180);

pub struct Whole {
    pub http: HttpClient,
    /// What there was before anything was installed.
    pub before: BTreeSet<String>,
    token: String,
    program: PathBuf,
    kubeconfig: PathBuf,
    helm: PathBuf,
    xtask: Option<PathBuf>,
    home: tempfile::TempDir,
}

/// Where `cargo xtask cluster up` leaves the kubeconfig.
pub fn kubeconfig(cache: &Path) -> PathBuf {
    cache.join("cluster/secrets/admin.kubeconfig")
}

/// The text of the kubeconfig that `cargo xtask cluster up` writes, a client for it, and its token.
pub(super) fn connect(kubeconfig: &Path) -> Result<(String, HttpClient, String)> {
    let text = std::fs::read_to_string(kubeconfig)
        .with_context(|| format!("there is no {}: run `cargo xtask cluster up`", kubeconfig.display()))?;
    let config: Value = serde_json::from_str(&text)?;
    let said = |pointer: &str| {
        let value = config.pointer(pointer).and_then(Value::as_str);
        value.with_context(|| format!("{} has no {pointer}", kubeconfig.display()))
    };
    let address = said("/clusters/0/cluster/server")?.trim_start_matches("https://").parse()?;
    let authority = std::fs::read_to_string(said("/clusters/0/cluster/certificate-authority")?)?;
    let token = said("/users/0/user/token")?.to_owned();
    let http = HttpClient::new(address, &authority, &token)?;
    Ok((text, http, token))
}

impl Whole {
    /// The cluster of a cache.
    pub fn find(cache: &Path, program: &Path) -> Result<Whole> {
        let kubeconfig = kubeconfig(cache);
        let (_, http, token) = connect(&kubeconfig)?;
        let xtask = std::env::var_os("AGENTCUBE_XTASK").map(PathBuf::from);
        let home = tempfile::tempdir()?;
        let before = BTreeSet::new();
        let helm = cache.join("helm-v4.3.1/helm");
        Ok(Whole { http, before, token, program: program.to_owned(), kubeconfig, helm, xtask, home })
    }

    /// Our own program, as somebody who may do everything.
    pub fn command(&self) -> Command {
        self.as_admin(&self.program)
    }

    /// Helm, likewise.
    pub fn helm(&self) -> Command {
        self.as_admin(&self.helm)
    }

    fn as_admin(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", self.home.path());
        command
    }

    /// What the program says; an error if it fails.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command().args(arguments).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "agentcube {}: {error}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The token of somebody who may do everything.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Kills a part of the cluster, or starts it again.
    pub fn part(&self, action: &str, part: &str) -> Result<()> {
        let xtask = self.xtask.as_ref().context("run this by `cargo xtask test cluster`")?;
        let output = Command::new(xtask).args(["cluster", action, part]).output()?;
        ensure!(output.status.success(), "{action} {part}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Makes a TaskGateway with one listener and whatever else, and says where its Envoy listens.
    pub async fn gateway(&self, name: &str, more: Value) -> Result<SocketAddr> {
        let mut gateway = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "TaskGateway", "metadata": { "name": name },
            "spec": { "listeners": [{ "name": "http", "protocol": "HTTP", "port": PORT }] },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            gateway["spec"][key] = value.clone();
        }
        let reply = self.http.send(Request::new(Method::POST, GATEWAYS).json(&gateway)).await?;
        ensure!(reply.status == 201, "cannot make the TaskGateway {name}: {}", reply.value());
        let ready = |gateways: &Objects| gateways.get(name).is_some_and(is_ready);
        watch::until(&self.http, GATEWAYS, &format!("the TaskGateway {name} is ready"), LIMIT, ready).await?;
        self.envoy(name, PORT).await
    }

    /// Where the Envoy of a Gateway listens.
    pub async fn envoy(&self, name: &str, port: u16) -> Result<SocketAddr> {
        let labels = format!(
            "gateway.envoyproxy.io%2Fowning-gateway-name%3D{name},gateway.envoyproxy.io%2Fowning-gateway-namespace%3Ddefault"
        );
        let path = format!("/api/v1/namespaces/{ENVOYS}/services?labelSelector={labels}");
        let services = self.http.send(Request::new(Method::GET, &*path)).await?.value();
        match services["items"][0]["spec"]["clusterIP"].as_str() {
            Some(address) => Ok(SocketAddr::new(address.parse()?, port)),
            None => bail!("no Service leads to the Envoy of {name}: {services}"),
        }
    }

    /// What there is to see when something went wrong.
    pub fn told(&self) -> String {
        let mut told = String::new();
        let commands: [&[&str]; 4] = [
            &["get", "pods", "-A"],
            &["get", "tasks,taskgateways", "-A"],
            &["logs", "-n", SYSTEM, "deployment/agentcube-controllers", "--tail", "20"],
            &["logs", "-n", SYSTEM, "deployment/agentcube-router", "--tail", "20"],
        ];
        for command in commands {
            let said = self.run(command).unwrap_or_else(|error| format!("{error:#}\n"));
            told.push_str(&format!("$ agentcube {}\n{said}", command.join(" ")));
        }
        told
    }
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
}
