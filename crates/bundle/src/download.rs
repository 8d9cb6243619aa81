//! Downloads an archive into a file: bounded in size, time and redirects, its digest taken as it comes. Nothing leads
//! from an encrypted connection to a plain one.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_LENGTH, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ring::digest::{Context, SHA256};
use tokio::fs::File;
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

const REDIRECTS: usize = 5;
/// Progress is told of at most this often.
const TOLD_BYTES: u64 = 8 << 20;

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

/// This is no SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 has 64 hexadecimal digits")]
pub struct BadDigest;

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Digest, BadDigest> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(BadDigest);
        }
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| BadDigest)?;
        }
        Ok(Digest(bytes))
    }
}

impl Display for Digest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub connect: Duration,
    /// Until the head of an answer, and between two parts of its body.
    pub silence: Duration,
    /// For one attempt as a whole.
    pub whole: Duration,
    /// Attempts when the failure may pass, and the wait after the first of them, which doubles.
    pub attempts: u32,
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(10),
            silence: Duration::from_secs(30),
            whole: Duration::from_secs(600),
            attempts: 4,
            pause: Duration::from_secs(1),
        }
    }
}

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Only the host: the rest of an address may be secret.
    #[error("what leads to {0} is no http or https address")]
    Address(String),
    #[error("cannot set up TLS: {0}")]
    Tls(rustls::Error),
    #[error("cannot reach {host}: {cause}")]
    Connection { host: String, cause: String },
    #[error("{host} was silent for {0:?}", silence)]
    Silent { host: String, silence: Duration },
    #[error("the download took longer than {0:?}")]
    Slow(Duration),
    #[error("the connection broke off after {0} bytes")]
    Interrupted(u64),
    #[error("the server answered {0}")]
    Status(StatusCode),
    #[error("more than {REDIRECTS} redirects, or one to nowhere")]
    Redirects,
    #[error("redirected from https to {0} by a way that is not encrypted; it was not followed")]
    Plain(String),
    #[error("the archive has more than {0} bytes, which is its limit (codeBundle.sizeLimit)")]
    TooLarge(u64),
    #[error("the archive has the SHA-256 {found}, but {expected} is wanted: it was changed or damaged")]
    Digest { expected: Digest, found: Digest },
    #[error("cannot keep the archive: {0}")]
    File(std::io::Error),
}

impl Error {
    fn may_pass(&self) -> bool {
        match self {
            Error::Connection { .. } | Error::Silent { .. } | Error::Interrupted(_) | Error::Slow(_) => true,
            Error::Status(status) => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            _ => false,
        }
    }
}

/// Downloads archives.
pub struct Downloader {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    patience: Patience,
}

