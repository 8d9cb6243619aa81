//! The same agent, behind gRPC.

use std::net::Ipv4Addr;
use std::sync::Arc;

use agentcube_agent::serve::{Access, mutual, serve};
use agentcube_protos::agent::agent_client::AgentClient;
use agentcube_protos::agent::start_response::Outcome;
use agentcube_protos::agent::{ExecRequest, LogsRequest, StopRequest, SyncRequest};
use agentcube_protos::link::{AgentApi, Remote};
use agentcube_protos::session::exec_output::Output;
use agentcube_protos::session::{ExecStart, LogOptions};
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, stream};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use crate::world::{World, command};

/// All that a controller does, through `remote`.
async fn works(world: &World, remote: &Remote, name: &str) -> Result<()> {
    let fence = Some(world.fence.clone());
    let told = remote.sync(SyncRequest { fence: fence.clone(), ..SyncRequest::default() }).await?;
    ensure!(told.whole && told.agent_uid == world.fence.agent_uid && told.used == 0, "{told:?}");
    let answer = remote.start(world.order(name, &["say-and-wait", "hello"])).await?;
    ensure!(matches!(answer.outcome, Some(Outcome::Started(_))), "{answer:?}");
    let options = Some(LogOptions { follow: true, ..LogOptions::default() });
    let mut chunks = remote.logs(LogsRequest { run_id: world.run(name), options }).await?;
    ensure!(chunks.next().await.context("a chunk")??.content == b"hello\n");
    let start = Some(ExecStart { command: command(&["exit", "9"]), ..ExecStart::default() });
    let first = ExecRequest { run_id: world.run(name), start, input: None };
    let outputs = remote.exec(stream::iter([first]).chain(stream::pending()).boxed()).await?;
    let last = outputs.collect::<Vec<_>>().await.pop().context("an end")??;
    ensure!(matches!(&last.output, Some(Output::Exit(exit)) if exit.code == 9), "{last:?}");
    let stop = StopRequest { fence, run_id: world.run(name), ..StopRequest::default() };
    ensure!(remote.stop(stop).await?.was_there);
    ensure!(chunks.next().await.is_none(), "a log ends with its run");
    Ok(())
}

async fn listen(
    world: &World,
    access: Access,
) -> Result<(u16, CancellationToken, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let (agent, shutdown) = (world.agent.clone(), CancellationToken::new());
    let stop = shutdown.clone();
    let serving =
        tokio::spawn(async move { serve(agent, listener, access, |_| (), stop).await.expect("it serves") });
    Ok((port, shutdown, serving))
}

pub(crate) async fn with_a_token(world: &World) -> Result<()> {
    let (port, shutdown, serving) = listen(world, Access::Token("secret".into())).await?;
    let channel = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?.connect().await?;
    for token in [None, Some("Bearer another"), Some("secret")] {
        let mut request = Request::new(SyncRequest::default());
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", token.parse()?);
        }
        let refused = AgentClient::new(channel.clone()).sync(request).await.err().context("a wrong token")?;
        ensure!(refused.code() == Code::Unauthenticated, "{refused}");
    }
    let mut request =
        Request::new(SyncRequest { fence: Some(world.fence.clone()), ..SyncRequest::default() });
    request.metadata_mut().insert("authorization", "Bearer secret".parse()?);
    let told = AgentClient::new(channel.clone()).sync(request).await?.into_inner();
    ensure!(told.incarnation == world.fence.incarnation);
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let service = "agent.v1.Agent".to_owned();
    let answer = health.check(tonic_health::pb::HealthCheckRequest { service }).await?.into_inner();
    ensure!(answer.status == 1, "{answer:?}");
    drop(health);
    shutdown.cancel();
    serving.await.map_err(Into::into)
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    fn certificate(&self, name: &str) -> Result<(rcgen::Certificate, KeyPair)> {
        let key = KeyPair::generate()?;
        Ok((CertificateParams::new([name.to_owned()])?.signed_by(&key, &self.0)?, key))
    }
}

async fn dial(port: u16, server: &Authority, client: Option<&Authority>) -> Result<Channel> {
    let mut roots = RootCertStore::empty();
    roots.add(server.0.der().clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let (certificate, key) = authority.certificate("controller")?;
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            builder.with_client_auth_cert(vec![certificate.der().clone()], key)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let connect = tower::service_fn(move |_| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            let name = ServerName::try_from("pool.default.agents").map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    Ok(Endpoint::from_static("http://agent").connect_with_connector(connect).await?)
}

pub(crate) async fn with_certificates(world: &World) -> Result<()> {
    let (authority, stranger) = (Authority::new()?, Authority::new()?);
    let (certificate, key) = authority.certificate("pool.default.agents")?;
    let (chain, roots) = (certificate.pem(), authority.0.pem());
    let config = mutual(chain.as_bytes(), key.serialize_pem().as_bytes(), roots.as_bytes())?;
    let config = Arc::new(config);
    let (port, shutdown, serving) =
        listen(world, Access::Certificates(Arc::new(move || config.clone()))).await?;
    for wrong in [None, Some(&stranger)] {
        // The server says so after its own part of the handshake: at the latest the first call fails.
        let refused = match dial(port, &authority, wrong).await {
            Err(_) => true,
            Ok(channel) => Remote::new(channel).sync(SyncRequest::default()).await.is_err(),
        };
        ensure!(refused, "whoever has no certificate of ours is not let in");
    }
    let remote = Remote::new(dial(port, &authority, Some(&authority)).await?);
    works(world, &remote, "remote").await?;
    drop(remote);
    shutdown.cancel();
    serving.await.map_err(Into::into)
}
