//! The Node object and its Lease: says what this machine has and that it is alive. Never touches labels, taints or
//! annotations of others.

mod facts;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    Namespace, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use tokio_util::sync::CancellationToken;

use super::status::time;
use super::{Options, Parts};
use facts::Facts;

const LEASES: &str = "kube-node-lease";
const LEASE_SECONDS: i32 = 40;
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A status that says the same again is written this often.
const STATUS_EVERY: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(500);

/// What the machine has for Pods.
pub(super) fn allocatable(options: &Options) -> BTreeMap<String, Quantity> {
    capacity(options, &Facts::read(&options.data_dir))
}

fn capacity(options: &Options, facts: &Facts) -> BTreeMap<String, Quantity> {
    let amount = |name: &str, text: String| (name.to_owned(), Quantity(text));
    BTreeMap::from([
        amount("cpu", facts.processors.to_string()),
        amount("memory", format!("{}Ki", facts.memory_bytes / 1024)),
        amount("ephemeral-storage", format!("{}Ki", facts.disk_bytes / 1024)),
        amount("pods", options.most_pods.to_string()),
    ])
}

/// Registers the node, and keeps it alive until told to stop.
pub(super) async fn run(parts: Arc<Parts>, shutdown: CancellationToken) {
    let mut beat = Beat { parts, uid: None, written: None };
    loop {
        let wait = match beat.once().await {
            Ok(()) => HEARTBEAT,
            Err(error) => {
                tracing::warn!("the node could not tell that it is alive: {error}");
                PAUSE
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

struct Beat {
    parts: Arc<Parts>,
    /// Of the Node, once it is registered.
    uid: Option<String>,
    /// The status that was written last, without times, and when.
    written: Option<(NodeStatus, Timestamp)>,
}

impl Beat {
    async fn once(&mut self) -> Result<(), kube::Error> {
        let name = self.parts.options.node_name.clone();
        let api: Api<Node> = Api::all(self.parts.client.clone());
        let node = match api.get_opt(&name).await? {
            Some(node) => node,
            None => {
                let node = api.create(&PostParams::default(), &self.node(&name)).await?;
                self.parts.recorder.normal(&node, "Starting", "Starting kubelet.");
                node
            }
        };
        if self.uid.is_none() {
            let labels = serde_json::json!({"metadata": {"labels": labels(&name)}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(labels)).await?;
        }
        self.uid = node.metadata.uid.clone();
        self.write_status(&api, &node).await?;
        self.renew(&name).await
    }

    fn node(&self, name: &str) -> Node {
        Node {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels(name)),
                ..Default::default()
            },
            ..Node::default()
        }
    }

    async fn write_status(&mut self, api: &Api<Node>, node: &Node) -> Result<(), kube::Error> {
        let now = Timestamp::now();
        let options = &self.parts.options;
        let directory = options.data_dir.clone();
        let facts = tokio::task::spawn_blocking(move || Facts::read(&directory)).await.unwrap_or_default();
        let old = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let status = status(options, &facts, old, now);
        let timeless = without_times(&status);
        if let Some((written, at)) = &self.written
            && *written == timeless
            && now < super::machine::after(*at, STATUS_EVERY)
        {
            return Ok(());
        }
        let change = serde_json::json!({"status": status});
        let name = node.metadata.name.as_deref().unwrap_or_default();
        api.patch_status(name, &PatchParams::default(), &Patch::Strategic(change)).await?;
        self.written = Some((timeless, now));
        Ok(())
    }

    async fn renew(&self, name: &str) -> Result<(), kube::Error> {
        let api: Api<Lease> = Api::namespaced(self.parts.client.clone(), LEASES);
        let now = MicroTime(Timestamp::now());
        let spec = LeaseSpec {
            holder_identity: Some(name.to_owned()),
            lease_duration_seconds: Some(LEASE_SECONDS),
            renew_time: Some(now),
            ..LeaseSpec::default()
        };
        let change = serde_json::json!({"spec": spec});
        match api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
            Err(kube::Error::Api(answer)) if answer.code == 404 => {}
            other => return other.map(drop),
        }
        self.namespace().await?;
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: name.to_owned(),
            uid: self.uid.clone().unwrap_or_default(),
            ..OwnerReference::default()
        };
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        api.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await.map(drop)
    }

    async fn namespace(&self) -> Result<(), kube::Error> {
        let api: Api<Namespace> = Api::all(self.parts.client.clone());
        let metadata = ObjectMeta { name: Some(LEASES.to_owned()), ..ObjectMeta::default() };
        match api.create(&PostParams::default(), &Namespace { metadata, ..Namespace::default() }).await {
            Err(kube::Error::Api(answer)) if answer.code == 409 => Ok(()),
            other => other.map(drop),
        }
    }
}

fn labels(name: &str) -> BTreeMap<String, String> {
    let arch = facts::architecture();
    [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn status(options: &Options, facts: &Facts, old: &[NodeCondition], now: Timestamp) -> NodeStatus {
    let amounts = capacity(options, facts);
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    NodeStatus {
        allocatable: Some(amounts.clone()),
        capacity: Some(amounts),
        addresses: Some(vec![
            address("InternalIP", options.address.to_string()),
            address("Hostname", options.node_name.clone()),
        ]),
        conditions: Some(conditions(facts, old, now)),
        daemon_endpoints: Some(NodeDaemonEndpoints::default()),
        node_info: Some(facts.info.clone()),
        ..NodeStatus::default()
    }
}

fn conditions(facts: &Facts, old: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
    let pick = |bad: bool, yes: (&'static str, &'static str), no: (&'static str, &'static str)| {
        if bad { ("True", yes) } else { ("False", no) }
    };
    let memory = pick(
        facts.memory_is_short(),
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    );
    let disk = pick(
        facts.disk_is_short(),
        ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    );
    let processes = ("False", ("KubeletHasSufficientPID", "kubelet has sufficient PID available"));
    let ready = ("True", ("KubeletReady", "kubelet is posting ready status"));
    let all =
        [("MemoryPressure", memory), ("DiskPressure", disk), ("PIDPressure", processes), ("Ready", ready)];
    let made = all.map(|(kind, (status, (reason, message)))| {
        let before = old.iter().find(|condition| condition.type_ == kind && condition.status == status);
        let since: Option<Time> = before.and_then(|condition| condition.last_transition_time.clone());
        NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(time(now)),
            last_transition_time: since.or(Some(time(now))),
        }
    });
    made.into()
}

fn without_times(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
        condition.last_transition_time = None;
    }
    status
}