impl Downloader {
    pub fn new(patience: Patience) -> Result<Downloader, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(Error::Tls)?;
        let tls = match rustls_platform_verifier::Verifier::new_with_extra_roots([], provider) {
            Ok(verifier) => tls.dangerous().with_custom_certificate_verifier(Arc::new(verifier)),
            // Where nobody is trusted, plain addresses can still be used; others are refused.
            Err(_) => tls.with_root_certificates(rustls::RootCertStore::empty()),
        };
        let tls = tls.with_no_client_auth();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(patience.connect));
        let https =
            hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(https.wrap_connector(http));
        Ok(Downloader { client, patience })
    }

    /// Downloads what is at `address` into `file` and gives its digest, which must be `expected` if that is given.
    /// Says what happens to `tell`.
    pub async fn download(
        &self,
        address: &str,
        expected: Option<Digest>,
        limit: u64,
        file: &mut File,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<Digest, Error> {
        let mut pause = self.patience.pause;
        for attempt in 1.. {
            let whole = self.patience.whole;
            let outcome = tokio::time::timeout(whole, self.attempt(address, limit, file, tell)).await;
            let error = match outcome.unwrap_or(Err(Error::Slow(whole))) {
                Ok(found) => return matching(found, expected),
                Err(error) => error,
            };
            if !error.may_pass() || attempt >= self.patience.attempts {
                return Err(error);
            }
            tell(format!("{error}; trying again in {pause:?}"));
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        unreachable!("attempts are counted")
    }

    async fn attempt(
        &self,
        address: &str,
        limit: u64,
        file: &mut File,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<Digest, Error> {
        file.rewind().await.map_err(Error::File)?;
        file.set_len(0).await.map_err(Error::File)?;
        let response = self.follow(address, tell).await?;
        let length =
            response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: u64| length > limit) {
            return Err(Error::TooLarge(limit));
        }
        let host = host_of(address);
        let mut body = response.into_body();
        let (mut digest, mut came, mut told) = (Context::new(&SHA256), 0, 0);
        loop {
            let silence = self.patience.silence;
            let frame = tokio::time::timeout(silence, body.frame()).await;
            let frame = frame.map_err(|_| Error::Silent { host: host.clone(), silence })?;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| Error::Interrupted(came))?.into_data() else { continue };
            came += data.len() as u64;
            if came > limit {
                return Err(Error::TooLarge(limit));
            }
            digest.update(&data);
            file.write_all(&data).await.map_err(Error::File)?;
            if came - told >= TOLD_BYTES {
                told = came;
                tell(format!("{came} bytes"));
            }
        }
        file.flush().await.map_err(Error::File)?;
        let digest = digest.finish();
        let digest = Digest(digest.as_ref().try_into().expect("a SHA-256 has 32 bytes"));
        tell(format!("{came} bytes, SHA-256 {digest}"));
        Ok(digest)
    }

    async fn follow(
        &self,
        address: &str,
        tell: &(dyn Fn(String) + Sync),
    ) -> Result<Response<Incoming>, Error> {
        let mut address = address.to_string();
        for _ in 0..=REDIRECTS {
            let uri = parse(&address)?;
            let response = self.send(uri.clone()).await?;
            if !response.status().is_redirection() {
                return match response.status() {
                    status if status.is_success() => Ok(response),
                    status => Err(Error::Status(status)),
                };
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let location = location.ok_or(Error::Redirects)?;
            let next = absolute(&uri, location);
            if uri.scheme_str() == Some("https") && !next.starts_with("https://") {
                return Err(Error::Plain(host_of(&next)));
            }
            tell(format!("redirected to {}", host_of(&next)));
            address = next;
        }
        Err(Error::Redirects)
    }

    async fn send(&self, uri: Uri) -> Result<Response<Incoming>, Error> {
        let host = place_of(&uri);
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri;
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("agentcube"));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("*/*"));
        let silence = self.patience.silence;
        match tokio::time::timeout(silence, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(cause)) => Err(Error::Connection { host, cause: root_cause(&cause) }),
            Err(_) => Err(Error::Silent { host, silence }),
        }
    }
}

fn matching(found: Digest, expected: Option<Digest>) -> Result<Digest, Error> {
    match expected {
        Some(expected) if expected != found => Err(Error::Digest { expected, found }),
        _ => Ok(found),
    }
}

fn parse(address: &str) -> Result<Uri, Error> {
    let uri: Option<Uri> = address.parse().ok();
    let known = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some();
    uri.filter(known).ok_or_else(|| Error::Address(host_of(address)))
}

/// Where a redirect leads. One relative to the path has gone out of use and is not understood.
fn absolute(from: &Uri, location: &str) -> String {
    let rooted = location.starts_with('/') && !location.starts_with("//");
    match (rooted, from.scheme_str(), from.authority()) {
        (true, Some(scheme), Some(authority)) => format!("{scheme}://{authority}{location}"),
        _ => location.into(),
    }
}

/// The host of an address; the rest may be secret.
fn host_of(address: &str) -> String {
    let uri: Option<Uri> = address.parse().ok();
    uri.and_then(|uri| uri.host().map(Into::into)).unwrap_or_else(|| "nowhere".into())
}

/// The same, with the port.
fn place_of(uri: &Uri) -> String {
    let host = uri.host().unwrap_or("nowhere");
    uri.port().map_or_else(|| host.into(), |port| format!("{host}:{port}"))
}

/// The last cause is the one that says something.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_addresses_is_not_secret() {
        for address in
            ["ftp://user:secret@host.example/p?token=secret", "https://user:secret@[host?token=secret"]
        {
            let told = parse(address).unwrap_err().to_string();
            assert!(!told.contains("secret") && told.contains("no http or https address"), "{told}");
        }
        let uri: Uri = "https://user:secret@host.example:8443/p?token=secret".parse().unwrap();
        assert_eq!(place_of(&uri), "host.example:8443");
        assert_eq!(host_of(&uri.to_string()), "host.example");
    }
}
