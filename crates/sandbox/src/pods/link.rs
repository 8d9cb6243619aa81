//! The way to an agent whose address may not be known yet, and may become another one.

use std::net::SocketAddr;
use std::sync::Arc;

use agentcube_protos::agent::{
    ConfigureRequest, ConfigureResponse, ExecRequest, LogsRequest, PauseRequest, PauseResponse, StartRequest,
    StartResponse, StatsRequest, StatsResponse, StopRequest, StopResponse, SyncRequest, SyncResponse,
};
use agentcube_protos::link::{AgentApi, Answer, Answers};
use agentcube_protos::session::{ExecOutput, LogChunk};
use futures_util::stream::BoxStream;
use parking_lot::RwLock;
use tonic::Status;

use super::Dial;

pub(super) struct PodLink {
    dial: Dial,
    /// The UID of its pool.
    pool: String,
    agent: RwLock<Option<(SocketAddr, Arc<dyn AgentApi>)>>,
}

impl PodLink {
    pub(super) fn new(dial: Dial, pool: String) -> PodLink {
        PodLink { dial, pool, agent: RwLock::new(None) }
    }

    /// From here on it is there, or nowhere yet.
    pub(super) fn at(&self, address: Option<SocketAddr>) {
        let same = self.agent.read().as_ref().map(|(known, _)| *known) == address;
        if !same {
            *self.agent.write() = address.map(|address| (address, (self.dial)(&self.pool, address)));
        }
    }

    fn agent(&self) -> Result<Arc<dyn AgentApi>, Status> {
        let agent = self.agent.read().as_ref().map(|(_, agent)| agent.clone());
        agent.ok_or_else(|| Status::unavailable("the agent's Pod has no address yet"))
    }
}

macro_rules! passed_on {
    ($($name:ident($request:ty) -> $response:ty;)*) => {
        $(fn $name(&self, request: $request) -> Answer<'_, $response> {
            let agent = self.agent();
            Box::pin(async move { agent?.$name(request).await })
        })*
    };
}

impl AgentApi for PodLink {
    passed_on! {
        sync(SyncRequest) -> SyncResponse;
        start(StartRequest) -> StartResponse;
        stop(StopRequest) -> StopResponse;
        pause(PauseRequest) -> PauseResponse;
        configure(ConfigureRequest) -> ConfigureResponse;
        stats(StatsRequest) -> StatsResponse;
        logs(LogsRequest) -> Answers<LogChunk>;
        exec(BoxStream<'static, ExecRequest>) -> Answers<ExecOutput>;
    }
}
