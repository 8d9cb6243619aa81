//! The agent over its sockets, with a shell script for a middleware.

use agentcube_protos::middleware::process_manager_client::ProcessManagerClient;
use agentcube_protos::middleware::tool_invoker_client::ToolInvokerClient;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::Channel;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

struct Running {
    processes: ProcessManagerClient<Channel>,
    tools: ToolInvokerClient<Channel>,
    shutdown: CancellationToken,
    running: JoinHandle<Result<i32, process::Error>>,
}

async fn start(script: &str, settings: Settings) -> Running {
    let words = vec!["sh".into(), "-c".into(), script.into()];
    let agent = Agent::new(Options { words, settings, settings_file: None, token: "secret".into() });
    let listen = || TcpListener::bind("127.0.0.1:0");
    let (processes, tools) = (listen().await.unwrap(), listen().await.unwrap());
    let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
    let (at_processes, at_tools) = (address(&processes), address(&tools));
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(agent.run(processes, tools, shutdown.clone()));
    Running {
        processes: ProcessManagerClient::new(connect(at_processes).await),
        tools: ToolInvokerClient::new(connect(at_tools).await),
        shutdown,
        running,
    }
}

async fn connect(address: String) -> Channel {
    Channel::from_shared(address).unwrap().connect().await.unwrap()
}

fn ask<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
    request
}

#[tokio::test]
async fn what_was_stopped_for_a_pod_that_stays_is_started_again() {
    let mut agent = start("exec sleep 1000", Settings { abandoned_seconds: 0, ..Settings::default() }).await;
    let mut processes = agent.processes.clone();
    let mut pid = async || processes.get_status(ask(GetStatusRequest {})).await.unwrap().into_inner().pid;
    let first = pid().await;
    assert!(agent.tools.stop(ask(StopRequest::default())).await.unwrap().into_inner().was_running);
    let again = async {
        loop {
            match pid().await {
                0 => tokio::task::yield_now().await,
                pid => return pid,
            }
        }
    };
    assert_ne!(tokio::time::timeout(LIMIT, again).await.unwrap(), first);
    // Whoever manages the process has it stay as it is.
    agent.processes.stop(ask(StopRequest::default())).await.unwrap();
    assert_eq!(pid().await, 0);
    agent.shutdown.cancel();
    assert_eq!(agent.running.await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn nobody_without_the_token_is_heard() {
    let mut agent = start("exec sleep 1000", Settings::default()).await;
    let command = ExecuteCommandRequest { command: "true".into(), ..ExecuteCommandRequest::default() };
    let refused = agent.tools.execute_command(command.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    let mut wrong = Request::new(command.clone());
    wrong.metadata_mut().insert("authorization", "Bearer secre".parse().unwrap());
    assert_eq!(agent.tools.execute_command(wrong).await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(
        agent.processes.get_status(GetStatusRequest {}).await.unwrap_err().code(),
        Code::Unauthenticated
    );
    assert_eq!(agent.tools.execute_command(ask(command)).await.unwrap().into_inner().exit_code, 0);
    agent.shutdown.cancel();
    assert_eq!(agent.running.await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn tools_are_run_as_the_plugin_has_them() {
    let settings = Settings {
        role_names: [("master".to_owned(), "primary".to_owned())].into(),
        reload_command: Some("sh -c 'exit 3'".into()),
        pod_order_command: Some("sh -c 'shift 0; echo \"$2\"; echo \"$1\"' order".into()),
        ..Settings::default()
    };
    let mut agent = start("exec sleep 1000", settings).await;
    let facts = [("position", r"offset (\d+)"), ("follows", "nobody")];
    let role = GetRoleRequest {
        command: "echo role:master offset 3".into(),
        parse_pattern: "^role:(\\w+)".into(),
        facts: facts.map(|(name, pattern)| (name.into(), pattern.into())).into(),
    };
    let role = agent.tools.get_role(ask(role)).await.unwrap().into_inner();
    assert_eq!((role.role.as_str(), role.is_leader), ("primary", true));
    assert_eq!(role.extra, BTreeMap::from([("position".to_owned(), "3".to_owned())]));
    let role = GetRoleRequest { command: "echo 'a/b'".into(), ..GetRoleRequest::default() };
    assert_eq!(agent.tools.get_role(ask(role)).await.unwrap_err().message(), "no role in: a/b");
    assert!(
        agent
            .tools
            .reload_config(ask(ReloadConfigRequest::default()))
            .await
            .unwrap()
            .into_inner()
            .requires_restart
    );
    let pods =
        GetPodOrderRequest { group_name: "g".into(), scenario: "update".into(), pods: vec!["p-0".into()] };
    let order = agent.tools.get_pod_order(ask(pods)).await.unwrap().into_inner();
    assert_eq!((order.order, order.concurrent), (vec!["p-0".to_owned(), "update".to_owned()], false));
    let failover = FailoverRequest { command: "false".into(), ..FailoverRequest::default() };
    let refused = agent.tools.failover(ask(failover)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(agent.tools.health_check(ask(HealthCheckRequest {})).await.unwrap().into_inner().healthy);
    agent.tools.stop(ask(StopRequest::default())).await.unwrap();
    assert!(!agent.tools.health_check(ask(HealthCheckRequest {})).await.unwrap().into_inner().healthy);
    assert!(!agent.running.is_finished(), "it waits for its own end");
    agent.processes.start(ask(StartRequest {})).await.unwrap();
    agent.shutdown.cancel();
    assert_eq!(agent.running.await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn the_agent_ends_with_the_middleware() {
    let mut agent = start("exec sleep 1000", Settings::default()).await;
    let status = agent.processes.get_status(ask(GetStatusRequest {})).await.unwrap().into_inner();
    assert!(status.running && status.pid > 0);
    agent.processes.signal(ask(SignalRequest { number: 9 })).await.unwrap();
    assert_eq!(agent.running.await.unwrap().unwrap(), 137);
}
