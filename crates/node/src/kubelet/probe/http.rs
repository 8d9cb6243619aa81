//! Probes over HTTP and HTTPS. Certificates are not verified, as Pods make their own.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::HTTPGetAction;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{Target, connect, own_host};
use crate::kubelet::machine::Verdict;

/// More of an answer is not read.
const MOST_BYTES: usize = 10 << 10;
const MOST_REDIRECTS: usize = 10;

/// An answer: its status, where it leads, and the beginning of its body.
pub(super) struct Answer {
    status: u16,
    location: Option<String>,
    body: String,
}

pub(super) async fn probe(get: &HTTPGetAction, port: u16, target: &Target, limit: Duration) -> Verdict {
    match self::get(get, port, target, limit).await {
        Err(message) => Verdict::Failure(message),
        Ok(answer) => match answer.status {
            200..=299 => Verdict::Success,
            300..=399 => {
                Verdict::Warning(format!("Probe terminated redirects, Response body: {}", answer.body))
            }
            status => Verdict::Failure(format!("HTTP probe failed with statuscode: {status}")),
        },
    }
}

/// Asks, and follows where the same host leads.
pub(super) async fn get(
    get: &HTTPGetAction,
    port: u16,
    target: &Target,
    limit: Duration,
) -> Result<Answer, String> {
    own_host(get.host.as_deref(), target.address)?;
    let secure = get.scheme.as_deref() == Some("HTTPS");
    let scheme = if secure { "https" } else { "http" };
    let path = get.path.as_deref().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let first = format!("{scheme}://{}:{port}{path}", target.address);
    let asking = async {
        let mut url = first.clone();
        for _ in 0..MOST_REDIRECTS {
            let answer = ask(get, &url, target, limit).await?;
            match answer.location.as_deref().filter(|_| (300..400).contains(&answer.status)) {
                Some(location) => match within(&url, location) {
                    Some(next) => url = next,
                    None => return Ok(answer),
                },
                None => return Ok(answer),
            }
        }
        Err("stopped after 10 redirects".to_owned())
    };
    let waited = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    let outcome = tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| Err(waited.to_owned()));
    outcome.map_err(|reason| format!("Get \"{first}\": {reason}"))
}

/// Where a redirect leads, if to the same host.
fn within(url: &str, location: &str) -> Option<String> {
    let here: Uri = url.parse().ok()?;
    if location.starts_with('/') && !location.starts_with("//") {
        return Some(format!("{}://{}{location}", here.scheme_str()?, here.authority()?));
    }
    let there: Uri = location.parse().ok()?;
    (there.host()? == here.host()?).then(|| location.to_owned())
}

async fn ask(get: &HTTPGetAction, url: &str, target: &Target, limit: Duration) -> Result<Answer, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{error}"))?;
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let stream = connect(target, port, limit).await?;
    let request = request(get, &uri)?;
    if secure {
        let name = rustls::pki_types::ServerName::from(std::net::IpAddr::from(target.address));
        let stream = tls().connect(name, stream).await.map_err(|error| error.to_string())?;
        return send(stream, request).await;
    }
    send(stream, request).await
}

fn request(get: &HTTPGetAction, uri: &Uri) -> Result<Request<Empty<Bytes>>, String> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::get(path).body(Empty::new()).map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    for given in get.http_headers.iter().flatten() {
        let name: header::HeaderName =
            given.name.parse().map_err(|_| format!("invalid header {:?}", given.name))?;
        let value = given.value.parse().map_err(|_| format!("invalid value of header {:?}", given.name))?;
        headers.append(name, value);
    }
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let defaults = [(header::HOST, host), (header::USER_AGENT, "kube-probe/1.36"), (header::ACCEPT, "*/*")];
    for (name, value) in defaults {
        if !headers.contains_key(&name) {
            headers.insert(name, value.parse().map_err(|_| format!("invalid host {host:?}"))?);
        }
    }
    headers.insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    Ok(request)
}

async fn send<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_headers(256)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let asking = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        Ok(read(response).await)
    };
    beside(connection, asking).await
}

/// Drives a connection until the answer is there. That it ended is no news: the answer may have come before.
pub(super) async fn beside<T>(connection: impl Future, asking: impl Future<Output = T>) -> T {
    let driving = async {
        connection.await;
        std::future::pending::<std::convert::Infallible>().await
    };
    tokio::select! {
        answer = asking => answer,
        never = driving => match never {},
    }
}

/// The body only serves to be shown: what of it cannot be read is left out.
async fn read(response: Response<hyper::body::Incoming>) -> Answer {
    let status = response.status().as_u16();
    let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
    let location = location.map(str::to_owned);
    let wanted = (300..400).contains(&status);
    let body = match wanted {
        true => Limited::new(response.into_body(), MOST_BYTES).collect().await.ok(),
        false => None,
    };
    let body = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default();
    Answer { status, location, body }
}

fn tls() -> &'static TlsConnector {
    static CONNECTOR: OnceLock<TlsConnector> = OnceLock::new();
    CONNECTOR.get_or_init(|| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("ring speaks the default versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    })
}

/// Believes every certificate.
#[derive(Debug)]
struct Anyone(Arc<rustls::crypto::CryptoProvider>);

mod anyone {
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct, Error, SignatureScheme};

    impl ServerCertVerifier for super::Anyone {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}
