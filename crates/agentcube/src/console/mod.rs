//! `agentcube console`: the web console of any cluster, on this machine or in front of one. `up` has its own, by the same
//! code. It has no rights: it leaves out whatever credentials the kubeconfig holds, and uses those that users log in with.

mod sandboxes;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use agentcube_console::{Call, Composed, Console};
use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use http::Method;
use http_body_util::Full;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use serde_json::Value;

use crate::client::kubeconfig;
use crate::environment::Environment;
use crate::exit::{Outcome, Usage};
use crate::invoke::request;
use crate::router::{say, shutdown};

/// Where it is unless somebody wants it elsewhere.
pub(crate) const USUAL_PORT: u16 = 8091;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube console                                    # of the cluster that kubectl uses, at http://127.0.0.1:8091
  agentcube console --kubeconfig ./kubeconfig --listen 127.0.0.1:0
  agentcube console --listen 0.0.0.0:8091 --behind-tls # in a Pod, behind something that speaks TLS

Users log in with a token that the API server knows, such as `kubectl create token NAME` prints, and may do what it may.
The credentials in the kubeconfig are not used. `agentcube up` has a console already.")]
pub(crate) struct Arguments {
    /// Where to listen; anywhere but on loopback only with --behind-tls
    #[arg(long, default_value_t = SocketAddr::from((Ipv4Addr::LOCALHOST, USUAL_PORT)))]
    listen: SocketAddr,
    /// Browsers come by way of something that speaks TLS: cookies are for TLS only
    #[arg(long)]
    behind_tls: bool,
    /// The kubeconfig [default: that of the Pod, $KUBECONFIG, the running `agentcube up`, ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, help_heading = "Connection")]
    context: Option<String>,
}

/// Runs until it is told to stop.
pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let listen = arguments.listen;
    if !arguments.behind_tls {
        on_loopback("--listen", listen)?;
    }
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    let config = config(&arguments, environment).await?;
    let cluster = config.cluster_url.to_string();
    let console = make(listener, config, arguments.behind_tls)?;
    say(&format!("console at http://{} of {}", console.address()?, cluster.trim_end_matches('/')));
    console.run(shutdown()?).await;
    Ok(Outcome::Done)
}

async fn config(arguments: &Arguments, environment: &Environment) -> anyhow::Result<kube::Config> {
    let named =
        arguments.kubeconfig.is_some() || arguments.context.is_some() || environment.kubeconfig.is_some();
    if !named && let Ok(config) = kube::Config::incluster() {
        return Ok(config);
    }
    of_kubeconfig(
        kubeconfig::resolve(arguments.kubeconfig.as_deref(), environment)?,
        arguments.context.clone(),
    )
    .await
}

/// How to reach the API server that a kubeconfig names.
pub(crate) async fn of_kubeconfig(
    mut kubeconfig: Kubeconfig,
    context: Option<String>,
) -> anyhow::Result<kube::Config> {
    // Otherwise programs that it names would be run for credentials that are not used.
    for user in &mut kubeconfig.auth_infos {
        user.auth_info = Some(AuthInfo::default());
    }
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.context("the kubeconfig is wrong")
}

/// Tokens do not cross a network in plain text.
pub(crate) fn on_loopback(option: &str, address: SocketAddr) -> Result<(), Usage> {
    match address.ip().is_loopback() {
        true => Ok(()),
        false => Err(Usage(format!(
            "{option} {address}: tokens would cross the network in plain text; listen on 127.0.0.1, and forward a \
             port to it (ssh -L, kubectl port-forward)"
        ))),
    }
}

/// A console on a socket. Whoever logs in brings the credentials.
pub(crate) fn make(
    listener: TcpListener,
    mut config: kube::Config,
    behind_tls: bool,
) -> anyhow::Result<Console> {
    config.auth_info = AuthInfo::default();
    let options = agentcube_console::Options {
        sandboxes: sandboxes::of(config.clone()),
        api: kube::Client::try_from(config).context("the API server cannot be used")?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        behind_tls,
        compose: Arc::new(compose),
    };
    listener.set_nonblocking(true).context("cannot use the console's socket")?;
    let listener = tokio::net::TcpListener::from_std(listener).context("cannot use the console's socket")?;
    Console::new(listener, options).context("cannot start the console")
}

/// The same request that `agentcube invoke` sends.
fn compose(address: &str, task: &Value, call: &Call) -> Result<Composed, String> {
    let method = match call.method.as_deref() {
        Some(method) => Some(method.parse::<Method>().map_err(|_| format!("{method:?} is no method"))?),
        None => None,
    };
    let wanted = request::Wanted {
        path: &call.path,
        session: call.session.as_deref(),
        method: method.as_ref(),
        headers: &call.headers,
        body: call.body.clone().map(|body| Full::new(Bytes::from(body))),
    };
    let built = request::build(address, task, wanted).map_err(|error| error.to_string())?;
    let (request, host, port) = built;
    Ok(Composed { request, host, port })
}
