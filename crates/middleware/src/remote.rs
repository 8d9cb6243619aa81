//! Agents in Pods, over gRPC. Each question has a connection of its own: they are rare, and Pods come and go.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::middleware::group::{
    ActiveHighAvailability, PostUpgradeVerify, PreUpgradeCheck, RoleDetection,
};
use agentcube_api::middleware::parts::Scenario;
use agentcube_protos::middleware::tool_invoker_client::ToolInvokerClient;
use agentcube_protos::middleware::{
    ExecuteCommandRequest, FailoverRequest, FileDigest, GetGroupOrderRequest, GetPodOrderRequest,
    GetRoleRequest, HealthCheckRequest, ReloadConfigRequest, StopRequest,
};
use futures_util::future::BoxFuture;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::agents::{Agents, Answer, Place};
use crate::group::observe::Role;
use crate::order::Order;

/// Where agents' process managers listen.
pub const PROCESSES_PORT: u16 = 50051;
/// Where their tool invokers listen.
pub const TOOLS_PORT: u16 = PROCESSES_PORT + 1;
/// Time for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// An answer that is longer is not believed.
const LONGEST_ANSWER: usize = 1 << 20;

/// The way to a Pod.
pub trait Dial: Send + Sync + 'static {
    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>>;
}

/// Plain TCP, where Pods have addresses that everybody reaches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
    }
}

/// Reaches agents at a port of their Pods.
#[derive(Clone)]
pub struct Remote {
    /// Of the tool invoker.
    pub port: u16,
    pub dial: Arc<dyn Dial>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Default for Remote {
    fn default() -> Remote {
        Remote { port: TOOLS_PORT, dial: Arc::new(Tcp) }
    }
}

fn said(status: Status) -> String {
    format!("{:?}: {}", status.code(), crate::app::cut(status.message(), 500))
}

impl Remote {
    async fn client(&self, place: &Place) -> Result<ToolInvokerClient<Channel>, String> {
        let address: IpAddr = match place.address.as_deref().map(str::parse) {
            Some(Ok(address)) => address,
            _ => return Err("it has no address yet".into()),
        };
        let address = SocketAddr::new(address, self.port);
        let dial = self.dial.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let connecting = dial.dial(address);
            async move { connecting.await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://agent").connect_timeout(CONNECT);
        let channel = endpoint.connect_with_connector(connector).await;
        let channel = channel.map_err(|_| format!("nobody answers at {address}"))?;
        Ok(ToolInvokerClient::new(channel).max_decoding_message_size(LONGEST_ANSWER))
    }
}

/// A question with the token of the Pod's App.
fn ask<T>(place: &Place, message: T) -> Result<Request<T>, String> {
    let token = place.token.as_ref().ok_or("the Secret with the agents' token is not there")?;
    let mut value: MetadataValue<Ascii> =
        format!("Bearer {}", token.reveal()).parse().map_err(|_| "the agents' token is no text")?;
    value.set_sensitive(true);
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", value);
    Ok(request)
}

/// Names of facts that are told with a role.
const POSITION: &str = "position";
const HISTORY: &str = "history";
const PREVIOUS_HISTORY: &str = "previousHistory";
const PREVIOUS_POSITION: &str = "previousPosition";
const FOLLOWS: &str = "follows";
/// Told by the agent, and not by a pattern of the plugin.
const READY: &str = "ready";

fn patterns(detection: &RoleDetection) -> BTreeMap<String, String> {
    let facts = detection.facts.clone().unwrap_or_default();
    let patterns = [
        (POSITION, facts.position),
        (HISTORY, facts.history),
        (PREVIOUS_HISTORY, facts.previous_history),
        (PREVIOUS_POSITION, facts.previous_position),
        (FOLLOWS, facts.follows),
    ];
    patterns.into_iter().filter_map(|(name, pattern)| Some((name.to_owned(), pattern?))).collect()
}

/// What commands of plugins may name.
fn variables(place: &Place, leader: &str) -> BTreeMap<String, String> {
    let own = place.address.clone().unwrap_or_default();
    let all = [("LEADER", leader.to_owned()), ("SELF", own), ("POD", place.pod.clone())];
    // What is not known stands for nothing: a command that names it is not run.
    let known = all.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Whether a role can be the value of a label, which it becomes.
fn is_label(role: &str) -> bool {
    let fits = |one: char| one.is_ascii_alphanumeric() || one == '-' || one == '_';
    let ends = |one: Option<char>| one.is_some_and(|one| one.is_ascii_alphanumeric());
    role.len() <= 63 && role.chars().all(fits) && ends(role.chars().next()) && ends(role.chars().next_back())
}

fn word(scenario: Scenario) -> String {
    match scenario {
        Scenario::Provision => "provision",
        Scenario::Stop => "stop",
        Scenario::Update => "update",
        Scenario::Upgrade => "upgrade",
    }
    .into()
}

impl Agents for Remote {
    fn group_order<'a>(
        &'a self,
        place: &'a Place,
        component: &'a str,
        scenario: Scenario,
        groups: &'a [String],
    ) -> Answer<'a, Order> {
        Box::pin(async move {
            let message = GetGroupOrderRequest {
                component_name: component.into(),
                scenario: word(scenario),
                groups: groups.to_vec(),
            };
            let answer =
                self.client(place).await?.get_group_order(ask(place, message)?).await.map_err(said)?;
            let answer = answer.into_inner();
            Ok(Order { names: answer.order, concurrent: answer.concurrent })
        })
    }

