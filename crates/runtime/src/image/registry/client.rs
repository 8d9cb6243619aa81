//! Requests to one registry for one repository: encryption, redirects, authentication.
//!
//! Credentials go to the registry and to the token server it names, never elsewhere, and never into an error or a log.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderValue, LOCATION, RANGE, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;

use super::auth::{self, Challenge};
use super::{Error, Options};
use crate::image::Credentials;

const CONNECT: Duration = Duration::from_secs(15);
/// Until the head of an answer, and between two parts of its body.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
const REDIRECTS: usize = 5;
const TOKEN_BYTES: usize = 1 << 20;

/// How registries are spoken to; holds the connections.
pub(in crate::image) struct Registry {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    insecure: Vec<String>,
}

/// One repository of one registry, for the time of a pull.
pub(super) struct Session<'a> {
    registry: &'a Registry,
    /// `https` or `http`, the host and its port.
    origin: String,
    repository: String,
    credentials: Option<&'a Credentials>,
    /// The `Authorization` header that the registry accepted or will be offered next.
    authorization: tokio::sync::Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    pub(in crate::image) fn new(options: &Options) -> Result<Self, Error> {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let mut extra = Vec::new();
        if let Some(pem) = &options.registry_ca {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                extra.push(certificate.map_err(|_| Error::Ca)?);
            }
            if extra.is_empty() {
                return Err(Error::Ca);
            }
        }
        let tls = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(Error::Tls)?;
        let tls = match rustls_platform_verifier::Verifier::new_with_extra_roots(extra, provider) {
            Ok(verifier) => tls.dangerous().with_custom_certificate_verifier(std::sync::Arc::new(verifier)),
            // A machine that trusts nobody can still pull over loopback; elsewhere the certificate is refused.
            Err(error) => {
                tracing::warn!("no certificate of a registry will be trusted: {error}");
                tls.with_root_certificates(rustls::RootCertStore::empty())
            }
        };
        let tls = tls.with_no_client_auth();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT));
        let https =
            hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(https.wrap_connector(http));
        Ok(Self { client, insecure: options.insecure_registries.clone() })
    }

    pub(super) async fn session<'a>(
        &'a self,
        host: &str,
        repository: &str,
        credentials: Option<&'a Credentials>,
    ) -> Result<Session<'a>, Error> {
        let mut origin = format!("https://{host}");
        // As Docker does: encrypted if it can be had, plain where that was allowed.
        if self.may_be_plain(host)
            && let Err(error) = self.send(&format!("{origin}/v2/"), &[]).await
        {
            if error.is_certificate() {
                return Err(error);
            }
            origin = format!("http://{host}");
        }
        let authorization = tokio::sync::Mutex::default();
        Ok(Session { registry: self, origin, repository: repository.to_owned(), credentials, authorization })
    }

    fn may_be_plain(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let loopback = address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        name == "localhost" || loopback || self.insecure.iter().any(|insecure| insecure == host)
    }

    async fn send(
        &self,
        address: &str,
        headers: &[(hyper::header::HeaderName, HeaderValue)],
    ) -> Result<Response<Incoming>, Error> {
        let uri: Uri = address.parse().map_err(|_| Error::Address)?;
        let host = uri.authority().map(ToString::to_string).unwrap_or_default();
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri;
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("agentcube"));
        for (name, value) in headers {
            request.headers_mut().insert(name, value.clone());
        }
        match tokio::time::timeout(SILENCE, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(cause)) => Err(Error::Connection { host, cause }),
            Err(_) => Err(Error::Silent { host }),
        }
    }
}

