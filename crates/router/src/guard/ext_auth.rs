//! A service that is asked of every request whether it may come in, over HTTP: with the method and path of the request
//! and some of its headers, never its body. It lets in by 200; whatever else it says is a no.

use std::time::Duration;

use agentcube_api::agentcube::security::ExtAuthSpec;
use agentcube_api::labels::SUBJECT_HEADER;
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, LOCATION, SET_COOKIE, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};

use super::service::{Error, Reach, Service};
use crate::owner::{BY_SERVICE, Subject};
use crate::refusal::Refusal;

/// How long the service may take when nothing is said.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most that is read of its answers, in bytes.
const LARGEST: usize = 64 << 10;
/// What a client gets to see of a no.
const TOLD: [HeaderName; 3] = [WWW_AUTHENTICATE, LOCATION, SET_COOKIE];

/// By this it says who sends a request, if it wants to.
pub(crate) const SUBJECT: HeaderName = HeaderName::from_static(SUBJECT_HEADER);

/// Who sends a request, as the service says; nobody if it says nothing, or two things.
pub(crate) fn subject(said: &HeaderMap) -> Option<Subject> {
    let mut values = said.get_all(SUBJECT).iter();
    let (first, None) = (values.next()?, values.next()) else { return None };
    let name = first.to_str().ok().map(str::trim).filter(|name| !name.is_empty())?;
    Some(Subject { issuer: BY_SERVICE.into(), name: name.into() })
}

/// Authorisation by a service.
pub(crate) struct ExtAuth {
    service: Service,
    path: String,
    /// Headers of the request that the service sees.
    shown: Vec<HeaderName>,
    /// Headers of its answer that the instance sees.
    taken: Vec<HeaderName>,
    fail_open: bool,
    timeout: Duration,
}

impl ExtAuth {
    pub(crate) fn new(spec: &ExtAuthSpec, namespace: &str, reach: Reach) -> Result<ExtAuth, String> {
        let Some(http) = &spec.http else {
            return Err("the built-in gateway asks authorisation services over HTTP only: use \
                        authentication.extAuth.http, or a gatewayClassName of Envoy Gateway"
                .into());
        };
        let backend = &http.backend_ref;
        if backend.ca_certificate_ref.is_some() {
            return Err("the built-in gateway does not speak TLS to authorisation services: leave \
                        caCertificateRef out of authentication.extAuth"
                .into());
        }
        if backend.namespace.as_deref().is_some_and(|other| other != namespace) {
            return Err("the built-in gateway asks authorisation services of its own namespace only: leave \
                        namespace out of authentication.extAuth"
                .into());
        }
        let name = |text: &String| text.parse().map_err(|_| format!("{text:?} is no name of a header"));
        let shown: Result<Vec<HeaderName>, String> = spec.headers_to_ext_auth.iter().map(name).collect();
        let taken: Result<Vec<_>, _> =
            http.headers_to_backend.iter().map(|name| super::settable(name)).collect();
        let taken = taken.map(|mut taken| {
            taken.extend((!taken.contains(&SUBJECT)).then_some(SUBJECT));
            taken
        });
        let service = Service::new(reach, namespace.to_owned(), backend.name.clone(), backend.port);
        Ok(ExtAuth {
            service,
            path: http.path.as_deref().unwrap_or_default().trim_end_matches('/').to_owned(),
            shown: shown?,
            taken: taken?,
            fail_open: spec.fail_open,
            timeout: spec.timeout.map_or(TIMEOUT, |limit| limit.to_std()),
        })
    }

    /// Headers that only the gateway may set.
    pub(crate) fn headers(&self) -> &[HeaderName] {
        &self.taken
    }

    /// Asks; gives what the instance is told.
    pub(crate) async fn ask(&self, parts: &Parts, host: &str) -> Result<HeaderMap, Refusal> {
        let asking = self.exchange(parts, host);
        let why = match tokio::time::timeout(self.timeout, asking).await {
            Ok(Ok((status, headers))) if !status.is_server_error() => return self.judge(status, &headers),
            Ok(Ok((status, _))) => format!("it answered {status}"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it did not answer within {:?}", self.timeout),
        };
        tracing::warn!(why, fail_open = self.fail_open, "an authorisation service cannot be asked");
        if self.fail_open {
            return Ok(HeaderMap::new());
        }
        let message = "the service that decides who may come in does not answer";
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "AuthorizationUnavailable", message);
        Err(Refusal { retry_after: Some(super::LATER), detail: Some(why), ..refusal })
    }

    async fn exchange(&self, parts: &Parts, host: &str) -> Result<(StatusCode, HeaderMap), Error> {
        let (response, sender) = self.service.send(&self.question(parts, host)).await?;
        let (head, body) = response.into_parts();
        // What it says is not read on, but a connection with something left on it is of no more use.
        if Limited::new(body, LARGEST).collect().await.is_ok() {
            self.service.keep(sender);
        }
        Ok((head.status, head.headers))
    }

    fn question(&self, parts: &Parts, host: &str) -> Request<()> {
        let own = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut request = Request::new(());
        *request.method_mut() = parts.method.clone();
        // A valid path before a valid path is one; otherwise the service is asked of its own.
        *request.uri_mut() = format!("{}{own}", self.path).parse().unwrap_or_else(|_| Uri::from_static("/"));
        for name in self.shown.iter().chain([&AUTHORIZATION]) {
            for value in parts.headers.get_all(name) {
                request.headers_mut().append(name, value.clone());
            }
        }
        if let Ok(host) = HeaderValue::from_str(host) {
            request.headers_mut().insert(HOST, host);
        }
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        request
    }

    fn judge(&self, status: StatusCode, said: &HeaderMap) -> Result<HeaderMap, Refusal> {
        let those = |names: &[HeaderName]| {
            let each = |name: &HeaderName| {
                let values = said.get_all(name).iter();
                values.map(|value| (name.clone(), value.clone())).collect::<Vec<_>>()
            };
            names.iter().flat_map(each).collect::<Vec<_>>()
        };
        if status == StatusCode::OK {
            let mut headers = HeaderMap::new();
            for (name, value) in those(&self.taken) {
                headers.append(name, value);
            }
            return Ok(headers);
        }
        // What is neither a no nor a way to a yes would be taken for the instance's word.
        let told = status.is_client_error() || status.is_redirection();
        let status = if told { status } else { StatusCode::FORBIDDEN };
        let message = "the service that decides who may come in does not let this request in";
        Err(Refusal { headers: those(&TOLD), ..Refusal::new(status, "NotAuthorized", message) })
    }
}
