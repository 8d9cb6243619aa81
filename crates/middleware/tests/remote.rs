//! Controllers and agents over gRPC: what one asks, the other answers.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use agentcube_api::middleware::group::{
    ActiveHighAvailability, PostUpgradeVerify, PreUpgradeCheck, RoleDetection, RoleFacts,
};
use agentcube_api::middleware::parts::Scenario;
use agentcube_middleware::agents::{Agents, Place, Token};
use agentcube_middleware::remote::{Dial, Remote};
use agentcube_middleware_agent::{Agent, Options, Settings};
use agentcube_protos::middleware::tool_invoker_server::{ToolInvoker, ToolInvokerServer};
use agentcube_protos::middleware::{
    ExecuteCommandRequest, ExecuteCommandResponse, FailoverRequest, FailoverResponse, GetGroupOrderRequest,
    GetGroupOrderResponse, GetPodOrderRequest, GetPodOrderResponse, GetRoleRequest, GetRoleResponse,
    HealthCheckRequest, HealthCheckResponse, ReloadConfigRequest, ReloadConfigResponse, StopRequest,
    StopResponse,
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Request, Response, Status};

/// Whatever address a Pod has, it is here.
struct Here(u16);

impl Dial for Here {
    fn dial(&self, _: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(("127.0.0.1", self.0)))
    }
}

fn place(token: Option<&str>, address: Option<&str>) -> Place {
    Place {
        namespace: "here".into(),
        pod: "p-0".into(),
        uid: "u".into(),
        address: address.map(str::to_owned),
        token: token.map(|token| Token::new(token.into())),
    }
}

#[tokio::test]
async fn what_controllers_ask_agents_answer() {
    let settings = Settings {
        reload_command: Some("true".into()),
        health_command: Some("sh -c 'echo lags behind >&2; exit 1'".into()),
        group_order_command: Some("sh -c 'echo concurrent'".into()),
        ..Settings::default()
    };
    let words = ["sleep", "1000"].map(str::to_owned).to_vec();
    let agent = Agent::new(Options { words, settings, settings_file: None, token: "secret".into() });
    let (processes, tools) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = tools.local_addr().unwrap().port();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(agent.run(processes, tools, shutdown.clone()));
    let remote = Remote { port: 50052, dial: Arc::new(Here(port)) };
    let right = place(Some("secret"), Some("10.0.0.1"));

    let pods = ["p-0".to_owned(), "p-1".to_owned()];
    let order = remote.pod_order(&right, "g", Scenario::Upgrade, &pods).await.unwrap();
    assert_eq!((order.names, order.concurrent), (vec!["p-1".to_owned(), "p-0".to_owned()], false));
    let order = remote.group_order(&right, "c", Scenario::Update, &pods).await.unwrap();
    assert!(order.concurrent);
    let detection = RoleDetection { command: "echo master".into(), ..RoleDetection::default() };
    let role = remote.role(&right, &detection).await.unwrap();
    assert_eq!((role.name.as_str(), role.leader), ("master", true));
    let facts = RoleFacts {
        position: Some(r"at (\d+)".into()),
        follows: Some(r"after (\S+)".into()),
        ..RoleFacts::default()
    };
    for (command, follows) in
        [("echo slave at 7 after 10.0.0.2", Some("10.0.0.2")), ("echo slave at 7 after 127.0.0.1", None)]
    {
        let detection =
            RoleDetection { command: command.into(), facts: Some(facts.clone()), ..RoleDetection::default() };
        let role = remote.role(&right, &detection).await.unwrap();
        assert_eq!((role.position, role.follows.as_deref(), role.leader), (Some(7), follows, false));
    }
    remote.tell(&right, "test $(LEADER)-$(SELF) = 10.0.0.9-10.0.0.1", "10.0.0.9").await.unwrap();
    let unknown = remote.tell(&right, "echo $(LEADER)", "").await.unwrap_err();
    assert!(unknown.contains("$(LEADER) stands for nothing here"), "{unknown}");
    assert!(!remote.reload(&right, &[]).await.unwrap());
    let lags = remote.check(&right, &PreUpgradeCheck::default()).await.unwrap_err();
    assert!(lags.contains("lags behind"), "{lags}");
    let mut verify = PostUpgradeVerify { command: Some("echo PONG".into()), ..PostUpgradeVerify::default() };
    verify.expected = Some("PONG".into());
    remote.verify(&right, &verify).await.unwrap();
    verify.expected = Some("PING".into());
    assert!(remote.verify(&right, &verify).await.unwrap_err().contains("PING was expected"));
    let how =
        ActiveHighAvailability { failover_command: "false".into(), ..ActiveHighAvailability::default() };
    assert!(remote.failover(&right, Some(&how), None).await.unwrap_err().contains("exit code 1"));

    let wrong = place(Some("wrong"), Some("10.0.0.1"));
    assert!(remote.reload(&wrong, &[]).await.unwrap_err().contains("Unauthenticated"));
    assert!(remote.reload(&place(None, Some("10.0.0.1")), &[]).await.unwrap_err().contains("Secret"));
    assert_eq!(remote.reload(&place(Some("secret"), None), &[]).await.unwrap_err(), "it has no address yet");
    let nobody = Remote { port: 50052, dial: Arc::new(Here(1)) };
    assert_eq!(nobody.reload(&right, &[]).await.unwrap_err(), "nobody answers at 10.0.0.1:50052");

    remote.stop(&right).await.unwrap();
    shutdown.cancel();
    assert_eq!(running.await.unwrap().unwrap(), 0);
}

