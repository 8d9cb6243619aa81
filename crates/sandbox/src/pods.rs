//! Agents that are Pods: labelled with their pool, owned by it, made from its `agentTemplate`, one in each numbered
//! place. Never takes a Pod for dead because it does not answer, or because its object is gone without a word of its
//! node.

mod link;
mod template;
mod tokens;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use agentcube_api::{SandboxPool, labels};
use agentcube_operator::cache::{Cache, Change};
use agentcube_protos::link::AgentApi;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, Secret};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::fleet::{Fleet, FleetError, Place};
use crate::names::{AgentId, PoolKey};
use link::PodLink;
pub use template::PodOptions;
pub use tokens::Tokens;

/// Pods that have ended, and whose objects are gone, that are kept in mind.
const MOST_ENDED: usize = 10_000;

/// The agent of the pool with this UID that listens at an address; connects when it is asked something.
pub type Dial = Arc<dyn Fn(&str, SocketAddr) -> Arc<dyn AgentApi> + Send + Sync>;

/// The agents of all pools, as Pods.
pub struct PodFleet {
    client: Client,
    pods: Cache<Pod>,
    options: PodOptions,
    dial: Dial,
    state: Mutex<State>,
}

impl std::fmt::Debug for PodFleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodFleet").field("options", &self.options).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    /// By uid.
    agents: HashMap<String, Agent>,
    pools: HashMap<PoolKey, BTreeMap<String, u32>>,
    ended: HashSet<String>,
    ended_order: VecDeque<String>,
    told: Vec<mpsc::UnboundedSender<PoolKey>>,
}

struct Agent {
    pool: PoolKey,
    id: AgentId,
    index: u32,
    dead: bool,
    link: Arc<PodLink>,
}

impl State {
    fn tell(&mut self, pool: &PoolKey) {
        self.told.retain(|told| told.send(pool.clone()).is_ok());
    }

    fn end(&mut self, uid: &str) {
        if self.ended.insert(uid.to_owned()) {
            self.ended_order.push_back(uid.to_owned());
        }
        if self.ended_order.len() > MOST_ENDED
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }

    fn forget(&mut self, uid: &str) {
        let Some(agent) = self.agents.remove(uid) else { return };
        if let Some(places) = self.pools.get_mut(&agent.pool) {
            places.remove(uid);
            if places.is_empty() {
                self.pools.remove(&agent.pool);
            }
        }
        self.tell(&agent.pool);
    }
}

impl PodFleet {
    /// Follows the Pods of all pools until the shutdown; comes back when all are known.
    pub async fn start(
        client: Client,
        options: PodOptions,
        dial: Dial,
        shutdown: CancellationToken,
    ) -> Arc<PodFleet> {
        let ours = watcher::Config::default().labels(labels::SANDBOX_AGENT);
        let pods: Cache<Pod> = Cache::new(client.clone(), ours);
        tokio::spawn(pods.clone().run(shutdown.clone()));
        pods.synced().await;
        let mut changes = pods.subscribe();
        let fleet = Arc::new(PodFleet { client, pods, options, dial, state: Mutex::default() });
        while let Some(change) = changes.try_recv() {
            fleet.take_in(&change);
        }
        let following = Arc::downgrade(&fleet);
        tokio::spawn(shutdown.run_until_cancelled_owned(async move {
            loop {
                let change = changes.recv().await;
                let Some(fleet) = following.upgrade() else { return };
                fleet.take_in(&change);
            }
        }));
        fleet
    }

    fn take_in(&self, change: &Change<Pod>) {
        let (Some(uid), pod) = (change.latest().uid(), change.latest()) else { return };
        let mut state = self.state.lock();
        if has_ended(pod) {
            state.end(&uid);
        }
        match &change.new {
            None => state.forget(&uid),
            Some(pod) => self.take_in_pod(&mut state, &uid, pod),
        }
    }

    fn take_in_pod(&self, state: &mut State, uid: &str, pod: &Pod) {
        let Some((pool, index)) = place_of(pod) else { return state.forget(uid) };
        let (address, dead) = (self.address(pod), has_ended(pod));
        if let Some(known) = state.agents.get_mut(uid) {
            known.link.at(address);
            if known.dead != dead {
                known.dead = dead;
                state.tell(&pool);
            }
            return;
        }
        let link = Arc::new(PodLink::new(self.dial.clone(), owner_of(pod)));
        link.at(address);
        let id = AgentId { name: pod.name_any(), uid: uid.to_owned() };
        state.pools.entry(pool.clone()).or_default().insert(uid.to_owned(), index);
        state.agents.insert(uid.to_owned(), Agent { pool: pool.clone(), id, index, dead, link });
        state.tell(&pool);
    }

    fn address(&self, pod: &Pod) -> Option<SocketAddr> {
        let ip: IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        Some(SocketAddr::new(ip, self.options.port))
    }

