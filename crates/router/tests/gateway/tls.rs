//! Listeners with TLS: certificates by name, renewed, broken; versions; both HTTPs.

use std::net::Ipv4Addr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::world::{World, condition, echo, gateway_object, http_listener, read};

/// A certificate for a name, and the Secret that holds it.
fn secret(name: &str, host: &str) -> (Value, CertificateDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([host.to_owned()]).unwrap().self_signed(&key).unwrap();
    let data = json!({ "tls.crt": STANDARD.encode(certificate.pem()), "tls.key": STANDARD.encode(key.serialize_pem()) });
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "type": "kubernetes.io/tls", "data": data });
    (secret, certificate.der().clone())
}

fn https(name: &str, port: u16, host: Option<&str>, secrets: &[&str]) -> Value {
    let references: Vec<Value> = secrets.iter().map(|name| json!({ "name": name })).collect();
    let mut listener = json!({ "name": name, "port": port, "protocol": "HTTPS",
        "tls": { "mode": "Terminate", "certificateRefs": references } });
    if let Some(host) = host {
        listener["hostname"] = json!(host);
    }
    listener
}

/// Takes any certificate: which one it is, the tests compare themselves.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

async fn connect(
    port: u16,
    host: &str,
    alpn: &[u8],
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any))
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let name = ServerName::try_from(host.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn shown(port: u16, host: &str) -> Option<CertificateDer<'static>> {
    let stream = connect(port, host, b"http/1.1", rustls::ALL_VERSIONS).await.ok()?;
    Some(stream.get_ref().1.peer_certificates()?.first()?.clone().into_owned())
}

/// A Gateway of these listeners, served, and a Task `echo` behind it.
async fn world(listeners: impl FnOnce(u16) -> Value, secrets: &[Value], policy: Value) -> (World, Value) {
    let world = World::new().await;
    for secret in secrets {
        world.create(secret.clone()).await;
    }
    let listeners = listeners(world.second_port);
    let mut spec = json!({ "listeners": listeners });
    for (at, tls) in policy.as_object().unwrap() {
        spec["listeners"][at.parse::<usize>().unwrap()]["tls"] = tls.clone();
    }
    let policy = json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "TaskGateway",
        "metadata": { "name": "secure" }, "spec": spec });
    world.create(policy).await;
    let gateway = world.create(gateway_object("secure", listeners)).await;
    let routing = json!({ "gatewayRefs": ["default", "secure"], "routePolicy": "Oneshot" });
    world.task("echo", json!({ "routing": routing }), &[echo("one").await]).await;
    let gateway = world.until(&gateway, |it| it["status"]["listeners"].is_array()).await;
    (world, gateway)
}

#[tokio::test]
async fn the_certificate_is_that_of_the_name_asked_for() {
    let (a, of_a) = secret("a", "a.example.com");
    let (b, of_b) = secret("b", "b.example.org");
    let (c, of_c) = secret("c", "c.example.org");
    let listeners = |port| {
        json!([
            https("one", port, Some("*.example.com"), &["a"]),
            https("two", port, Some("*.example.org"), &["b", "c"])
        ])
    };
    let (world, gateway) = world(listeners, &[a, b, c], json!({})).await;
    for listener in gateway["status"]["listeners"].as_array().unwrap() {
        for type_ in ["Accepted", "Programmed", "ResolvedRefs"] {
            assert_eq!(condition(listener, type_).unwrap()["status"], "True", "{listener:#}");
        }
    }
    let port = world.second_port;
    assert_eq!(shown(port, "a.example.com").await, Some(of_a.clone()));
    assert_eq!(shown(port, "x.example.com").await, Some(of_a), "the first, if there is none of the name");
    assert_eq!(shown(port, "b.example.org").await, Some(of_b));
    assert_eq!(shown(port, "c.example.org").await, Some(of_c.clone()));
    assert_eq!(shown(port, "nobody.example.net").await, None, "no listener has the name");
    // A Secret that changes is a certificate that changes.
    let (renewed, of_renewed) = secret("c", "c.example.org");
    world.patch(&renewed, json!({ "data": renewed["data"] })).await;
    let new = || async { shown(port, "c.example.org").await.filter(|shown| *shown != of_c) };
    assert_eq!(world.eventually(new).await, of_renewed);
}