/// An agent that answers whatever it is told to.
#[derive(Clone, Default)]
struct Hostile {
    role: Arc<Mutex<GetRoleResponse>>,
    /// Bytes of a name in an order, and of what a command prints.
    bytes: usize,
}

fn no<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("x".repeat(4000)))
}

#[tonic::async_trait]
impl ToolInvoker for Hostile {
    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        no()
    }

    async fn failover(&self, _: Request<FailoverRequest>) -> Result<Response<FailoverResponse>, Status> {
        no()
    }

    async fn get_role(&self, _: Request<GetRoleRequest>) -> Result<Response<GetRoleResponse>, Status> {
        Ok(Response::new(self.role.lock().clone()))
    }

    async fn reload_config(
        &self,
        _: Request<ReloadConfigRequest>,
    ) -> Result<Response<ReloadConfigResponse>, Status> {
        no()
    }

    async fn execute_command(
        &self,
        _: Request<ExecuteCommandRequest>,
    ) -> Result<Response<ExecuteCommandResponse>, Status> {
        let stdout = vec![b'x'; self.bytes];
        Ok(Response::new(ExecuteCommandResponse { exit_code: 1, stdout, ..Default::default() }))
    }

    async fn health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let message = "x".repeat(self.bytes);
        Ok(Response::new(HealthCheckResponse { healthy: false, message }))
    }

    async fn get_group_order(
        &self,
        _: Request<GetGroupOrderRequest>,
    ) -> Result<Response<GetGroupOrderResponse>, Status> {
        no()
    }

    async fn get_pod_order(
        &self,
        _: Request<GetPodOrderRequest>,
    ) -> Result<Response<GetPodOrderResponse>, Status> {
        let order = vec!["x".repeat(self.bytes)];
        Ok(Response::new(GetPodOrderResponse { order, concurrent: true }))
    }
}

/// A hostile agent that listens, until it is dropped.
async fn hostile(bytes: usize) -> (Hostile, Remote, tokio_util::sync::DropGuard) {
    let agent = Hostile { bytes, ..Hostile::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stop = CancellationToken::new();
    let router = Server::builder().add_service(ToolInvokerServer::new(agent.clone()));
    let stopped = stop.clone().cancelled_owned();
    tokio::spawn(router.serve_with_incoming_shutdown(TcpIncoming::from(listener), stopped));
    (agent, Remote { port: 50052, dial: Arc::new(Here(port)) }, stop.drop_guard())
}

#[tokio::test]
async fn long_answers_are_not_believed() {
    let place = place(Some("secret"), Some("10.0.0.1"));
    let (_, remote, _guard) = hostile((1 << 20) + 1).await;
    let pods = ["p-0".to_owned()];
    let all = [
        remote.pod_order(&place, "g", Scenario::Upgrade, &pods).await.map(drop),
        remote.check(&place, &PreUpgradeCheck::default()).await,
        remote.tell(&place, "echo", "").await,
    ];
    for answer in all {
        let error = answer.unwrap_err();
        assert!(error.contains("OutOfRange") && error.len() < 1000, "{error}");
    }
    // What fits is cut before it is shown to anybody.
    let (_, remote, _guard) = hostile(1 << 19).await;
    let shown = [
        remote.check(&place, &PreUpgradeCheck::default()).await,
        remote.tell(&place, "echo", "").await,
        remote.stop(&place).await,
    ];
    for error in shown.map(Result::unwrap_err) {
        assert!((400..1000).contains(&error.len()), "{} bytes", error.len());
    }
}

#[tokio::test]
async fn roles_that_are_no_labels_and_long_facts_are_not_believed() {
    let place = place(Some("secret"), Some("10.0.0.1"));
    let (agent, remote, _guard) = hostile(0).await;
    let detection = RoleDetection::default();
    let long = "x".repeat(64);
    for role in ["", "-a", "a-", "_", "a b", "a/b", "a\nb", "r\u{f6}le", long.as_str()] {
        *agent.role.lock() = GetRoleResponse { role: role.into(), is_leader: true, ..Default::default() };
        let error = remote.role(&place, &detection).await.unwrap_err();
        assert_eq!(error, "its role is no label", "{role:?}");
    }
    for fits in ["m", "a-b_c", &long[1..]] {
        *agent.role.lock() = GetRoleResponse { role: fits.into(), ..Default::default() };
        assert_eq!(remote.role(&place, &detection).await.unwrap().name, fits);
    }
    let fact = |length: usize| {
        let facts =
            ["history", "previousHistory", "follows"].map(|name| (name.to_owned(), "x".repeat(length)));
        facts.into_iter().chain([("position".to_owned(), "-1".to_owned())]).collect()
    };
    *agent.role.lock() = GetRoleResponse { role: "m".into(), is_leader: false, extra: fact(253) };
    let role = remote.role(&place, &detection).await.unwrap();
    assert!(role.history.is_some() && role.previous_history.is_some() && role.follows.is_some());
    assert_eq!(role.position, None, "a number that is none");
    *agent.role.lock() = GetRoleResponse { role: "m".into(), is_leader: false, extra: fact(254) };
    let role = remote.role(&place, &detection).await.unwrap();
    assert_eq!((role.history, role.previous_history, role.follows), (None, None, None));
}
