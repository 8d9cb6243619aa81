//! Who the agents of a pool are, and how there come to be more or fewer. Members of one process and Pods of a cluster
//! are both fleets.

use std::fmt;
use std::sync::Arc;

use agentcube_api::SandboxPool;
use agentcube_protos::link::AgentApi;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::names::{AgentId, PoolKey};

/// An agent in its numbered place.
#[derive(Clone)]
pub struct Place {
    pub id: AgentId,
    pub index: u32,
    /// It is proved that nothing of it runs any more.
    pub dead: bool,
    pub link: Arc<dyn AgentApi>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { id, index, dead, .. } = self;
        f.debug_struct("Place").field("id", id).field("index", index).field("dead", dead).finish()
    }
}

/// Why a fleet could not be changed; it is tried again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FleetError(pub String);

/// The agents of all pools.
pub trait Fleet: Send + Sync + 'static {
    /// The agents of a pool, in any order.
    fn agents(&self, pool: &PoolKey) -> Vec<Place>;
    /// Pools whose agents have changed. Begins with every pool that has agents.
    fn changes(&self) -> BoxStream<'static, PoolKey>;
    /// Has an agent in this place. One that is there already is no error.
    fn add<'a>(&'a self, pool: &'a SandboxPool, index: u32) -> BoxFuture<'a, Result<(), FleetError>>;
    /// Removes an agent that is empty and takes nothing more.
    fn remove<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), FleetError>>;
    /// Whether it is proved that nothing of this agent runs any more: a Pod that has ended, a member of a process that
    /// has. That it is unknown is no proof on Kubernetes.
    fn is_dead(&self, agent: &AgentId) -> bool;
}
