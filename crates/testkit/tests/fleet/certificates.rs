//! The controller and its agents know each other by certificates instead of a token, and clients know the controller. Who
//! has a certificate of somebody else is nobody to them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agentcube_protos::agent::SyncRequest;
use agentcube_protos::fastpath::fast_path_client::FastPathClient;
use agentcube_protos::fastpath::{CreateRequest, FailurePolicy};
use agentcube_protos::link::{AgentApi, Remote};
use anyhow::{Context, Result, ensure};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

use crate::alone::{SERVES, ask};
use crate::book::Mode;
use crate::client::{Client, order};
use crate::world::{LONG, LOOK, Settings, TOKEN, World, path};

const CONTROLLER: &str = "controller.fleet.test";
const AGENT: &str = "agents.fleet.test";
/// What clients call the controller.
const DOOR: &str = "sandboxes.fleet.test";
/// How long a create that nobody can carry out may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Who vouches for names.
#[derive(Debug)]
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Result<Authority> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Authority(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    fn certificate(&self, name: &str) -> Result<(rcgen::Certificate, KeyPair)> {
        let key = KeyPair::generate()?;
        Ok((CertificateParams::new([name.to_owned()])?.signed_by(&key, &self.0)?, key))
    }

    /// A new certificate of this name, for whoever is to show it.
    fn write(&self, directory: &Path, who: &str, name: &str) -> Result<()> {
        let (certificate, key) = self.certificate(name)?;
        std::fs::write(directory.join(format!("{who}.key")), key.serialize_pem())?;
        Ok(std::fs::write(directory.join(format!("{who}.crt")), certificate.pem())?)
    }

    /// All that the processes of a world have to show, and whom they trust.
    pub(crate) fn write_all(&self, directory: &Path) -> Result<()> {
        std::fs::write(directory.join("ca.crt"), self.0.pem())?;
        [CONTROLLER, AGENT, DOOR].iter().try_for_each(|name| self.write(directory, name, name))
    }
}

fn words(directory: &Path, all: &[(&str, &str, &str)]) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for (flag, name, what) in all {
        words.extend([(*flag).to_owned(), path(&directory.join(format!("{name}.{what}")))?.to_owned()]);
    }
    Ok(words)
}

/// What an agent is told, with the files of [`Authority::write_all`].
pub(crate) fn of_agent(directory: &Path) -> Result<Vec<String>> {
    let files = [("--tls-cert", AGENT, "crt"), ("--tls-key", AGENT, "key"), ("--client-ca", "ca", "crt")];
    let mut words = words(directory, &files)?;
    words.extend(["--log", "info"].map(str::to_owned));
    Ok(words)
}

/// What a controller is told. Why an agent does not answer it says only to whoever asks for more than usual.
pub(crate) fn of_controller(directory: &Path) -> Result<Vec<String>> {
    let agents = [
        ("--agent-tls-cert", CONTROLLER, "crt"),
        ("--agent-tls-key", CONTROLLER, "key"),
        ("--agent-ca", "ca", "crt"),
    ];
    let clients = [("--tls-cert", DOOR, "crt"), ("--tls-key", DOOR, "key")];
    let mut words = words(directory, &[&agents[..], &clients].concat())?;
    let more = ["--agent-server-name", AGENT, "--log", "info,agentcube_sandbox::link=debug"];
    words.extend(more.map(str::to_owned));
    Ok(words)
}

/// A way to whoever has a certificate of this name, for somebody who may show one as well.
fn channel(
    address: SocketAddr,
    name: &'static str,
    trusted: &Authority,
    shown: Option<&Authority>,
) -> Result<Channel> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.0.der().clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots);
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let (certificate, key) = authority.certificate(CONTROLLER)?;
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            builder.with_client_auth_cert(vec![certificate.der().clone()], key)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let connect = tower::service_fn(move |_: http::Uri| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from(name).map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    Ok(Endpoint::from_static("http://by-certificates").connect_with_connector_lazy(connect))
}