impl Session<'_> {
    /// Gets `PATH` of this repository; an answer that is not a success is an error.
    pub(super) async fn get(
        &self,
        path: &str,
        accept: Option<HeaderValue>,
        from: u64,
    ) -> Result<Response<Incoming>, Error> {
        let mut headers = Vec::new();
        headers.extend(accept.map(|accept| (ACCEPT, accept)));
        if from > 0 {
            let range = HeaderValue::try_from(format!("bytes={from}-")).map_err(|_| Error::Address)?;
            headers.push((RANGE, range));
        }
        let address = format!("{}/v2/{}/{path}", self.origin, self.repository);
        let mut offered = self.authorization.lock().await.clone();
        // At most one token that has run out, and one new one.
        for _ in 0..2 {
            let response = self.follow(&address, &headers, offered.as_ref()).await?;
            if response.status() != StatusCode::UNAUTHORIZED {
                return success(response);
            }
            offered = Some(self.authorize(&response, offered).await?);
        }
        Err(Error::Denied { credentials: self.credentials.is_some() })
    }

    /// Sends a request to where redirects lead, with the credentials only while that is the registry itself.
    async fn follow(
        &self,
        address: &str,
        headers: &[(hyper::header::HeaderName, HeaderValue)],
        authorization: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Error> {
        let mut address = address.to_owned();
        for _ in 0..=REDIRECTS {
            let mut headers = headers.to_vec();
            let home = origin_of(&address).is_some_and(|origin| origin == self.origin);
            headers.extend(authorization.filter(|_| home).map(|value| (AUTHORIZATION, value.clone())));
            let response = self.registry.send(&address, &headers).await?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let location = location.ok_or(Error::Redirect)?;
            address = if location.starts_with('/') && !location.starts_with("//") {
                format!("{}{location}", origin_of(&address).ok_or(Error::Redirect)?)
            } else {
                location.to_owned()
            };
            self.permit(&address)?;
        }
        Err(Error::Redirect)
    }

    /// Nothing may lead from an encrypted connection to a plain one.
    fn permit(&self, address: &str) -> Result<(), Error> {
        let origin = origin_of(address).ok_or(Error::Redirect)?;
        let plain_host = origin.strip_prefix("http://").is_some_and(|host| self.registry.may_be_plain(host));
        let permitted = origin.starts_with("https://") || self.origin.starts_with("http://") && plain_host;
        if permitted { Ok(()) } else { Err(Error::Plain) }
    }

    async fn authorize(
        &self,
        response: &Response<Incoming>,
        offered: Option<HeaderValue>,
    ) -> Result<HeaderValue, Error> {
        let mut current = self.authorization.lock().await;
        // Another transfer of this pull got a new one meanwhile.
        if let Some(current) = current.as_ref()
            && offered.as_ref() != Some(current)
        {
            return Ok(current.clone());
        }
        let denied = Error::Denied { credentials: self.credentials.is_some() };
        let value = match auth::challenge(response.headers()) {
            Some(Challenge::Basic) => self.credentials.ok_or(denied)?.basic(),
            Some(Challenge::Bearer { realm, service, scope }) => {
                self.permit(&realm)?;
                let (service, scope) = (service.as_deref(), scope.as_deref());
                let address = auth::token_address(&realm, service, scope, &self.repository);
                format!("Bearer {}", self.token(&address).await?)
            }
            None => return Err(denied),
        };
        let mut value = HeaderValue::try_from(value).map_err(|_| Error::Token)?;
        value.set_sensitive(true);
        *current = Some(value.clone());
        Ok(value)
    }

    async fn token(&self, address: &str) -> Result<String, Error> {
        let mut headers = Vec::new();
        if let Some(credentials) = self.credentials {
            let mut value = HeaderValue::try_from(credentials.basic()).map_err(|_| Error::Token)?;
            value.set_sensitive(true);
            headers.push((AUTHORIZATION, value));
        }
        let response = self.registry.send(address, &headers).await?;
        match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                return Err(Error::Denied { credentials: self.credentials.is_some() });
            }
            _ => {}
        }
        let body = Limited::new(success(response)?.into_body(), TOKEN_BYTES).collect();
        let body = tokio::time::timeout(SILENCE, body).await.map_err(|_| Error::Token)?;
        let bytes = body.map_err(|_| Error::Token)?.to_bytes();
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| Error::Token)?;
        token.token.or(token.access_token).filter(|token| !token.is_empty()).ok_or(Error::Token)
    }
}

/// Scheme, host and port of an address, as written.
fn origin_of(address: &str) -> Option<String> {
    let uri: Uri = address.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?.as_str()))
}

fn success(response: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    match response.status() {
        status if status.is_success() => Ok(response),
        StatusCode::NOT_FOUND => Err(Error::NotFound),
        StatusCode::FORBIDDEN => Err(Error::Forbidden),
        status => Err(Error::Status(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_what_is_configured_may_be_plain() {
        let options = Options { insecure_registries: vec!["plain.example:80".into()], ..Options::default() };
        let registry = Registry::new(&options).unwrap();
        for (host, plain) in [
            ("localhost", true),
            ("localhost:5000", true),
            ("127.0.0.1:5000", true),
            ("127.1.2.3", true),
            ("[::1]:5000", true),
            ("plain.example:80", true),
            ("plain.example", false),
            ("localhost.example", false),
            ("127.0.0.1.example", false),
            ("10.0.0.1:5000", false),
        ] {
            assert_eq!(registry.may_be_plain(host), plain, "{host}");
        }
    }
}
