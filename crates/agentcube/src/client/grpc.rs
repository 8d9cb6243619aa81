//! gRPC to the fast path, as whom a kubeconfig says. Under `agentcube up` it answers at the address of the API server; on a
//! cluster its Pod is reached through the API server, as `kubectl port-forward` does it.

use std::sync::Arc;
use std::time::Duration;

use agentcube_protos::fastpath::fast_path_client::FastPathClient;
use anyhow::{Context, anyhow, ensure};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::client::ConfigExt;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use super::Connection;
use crate::environment::Environment;
use crate::exit::Usage;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The Pod of the fast path, as `agentcube install` makes it, and where it listens.
const LABELS: &str = "app.kubernetes.io/part-of=agentcube,app.kubernetes.io/name=agentcube-fastpath";
const PORT: u16 = 9100;
const NAMESPACE: &str = "agentcube-system";

/// The fast path, as one user.
pub(crate) type FastPath = FastPathClient<InterceptedService<Channel, Bearer>>;

/// Puts the token of the kubeconfig into every call.
#[derive(Clone)]
pub(crate) struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

impl Connection {
    /// The fast path of the API server, and the namespace to work in.
    pub(crate) async fn fast_path(&self, environment: &Environment) -> anyhow::Result<(FastPath, String)> {
        let kubeconfig = super::kubeconfig::resolve(self.kubeconfig.as_deref(), environment)?;
        let config = read(kubeconfig, self.context.clone()).await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        Ok((connect(&config).await?, namespace))
    }
}

/// The fast path of an API server, as the user of a configuration.
pub(crate) async fn connect(config: &kube::Config) -> anyhow::Result<FastPath> {
    let bearer = bearer(&config.auth_info)?;
    let address = config.cluster_url.to_string();
    let channel = match fast_path_pod(config).await? {
        Some((pods, pod)) => through(pods, pod).await.context("cannot reach the fast path's Pod")?,
        None => channel(config).await.with_context(|| format!("cannot connect to {address}"))?,
    };
    Ok(FastPathClient::with_interceptor(channel, bearer))
}

/// The Pod of the fast path, where it is one. Only where the operator is: whoever runs Pods elsewhere is not told tokens.
async fn fast_path_pod(config: &kube::Config) -> anyhow::Result<Option<(Api<Pod>, String)>> {
    let client = kube::Client::try_from(config.clone()).context("the kubeconfig is wrong")?;
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let found = match pods.list(&ListParams::default().labels(LABELS)).await {
        Ok(found) => found.items,
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let needed = "sandboxes on a cluster need rights to list and to port-forward Pods there";
            return Err(anyhow!("{}: {needed}", status.message));
        }
        Err(error) => return Err(error).context("cannot look for the fast path"),
    };
    if found.is_empty() {
        return Ok(None);
    }
    let pod = found.into_iter().find(is_ready);
    let pod = pod.with_context(|| format!("the fast path in {NAMESPACE} is not ready"))?;
    let arguments = pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|it| it.args.iter().flatten());
    ensure!(
        !arguments.into_iter().any(|argument| argument.starts_with("--tls-cert")),
        "the fast path of this cluster has certificates of its own, which this command does not know"
    );
    Ok(Some((pods, pod.name_any())))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

async fn through(pods: Api<Pod>, pod: String) -> anyhow::Result<Channel> {
    let connector = tower::service_fn(move |_: http::Uri| {
        let (pods, pod) = (pods.clone(), pod.clone());
        async move {
            let mut forwarder = pods.portforward(&pod, &[PORT]).await.map_err(std::io::Error::other)?;
            let stream = forwarder.take_stream(PORT).ok_or_else(|| std::io::Error::other("no stream"))?;
            // It ends with its streams.
            tokio::spawn(forwarder.join());
            std::io::Result::Ok(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://fastpath").connect_timeout(CONNECT_LIMIT);
    Ok(endpoint.connect_with_connector(connector).await?)
}

async fn read(kubeconfig: Kubeconfig, context: Option<String>) -> anyhow::Result<kube::Config> {
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.context("the kubeconfig is wrong")
}

fn bearer(user: &AuthInfo) -> anyhow::Result<Bearer> {
    use secrecy::ExposeSecret as _;
    let token = user.token.as_ref().ok_or_else(|| {
        Usage("the fast path needs a kubeconfig with a token; `agentcube up` writes one".into())
    })?;
    let mut value: MetadataValue<Ascii> =
        format!("Bearer {}", token.expose_secret()).parse().map_err(|_| anyhow!("the token is not text"))?;
    value.set_sensitive(true);
    Ok(Bearer(value))
}

async fn channel(config: &kube::Config) -> anyhow::Result<Channel> {
    let host = config.cluster_url.host().context("the server's address has no host")?.to_owned();
    let port = config.cluster_url.port_u16().unwrap_or(443);
    let mut tls = config.rustls_client_config().context("the kubeconfig is wrong")?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let name = config.tls_server_name.clone().unwrap_or_else(|| host.clone());
    let name = ServerName::try_from(name).context("the server's name is not one")?;
    let tls = TlsConnector::from(Arc::new(tls));
    let connector = tower::service_fn(move |_: http::Uri| {
        let (host, name, tls) = (host.clone(), name.clone(), tls.clone());
        async move {
            let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
            stream.set_nodelay(true)?;
            tls.connect(name, stream).await.map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_shared(config.cluster_url.to_string())?.connect_timeout(CONNECT_LIMIT);
    Ok(endpoint.connect_with_connector(connector).await?)
}
