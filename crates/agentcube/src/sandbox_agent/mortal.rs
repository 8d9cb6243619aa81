//! For tests: an agent whose answers are effects after which its process may be told to die.

use agentcube_agent::Agent;
use agentcube_protos::agent::{
    ConfigureRequest, ConfigureResponse, ExecRequest, LogsRequest, PauseRequest, PauseResponse, StartRequest,
    StartResponse, StatsRequest, StatsResponse, StopRequest, StopResponse, SyncRequest, SyncResponse,
};
use agentcube_protos::link::{AgentApi, Answer, Answers};
use agentcube_protos::session::{ExecOutput, LogChunk};
use agentcube_runtime::spawner::Fuse;
use futures_util::stream::BoxStream;

pub(super) struct Mortal {
    pub(super) agent: Agent,
    pub(super) fuse: Fuse,
}

macro_rules! mortal {
    ($($name:ident($request:ty) -> $response:ty;)*) => {
        $(fn $name(&self, request: $request) -> Answer<'_, $response> {
            Box::pin(async move {
                let answer = self.agent.$name(request).await;
                self.fuse.effect();
                answer
            })
        })*
    };
}

impl AgentApi for Mortal {
    mortal! {
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
