//! A client of the fast path: creates, looks, deletes, and asks again until it is answered for certain.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use agentcube_protos::fastpath::fast_path_client::FastPathClient;
use agentcube_protos::fastpath::{
    ConsistencyMode, CreateRequest, CreateResponse, DeleteRequest, FailurePolicy, GetRequest, Sandbox,
};
use anyhow::{Context, Result, bail};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::agents::Agents;
use crate::book::{Acknowledged, Mode, Shared};
use crate::world::{LONG, POOL, TOKEN};

/// How long one call may take: a debug build on a busy machine, with agents that come and go.
const CALL: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(crate) struct Client {
    doors: Vec<Channel>,
    /// The door that answered last.
    last: Arc<AtomicUsize>,
    token: MetadataValue<Ascii>,
}

impl Client {
    pub(crate) fn new(addresses: &[SocketAddr]) -> Result<Client> {
        let door = |address: &SocketAddr| -> Result<Channel> {
            let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
            Ok(endpoint.connect_timeout(Duration::from_secs(1)).connect_lazy())
        };
        Client::over(addresses.iter().map(door).collect::<Result<_>>()?)
    }

    /// By these ways to controllers.
    pub(crate) fn over(doors: Vec<Channel>) -> Result<Client> {
        Ok(Client { doors, last: Arc::default(), token: format!("Bearer {TOKEN}").parse()? })
    }

    /// Asks whoever leads; a status that is no doubt, or an answer.
    async fn ask<T, R: Clone, F>(
        &self,
        request: R,
        call: impl Fn(FastPathClient<Channel>, Request<R>) -> F,
    ) -> Result<Result<T, Status>>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let asking = async {
            loop {
                let door = self.last.load(Ordering::Relaxed) % self.doors.len();
                let mut request = Request::new(request.clone());
                request.metadata_mut().insert("authorization", self.token.clone());
                request.set_timeout(CALL);
                let answer = call(FastPathClient::new(self.doors[door].clone()), request);
                match tokio::time::timeout(CALL + PAUSE, answer).await {
                    Ok(Ok(answer)) => return Ok(answer.into_inner()),
                    Ok(Err(status)) if !is_doubt(&status) => return Err(status),
                    Ok(Err(_)) | Err(_) => self.last.store(door + 1, Ordering::Relaxed),
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        // As long as a create may be under way, what is unknown is not said to be gone: 90 s after each controller's start.
        tokio::time::timeout(LONG * 5, asking).await.context("it is never answered")
    }

    pub(crate) async fn create(&self, request: CreateRequest) -> Result<Result<CreateResponse, Status>> {
        self.ask(request, |mut client, request| async move { client.create_sandbox(request).await }).await
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Option<Sandbox>> {
        let request = GetRequest { sandbox_id: name.into(), namespace: "default".into() };
        match self
            .ask(request, |mut client, request| async move { client.get_sandbox(request).await })
            .await?
        {
            Ok(found) => Ok(Some(found)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => bail!("get {name}: {status}"),
        }
    }

    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        let request = DeleteRequest { sandbox_id: name.into(), namespace: "default".into() };
        let deleted =
            self.ask(request, |mut client, request| async move { client.delete_sandbox(request).await });
        match deleted.await? {
            Ok(_) => Ok(()),
            Err(status) if status.code() == Code::NotFound => Ok(()),
            Err(status) => bail!("delete {name}: {status}"),
        }
    }
}

/// Whether nobody knows what happened, or it is to be tried again.
fn is_doubt(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
    )
}

pub(crate) fn order(name: &str, mode: Mode, policy: FailurePolicy) -> CreateRequest {
    let mode = if mode == Mode::Strong { ConsistencyMode::Strong } else { ConsistencyMode::Fast };
    CreateRequest {
        image: "host".into(),
        pool_ref: POOL.into(),
        command: vec!["/bin/sleep".into(), "1000000".into()],
        namespace: "default".into(),
        name: name.into(),
        request_id: name.into(),
        consistency_mode: mode.into(),
        failure_policy: policy.into(),
        ..CreateRequest::default()
    }
}

/// Creates and deletes until as many were created as are wanted; keeps some for a while.
pub(crate) struct Worker {
    pub(crate) number: usize,
    pub(crate) client: Client,
    pub(crate) book: Shared,
    pub(crate) agents: Arc<Agents>,
    pub(crate) wanted: usize,
    /// How many it holds at once.
    pub(crate) holds: usize,
    pub(crate) logged: bool,
    pub(crate) over: Arc<AtomicBool>,
}

impl Worker {
    pub(crate) async fn run(self) {
        let mut held: std::collections::VecDeque<Acknowledged> = std::collections::VecDeque::new();
        let mut turn = 0;
        while !self.over.load(Ordering::Relaxed) && self.book.created() < self.wanted {
            turn += 1;
            let step = async {
                held.push_back(self.create(turn).await?);
                if held.len() > self.holds
                    && let Some(oldest) = held.pop_front()
                {
                    self.look(&oldest).await?;
                    self.client.delete(&oldest.name).await?;
                    self.book.delete(&oldest.name);
                }
                anyhow::Ok(())
            };
            if let Err(error) = step.await {
                self.book.wrong(format!("client {}: {error:#}", self.number));
                return;
            }
        }
    }

    async fn create(&self, turn: usize) -> Result<Acknowledged> {
        let mode = if turn.is_multiple_of(2) { Mode::Strong } else { Mode::Fast };
        let policy =
            if (turn / 2).is_multiple_of(2) { FailurePolicy::Manual } else { FailurePolicy::AutoRecreate };
        for attempt in 0..100 {
            let name = format!("s{}-{turn}-{attempt}", self.number);
            let before = self.book.before(&self.agents);
            match self.client.create(order(&name, mode, policy)).await? {
                Ok(made) => {
                    return Ok(self.book.acknowledge(&name, mode, &made.agent_pod, &made.run_id, &before));
                }
                // What became of the first try under this name is not ours; the next has another. It goes in the end.
                Err(status) if [Code::AlreadyExists, Code::FailedPrecondition].contains(&status.code()) => {}
                Err(status) => bail!("create {name}: {status}"),
            }
        }
        bail!("nothing can be created")
    }

    /// What was acknowledged is there; and unless its agent died it is the same run.
    async fn look(&self, one: &Acknowledged) -> Result<()> {
        let Some(found) = self.client.get(&one.name).await? else {
            self.book.is_gone(one, &self.agents, self.logged);
            return Ok(());
        };
        // A status that is not written yet says nothing.
        if !["", &one.run].contains(&found.run_id.as_str()) && !self.book.agent_died(one, &self.agents) {
            self.book.wrong(format!("another run without a death: {one:?} {found:?}"));
        }
        Ok(())
    }
}