#[tokio::test]
async fn both_http_are_spoken_and_the_instance_is_told() {
    let (a, _) = secret("a", "a.example.com");
    let (world, _) = world(|port| json!([https("one", port, None, &["a"])]), &[a], json!({})).await;
    let request = || Request::get("https://a.example.com/default/echo").body(Empty::<Bytes>::new()).unwrap();
    let stream = connect(world.second_port, "a.example.com", b"h2", rustls::ALL_VERSIONS).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (status, answer) = read(sender.send_request(request()).await.unwrap()).await;
    assert_eq!((status, &answer["headers"]["x-forwarded-proto"]), (StatusCode::OK, &json!("https")));
    let stream =
        connect(world.second_port, "a.example.com", b"http/1.1", rustls::ALL_VERSIONS).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (status, answer) = read(sender.send_request(request()).await.unwrap()).await;
    assert_eq!((status, &answer["headers"]["x-forwarded-proto"]), (StatusCode::OK, &json!("https")));
    let (_, answer) = world.get("/default/echo", &[("x-forwarded-proto", "https")]).await;
    assert_eq!(answer["headers"]["x-forwarded-proto"], "http");
    // Who does not speak TLS gets nothing.
    let io = TokioIo::new(TcpStream::connect((Ipv4Addr::LOCALHOST, world.second_port)).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    assert!(sender.send_request(request()).await.is_err());
}

#[tokio::test]
async fn versions_are_those_of_the_listener() {
    let (a, _) = secret("a", "a.example.com");
    let tls = |least: &str, most: &str| json!({ "certificateRefs": [{ "name": "a" }], "minVersion": least, "maxVersion": most });
    let listeners = |port| {
        json!([
            https("new", port, Some("new.example.com"), &["a"]),
            https("old", port, Some("old.example.com"), &["a"])
        ])
    };
    let policy = json!({ "0": tls("1.3", "1.3"), "1": tls("1.2", "1.2") });
    let (world, _) = world(listeners, &[a], policy).await;
    let (new, old) = ([&rustls::version::TLS13], [&rustls::version::TLS12]);
    let speaks = async |host: &str, versions: &[&'static SupportedProtocolVersion]| {
        connect(world.second_port, host, b"h2", versions).await.is_ok()
    };
    assert!(speaks("new.example.com", &new).await && !speaks("new.example.com", &old).await);
    assert!(speaks("old.example.com", &old).await && !speaks("old.example.com", &new).await);
}

#[tokio::test]
async fn a_broken_certificate_is_told_and_others_go_on() {
    let (good, of_good) = secret("good", "good.example.com");
    let (mut mixed, _) = secret("mixed", "mixed.example.com");
    mixed["data"]["tls.key"] = secret("other", "x").0["data"]["tls.key"].clone();
    let (mut opaque, _) = secret("opaque", "opaque.example.com");
    opaque["type"] = json!("Opaque");
    let mut foreign = json!({});
    let listeners = |port| {
        let of = |name: &str| https(name, port, Some(&format!("{name}.example.com")), &[name]);
        foreign = of("foreign");
        foreign["tls"]["certificateRefs"][0]["namespace"] = json!("elsewhere");
        json!([of("good"), of("mixed"), of("opaque"), of("missing"), foreign])
    };
    let (world, gateway) = world(listeners, &[good, mixed, opaque], json!({})).await;
    let listeners = &gateway["status"]["listeners"];
    let resolved = |at: usize| {
        let said = condition(&listeners[at], "ResolvedRefs").unwrap();
        (said["reason"].as_str().unwrap().to_owned(), said["message"].as_str().unwrap().to_owned())
    };
    assert_eq!(resolved(0).0, "ResolvedRefs");
    for (at, reason, words) in [
        (1, "InvalidCertificateRef", "not the key"),
        (2, "InvalidCertificateRef", "no Secret opaque of type kubernetes.io/tls"),
        (3, "InvalidCertificateRef", "no Secret missing"),
        (4, "RefNotPermitted", "own namespace"),
    ] {
        let (said, message) = resolved(at);
        assert!(said == reason && message.contains(words), "{at}: {said} {message}");
        assert_eq!(condition(&listeners[at], "Programmed").unwrap()["status"], "False");
    }
    assert_eq!(condition(&gateway["status"], "Programmed").unwrap()["status"], "True");
    assert_eq!(shown(world.second_port, "good.example.com").await, Some(of_good));
    assert_eq!(shown(world.second_port, "mixed.example.com").await, None);
    // It heals when the Secret comes.
    let (missing, of_missing) = secret("missing", "missing.example.com");
    world.create(missing).await;
    let served = || shown(world.second_port, "missing.example.com");
    assert_eq!(world.eventually(served).await, of_missing);
}

#[tokio::test]
async fn a_port_is_with_tls_or_without() {
    let (a, _) = secret("a", "a.example.com");
    let (world, _) = world(|port| json!([https("one", port, None, &["a"])]), &[a], json!({})).await;
    let plain =
        world.create(gateway_object("plain", json!([http_listener("http", world.second_port)]))).await;
    let plain = world.until(&plain, |it| it["status"]["listeners"].is_array()).await;
    let said = condition(&plain["status"]["listeners"][0], "Accepted").unwrap();
    assert_eq!((&said["status"], &said["reason"]), (&json!("False"), &json!("PortUnavailable")));
    // What is only for TLS is not to be had without, on a port that has none.
    let listeners = json!([https("mine", world.port, None, &["a"])]);
    let clash = world.create(gateway_object("clash", listeners)).await;
    world.until(&clash, |it| it["status"]["listeners"].is_array()).await;
    world.instances.set("private", &[echo("private").await]);
    let task = json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": "private" },
        "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} },
            "routing": { "gatewayRefs": ["clash"], "routePolicy": "Oneshot" } } });
    let task = world.create(task).await;
    let route = world.route(&task, "clash").await;
    world.until(&route, |it| it["status"]["parents"].is_array()).await;
    assert_eq!(world.get("/default/private", &[]).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_connection_serves_the_hosts_that_it_was_made_for() {
    let (a, _) = secret("a", "a.example.com");
    let (b, _) = secret("b", "b.example.com");
    let (c, _) = secret("c", "c.example.org");
    let listeners = |port| {
        json!([
            https("one", port, Some("*.example.com"), &["a", "b"]),
            https("two", port, Some("*.example.org"), &["c"])
        ])
    };
    let (world, _) = world(listeners, &[a, b, c], json!({})).await;
    let stream = connect(world.second_port, "a.example.com", b"h2", rustls::ALL_VERSIONS).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let ask = async |host: &str| {
        let request =
            Request::get(format!("https://{host}/default/echo")).body(Empty::<Bytes>::new()).unwrap();
        read(sender.clone().send_request(request).await.unwrap()).await
    };
    for host in ["a.example.com", "A.Example.com:443", "x.example.com"] {
        assert_eq!(ask(host).await.0, StatusCode::OK, "{host}");
    }
    for host in ["b.example.com", "c.example.org", "nobody.example.net"] {
        let (status, answer) = ask(host).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (StatusCode::MISDIRECTED_REQUEST, &json!("Misdirected")),
            "{host}"
        );
    }
}