pub(crate) async fn are_shown(program: &Path) -> Result<()> {
    let authority = Arc::new(Authority::new("ours")?);
    let settings = Settings {
        slots: 4,
        lease: Duration::from_secs(4),
        timing: Vec::new(),
        controllers: 1,
        logged: false,
        authority: Some(authority.clone()),
    };
    let world = World::start(program, settings).await?;
    let outcome = known_and_strangers(&world, &authority).await.with_context(|| world.told());
    outcome.and(world.end().await)
}

fn serving(name: &str) -> CreateRequest {
    CreateRequest {
        command: SERVES.map(str::to_owned).to_vec(),
        ports: vec![8080],
        wait_ready: true,
        ..order(name, Mode::Fast, FailurePolicy::Manual)
    }
}

async fn known_and_strangers(world: &World, authority: &Authority) -> Result<()> {
    world.leader().await?;
    let stranger = Authority::new("a stranger")?;
    let door = world.controllers[0].address;
    let client = Client::over(vec![channel(door, DOOR, authority, None)?])?;
    let made = client.create(serving("known")).await??;
    ensure!(ask(&made.endpoints[0]).await?.starts_with("HTTP/1.1 200"), "{made:?}");
    let misled = once(channel(door, DOOR, &stranger, None)?, serving("misled")).await;
    ensure!(misled.contains("UnknownIssuer"), "whoever trusts somebody else finds nobody there: {misled}");

    let agent = world.agents.of(&made.agent_pod).context("its agent")?;
    let says = async |shown| -> Result<_> {
        Ok(Remote::new(channel(agent.address, AGENT, authority, shown)?).sync(SyncRequest::default()).await)
    };
    // An old term is refused, with how much there is.
    ensure!(says(Some(authority)).await??.used == 1);
    for (shown, why) in [(None, "sent no certificates"), (Some(&stranger), "UnknownIssuer")] {
        ensure!(says(shown).await?.is_err(), "whoever shows what is not ours is let in");
        until(|| agent.log().contains(why)).await.with_context(|| format!("{why}\n{}", agent.log()))?;
    }
    for (wrong, name, why) in [(&stranger, AGENT, "UnknownIssuer"), (authority, DOOR, "NotValidForName")] {
        show(world, wrong, name).await?;
        until(|| of_all(world, why)).await.context(why)?;
        let refused = once(channel(door, DOOR, authority, None)?, serving("nowhere")).await;
        ensure!(!refused.is_empty(), "agents with wrong certificates were given a sandbox");
    }
    show(world, authority, AGENT).await?;
    let made = client.create(serving("again")).await??;
    ensure!(ask(&made.endpoints[0]).await?.starts_with("HTTP/1.1 200"), "{made:?}");
    client.delete("known").await?;
    client.delete("again").await
}

/// One try; why nothing came of it.
async fn once(channel: Channel, create: CreateRequest) -> String {
    let mut request = Request::new(create);
    let token = format!("Bearer {TOKEN}").parse().expect("a token is text");
    request.metadata_mut().insert("authorization", token);
    request.set_timeout(PATIENCE);
    let refused = FastPathClient::new(channel).create_sandbox(request).await.err();
    refused.map(|status| format!("{status:?}")).unwrap_or_default()
}

/// From their next connections on, agents show this certificate: there are new ones when their workers have died.
async fn show(world: &World, authority: &Authority, name: &str) -> Result<()> {
    authority.write(world.directory.path(), AGENT, name)?;
    for agent in world.agents.all() {
        agent.worker_dies().await?;
    }
    Ok(())
}

/// Whether the controller has said of every agent why it does not talk to it.
fn of_all(world: &World, why: &str) -> bool {
    let log = world.controllers[0].log().unwrap_or_default();
    let of = |name: &str| log.lines().any(|line| line.contains(name) && line.contains(why));
    world.agents.all().iter().all(|agent| of(&agent.name))
}

async fn until(said: impl Fn() -> bool) -> Result<()> {
    let looking = async {
        while !said() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(LONG, looking).await.context("it is never said")
}
