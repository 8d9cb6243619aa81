//! A cluster for a test: the embedded API server, or a real etcd + kube-apiserver + kube-controller-manager.
//! A test body sees the same type for both and must not care which it has.

pub mod embedded;
pub mod pretended_node;
pub mod process;
pub mod real;
pub mod up;
pub mod whole;

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::http_client::HttpClient;

/// Which server a cluster is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Embedded,
    Real,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Embedded => "embedded",
            Kind::Real => "real",
        })
    }
}

/// The programs of a real cluster, as `cargo xtask setup` left them.
#[derive(Clone, Debug)]
pub struct Binaries {
    pub etcd: PathBuf,
    pub apiserver: PathBuf,
    pub controller_manager: PathBuf,
    pub kubectl: PathBuf,
    /// The kubeconfig of a whole cluster that is to be taken instead.
    pub whole: Option<PathBuf>,
}

impl Binaries {
    /// Finds the programs under `assets` (all in one directory) or else in the cache `setup` fills.
    /// The error names the first one that is missing.
    pub fn find(assets: Option<PathBuf>, cache: &std::path::Path) -> Result<Binaries> {
        let (kubernetes, etcd) = match assets {
            Some(assets) => (assets.clone(), assets),
            None => (cache.join("kubernetes-v1.36.4"), cache.join("etcd-v3.6.8")),
        };
        let find = |directory: &PathBuf, name: &str| -> Result<PathBuf> {
            let path = directory.join(name);
            anyhow::ensure!(path.is_file(), "{} is missing; run `cargo xtask setup`", path.display());
            Ok(path)
        };
        let controller_manager = kubernetes.join("kube-controller-manager");
        Ok(Binaries {
            etcd: find(&etcd, "etcd")?,
            apiserver: find(&kubernetes, "kube-apiserver")?,
            controller_manager: if controller_manager.is_file() {
                controller_manager
            } else {
                find(&cache.join("kubernetes-v1.36.4"), "kube-controller-manager")?
            },
            kubectl: find(&kubernetes, "kubectl")?,
            whole: None,
        })
    }
}

/// A running cluster; dropping it ends every process of it.
pub struct Cluster {
    pub kind: Kind,
    pub http: HttpClient,
    kubeconfig: tempfile::NamedTempFile,
    /// The server or its processes: held so that they end with the cluster.
    _backend: Box<dyn Any + Send + Sync>,
}

impl Cluster {
    /// The embedded API server, in this process, with its storage in memory.
    pub async fn embedded() -> Result<Cluster> {
        let server = embedded::Embedded::start().await?;
        let http = server.client()?;
        let kubeconfig = server.kubeconfig();
        Self::assemble(Kind::Embedded, http, &kubeconfig, Box::new(server))
    }

    /// A real kube-apiserver with its etcd and the controllers that belong to the API's own semantics.
    pub async fn real(binaries: &Binaries) -> Result<Cluster> {
        Self::real_with(binaries, real::Controllers::Api).await
    }

    /// A real kube-apiserver with its etcd and the given controllers; or a whole cluster that runs already.
    pub async fn real_with(binaries: &Binaries, controllers: real::Controllers) -> Result<Cluster> {
        if let Some(path) = &binaries.whole {
            let (kubeconfig, http, _) = whole::connect(path)?;
            return Self::assemble(Kind::Real, http, &kubeconfig, Box::new(()));
        }
        let server = real::Real::start(binaries, controllers).await?;
        let http = server.client()?;
        let kubeconfig = server.kubeconfig();
        Self::assemble(Kind::Real, http, &kubeconfig, Box::new(server))
    }

    fn assemble(
        kind: Kind,
        http: HttpClient,
        kubeconfig: &str,
        backend: Box<dyn Any + Send + Sync>,
    ) -> Result<Cluster> {
        let file = tempfile::Builder::new().prefix("kubeconfig-").tempfile()?;
        std::fs::write(file.path(), kubeconfig)?;
        Ok(Cluster { kind, http, kubeconfig: file, _backend: backend })
    }

    /// A kubeconfig file for `kubectl` and `kube`.
    pub fn kubeconfig(&self) -> &std::path::Path {
        self.kubeconfig.path()
    }
}

/// Below those that the kernel gives to connections: one that asks for a server which is away could be given the
/// server's own port, and keep it from coming back. Above those that servers have by convention.
const PORTS: Range<u16> = 12_000..30_000;

/// A port that was free a moment ago. Whoever uses it must be ready to lose the race and try another.
pub fn free_port() -> Result<u16> {
    // Other processes look for ports at the same time, so each begins somewhere else.
    let begin = RandomState::new().hash_one(std::process::id());
    let ports = u64::from(PORTS.end - PORTS.start);
    (0..ports)
        .map(|turn| PORTS.start + u16::try_from(begin.wrapping_add(turn) % ports).unwrap_or_default())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no port is free")
}

/// A kubeconfig for one server and one token; JSON, which is YAML too.
pub fn kubeconfig_json(server: &str, ca_pem: Option<&std::path::Path>, token: &str) -> String {
    let mut cluster = json!({ "server": server });
    match ca_pem {
        Some(path) => cluster["certificate-authority"] = Value::String(path.display().to_string()),
        None => cluster["insecure-skip-tls-verify"] = Value::Bool(true),
    }
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{ "name": "test", "cluster": cluster }],
        "users": [{ "name": "admin", "user": { "token": token } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "admin" } }],
    });
    format!("{config:#}\n")
}
