//! A real Envoy, configured as `docs/envoy.md` says.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use agentcube_testkit::supervise::Process;
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Of the Envoy that `cargo xtask setup` obtains.
const VERSION: &str = "1.40.0";

/// Envoy as a program.
pub(crate) struct Program(PathBuf);

impl Program {
    pub(crate) fn find(cache: &Path) -> Result<Program> {
        let path = cache.join(format!("envoy-{VERSION}/envoy"));
        ensure!(path.is_file(), "{} is missing; run `cargo xtask setup`", path.display());
        Ok(Program(path))
    }
}

/// Certificates of a test.
pub(crate) struct Files {
    pub(crate) authority: PathBuf,
    pub(crate) server: PathBuf,
    pub(crate) server_key: PathBuf,
    pub(crate) client: PathBuf,
    pub(crate) client_key: PathBuf,
}

/// Whom Envoy tells of requests by the access log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logs {
    Off,
    /// Every router of each.
    Each,
    /// One router, whichever it likes.
    #[allow(dead_code, reason = "not every test has more than one router")]
    One,
}

/// What differs from test to test.
pub(crate) struct Plan<'a> {
    pub(crate) routers: &'a [SocketAddr],
    /// Tasks that have routes.
    pub(crate) tasks: &'a [&'a str],
    pub(crate) logs: Logs,
    pub(crate) tls: Option<&'a Files>,
    /// The service that is asked who sends a request.
    pub(crate) asks: Option<SocketAddr>,
}

/// Envoy as a process.
pub(crate) struct Envoy {
    pub(crate) address: SocketAddr,
    process: Process,
    _directory: TempDir,
}