    fn api(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn create(&self, pool: &SandboxPool, index: u32) -> Result<(), FleetError> {
        self.ensure_token(pool).await?;
        let pod = template::pod(pool, index, &self.options).map_err(FleetError)?;
        let (namespace, name) = (pool.namespace().unwrap_or_default(), pod.name_any());
        let made = match self.api(&namespace).create(&PostParams::default(), &pod).await {
            Ok(made) => made,
            Err(kube::Error::Api(status)) if status.code == 409 => {
                return self.is_there(pool, index, &name).await;
            }
            Err(error) => return Err(FleetError(format!("Pod {namespace}/{name}: {error}"))),
        };
        self.put(made);
        Ok(())
    }

    /// The Secret with the token of the pool's agents is there.
    async fn ensure_token(&self, pool: &SandboxPool) -> Result<(), FleetError> {
        let Some(tokens) = &self.options.tokens else { return Ok(()) };
        let secret = tokens.secret(pool);
        let (namespace, name) = (pool.namespace().unwrap_or_default(), secret.name_any());
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        let failed = |error: kube::Error| FleetError(format!("Secret {namespace}/{name}: {error}"));
        match api.create(&PostParams::default(), &secret).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            made => return made.map(drop).map_err(failed),
        }
        let found = api.get_opt(&name).await.map_err(failed)?;
        if found.is_some_and(|found| found.data == secret.data) {
            return Ok(());
        }
        // That of a pool of the same name, which is about to go, or somebody else's.
        Err(FleetError(format!("Secret {namespace}/{name} is there and not of this pool: remove it")))
    }

    /// Whether the Pod of this name is an agent in this place.
    async fn is_there(&self, pool: &SandboxPool, index: u32, name: &str) -> Result<(), FleetError> {
        let namespace = pool.namespace().unwrap_or_default();
        let found = self.api(&namespace).get_opt(name).await;
        let Some(found) = found.map_err(|error| FleetError(error.to_string()))? else {
            return Err(FleetError(format!("Pod {namespace}/{name} was there and is not any more")));
        };
        if place_of(&found) != Some((PoolKey::new(&namespace, &pool.name_any()), index)) {
            let message = format!("Pod {namespace}/{name} is there and not an agent of this pool: remove it");
            return Err(FleetError(message));
        }
        self.put(found);
        Ok(())
    }

    /// What the server answered is known at once.
    fn put(&self, pod: Pod) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        self.pods.put(pod);
        if let Some(pod) = self.pods.get(&namespace, &name) {
            self.take_in(&Change { old: None, new: Some(pod) });
        }
    }

    async fn delete(&self, place: &Place) -> Result<(), FleetError> {
        let namespace = {
            let state = self.state.lock();
            let Some(agent) = state.agents.get(&place.id.uid) else { return Ok(()) };
            agent.pool.namespace.clone()
        };
        let preconditions = Preconditions { uid: Some(place.id.uid.clone()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.api(&namespace).delete(&place.id.name, &parameters).await {
            Ok(_) => Ok(()),
            // Gone, or another one has its name.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
            Err(error) => Err(FleetError(format!("Pod {namespace}/{}: {error}", place.id.name))),
        }
    }
}

impl Fleet for PodFleet {
    fn agents(&self, pool: &PoolKey) -> Vec<Place> {
        let state = self.state.lock();
        let uids = state.pools.get(pool).into_iter().flat_map(BTreeMap::keys);
        let agents = uids.filter_map(|uid| state.agents.get(uid));
        agents
            .map(|agent| Place {
                id: agent.id.clone(),
                index: agent.index,
                dead: agent.dead,
                link: agent.link.clone(),
            })
            .collect()
    }

    fn changes(&self) -> BoxStream<'static, PoolKey> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state.lock();
        // The receiver is there, so nothing is lost.
        state.pools.keys().for_each(|pool| drop(sender.send(pool.clone())));
        state.told.push(sender);
        stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
            .boxed()
    }

    fn add<'a>(&'a self, pool: &'a SandboxPool, index: u32) -> BoxFuture<'a, Result<(), FleetError>> {
        Box::pin(self.create(pool, index))
    }

    fn remove<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), FleetError>> {
        Box::pin(self.delete(place))
    }

    fn is_dead(&self, agent: &AgentId) -> bool {
        let state = self.state.lock();
        let known = state.agents.get(&agent.uid);
        known.is_some_and(|known| known.dead) || state.ended.contains(&agent.uid)
    }
}

/// The UID of the pool that a Pod is an agent of.
fn owner_of(pod: &Pod) -> String {
    let mut owners = pod.owner_references().iter().filter(|owner| owner.controller == Some(true));
    owners.next().map(|owner| owner.uid.clone()).unwrap_or_default()
}

/// Which place of which pool a Pod is in, if it is an agent of a pool.
fn place_of(pod: &Pod) -> Option<(PoolKey, u32)> {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    let pool = pod.labels().get(labels::SANDBOX_POOL)?;
    if owner.kind != "SandboxPool" || owner.name != *pool {
        return None;
    }
    let index = pod.labels().get(labels::SANDBOX_AGENT)?.parse().ok()?;
    Some((PoolKey::new(&pod.namespace()?, pool), index))
}

/// Whether nothing of a Pod runs any more: its node says so of all containers, or it never had a node.
fn has_ended(pod: &Pod) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        // The control plane writes that too, of a Pod whose node is silent.
        return status.reason.as_deref() != Some("NodeLost");
    }
    if pod.metadata.deletion_timestamp.is_none() {
        return false;
    }
    let placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    !placed || all_terminated(pod, &status)
}

/// A container that is restarted has ended for a moment, too: this says something of Pods that are deleted only.
fn all_terminated(pod: &Pod, status: &PodStatus) -> bool {
    let wanted = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    let statuses = status.container_statuses.as_deref().unwrap_or_default();
    let terminated =
        |one: &ContainerStatus| one.state.as_ref().is_some_and(|state| state.terminated.is_some());
    wanted > 0 && statuses.len() >= wanted && statuses.iter().all(terminated)
}

#[cfg(test)]
mod tests;
