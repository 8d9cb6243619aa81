//! The two services of the agent, each at its own port, for who has the token.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentcube_protos::middleware::process_manager_server::{ProcessManager, ProcessManagerServer};
use agentcube_protos::middleware::tool_invoker_server::{ToolInvoker, ToolInvokerServer};
use agentcube_protos::middleware::{
    ExecuteCommandRequest, ExecuteCommandResponse, FailoverRequest, FailoverResponse, GetGroupOrderRequest,
    GetGroupOrderResponse, GetPodOrderRequest, GetPodOrderResponse, GetRoleRequest, GetRoleResponse,
    GetStatusRequest, GetStatusResponse, HealthCheckRequest, HealthCheckResponse, ReloadConfigRequest,
    ReloadConfigResponse, RestartRequest, RestartResponse, SignalRequest, SignalResponse, StartRequest,
    StartResponse, StopRequest, StopResponse,
};
use ring::digest::{SHA256, digest};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tonic::service::Interceptor;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::command;
use crate::process::{self, Manager};
use crate::reload::{self, Taken};
use crate::settings::Settings;
use crate::words::Variables;

/// The exit code by which a reload asks for a restart.
const NEEDS_RESTART: i32 = 3;
/// Names in an order; more than any group has.
const MOST_NAMES: usize = 1_000;
/// Facts that somebody may ask for with a role.
const MOST_FACTS: usize = 16;
/// Among the facts of a role: whether it can serve, where the plugin says how that is seen. Probes take their time to find out.
const READY: &str = "ready";
/// Time between two looks at a role that is on its way.
const LOOK: Duration = Duration::from_millis(100);

/// What an agent needs.
pub struct Options {
    /// The middleware's program and its arguments.
    pub words: Vec<String>,
    pub settings: Settings,
    /// Where they come from: they are read again with each new configuration.
    pub settings_file: Option<PathBuf>,
    /// Whoever has it may ask everything.
    pub token: String,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("words", &self.words).finish_non_exhaustive()
    }
}

/// An agent; cheap to clone.
#[derive(Clone, Debug)]
pub struct Agent {
    manager: Manager,
    settings: watch::Sender<Arc<Settings>>,
    settings_file: Option<PathBuf>,
    taken: Arc<Mutex<Taken>>,
    token: Token,
    /// The agent itself ends.
    ending: CancellationToken,
}

/// A token that is compared by its digest: how long that takes says nothing of it.
#[derive(Clone)]
struct Token(Arc<[u8]>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Interceptor for Token {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let header = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let token = header.and_then(|header| header.strip_prefix("Bearer ")).unwrap_or_default().trim();
        if !token.is_empty() && digest(&SHA256, token.as_bytes()).as_ref() == &*self.0 {
            return Ok(request);
        }
        Err(Status::unauthenticated("the bearer token is missing or not the right one"))
    }
}

impl Agent {
    pub fn new(options: Options) -> Agent {
        Agent {
            manager: Manager::new(options.words),
            taken: Arc::new(Mutex::new(Taken::at_start(&options.settings))),
            settings: watch::Sender::new(Arc::new(options.settings)),
            settings_file: options.settings_file,
            token: Token(digest(&SHA256, options.token.as_bytes()).as_ref().into()),
            ending: CancellationToken::new(),
        }
    }

    /// Starts the middleware and serves at both listeners, until the shutdown, or until the middleware ends by itself. The code
    /// to end with.
    pub async fn run(
        self,
        processes: TcpListener,
        tools: TcpListener,
        shutdown: CancellationToken,
    ) -> Result<i32, process::Error> {
        self.manager.start().await?;
        let stop = CancellationToken::new();
        let _stopped = stop.clone().drop_guard();
        let of_processes = ProcessManagerServer::with_interceptor(self.clone(), self.token.clone());
        let of_tools = ToolInvokerServer::with_interceptor(self.clone(), self.token.clone());
        tokio::spawn(serve(Server::builder().add_service(of_processes), processes, stop.clone()));
        tokio::spawn(serve(Server::builder().add_service(of_tools), tools, stop.clone()));
        let code = tokio::select! {
            code = self.manager.ended() => code,
            () = shutdown.cancelled() => {
                self.ending.cancel();
                self.before_stop().await;
                self.manager.stop(self.settings().grace(0)).await?;
                0
            }
        };
        Ok(code)
    }

    fn settings(&self) -> Arc<Settings> {
        self.settings.borrow().clone()
    }

