//! Fetches the keys of issuers: a GET over HTTP or HTTPS, bounded in time and size. Redirects are not followed: they
//! would lead to where nobody has said that keys are.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, USER_AGENT};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// How long a fetch may take as a whole.
const WHOLE: Duration = Duration::from_secs(5);
/// The most that is read, in bytes.
const LARGEST: usize = 256 << 10;

/// Why nothing was fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    #[error("{0}")]
    Connection(String),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("its answer broke off, or is larger than {LARGEST} bytes")]
    Body,
    #[error("it took longer than {WHOLE:?}")]
    Slow,
    #[error("what it answered is no key set")]
    NoKeys,
}

type Http = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Fetches. Set up when it is first needed: most gateways never fetch anything.
#[derive(Default)]
pub(crate) struct Fetcher(OnceLock<Result<Http, String>>);

impl Fetcher {
    pub(crate) async fn get(&self, uri: &Uri) -> Result<Bytes, Error> {
        match tokio::time::timeout(WHOLE, self.attempt(uri)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::Slow),
        }
    }

    async fn attempt(&self, uri: &Uri) -> Result<Bytes, Error> {
        let client = self.0.get_or_init(client).as_ref().map_err(|why| Error::Tls(why.clone()))?;
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri.clone();
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("agentcube"));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        let response = client.request(request).await.map_err(|error| Error::Connection(cause(&error)))?;
        if !response.status().is_success() {
            return Err(Error::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        Ok(body.map_err(|_| Error::Body)?.to_bytes())
    }
}

fn client() -> Result<Http, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let tls = match rustls_platform_verifier::Verifier::new_with_extra_roots([], provider) {
        Ok(verifier) => tls.dangerous().with_custom_certificate_verifier(Arc::new(verifier)),
        // Where nobody is trusted, plain addresses can still be used; others are refused.
        Err(_) => tls.with_root_certificates(rustls::RootCertStore::empty()),
    };
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls.with_no_client_auth())
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    Ok(Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(https))
}

/// The innermost of what went wrong.
fn cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
