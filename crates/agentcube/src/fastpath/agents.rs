//! How agents are made and reached: their image, the credentials on both sides.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::token;
use agentcube_node::network::Range;
use agentcube_protos::link::{AgentApi, Remote};
use agentcube_sandbox::{Dial, PodOptions, Tokens};
use anyhow::Context;
use clap::Args;
use hyper_util::rt::TokioIo;
use kube::Client;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use tonic::transport::{Channel, Endpoint};

use crate::exit::Usage;
use crate::sandbox_agent::read_token;

const CONNECT: Duration = Duration::from_secs(2);
/// An agent that is gone without a word is noticed.
const KEEPALIVE: Duration = Duration::from_secs(5);

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Agents")]
pub(crate) struct Agents {
    /// The image of agents whose pool has no agentTemplate
    #[arg(long, value_name = "IMAGE")]
    agent_image: Option<String>,
    /// Where agents listen
    #[arg(long, default_value_t = 7070)]
    agent_port: u16,
    /// The Secret in each pool's namespace that agents get: `token`, or `tls.crt`, `tls.key` and `ca.crt`
    #[arg(long, value_name = "NAME")]
    agent_secret: Option<String>,
    /// The token to show to agents; nothing is encrypted then
    #[arg(long, value_name = "FILE")]
    agent_token_file: Option<PathBuf>,
    /// Instead: a token for each pool, made from this Secret of the operator's namespace, which is made if there is none;
    /// agents get it by a Secret beside their pool
    #[arg(long, value_name = "NAME", conflicts_with_all = ["agent_token_file", "agent_tls_cert", "agent_secret"])]
    agent_keys: Option<String>,
    /// The certificate to show to agents instead
    #[arg(long, value_name = "FILE", requires_all = ["agent_tls_key", "agent_ca"], conflicts_with = "agent_token_file")]
    agent_tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "agent_tls_cert")]
    agent_tls_key: Option<PathBuf>,
    /// Only agents with a certificate of these authorities are trusted
    #[arg(long, value_name = "FILE", requires = "agent_tls_cert")]
    agent_ca: Option<PathBuf>,
    /// The name that is in the certificates of agents
    #[arg(long, value_name = "NAME", default_value = "agentcube-agent")]
    agent_server_name: String,
    /// No sandbox reaches addresses in this range, whatever its egress: those of the cluster's Services and Pods, for
    /// example; may be given several times, or with commas between
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    agent_closed_to: Vec<Range>,
}

impl Agents {
    /// What the tokens of pools are made from, if they are.
    pub(super) async fn tokens(&self, client: &Client, namespace: &str) -> anyhow::Result<Option<Tokens>> {
        let Some(name) = &self.agent_keys else { return Ok(None) };
        let secret = token::ensure_token(client.clone(), namespace, name).await?;
        Ok(Some(Tokens::new(&secret)))
    }

    pub(super) fn pods(&self, tokens: Option<Tokens>) -> PodOptions {
        PodOptions {
            port: self.agent_port,
            image: self.agent_image.clone(),
            secret: self.agent_secret.clone(),
            tokens,
            certificates: self.agent_tls_cert.is_some(),
            closed_to: self.agent_closed_to.iter().map(ToString::to_string).collect(),
        }
    }

    /// Says what is wrong before anything is asked.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.agent_keys.is_none() { self.dial(None).map(drop) } else { Ok(()) }
    }

    pub(super) fn dial(&self, tokens: Option<Tokens>) -> anyhow::Result<Dial> {
        if let Some(tokens) = tokens {
            return Ok(Arc::new(move |pool, address| -> Arc<dyn AgentApi> {
                let agent = Remote::with_token(endpoint(address).connect_lazy(), &tokens.of(pool));
                Arc::new(agent.expect("a token is text"))
            }));
        }
        if let Some(path) = &self.agent_token_file {
            let token = read_token(path)?;
            return Ok(Arc::new(move |_, address| -> Arc<dyn AgentApi> {
                let agent = Remote::with_token(endpoint(address).connect_lazy(), &token);
                Arc::new(agent.expect("a token is text"))
            }));
        }
        let Some(tls) = self.tls()? else {
            let message = "agents have to know who calls: give --agent-keys, --agent-token-file, or --agent-tls-cert, \
                           --agent-tls-key and --agent-ca";
            return Err(Usage(message.into()).into());
        };
        tls.read().context("--agent-tls-cert, --agent-tls-key or --agent-ca")?;
        Ok(Arc::new(move |_, address| -> Arc<dyn AgentApi> { Arc::new(Remote::new(tls.channel(address))) }))
    }

    fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let files = (self.agent_tls_cert.clone(), self.agent_tls_key.clone(), self.agent_ca.clone());
        let (Some(certificate), Some(key), Some(authorities)) = files else { return Ok(None) };
        let name = ServerName::try_from(self.agent_server_name.clone());
        let name =
            name.map_err(|_| Usage(format!("--agent-server-name {:?} is no name", self.agent_server_name)))?;
        Ok(Some(Tls { certificate, key, authorities, name }))
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    // The scheme only says that nothing here encrypts; a connector may.
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address is a URI");
    endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true)
}

/// Certificates in files, read at each connection.
#[derive(Clone, Debug)]
struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
    name: ServerName<'static>,
}

impl Tls {
    fn read(&self) -> anyhow::Result<ClientConfig> {
        let read = |path: &PathBuf| -> anyhow::Result<Vec<CertificateDer<'static>>> {
            let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
                .with_context(|| format!("cannot read {}", path.display()))?
                .collect();
            all.with_context(|| format!("cannot read {}", path.display()))
        };
        let mut roots = RootCertStore::empty();
        for authority in read(&self.authorities)? {
            roots.add(authority)?;
        }
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let key = key.with_context(|| format!("cannot read {}", self.key.display()))?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(read(&self.certificate)?, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    fn channel(&self, address: SocketAddr) -> Channel {
        let tls = self.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let tls = tls.clone();
            async move {
                let config = tls.read().map_err(std::io::Error::other)?;
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let connected =
                    TlsConnector::from(Arc::new(config)).connect(tls.name.clone(), stream).await?;
                Ok::<_, std::io::Error>(TokioIo::new(connected))
            }
        });
        endpoint(address).connect_with_connector_lazy(connector)
    }
}