    async fn run_tool(
        &self,
        command: &str,
        more: &[String],
        variables: &Variables,
        limit: u32,
    ) -> Result<command::Output, Status> {
        let output = command::run(command, more, variables, self.settings().limit(limit)).await;
        output.map_err(|error| Status::failed_precondition(error.to_string()))
    }

    /// What a command printed; an error if it says by its exit code that it did not work.
    async fn text(&self, command: &str, more: &[String]) -> Result<String, Status> {
        self.text_with(command, more, &Variables::new()).await
    }

    async fn text_with(
        &self,
        command: &str,
        more: &[String],
        variables: &Variables,
    ) -> Result<String, Status> {
        self.run_tool(command, more, variables, 0).await?.text().map_err(Status::failed_precondition)
    }

    async fn before_stop(&self) {
        if let Some(command) = &self.settings().stop_command
            && let Err(error) = self.text(command, &[]).await
        {
            tracing::warn!("the command before the stop: {}", error.message());
        }
    }

    /// The role, and the text that says so.
    async fn role(&self, command: &str, pattern: &str) -> Result<(String, String), Status> {
        let settings = self.settings();
        let command = given(command).or(settings.role_command.as_deref());
        let command =
            command.ok_or_else(|| Status::failed_precondition("there is no command for the role"))?;
        let text = self.text(command, &[]).await?;
        let pattern = given(pattern).or(settings.role_pattern.as_deref());
        let role = parse_role(&text, pattern).map_err(Status::failed_precondition)?;
        Ok((settings.role_names.get(&role).cloned().unwrap_or(role), text))
    }

    /// Waits until this Pod leads: commands may only begin that.
    async fn leads(&self) -> Result<String, Status> {
        let settings = self.settings();
        let looking = async {
            loop {
                match self.role("", "").await {
                    Ok((role, _)) if settings.leader_roles.contains(&role) => return role,
                    _ => tokio::time::sleep(LOOK).await,
                }
            }
        };
        let late = |_| Status::failed_precondition("it was told to lead, and does not");
        tokio::time::timeout(settings.limit(0), looking).await.map_err(late)
    }

    /// Whether clients can be served.
    pub(crate) async fn is_ready(&self) -> bool {
        let settings = self.settings();
        let Some(command) = &settings.ready_command else { return self.health().await.healthy };
        let (Ok(text), pattern) = (self.text(command, &[]).await, settings.ready_pattern.as_deref()) else {
            return false;
        };
        match pattern.map(|pattern| find(&text, pattern)) {
            Some(Ok(found)) => found.is_some(),
            Some(Err(error)) => {
                tracing::warn!("the pattern for readiness: {error}");
                false
            }
            None => true,
        }
    }

    /// Takes the configuration that is mounted; whether that takes a restart.
    async fn reload(&self, request: ReloadConfigRequest) -> Result<bool, Status> {
        let mut taken = self.taken.lock().await;
        let refused = |message: String| Status::failed_precondition(message);
        if let Some(directory) = &self.settings().config_directory {
            reload::arrived(directory, &request.files).map_err(refused)?;
        }
        if let Some(file) = &self.settings_file {
            let text = tokio::fs::read_to_string(file).await;
            let text = text.map_err(|error| refused(format!("{}: {error}", file.display())))?;
            let settings =
                Settings::read(&text).map_err(|error| refused(format!("{}: {error}", file.display())))?;
            self.settings.send_replace(Arc::new(settings));
        }
        let settings = self.settings();
        if let Some(command) = &settings.reload_command {
            let output = self.run_tool(command, &[], &Variables::new(), 0).await?;
            return match output.code {
                NEEDS_RESTART => Ok(true),
                _ => output.text().map(|_| false).map_err(Status::failed_precondition),
            };
        }
        if settings.reload_commands.is_empty() {
            return Ok(true);
        }
        let changes = taken.changes(&settings);
        let mut restart = changes.restart;
        for (name, command) in changes.commands {
            let output = self.run_tool(&command, &[], &Variables::new(), 0).await?;
            if reload::asks_for_restart(&settings, &output).map_err(refused)? {
                restart = true;
                continue;
            }
            output.text().map_err(|said| refused(format!("{name}: {said}")))?;
            taken.took(name, command);
        }
        Ok(restart)
    }

    async fn health(&self) -> HealthCheckResponse {
        let said = match &self.settings().health_command {
            Some(command) => self.text(command, &[]).await.map_err(|status| status.message().to_owned()),
            None if self.manager.state().pid.is_some() => Ok(String::new()),
            None => Err("it does not run".into()),
        };
        match said {
            Ok(message) => {
                HealthCheckResponse { healthy: true, message: message.chars().take(500).collect() }
            }
            Err(message) => HealthCheckResponse { healthy: false, message },
        }
    }