impl Envoy {
    pub(crate) async fn start(program: &Program, plan: Plan<'_>) -> Result<Envoy> {
        let directory = TempDir::new()?;
        let address = free_address()?;
        let config = directory.path().join("envoy.json");
        std::fs::write(&config, serde_json::to_vec_pretty(&bootstrap(address, &plan))?)?;
        let arguments =
            ["-c", &config.to_string_lossy(), "--concurrency", "2", "--use-dynamic-base-id", "-l", "warning"];
        // Under a process that stays: Envoy ends with the thread that has started it.
        let log = directory.path().join("envoy.log");
        let process = Process::start(&program.0, &arguments.map(str::to_owned), &log)?;
        let envoy = Envoy { address, process, _directory: directory };
        while tokio::net::TcpStream::connect(address).await.is_err() {
            if envoy.process.has_ended() {
                bail!("Envoy does not start: {}", envoy.told());
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        Ok(envoy)
    }

    pub(crate) fn told(&self) -> String {
        self.process.log_tail()
    }
}

/// No connection to others comes from this address, so none takes the port before Envoy does.
fn free_address() -> Result<SocketAddr> {
    Ok(std::net::TcpListener::bind((Ipv4Addr::new(127, 0, 0, 4), 0))?.local_addr()?)
}

fn bootstrap(address: SocketAddr, plan: &Plan<'_>) -> Value {
    let listener = json!({ "name": "http", "address": socket(address), "filter_chains": [{ "filters": [{
        "name": "http", "typed_config": connections(plan) }] }] });
    let mut clusters = vec![destination(), cluster("routers", plan.routers, plan.tls)];
    // Each router has a log of its own, so that it hears of every request.
    let logs = plan.routers.iter().enumerate();
    clusters.extend(logs.map(|(n, router)| cluster(&format!("log-{n}"), &[*router], plan.tls)));
    clusters.extend(plan.asks.map(authorisation));
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

fn connections(plan: &Plan<'_>) -> Value {
    let strip = ["x-gateway-destination-endpoint", "x-reserved-token", "x-agentcube-subject"];
    let strip = strip.map(|name| json!({ "remove": name }));
    let strip = typed(
        "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        json!({ "mutations": strip }),
    );
    let mut config = json!({
        "stat_prefix": "http",
        "upgrade_configs": [{ "upgrade_type": "websocket" }],
        "stream_idle_timeout": "0s",
        "early_header_mutation_extensions": [{ "name": "strip", "typed_config": strip }],
        "local_reply_config": local_replies(),
        "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes(plan.tasks),
            "response_headers_to_remove": ["x-reserved-token"] }] },
        "http_filters": [
            { "name": "envoy.filters.http.ext_proc", "typed_config": processor() },
            { "name": "envoy.filters.http.router",
              "typed_config": typed("extensions.filters.http.router.v3.Router", json!({})) },
        ],
    });
    if plan.asks.is_some() {
        let filter = json!({ "name": "envoy.filters.http.ext_authz", "typed_config": asks() });
        // Before the router is asked.
        config["http_filters"].as_array_mut().expect("filters").insert(0, filter);
    }
    if plan.logs != Logs::Off {
        let log = |cluster: String| {
            let service = json!({ "common_config": { "log_name": "requests", "transport_api_version": "V3",
                "grpc_service": { "envoy_grpc": { "cluster_name": cluster } },
                "buffer_flush_interval": "0.1s" } });
            json!({ "name": "envoy.access_loggers.http_grpc",
                "typed_config": typed("extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig", service) })
        };
        config["access_log"] = match plan.logs {
            Logs::One => json!([log("routers".into())]),
            _ => (0..plan.routers.len()).map(|n| log(format!("log-{n}"))).collect(),
        };
        config["access_log_options"] = json!({ "access_log_flush_interval": "1s" });
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

fn routes(tasks: &[&str]) -> Value {
    let rewrite =
        |prefix: &str| json!({ "pattern": { "regex": format!("^{prefix}/?") }, "substitution": "/" });
    let route = |task: &str| {
        let prefix = format!("/default/{task}");
        json!({ "name": format!("httproute/default/{task}/rule/0/match/0/*"),
            "match": { "path_separated_prefix": prefix },
            "route": { "cluster": "agentcube-destination", "timeout": "0s", "regex_rewrite": rewrite(&prefix) } })
    };
    tasks.iter().map(|task| route(task)).collect()
}

fn processor() -> Value {
    typed(
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        json!({
            "grpc_service": { "envoy_grpc": { "cluster_name": "routers" }, "timeout": "180s" },
            "failure_mode_allow": false,
            "message_timeout": "180s",
            "allow_mode_override": true,
            "status_on_error": { "code": "ServiceUnavailable" },
            "request_attributes": ["xds.route_name"],
            "processing_mode": { "request_header_mode": "SEND", "response_header_mode": "SKIP" },
            "metadata_options": {
                "receiving_namespaces": { "untyped": ["envoy.lb"] },
                "forwarding_namespaces": { "untyped": ["envoy.filters.http.jwt_authn"] },
            },
        }),
    )
}

/// A service says who sends a request.
fn asks() -> Value {
    let only = |name: &str| json!({ "patterns": [{ "exact": name }] });
    typed(
        "extensions.filters.http.ext_authz.v3.ExtAuthz",
        json!({
            "transport_api_version": "V3",
            "allowed_headers": only("x-badge"),
            "http_service": {
                "server_uri": { "uri": "http://auth", "cluster": "auth", "timeout": "5s" },
                "authorization_response": { "allowed_upstream_headers": only("x-agentcube-subject") },
            },
        }),
    )
}

fn authorisation(address: SocketAddr) -> Value {
    let endpoint = json!({ "endpoint": { "address": socket(address) } });
    json!({ "name": "auth", "type": "STATIC", "connect_timeout": "1s",
        "load_assignment": { "cluster_name": "auth", "endpoints": [{ "lb_endpoints": [endpoint] }] } })
}

fn destination() -> Value {
    json!({
        "name": "agentcube-destination", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "10s",
        "original_dst_lb_config": { "metadata_key": {
            "key": "envoy.lb", "path": [{ "key": "x-gateway-destination-endpoint" }] } },
    })
}

fn cluster(name: &str, routers: &[SocketAddr], tls: Option<&Files>) -> Value {
    let endpoints: Vec<Value> =
        routers.iter().map(|address| json!({ "endpoint": { "address": socket(*address) } })).collect();
    let http2 = typed(
        "extensions.upstreams.http.v3.HttpProtocolOptions",
        json!({ "explicit_http_config": { "http2_protocol_options": {} } }),
    );
    let mut cluster = json!({
        "name": name, "type": "STATIC", "connect_timeout": "1s",
        "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": endpoints }] },
        "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2 },
    });
    // A router that is gone, or about to go, is not asked any more; one that is only slow is.
    cluster["health_checks"] = json!([{ "timeout": "10s", "interval": "0.2s", "no_traffic_interval": "0.2s",
        "unhealthy_threshold": 1, "healthy_threshold": 1, "grpc_health_check": {} }]);
    if let Some(files) = tls {
        let file = |path: &Path| json!({ "filename": path });
        let context = json!({ "sni": "localhost", "common_tls_context": {
            "tls_certificates": [{ "certificate_chain": file(&files.client), "private_key": file(&files.client_key) }],
            "validation_context": { "trusted_ca": file(&files.authority) } } });
        cluster["transport_socket"] = json!({ "name": "tls",
            "typed_config": typed("extensions.transport_sockets.tls.v3.UpstreamTlsContext", context) });
    }
    cluster
}
