//! A real control plane on loopback: etcd with its default durability, kube-apiserver, and a
//! kube-controller-manager with the controllers that a test asks for, so that nothing else writes while it
//! records.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::Method;
use tempfile::TempDir;
use tokio::time::Instant;

use super::{Binaries, free_port, kubeconfig_json};
use crate::http_client::{HttpClient, Request};
use crate::supervise::Process;

const TOKEN: &str = "testkit";
const READY_LIMIT: Duration = Duration::from_secs(120);
const STARTS: usize = 3;

/// Which controllers kube-controller-manager runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controllers {
    /// Those that are part of the API's own behaviour: garbage collection, namespace deletion.
    Api,
    /// All, but for those that would notice that the nodes of a test do not exist.
    Workloads,
}

impl Controllers {
    fn flag(self) -> &'static str {
        match self {
            Controllers::Api => "garbage-collector-controller,namespace-controller",
            Controllers::Workloads => {
                "*,-pod-garbage-collector-controller,-node-lifecycle-controller,-taint-eviction-controller"
            }
        }
    }
}

/// A running control plane. Fields drop in order: clients of a part before the part.
pub struct Real {
    controller_manager: Option<Process>,
    apiserver: Process,
    etcd: Process,
    addr: SocketAddr,
    ca_pem: String,
    started: Duration,
    directory: TempDir,
}

impl Real {
    /// Starts the three programs and waits until the API server is ready.
    pub async fn start(binaries: &Binaries, controllers: Controllers) -> Result<Real> {
        let mut real = Self::start_api(binaries).await?;
        let manager = start_controller_manager(binaries, real.directory.path(), real.addr, controllers)?;
        real.controller_manager = Some(manager);
        Ok(real)
    }

    /// Starts etcd and kube-apiserver without the controllers.
    pub async fn start_api(binaries: &Binaries) -> Result<Real> {
        let mut last = None;
        // A free port can be taken by someone else between the choice and the use of it.
        for _ in 0..STARTS {
            match Self::start_once(binaries).await {
                Ok(real) => return Ok(real),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("the control plane was never started")?)
    }

    async fn start_once(binaries: &Binaries) -> Result<Real> {
        let directory = tempfile::Builder::new().prefix("agentcube-real-").tempdir()?;
        let root = directory.path();
        write_secrets(root)?;
        let (client_port, peer_port, port) = (free_port()?, free_port()?, free_port()?);
        let begun = Instant::now();
        let etcd = start_etcd(binaries, root, client_port, peer_port)?;
        let apiserver = start_apiserver(binaries, root, client_port, port)?;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let ca_pem = wait_ready(addr, root, &apiserver).await?;
        let started = begun.elapsed();
        Ok(Real { controller_manager: None, apiserver, etcd, addr, ca_pem, started, directory })
    }

    /// A client with all rights.
    pub fn client(&self) -> Result<HttpClient> {
        HttpClient::new(self.addr, &self.ca_pem, TOKEN)
    }

    /// A kubeconfig with all rights.
    pub fn kubeconfig(&self) -> String {
        kubeconfig_json(&format!("https://{}", self.addr), Some(&self.directory.path().join("ca.crt")), TOKEN)
    }

    /// Resident memory of kube-apiserver and etcd together, without the controllers.
    pub fn resident_bytes(&self) -> Result<u64> {
        Ok(self.apiserver.resident_bytes()? + self.etcd.resident_bytes()?)
    }

    /// How long etcd and kube-apiserver took to become ready.
    pub fn start_time(&self) -> Duration {
        self.started
    }

    /// The last lines that the controllers printed.
    pub fn controller_log(&self) -> String {
        self.controller_manager.as_ref().map(Process::log_tail).unwrap_or_default()
    }
}

fn write_secrets(root: &Path) -> Result<()> {
    let key = rcgen::KeyPair::generate()?;
    std::fs::write(root.join("sa.key"), key.serialize_pem())?;
    std::fs::write(root.join("sa.pub"), key.public_key_pem())?;
    std::fs::write(root.join("tokens.csv"), format!("{TOKEN},admin,admin,\"system:masters\"\n"))?;
    Ok(())
}

fn start_etcd(binaries: &Binaries, root: &Path, client: u16, peer: u16) -> Result<Process> {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let args = vec![
        format!("--data-dir={}", root.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--log-level=error".to_owned(),
    ];
    Process::start(&binaries.etcd, &args, &root.join("etcd.log"))
}

fn start_apiserver(binaries: &Binaries, root: &Path, etcd: u16, port: u16) -> Result<Process> {
    let file = |name: &str| root.join(name).display().to_string();
    let args = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--cert-dir={}", file("certs")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("sa.pub")),
        format!("--service-account-signing-key-file={}", file("sa.key")),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        format!("--token-auth-file={}", file("tokens.csv")),
        "--allow-privileged=true".to_owned(),
        // Service accounts and their tokens are outside what the two servers are compared in.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
    ];
    Process::start(&binaries.apiserver, &args, &root.join("apiserver.log"))
}

fn start_controller_manager(
    binaries: &Binaries,
    root: &Path,
    addr: SocketAddr,
    controllers: Controllers,
) -> Result<Process> {
    let kubeconfig = root.join("kubeconfig");
    let text = kubeconfig_json(&format!("https://{addr}"), Some(&root.join("ca.crt")), TOKEN);
    std::fs::write(&kubeconfig, text)?;
    let kubeconfig = kubeconfig.display();
    let args = vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--leader-elect=false".to_owned(),
        "--use-service-account-credentials=false".to_owned(),
        "--secure-port=0".to_owned(),
        format!("--controllers={}", controllers.flag()),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
        "--concurrent-namespace-syncs=20".to_owned(),
    ];
    Process::start(&binaries.controller_manager, &args, &root.join("controller-manager.log"))
}

/// Waits for `/readyz`, then keeps the issuer of the serving certificate that the server made for itself.
async fn wait_ready(addr: SocketAddr, root: &Path, apiserver: &Process) -> Result<String> {
    let deadline = Instant::now() + READY_LIMIT;
    let mut last = String::new();
    while Instant::now() < deadline {
        match try_ready(addr, root).await {
            Ok(ca_pem) => return Ok(ca_pem),
            Err(error) => last = format!("{error:#}"),
        }
        if !Path::new(&format!("/proc/{}", apiserver.pid())).exists() {
            bail!("kube-apiserver ended:\n{}", apiserver.log_tail());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("kube-apiserver is not ready: {last}\n{}", apiserver.log_tail())
}

async fn try_ready(addr: SocketAddr, root: &Path) -> Result<String> {
    let chain = std::fs::read_to_string(root.join("certs/apiserver.crt"))?;
    let start = chain.rfind("-----BEGIN CERTIFICATE-----").context("no certificate yet")?;
    let ca_pem = chain[start..].to_owned();
    let client = HttpClient::new(addr, &ca_pem, TOKEN)?;
    let reply = client.send(Request::new(Method::GET, "/readyz")).await?;
    anyhow::ensure!(reply.is_success(), "{}", String::from_utf8_lossy(&reply.bytes));
    // The default namespace appears a moment after readiness.
    let reply = client.send(Request::new(Method::GET, "/api/v1/namespaces/default")).await?;
    anyhow::ensure!(reply.is_success(), "{}", String::from_utf8_lossy(&reply.bytes));
    std::fs::write(root.join("ca.crt"), &ca_pem)?;
    Ok(ca_pem)
}