    async fn stop(&self, grace: u32) -> Result<StopResponse, Status> {
        self.before_stop().await;
        let was_running = self.manager.stop(self.settings().grace(grace)).await.map_err(failed)?;
        Ok(StopResponse { was_running })
    }

    /// The Pod is still there after a while: whoever had it stopped does not delete it any more.
    async fn start_if_abandoned(self) {
        tokio::time::sleep(Duration::from_secs(self.settings().abandoned_seconds.into())).await;
        if self.ending.is_cancelled() {
            return;
        }
        if let Err(error) = self.manager.start().await {
            tracing::error!(%error, "what was stopped cannot be started again");
        }
    }

    /// An order, by a command or as it usually is.
    async fn order(
        &self,
        command: Option<&String>,
        scenario: &str,
        names: Vec<String>,
        usual: impl FnOnce(Vec<String>) -> Vec<String>,
    ) -> Result<(Vec<String>, bool), Status> {
        if names.len() > MOST_NAMES {
            return Err(Status::invalid_argument("too many names"));
        }
        let Some(command) = command else { return Ok((usual(names), false)) };
        let mut words = vec![scenario.to_owned()];
        words.extend(names);
        let text = self.text(command, &words).await?;
        let mut lines: Vec<String> =
            text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect();
        let concurrent = lines.first().is_some_and(|line| line == "concurrent");
        if concurrent {
            lines.remove(0);
        }
        Ok((lines, concurrent))
    }
}

async fn serve(router: Router, listener: TcpListener, stop: CancellationToken) {
    let incoming = TcpIncoming::from(listener);
    if let Err(error) = router.serve_with_incoming_shutdown(incoming, stop.cancelled()).await {
        tracing::error!("the agent cannot serve: {error}");
    }
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

fn failed(error: process::Error) -> Status {
    Status::failed_precondition(error.to_string())
}

/// A pattern for what commands print. Redis ends its lines as the network does.
pub fn pattern(pattern: &str) -> Result<regex::Regex, String> {
    let pattern = regex::RegexBuilder::new(pattern).size_limit(1 << 20).multi_line(true).crlf(true).build();
    pattern.map_err(|error| error.to_string())
}

/// The pattern by which a role is found in what a command printed.
pub fn role_pattern(text: &str) -> Result<regex::Regex, String> {
    pattern(text).map_err(|error| format!("the pattern for the role: {error}"))
}

/// The first group of a pattern in a text, or all that it matches.
fn find(text: &str, wanted: &str) -> Result<Option<String>, String> {
    Ok(first(text, &pattern(wanted)?))
}

fn first(text: &str, pattern: &regex::Regex) -> Option<String> {
    let found = pattern.captures(text).and_then(|found| found.get(1).or_else(|| found.get(0)));
    found.map(|found| found.as_str().to_owned())
}

/// The role in what a command printed: the first group of the pattern, or the first word.
fn parse_role(text: &str, pattern: Option<&str>) -> Result<String, String> {
    let role = match pattern {
        Some(pattern) => first(text, &role_pattern(pattern)?),
        None => text.split_whitespace().next().map(str::to_owned),
    };
    // It becomes a label.
    let fits = |role: &String| {
        (1..=63).contains(&role.len())
            && role.chars().all(|one| one.is_ascii_alphanumeric() || one == '-' || one == '_')
    };
    role.filter(fits).ok_or_else(|| {
        let shown: String = text.chars().take(100).collect();
        format!("no role in: {shown}")
    })
}

#[tonic::async_trait]
impl ProcessManager for Agent {
    async fn start(&self, _: Request<StartRequest>) -> Result<Response<StartResponse>, Status> {
        let pid = self.manager.start().await.map_err(failed)?;
        Ok(Response::new(StartResponse { pid }))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        Agent::stop(self, request.into_inner().grace_seconds).await.map(Response::new)
    }

    async fn restart(&self, request: Request<RestartRequest>) -> Result<Response<RestartResponse>, Status> {
        self.before_stop().await;
        let grace = self.settings().grace(request.into_inner().grace_seconds);
        let pid = self.manager.restart(grace).await.map_err(failed)?;
        Ok(Response::new(RestartResponse { pid }))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Result<Response<SignalResponse>, Status> {
        self.manager.signal(request.into_inner().number).map_err(failed)?;
        Ok(Response::new(SignalResponse {}))
    }

    async fn get_status(&self, _: Request<GetStatusRequest>) -> Result<Response<GetStatusResponse>, Status> {
        let state = self.manager.state();
        Ok(Response::new(GetStatusResponse {
            running: state.pid.is_some(),
            pid: state.pid.unwrap_or_default(),
            started_unix_ms: state.started_unix_ms,
            restarts: state.restarts,
            exit_code: state.ended.filter(|code| *code < 128),
            exit_signal: state.ended.filter(|code| *code >= 128).map(|code| code - 128),
        }))
    }

    async fn health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(self.health().await))
    }
}

