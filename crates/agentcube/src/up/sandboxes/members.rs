//! The agents of `up`: members of this process, made in no time. What they run ends with the process, so an agent of
//! another process is certain to run nothing.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use agentcube_agent::{Agent, Parts};
use agentcube_api::SandboxPool;
use agentcube_runtime::native::Native;
use agentcube_sandbox::{AgentId, Fleet, FleetError, Place, PoolKey};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{self, BoxStream};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{Machine, left};
use crate::guests::Guests;

/// The built-in runtime, as pools name it.
const NATIVE: &str = "native";

/// The agents of all pools.
pub(super) struct Members {
    machine: Machine,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pools: HashMap<PoolKey, BTreeMap<u32, Member>>,
    told: Vec<mpsc::UnboundedSender<PoolKey>>,
    /// How many were made; tells one from another of the same name.
    made: u64,
}

struct Member {
    id: AgentId,
    agent: Agent,
}

impl State {
    fn tell(&mut self, pool: &PoolKey) {
        self.told.retain(|told| told.send(pool.clone()).is_ok());
    }
}

impl Members {
    pub(super) fn new(machine: Machine) -> Members {
        Members { machine, state: Mutex::default() }
    }

    /// Ends all that runs.
    pub(super) async fn shutdown(&self) {
        let pools = std::mem::take(&mut self.state.lock().pools);
        let agents: Vec<Agent> =
            pools.into_values().flat_map(BTreeMap::into_values).map(|member| member.agent).collect();
        join_all(agents.iter().map(Agent::shutdown)).await;
    }

    fn make(&self, pool: &SandboxPool, key: &PoolKey, index: u32) -> Result<(), FleetError> {
        let mut state = self.state.lock();
        if state.pools.get(key).is_some_and(|members| members.contains_key(&index)) {
            return Ok(());
        }
        state.made += 1;
        let name = format!("{}-agent-{index}", key.name);
        let uid = uid(state.made);
        let mut options = agentcube_agent::Options::new(&*key.namespace, &*key.name, &*name);
        options.uid.clone_from(&uid);
        options.node.clone_from(&self.machine.node);
        options.capacity = u32::try_from(pool.spec.max_sandboxes_per_pod).unwrap_or_default();
        options.runtime.clone_from(&pool.spec.runtime_type);
        options.host_mounts.clone_from(&self.machine.host_mounts);
        let data = left::directory(&self.machine.data, &key.namespace, &uid);
        let parts = self.parts(&options.runtime, data);
        let agent = Agent::new(options, parts).map_err(|error| FleetError(error.to_string()))?;
        let member = Member { id: AgentId { name, uid }, agent };
        state.pools.entry(key.clone()).or_default().insert(index, member);
        state.tell(key);
        Ok(())
    }

    fn parts(&self, runtime: &str, data: PathBuf) -> Parts {
        let Machine { spawner, handlers, images, network, .. } = &self.machine;
        Parts {
            spawner: spawner.clone(),
            runtimes: handlers.clone(),
            native: (runtime == NATIVE).then(|| Native::new(spawner.clone())),
            images: images.clone(),
            network: Arc::new(Guests { network: network.clone(), spawner: spawner.clone() }),
            data,
        }
    }
}

/// No other process has members of this uid.
fn uid(number: u64) -> String {
    use std::hash::{BuildHasher, RandomState};
    let random = || RandomState::new().hash_one(std::process::id());
    format!("member-{:016x}{:016x}-{number}", random(), random())
}

fn key(pool: &SandboxPool) -> PoolKey {
    PoolKey::new(&pool.namespace().unwrap_or_default(), &pool.name_any())
}

impl Fleet for Members {
    fn agents(&self, pool: &PoolKey) -> Vec<Place> {
        let state = self.state.lock();
        let place = |(index, member): (&u32, &Member)| Place {
            id: member.id.clone(),
            index: *index,
            dead: false,
            link: Arc::new(member.agent.clone()),
        };
        state.pools.get(pool).into_iter().flatten().map(place).collect()
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
        let made = self.make(pool, &key(pool), index);
        Box::pin(std::future::ready(made))
    }

    fn remove<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), FleetError>> {
        Box::pin(async move {
            let member = {
                let mut state = self.state.lock();
                let of_place = |members: &BTreeMap<u32, Member>| {
                    members.get(&place.index).is_some_and(|member| member.id == place.id)
                };
                let Some((pool, members)) = state.pools.iter_mut().find(|(_, members)| of_place(members))
                else {
                    return Ok(());
                };
                let (pool, member) = (pool.clone(), members.remove(&place.index));
                state.pools.retain(|_, members| !members.is_empty());
                state.tell(&pool);
                member
            };
            if let Some(member) = member {
                member.agent.shutdown().await;
            }
            Ok(())
        })
    }

    fn is_dead(&self, agent: &AgentId) -> bool {
        let state = self.state.lock();
        !state.pools.values().flat_map(BTreeMap::values).any(|member| member.id.uid == agent.uid)
    }
}
