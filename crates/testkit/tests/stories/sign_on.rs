//! Story 4: two identity providers with key sets on loopback, a gateway with TLS, and claims that arrive as headers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use agentcube_testkit::Request;
use agentcube_testkit::watch::{self, Objects};
use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Method, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{Answer, KNOWN, LIMIT, LOOK, World, condition, expect};

const GATEWAYS: &str = "/apis/agentcube.io/v1alpha1/namespaces/default/taskgateways";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const HOST: &str = "agents.company.com";

/// An identity provider.
struct Issuer {
    name: &'static str,
    pair: EcdsaKeyPair,
    address: SocketAddr,
    /// How often its keys were fetched.
    fetched: Arc<AtomicUsize>,
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Issuer {
    async fn start(world: &World, name: &'static str) -> Result<Issuer> {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let made = EcdsaKeyPair::generate_pkcs8(algorithm, &random);
        let made = made.ok().context("a key pair can be made")?;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, made.as_ref(), &random);
        let pair = pair.ok().context("a key pair can be read")?;
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let key =
            json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": "1", "x": encode(x), "y": encode(y) });
        let set = json!({ "keys": [key] }).to_string();
        let listener = TcpListener::bind((world.machine(), 0)).await?;
        let (address, fetched) = (listener.local_addr()?, Arc::new(AtomicUsize::new(0)));
        let count = fetched.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (set, count) = (set.clone(), count.clone());
                let service = hyper::service::service_fn(move |_: http::Request<Incoming>| {
                    count.fetch_add(1, Ordering::SeqCst);
                    let response = Response::new(Full::new(Bytes::from(set.clone())));
                    async move { Ok::<_, Infallible>(response) }
                });
                let serving = hyper::server::conn::http1::Builder::new();
                tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Issuer { name, pair, address, fetched })
    }

    /// A token of somebody, valid for this many seconds from now.
    fn token(&self, user: &str, seconds: i64) -> Result<String> {
        self.token_as(self.name, user, seconds)
    }

    /// The same in the name of whomever.
    fn token_as(&self, issuer: &str, user: &str, seconds: i64) -> Result<String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs().cast_signed();
        let claims = json!({ "iss": issuer, "aud": "https://api.company.com", "sub": user,
            "email": format!("{user}@company.com"), "tenant_id": "sales", "exp": now + seconds });
        let header = json!({ "alg": "ES256", "kid": "1" });
        let text = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let signature = self.pair.sign(&SystemRandom::new(), text.as_bytes());
        Ok(format!("{text}.{}", encode(signature.ok().context("a text can be signed")?)))
    }
}

/// The gateway as a client meets it that trusts its certificate.
struct Front {
    address: SocketAddr,
    tls: tokio_rustls::TlsConnector,
}

impl Front {
    /// Makes the certificate, and the Secret that holds it.
    async fn new(world: &World) -> Result<Front> {
        let key = rcgen::KeyPair::generate()?;
        let certificate = rcgen::CertificateParams::new([HOST.to_owned()])?.self_signed(&key)?;
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "company-tls-cert" },
            "type": "kubernetes.io/tls", "data": {
                "tls.crt": STANDARD.encode(certificate.pem()), "tls.key": STANDARD.encode(key.serialize_pem()) } });
        let reply = world.http.send(Request::new(Method::POST, SECRETS).json(&secret)).await?;
        ensure!(reply.status == 201, "cannot make the Secret: {}", reply.value());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Free a moment ago; the gateway takes it. That of a cluster has an address of its own.
        let address = TcpListener::bind((world.machine(), 0)).await?.local_addr()?;
        Ok(Front { address, tls: tokio_rustls::TlsConnector::from(Arc::new(config)) })
    }

    async fn ask(&self, method: Method, headers: &[(&str, &str)]) -> Result<Answer> {
        let stream = TcpStream::connect(self.address).await.context("the gateway does not listen")?;
        let stream = self.tls.connect(ServerName::try_from(HOST)?, stream).await.context("no TLS")?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request =
            http::Request::builder().method(method).uri("/default/assistant").header("host", HOST);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::new()))?;
        let response = tokio::time::timeout(LIMIT, sender.send_request(request)).await??;
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    /// Waits until it refuses who has no token: a gateway is programmed before its Envoys have heard of everything, each of
    /// their threads by itself.
    async fn listens(&self) -> Result<()> {
        let asking = async {
            let mut refused = 0;
            while refused < KNOWN {
                if self.ask(Method::GET, &[]).await.is_ok_and(|answer| answer.status == 401) {
                    refused += 1;
                } else {
                    refused = 0;
                    tokio::time::sleep(LOOK).await;
                }
            }
        };
        tokio::time::timeout(LIMIT, asking).await.context("the gateway never asks for a token")
    }

    async fn with_token(&self, token: &str) -> Result<Answer> {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("x-session-id", "1"), ("x-user-id", "root")];
        self.ask(Method::GET, &headers).await
    }
}