#[tonic::async_trait]
impl ToolInvoker for Agent {
    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        let stopped = Agent::stop(self, request.into_inner().grace_seconds).await?;
        tokio::spawn(self.clone().start_if_abandoned());
        Ok(Response::new(stopped))
    }

    async fn failover(
        &self,
        request: Request<FailoverRequest>,
    ) -> Result<Response<FailoverResponse>, Status> {
        let request = request.into_inner();
        let settings = self.settings();
        let variables: Variables = request.variables.into_iter().collect();
        let previous_role = self.role("", "").await.map(|(role, _)| role).unwrap_or_default();
        if let Some(check) = given(&request.pre_check) {
            self.text_with(check, &[], &variables).await?;
        }
        let command = given(&request.command).or(settings.failover_command.as_deref());
        let command =
            command.ok_or_else(|| Status::failed_precondition("there is no command for the failover"))?;
        self.text_with(command, &[], &variables).await?;
        let current_role = match settings.role_command {
            Some(_) => self.leads().await?,
            None => String::new(),
        };
        if let Some(verify) = given(&request.post_verify) {
            self.text_with(verify, &[], &variables).await?;
        }
        Ok(Response::new(FailoverResponse { previous_role, current_role }))
    }

    async fn get_role(&self, request: Request<GetRoleRequest>) -> Result<Response<GetRoleResponse>, Status> {
        let request = request.into_inner();
        if request.facts.len() > MOST_FACTS {
            return Err(Status::invalid_argument("too many facts"));
        }
        let (role, text) = self.role(&request.command, &request.parse_pattern).await?;
        let mut extra = BTreeMap::new();
        for (name, pattern) in request.facts {
            let found = find(&text, &pattern);
            let found = found
                .map_err(|error| Status::failed_precondition(format!("the pattern for {name}: {error}")))?;
            extra.extend(found.map(|found| (name, found.chars().take(253).collect())));
        }
        let is_leader = self.settings().leader_roles.contains(&role);
        if self.settings().ready_command.is_some() {
            extra.insert(READY.to_owned(), self.is_ready().await.to_string());
        }
        Ok(Response::new(GetRoleResponse { role, is_leader, extra }))
    }

    async fn reload_config(
        &self,
        request: Request<ReloadConfigRequest>,
    ) -> Result<Response<ReloadConfigResponse>, Status> {
        let requires_restart = self.reload(request.into_inner()).await?;
        Ok(Response::new(ReloadConfigResponse { requires_restart }))
    }

    async fn execute_command(
        &self,
        request: Request<ExecuteCommandRequest>,
    ) -> Result<Response<ExecuteCommandResponse>, Status> {
        let request = request.into_inner();
        let variables: Variables = request.variables.into_iter().collect();
        let output = self.run_tool(&request.command, &[], &variables, request.timeout_seconds).await?;
        let command::Output { code: exit_code, stdout, stderr, cut } = output;
        Ok(Response::new(ExecuteCommandResponse { exit_code, stdout, stderr, cut }))
    }

    async fn health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(self.health().await))
    }

    async fn get_group_order(
        &self,
        request: Request<GetGroupOrderRequest>,
    ) -> Result<Response<GetGroupOrderResponse>, Status> {
        let request = request.into_inner();
        let settings = self.settings();
        let command = settings.group_order_command.as_ref();
        let (order, concurrent) =
            self.order(command, &request.scenario, request.groups, |names| names).await?;
        Ok(Response::new(GetGroupOrderResponse { order, concurrent }))
    }

    async fn get_pod_order(
        &self,
        request: Request<GetPodOrderRequest>,
    ) -> Result<Response<GetPodOrderResponse>, Status> {
        let request = request.into_inner();
        let settings = self.settings();
        let command = settings.pod_order_command.as_ref();
        let reversed = |names: Vec<String>| names.into_iter().rev().collect();
        let (order, concurrent) = self.order(command, &request.scenario, request.pods, reversed).await?;
        Ok(Response::new(GetPodOrderResponse { order, concurrent }))
    }
}

#[cfg(test)]
mod tests;
