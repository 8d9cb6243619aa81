//! A cluster for one test: the embedded API server, the real spawner, the network, and the controller of endpoints. The
//! test is the kubelet.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agentcube_apiserver::Server;
use agentcube_node::controllers::{self, endpoints};
use agentcube_node::network::{Caches, Network, Options};
use agentcube_operator::cache::Cache;
use agentcube_runtime::native::Native;
use agentcube_runtime::spawner::{self, Handle, Spawner};
use agentcube_runtime::spec::{Resources, Root, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Runtime, SandboxId, SandboxSpec, Sandboxes, Stdio, capabilities,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const PROBE: &str = env!("CARGO_BIN_EXE_network-probe");
/// Longer than anything takes; what does not happen by then has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

static NUMBER: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Cluster {
    pub network: Network,
    pub client: Client,
    native: Native,
    handle: Handle,
    options: spawner::Options,
    shutdown: CancellationToken,
    _tasks: JoinSet<()>,
    _server: Server,
    _directory: tempfile::TempDir,
}

/// A Pod with a sandbox.
pub(crate) struct Running {
    pub sandbox: SandboxId,
    pub address: Ipv4Addr,
}

/// The output of a program in a Pod, line by line.
pub(crate) type Output = Lines<BufReader<Receiver>>;

impl Cluster {
    pub(crate) async fn start(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("net-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let spawner_options = spawner::Options::new(name, directory.path().join("runtime"));
        let spawner = Spawner::start(Path::new(PROBE), &spawner_options).unwrap();
        let handle = spawner.into_handle().unwrap();
        let server = Server::builder().memory().embed().await.unwrap();
        let client = Client::new(server.front(), "default");
        let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let caches = controllers::Caches::start(&client, &mut tasks, &shutdown);
        let namespaces: Cache<Namespace> = Cache::new(client.clone(), watcher::Config::default());
        let policies = Cache::new(client.clone(), watcher::Config::default());
        tasks.spawn(namespaces.clone().run(shutdown.clone()));
        tasks.spawn(policies.clone().run(shutdown.clone()));
        tasks.spawn(endpoints::run(client.clone(), caches.clone(), shutdown.clone()));
        let network = Network::new(options, Arc::new(handle.clone()));
        let known = Caches {
            pods: caches.pods.clone(),
            namespaces,
            services: caches.services.clone(),
            slices: caches.endpoint_slices.clone(),
            policies,
        };
        let (following, until) = (network.clone(), shutdown.clone());
        tasks.spawn(async move { following.follow(known, until).await });
        let native = Native::new(handle.clone());
        let cluster = Self {
            network,
            client,
            native,
            handle,
            options: spawner_options,
            shutdown,
            _tasks: tasks,
            _server: server,
            _directory: directory,
        };
        let node: Node = object(json!({"metadata": {"name": "node"}}));
        Api::all(cluster.client.clone()).create(&PostParams::default(), &node).await.unwrap();
        cluster
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.handle.stop().await;
    }

    pub(crate) async fn namespace(&self, name: &str) {
        let namespace: Namespace = object(json!({"metadata": {"name": name}}));
        Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    }

    pub(crate) async fn create<K>(&self, namespace: &str, value: Value)
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        api.create(&PostParams::default(), &object(value)).await.unwrap();
    }

    /// Creates a Pod and its sandbox, and reports it ready.
    pub(crate) async fn pod(&self, namespace: &str, name: &str, labels: Value) -> Running {
        let spec = json!({"nodeName": "node", "hostname": name, "subdomain": "web",
            "containers": [{"name": "a", "image": "host", "ports": [{"name": "http", "containerPort": 8080}]}]});
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = object(json!({"metadata": {"name": name, "labels": labels}, "spec": spec}));
        let pod: Pod = api.create(&PostParams::default(), &pod).await.unwrap();
        let address = self.network.allocate().unwrap();
        let sandbox = SandboxId::new(format!("{namespace}-{name}")).unwrap();
        let spec = SandboxSpec {
            id: sandbox.clone(),
            hostname: name.to_owned(),
            address,
            name_server: self.network.gateway(),
        };
        let sockets = self.handle.create(spec).await.unwrap();
        self.network.attach(sandbox.clone(), address, &pod, sockets).unwrap();
        self.report(namespace, name, address, true).await;
        Running { sandbox, address }
    }

    /// Writes the status of a Pod.
    pub(crate) async fn report(&self, namespace: &str, name: &str, address: Ipv4Addr, ready: bool) {
        let ready = if ready { "True" } else { "False" };
        let status = json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": ready}]}});
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }

    /// Starts the probe in a Pod.
    pub(crate) async fn run(&self, pod: &Running, arguments: &[&str]) -> Output {
        let id = ContainerId::new(format!("c{}", NUMBER.fetch_add(1, Ordering::Relaxed))).unwrap();
        let scratch = self.options.scratch(&id);
        std::fs::create_dir_all(&scratch).unwrap();
        let spec = ContainerSpec {
            id,
            sandbox: pod.sandbox.clone(),
            root: Root::Host { also: vec![Path::new(PROBE).parent().unwrap().to_owned()] },
            read_only_root: false,
            scratch,
            args: std::iter::once(PROBE).chain(arguments.iter().copied()).map(str::to_owned).collect(),
            env: Vec::new(),
            cwd: PathBuf::from("/"),
            user: User::default(),
            mounts: Vec::new(),
            resources: Resources::default(),
            capabilities: capabilities::default_set(),
            no_new_privileges: true,
            seccomp: true,
            terminal: false,
            files: Vec::new(),
            tag: String::new(),
            labels: Default::default(),
        };
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&read, true).unwrap();
        let stdio = Stdio { stdin: None, stdout: Some(write), stderr: None, ..Stdio::default() };
        let _process = self.native.start(spec, stdio).await.unwrap();
        BufReader::new(Receiver::from_owned_fd(read).unwrap()).lines()
    }

    /// Runs the probe in a Pod to its end, which must be one line of output.
    pub(crate) async fn ask(&self, pod: &Running, arguments: &[&str]) -> String {
        let mut output = self.run(pod, arguments).await;
        line(&mut output).await
    }

    pub(crate) async fn fetch(&self, pod: &Running, to: impl ToString) -> String {
        self.ask(pod, &["fetch", &to.to_string(), "0"]).await
    }

    /// Starts a server in a Pod and waits until it listens.
    pub(crate) async fn serve(&self, pod: &Running, name: &str, port: &str) -> Output {
        let mut output = self.run(pod, &["serve", name, port]).await;
        assert_eq!(line(&mut output).await, "ready");
        output
    }

    /// Waits until so many endpoints of a Service take turns, as the node sees it.
    pub(crate) async fn balanced(&self, namespace: &str, name: &str, port: u16, endpoints: usize) {
        let waiting = async {
            loop {
                let mut peers = std::collections::HashSet::new();
                for _ in 0..2 * endpoints.max(1) {
                    if let Ok(stream) = self.network.connect_service(namespace, name, port).await {
                        peers.insert(stream.peer_addr().unwrap());
                    }
                }
                if peers.len() == endpoints {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the endpoints become known");
    }
}

/// The next line of a program's output.
pub(crate) async fn line(output: &mut Output) -> String {
    let line = tokio::time::timeout(PATIENCE, output.next_line()).await.expect("the program says something");
    line.unwrap().unwrap_or_default()
}

pub(crate) fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
