//! A real Envoy as a process, configured as `docs/envoy.md` says, or with less for comparison. One Task is routed: the
//! Task `agent` of the namespace `default`, below `/default/agent`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::supervise::Process;

/// Of the Envoy that `cargo xtask setup` obtains.
const VERSION: &str = "1.40.0";
const LOOK: Duration = Duration::from_millis(10);

/// Envoy as a program.
pub struct Program(PathBuf);

impl Program {
    pub fn find(cache: &Path) -> Result<Program> {
        let path = cache.join(format!("envoy-{VERSION}/envoy"));
        ensure!(path.is_file(), "{} is missing; run `cargo xtask setup`", path.display());
        Ok(Program(path))
    }
}

/// Where requests go.
pub enum Destination {
    /// To each of these in turn.
    Endpoints(Vec<SocketAddr>),
    /// Where the external processor says.
    Picked,
}

/// What is asked before a request goes on.
pub struct Processor {
    /// In turn, as long as they say that they are well.
    pub addresses: Vec<SocketAddr>,
    /// They are told of the end of requests by the access log.
    pub logs: bool,
}

/// An Envoy to be started.
pub struct Plan {
    pub destination: Destination,
    pub processor: Option<Processor>,
    /// Threads that serve.
    pub concurrency: u32,
}

/// Envoy as a process.
pub struct Envoy {
    pub address: SocketAddr,
    process: Process,
    _directory: TempDir,
}

