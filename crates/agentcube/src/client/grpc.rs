//! gRPC to an API server, at the address, with the certificates and the token of a kubeconfig.

use std::sync::Arc;
use std::time::Duration;

use agentcube_protos::fastpath::fast_path_client::FastPathClient;
use anyhow::{Context, anyhow};
use hyper_util::rt::TokioIo;
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
        let bearer = bearer(&config.auth_info)?;
        let address = config.cluster_url.to_string();
        let channel = channel(&config).await.with_context(|| format!("cannot connect to {address}"))?;
        Ok((FastPathClient::with_interceptor(channel, bearer), namespace))
    }
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