#[tokio::test]
async fn a_port_changes_to_tls_without_being_let_go() {
    let (a, of_a) = secret("a", "a.example.com");
    let world = World::new().await;
    world.create(a).await;
    let gateway =
        world.create(gateway_object("secure", json!([http_listener("one", world.second_port)]))).await;
    let seen = |generation: i64| {
        move |it: &Value| {
            let said = condition(&it["status"]["listeners"][0], "Accepted");
            said.is_some_and(|said| said["observedGeneration"] == generation)
        }
    };
    for (generation, listener) in [
        (2, https("one", world.second_port, None, &["a"])),
        (3, http_listener("one", world.second_port)),
        (4, https("one", world.second_port, None, &["a"])),
    ] {
        let before = world.until(&gateway, seen(generation - 1)).await;
        world.patch(&gateway, json!({ "spec": { "listeners": [listener] } })).await;
        for state in world.states_until(&before, seen(generation)).await {
            let said = condition(&state["status"]["listeners"][0], "Accepted").unwrap();
            assert_eq!(said["status"], "True", "not for a moment: {said}");
        }
    }
    assert_eq!(shown(world.second_port, "a.example.com").await, Some(of_a));
}

#[tokio::test]
async fn who_leaves_tls_on_a_shared_port_takes_its_certificate_along() {
    let (a, of_a) = secret("a", "a.example.com");
    let (b, of_b) = secret("b", "b.example.com");
    let world = World::new().await;
    for secret in [a, b] {
        world.create(secret).await;
    }
    let port = world.second_port;
    let of = |name: &str| {
        gateway_object(name, json!([https(name, port, Some(&format!("{name}.example.com")), &[name])]))
    };
    let (one, two) = (world.create(of("a")).await, world.create(of("b")).await);
    for gateway in [&one, &two] {
        world.until(gateway, |it| it["status"]["listeners"].is_array()).await;
    }
    assert_eq!(
        (shown(port, "a.example.com").await, shown(port, "b.example.com").await),
        (Some(of_a), Some(of_b.clone()))
    );
    world.patch(&one, json!({ "spec": { "listeners": [http_listener("a", port)] } })).await;
    let refused = |it: &Value| {
        let said = condition(&it["status"]["listeners"][0], "Accepted");
        said.is_some_and(|said| said["reason"] == "PortUnavailable")
    };
    world.until(&one, refused).await;
    assert_eq!((shown(port, "a.example.com").await, shown(port, "b.example.com").await), (None, Some(of_b)));
}