    fn pod_order<'a>(
        &'a self,
        place: &'a Place,
        group: &'a str,
        scenario: Scenario,
        pods: &'a [String],
    ) -> Answer<'a, Order> {
        Box::pin(async move {
            let message = GetPodOrderRequest {
                group_name: group.into(),
                scenario: word(scenario),
                pods: pods.to_vec(),
            };
            let answer = self.client(place).await?.get_pod_order(ask(place, message)?).await.map_err(said)?;
            let answer = answer.into_inner();
            Ok(Order { names: answer.order, concurrent: answer.concurrent })
        })
    }

    fn role<'a>(&'a self, place: &'a Place, detection: &'a RoleDetection) -> Answer<'a, Role> {
        Box::pin(async move {
            let message = GetRoleRequest {
                command: detection.command.clone(),
                parse_pattern: detection.parse_pattern.clone().unwrap_or_default(),
                facts: patterns(detection),
            };
            let answer = self.client(place).await?.get_role(ask(place, message)?).await.map_err(said)?;
            let mut answer = answer.into_inner();
            if !is_label(&answer.role) {
                return Err("its role is no label".into());
            }
            let mut fact = |name: &str| answer.extra.remove(name).filter(|fact| fact.len() <= 253);
            let nobody = |address: &IpAddr| address.is_loopback() || address.is_unspecified();
            Ok(Role {
                position: fact(POSITION).and_then(|position| position.parse().ok()),
                history: fact(HISTORY),
                previous_history: fact(PREVIOUS_HISTORY),
                previous_position: fact(PREVIOUS_POSITION).and_then(|position| position.parse().ok()),
                follows: fact(FOLLOWS)
                    .filter(|one| !one.is_empty() && !one.parse().is_ok_and(|address| nobody(&address))),
                ready: fact(READY).and_then(|ready| ready.parse().ok()),
                name: answer.role,
                leader: answer.is_leader,
            })
        })
    }

    fn failover<'a>(
        &'a self,
        place: &'a Place,
        how: Option<&'a ActiveHighAvailability>,
        leader: Option<&'a str>,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            let variables = variables(place, leader.unwrap_or_default());
            let message = match how.cloned() {
                Some(how) => FailoverRequest {
                    command: match how.switchover_command.filter(|_| leader.is_some()) {
                        Some(switchover) => switchover,
                        None => how.failover_command,
                    },
                    pre_check: how.pre_failover_check.unwrap_or_default(),
                    post_verify: how.post_failover_verify.unwrap_or_default(),
                    variables,
                },
                None => FailoverRequest { variables, ..FailoverRequest::default() },
            };
            self.client(place).await?.failover(ask(place, message)?).await.map(drop).map_err(said)
        })
    }

    fn tell<'a>(&'a self, place: &'a Place, command: &'a str, leader: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let (command, variables) = (command.to_owned(), variables(place, leader));
            let request = ExecuteCommandRequest { command, variables, ..ExecuteCommandRequest::default() };
            let request = ask(place, request)?;
            let answer = self.client(place).await?.execute_command(request).await.map_err(said)?.into_inner();
            let printed = [answer.stderr, answer.stdout].concat();
            let printed = String::from_utf8_lossy(&printed).trim().to_owned();
            match answer.exit_code {
                0 => Ok(()),
                code => Err(format!("exit code {code}: {}", crate::app::cut(&printed, 500))),
            }
        })
    }

    fn reload<'a>(&'a self, place: &'a Place, files: &'a [(String, String)]) -> Answer<'a, bool> {
        Box::pin(async move {
            let file =
                |(name, sha256): &(String, String)| FileDigest { name: name.clone(), sha256: sha256.clone() };
            let request = ask(place, ReloadConfigRequest { files: files.iter().map(file).collect() })?;
            let answer = self.client(place).await?.reload_config(request).await.map_err(said)?;
            Ok(answer.into_inner().requires_restart)
        })
    }

    /// The health check of the agent, which is the plugin's own command; what else a check wants is known without asking.
    fn check<'a>(&'a self, place: &'a Place, _: &'a PreUpgradeCheck) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = ask(place, HealthCheckRequest {})?;
            let answer = self.client(place).await?.health_check(request).await.map_err(said)?.into_inner();
            if answer.healthy { Ok(()) } else { Err(crate::app::cut(&answer.message, 500)) }
        })
    }

    fn verify<'a>(&'a self, place: &'a Place, verify: &'a PostUpgradeVerify) -> Answer<'a, ()> {
        Box::pin(async move {
            let Some(command) = verify.command.clone() else {
                let request = ask(place, HealthCheckRequest {})?;
                let answer =
                    self.client(place).await?.health_check(request).await.map_err(said)?.into_inner();
                return if answer.healthy { Ok(()) } else { Err(crate::app::cut(&answer.message, 500)) };
            };
            let request = ask(place, ExecuteCommandRequest { command, ..ExecuteCommandRequest::default() })?;
            let answer = self.client(place).await?.execute_command(request).await.map_err(said)?.into_inner();
            let printed = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
            let shown = crate::app::cut(&printed, 200);
            match &verify.expected {
                _ if answer.exit_code != 0 => Err(format!("exit code {}: {shown}", answer.exit_code)),
                Some(expected) if printed != expected.trim() => {
                    Err(format!("{expected} was expected, and not: {shown}"))
                }
                _ => Ok(()),
            }
        })
    }

    fn stop<'a>(&'a self, place: &'a Place) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = ask(place, StopRequest::default())?;
            self.client(place).await?.stop(request).await.map(drop).map_err(said)
        })
    }
}