pub(crate) async fn single_sign_on(world: &World) -> Result<()> {
    let auth0 = Issuer::start(world, "https://company.auth0.com/").await?;
    let keycloak = Issuer::start(world, "https://sso.company.com/realms/staff").await?;
    let mut front = Front::new(world).await?;
    // As the example has it, but for where things are on this machine.
    let text = world.example("stories/4-single-sign-on.yaml")?;
    let text = text
        .replace("https://company.auth0.com/.well-known/jwks.json", &format!("http://{}/", auth0.address))
        .replace(
            "https://sso.company.com/realms/staff/protocol/openid-connect/certs",
            &format!("http://{}/", keycloak.address),
        )
        .replace("port: 8443", &format!("port: {}", front.address.port()));
    // Where each Envoy counts by itself there is nothing that counts over all.
    let text = match world.cluster() {
        Some(_) => text.replace("    global:\n", "    perRoute:\n"),
        None => text,
    };
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("4-single-sign-on.yaml");
    std::fs::write(&file, text)?;
    world.run(&["apply", "-f", &file.display().to_string(), "--wait", "--timeout", "120"]).await?;
    let ready = |gateways: &Objects| {
        let of = |gateway: &Value| {
            ["Ready", "GatewayReady", "SecurityPolicyReady", "RateLimitReady"]
                .iter()
                .all(|it| condition(gateway, it))
        };
        gateways.get("enterprise-gateway").is_some_and(of)
    };
    watch::until(&world.http, GATEWAYS, "the gateway is ready", LIMIT, ready).await?;
    if let Some(cluster) = world.cluster() {
        front.address = cluster.envoy("enterprise-gateway", front.address.port()).await?;
        front.listens().await?;
    }
    let mut instances = Vec::new();
    for (issuer, user) in [(&auth0, "ada"), (&keycloak, "bob"), (&auth0, "ada")] {
        let answer = front.with_token(&issuer.token(user, 600)?).await?;
        let seen = answer.json();
        let claims = (&seen["User-ID"], &seen["User-Email"], &seen["Tenant-ID"]);
        let mail = json!([format!("{user}@company.com")]);
        expect(claims == (&json!([user]), &mail, &json!(["sales"])), "claims arrive as headers", &answer)?;
        instances.push(answer.instance()?);
    }
    expect(instances[0] == instances[2], "a session stays with its subject", &instances)?;
    expect(instances[0] != instances[1], "the same session of another subject is another", &instances)?;
    refused(world, &front, &auth0, &keycloak).await?;
    let fetched = [&auth0, &keycloak].map(|issuer| issuer.fetched.load(Ordering::SeqCst));
    // Each thread of an Envoy may fetch them.
    let once = world.cluster().is_some() || fetched == [1, 1];
    expect(once && fetched.iter().all(|count| *count > 0), "keys are fetched once", &fetched)?;
    let page = [("origin", "https://portal.company.com"), ("access-control-request-method", "POST")];
    let answer = front.ask(Method::OPTIONS, &page).await?;
    let allowed = answer.headers.get("access-control-allow-origin").is_some_and(|it| it == page[0].1);
    expect([200, 204].contains(&answer.status) && allowed, "browsers may ask without a token", &answer)?;
    world.remove("assistant").await?;
    world.run(&["delete", "taskgateway", "enterprise-gateway"]).await?;
    world.run(&["delete", "secret", "company-tls-cert"]).await?;
    Ok(())
}

/// The rest get a 401, and nothing starts for them.
async fn refused(world: &World, front: &Front, auth0: &Issuer, keycloak: &Issuer) -> Result<()> {
    let answer = front.ask(Method::GET, &[("x-session-id", "1"), ("x-user-id", "ada")]).await?;
    let challenged = answer.headers.contains_key("www-authenticate");
    // Envoy says it in words of its own.
    let coded = |answer: &Answer, code: &str| world.cluster().is_some() || answer.refusal() == code;
    expect(answer.status == 401 && challenged && coded(&answer, "TokenMissing"), "no token", &answer)?;
    let good = auth0.token("ada", 600)?;
    let stranger = Issuer::start(world, "https://company.auth0.com/").await?;
    let cases = [
        ("expired", auth0.token("ada", -600)?),
        ("of a stranger", stranger.token("ada", 600)?),
        ("of the other provider", keycloak.token_as(auth0.name, "ada", 600)?),
        ("cut", good[..good.len() - 6].to_owned()),
        ("garbage", "garbage".into()),
    ];
    for (what, token) in cases {
        let answer = front.with_token(&token).await?;
        expect(answer.status == 401 && coded(&answer, "TokenInvalid"), what, &answer)?;
    }
    // The port of everybody does not lead there.
    let answer = world.ask(Method::GET, "/default/assistant", &[("x-session-id", "1")], "").await?;
    expect(answer.status == 404, "the Task is behind its own gateway only", &answer)?;
    let pods = world.pods("assistant").await?;
    let serving = pods.iter().filter(|pod| !crate::world::name(pod).ends_with("-prepare")).count();
    expect(serving == 2, "nothing starts for those who are refused", &serving)
}