impl Envoy {
    /// Comes back when it listens.
    pub async fn start(program: &Program, plan: &Plan) -> Result<Envoy> {
        let directory = TempDir::new()?;
        // No connection to others comes from this address, so none takes the port before Envoy does.
        let address = std::net::TcpListener::bind((Ipv4Addr::new(127, 0, 0, 4), 0))?.local_addr()?;
        let config = directory.path().join("envoy.json");
        std::fs::write(&config, serde_json::to_vec_pretty(&bootstrap(address, plan))?)?;
        let (config, concurrency) = (config.display().to_string(), plan.concurrency.to_string());
        let arguments =
            ["-c", &config, "--concurrency", &concurrency, "--use-dynamic-base-id", "-l", "warning"];
        let log = directory.path().join("envoy.log");
        let process = Process::start(&program.0, &arguments.map(str::to_owned), &log)?;
        let envoy = Envoy { address, process, _directory: directory };
        while tokio::net::TcpStream::connect(address).await.is_err() {
            if envoy.process.has_ended() {
                bail!("Envoy does not start: {}", envoy.told());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(envoy)
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it said last.
    pub fn told(&self) -> String {
        self.process.log_tail()
    }
}

fn bootstrap(address: SocketAddr, plan: &Plan) -> Value {
    let listener = json!({ "name": "http", "address": socket(address), "filter_chains": [{ "filters": [{
        "name": "http", "typed_config": connections(plan) }] }] });
    let mut clusters = vec![destination(&plan.destination)];
    clusters.extend(plan.processor.as_ref().map(routers));
    json!({
        "node": { "id": "test", "cluster": "test" },
        "static_resources": { "listeners": [listener], "clusters": clusters },
    })
}

fn socket(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

fn typed(type_: &str, mut value: Value) -> Value {
    value["@type"] = json!(format!("type.googleapis.com/envoy.{type_}"));
    value
}

fn connections(plan: &Plan) -> Value {
    let mut filters = Vec::new();
    if plan.processor.is_some() {
        filters.push(json!({ "name": "envoy.filters.http.ext_proc", "typed_config": processor() }));
    }
    filters.push(json!({ "name": "envoy.filters.http.router",
        "typed_config": typed("extensions.filters.http.router.v3.Router", json!({})) }));
    let mut config = json!({
        "stat_prefix": "http",
        "upgrade_configs": [{ "upgrade_type": "websocket" }],
        "stream_idle_timeout": "0s",
        "local_reply_config": local_replies(),
        "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [route()] }] },
        "http_filters": filters,
    });
    if let Destination::Picked = plan.destination {
        let strip =
            ["x-gateway-destination-endpoint", "x-reserved-token"].map(|name| json!({ "remove": name }));
        let strip = typed(
            "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            json!({ "mutations": strip }),
        );
        config["early_header_mutation_extensions"] = json!([{ "name": "strip", "typed_config": strip }]);
    }
    if plan.processor.as_ref().is_some_and(|processor| processor.logs) {
        let service = json!({ "common_config": { "log_name": "requests", "transport_api_version": "V3",
            "grpc_service": { "envoy_grpc": { "cluster_name": "routers" } } } });
        config["access_log"] = json!([{ "name": "envoy.access_loggers.http_grpc",
            "typed_config": typed("extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig", service) }]);
        config["access_log_options"] = json!({ "access_log_flush_interval": "10s" });
    }
    typed("extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", config)
}

/// What Envoy itself has to say is JSON as well. What the router says goes through as it is.
fn local_replies() -> Value {
    let ours = typed(
        "extensions.access_loggers.filters.cel.v3.ExpressionFilter",
        json!({ "expression": "!response.code_details.startsWith('agentcube')" }),
    );
    let error = json!({ "error": { "code": "GatewayError", "message": "%LOCAL_REPLY_BODY%",
        "detail": "%RESPONSE_CODE_DETAILS%", "requestId": "%REQ(X-REQUEST-ID)%" } });
    json!({ "mappers": [{
        "filter": { "extension_filter": { "name": "others", "typed_config": ours } },
        "body_format_override": { "json_format": error },
    }] })
}

fn route() -> Value {
    let prefix = "/default/agent";
    let rewrite = json!({ "pattern": { "regex": format!("^{prefix}/?") }, "substitution": "/" });
    json!({ "name": "httproute/default/agent/rule/0/match/0/*", "match": { "path_separated_prefix": prefix },
        "route": { "cluster": "agentcube-destination", "timeout": "0s", "regex_rewrite": rewrite } })
}

fn processor() -> Value {
    typed(
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        json!({
            "grpc_service": { "envoy_grpc": { "cluster_name": "routers" }, "timeout": "60s" },
            "failure_mode_allow": false,
            "message_timeout": "60s",
            "status_on_error": { "code": "ServiceUnavailable" },
            "request_attributes": ["xds.route_name"],
            "processing_mode": { "request_header_mode": "SEND", "response_header_mode": "SKIP" },
            "metadata_options": { "receiving_namespaces": { "untyped": ["envoy.lb"] } },
        }),
    )
}

fn destination(destination: &Destination) -> Value {
    let name = "agentcube-destination";
    match destination {
        Destination::Endpoints(addresses) => {
            json!({ "name": name, "type": "STATIC", "connect_timeout": "10s", "load_assignment": assignment(name, addresses) })
        }
        Destination::Picked => json!({
            "name": name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "10s",
            "original_dst_lb_config": { "metadata_key": {
                "key": "envoy.lb", "path": [{ "key": "x-gateway-destination-endpoint" }] } },
        }),
    }
}

fn assignment(cluster: &str, addresses: &[SocketAddr]) -> Value {
    let endpoint = |address: &SocketAddr| json!({ "endpoint": { "address": socket(*address) } });
    let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
    json!({ "cluster_name": cluster, "endpoints": [{ "lb_endpoints": endpoints }] })
}

fn routers(processor: &Processor) -> Value {
    let http2 = typed(
        "extensions.upstreams.http.v3.HttpProtocolOptions",
        json!({ "explicit_http_config": { "http2_protocol_options": {} } }),
    );
    let mut cluster = json!({
        "name": "routers", "type": "STATIC", "connect_timeout": "1s",
        "load_assignment": assignment("routers", &processor.addresses),
        "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2 },
    });
    // A router that is gone, or about to go, is not asked any more, if there is another.
    if processor.addresses.len() > 1 {
        cluster["health_checks"] = json!([{ "timeout": "1s", "interval": "0.2s", "no_traffic_interval": "0.2s",
            "unhealthy_threshold": 1, "healthy_threshold": 1, "grpc_health_check": {} }]);
    }
    cluster
}
