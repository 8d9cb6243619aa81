//! Where a trial runs: a server, a client of it, and a namespace for the trial alone.

use std::path::PathBuf;
use std::sync::Arc;

use agentcube_apiserver::api::Api as Internals;
use agentcube_apiserver::{Handle, Server};
use agentcube_testkit::{Binaries, Cluster};
use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ObjectMeta, Status};
use kube::{Client, Config};

use crate::fixtures;
use crate::hooks::Node;

/// A trial cannot be held here, for want of a program; it is skipped, loudly.
#[derive(Debug)]
pub(crate) struct NotHere(pub(crate) String);

impl std::fmt::Display for NotHere {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotHere {}

enum Backend {
    InProcess(Server),
    Socket(Handle),
    /// Held so that its processes live as long as the place.
    Real {
        _cluster: Cluster,
    },
}

/// A running server with the kinds of the fixtures installed.
pub(crate) struct Place {
    backend: Backend,
    client: Client,
    kubectl: Option<PathBuf>,
    node: Option<Arc<Node>>,
}

impl Place {
    pub(crate) async fn in_process() -> Result<Place> {
        let server = Server::builder().memory().embed().await?;
        let client = Client::new(server.front(), "default");
        Self::ready(Backend::InProcess(server), client, None).await
    }

    pub(crate) async fn socket(kubectl: Option<PathBuf>) -> Result<Place> {
        let handle = Server::builder().memory().start().await?;
        let client = connect(Kubeconfig::from_yaml(&handle.kubeconfig_yaml())?).await?;
        Self::ready(Backend::Socket(handle), client, kubectl).await
    }

    pub(crate) async fn real(binaries: &Binaries) -> Result<Place> {
        let cluster = Cluster::real(binaries).await?;
        let client = connect(Kubeconfig::read_from(cluster.kubeconfig())?).await?;
        Self::ready(Backend::Real { _cluster: cluster }, client, None).await
    }

    async fn ready(backend: Backend, client: Client, kubectl: Option<PathBuf>) -> Result<Place> {
        fixtures::install(&client).await.context("the fixtures' definition")?;
        let mut place = Place { backend, client, kubectl, node: None };
        if let Some(internals) = place.internals() {
            let node = Arc::new(Node::default());
            internals.set_hooks(node.hooks());
            place.node = Some(node);
        }
        Ok(place)
    }

    fn internals(&self) -> Option<&Internals> {
        match &self.backend {
            Backend::InProcess(server) => Some(server.api()),
            Backend::Socket(handle) => Some(handle.server().api()),
            Backend::Real { .. } => None,
        }
    }

    /// A world for one trial, in a namespace named after it.
    pub(crate) async fn world(self: &Arc<Self>, trial: &str) -> Result<World> {
        let namespace = trial.replace(['/', '_'], "-");
        let metadata = ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() };
        let object = Namespace { metadata, ..Namespace::default() };
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await?;
        Ok(World { place: self.clone(), client: self.client.clone(), namespace })
    }
}

pub(crate) async fn connect(kubeconfig: Kubeconfig) -> Result<Client> {
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// What one trial has.
#[derive(Clone)]
pub(crate) struct World {
    place: Arc<Place>,
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl World {
    /// The objects of a kind in the trial's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The inside of the embedded server; the real one shows none.
    pub(crate) fn internals(&self) -> Result<&Internals> {
        self.place.internals().context("the real server shows nothing of its inside")
    }

    /// The pretended node of the embedded server.
    pub(crate) fn node(&self) -> Result<&Node> {
        self.place.node.as_deref().context("the real server has no pretended node")
    }

    /// The program and the arguments that point it at this server.
    pub(crate) fn kubectl(&self) -> Result<Kubectl> {
        let Some(program) = self.place.kubectl.clone() else {
            return Err(NotHere("kubectl is missing; run `cargo xtask setup`".into()).into());
        };
        let Backend::Socket(handle) = &self.place.backend else { bail!("kubectl needs a socket") };
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("kubeconfig"), handle.kubeconfig_yaml())?;
        Ok(Kubectl { program, directory, namespace: self.namespace.clone() })
    }
}

/// `kubectl`, pointed at the trial's namespace; it keeps its caches in a directory that goes away.
pub(crate) struct Kubectl {
    program: PathBuf,
    directory: tempfile::TempDir,
    namespace: String,
}

impl Kubectl {
    pub(crate) fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.program);
        command.env("HOME", self.directory.path()).env_remove("KUBECONFIG");
        command.arg("--kubeconfig").arg(self.directory.path().join("kubeconfig"));
        command.args(["--namespace", &self.namespace]).args(args).kill_on_drop(true);
        command
    }
}

/// The refusal that a call must end in.
pub(crate) fn refused<T>(result: kube::Result<T>, code: u16, reason: &str) -> Result<Box<Status>> {
    match result {
        Ok(_) => bail!("accepted, but {code} {reason} was due"),
        Err(kube::Error::Api(status)) if status.code == code && status.reason == reason => Ok(status),
        Err(error) => bail!("{code} {reason} was due, not {error:?}"),
    }
}
