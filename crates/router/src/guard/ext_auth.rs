//! A service that is asked of every request whether it may come in: with the method and path of the request and some of
//! its headers, never its body. Over HTTP it lets in by 200, over gRPC by saying so; whatever else it says is a no.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::agentcube::security::{BackendRef, ExtAuthSpec};
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, LOCATION, SET_COOKIE, TRANSFER_ENCODING,
    WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::Origin;
use super::service::{Reach, Sender, Service};
use crate::authorize::{Answer, Authorizer, Dial, Question};
use crate::refusal::Refusal;

/// How long the service may take when nothing is said.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most that is read of its answers, in bytes, and how long that may take once it has decided.
const LARGEST: usize = 64 << 10;
const REST: Duration = Duration::from_secs(1);
/// How many questions it is asked at a time, and how many more requests may wait for their turn.
const MOST_ASKED: usize = 256;
const MOST_WAITING: usize = 1024;
/// What a client gets to see of a no.
const TOLD: [HeaderName; 3] = [WWW_AUTHENTICATE, LOCATION, SET_COOKIE];
/// What the gateway says itself, or would break the question.
const NOT_SHOWN: [HeaderName; 3] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING];

/// Authorisation by a service.
pub(crate) struct ExtAuth {
    way: Way,
    /// Headers of the request that the service sees, each once.
    shown: Vec<HeaderName>,
    fail_open: bool,
    timeout: Duration,
    /// Places for requests that ask or wait, and for those that ask.
    places: Semaphore,
    asking: Arc<Semaphore>,
}

/// How it is asked.
enum Way {
    Http(Http),
    Grpc(Arc<dyn Authorizer>),
}

struct Http {
    service: Arc<Service>,
    /// Begins with a slash and does not end with one, or is empty.
    path: String,
    /// Headers of its answer that the instance sees.
    taken: Vec<HeaderName>,
}

/// What the instance is told, and what of the client's it does not see.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) set: HeaderMap,
    pub(crate) remove: Vec<HeaderName>,
}

/// Why there is no answer.
enum Unasked {
    /// The service is not there, or fails; what to do then is for the policy to say.
    Unavailable(String),
    Refused(Refusal),
}

impl From<Refusal> for Unasked {
    fn from(refusal: Refusal) -> Unasked {
        Unasked::Refused(refusal)
    }
}

impl ExtAuth {
    pub(crate) fn new(spec: &ExtAuthSpec, namespace: &str, reach: Reach) -> Result<ExtAuth, String> {
        let way = match (&spec.http, &spec.grpc, reach.grpc.clone()) {
            (Some(http), ..) => {
                let taken: Result<Vec<_>, _> =
                    http.headers_to_backend.iter().map(|name| super::settable(name)).collect();
                let path = path(http.path.as_deref().unwrap_or_default())?;
                Way::Http(Http {
                    service: service(&http.backend_ref, namespace, reach)?,
                    path,
                    taken: taken?,
                })
            }
            (None, Some(grpc), Some(protocol)) => {
                let service = service(&grpc.backend_ref, namespace, reach)?;
                let name = format!("{}.{namespace}", grpc.backend_ref.name);
                Way::Grpc(protocol.open(&name, dial(service)))
            }
            (None, ..) => {
                return Err("this gateway asks authorisation services over HTTP only: use \
                            authentication.extAuth.http, or a gatewayClassName of Envoy Gateway"
                    .into());
            }
        };
        Ok(ExtAuth {
            way,
            shown: shown(&spec.headers_to_ext_auth)?,
            fail_open: spec.fail_open,
            timeout: spec.timeout.map_or(TIMEOUT, |limit| limit.to_std()),
            places: Semaphore::new(MOST_ASKED + MOST_WAITING),
            asking: Arc::new(Semaphore::new(MOST_ASKED)),
        })
    }

    /// Asks; gives what the instance is told.
    pub(crate) async fn ask(&self, parts: &Parts, host: &str, from: Origin) -> Result<Told, Refusal> {
        // Whoever asks too much is never let in for it, whatever is to be done when the service is not there: enough
        // requests would open the gateway otherwise.
        let Ok(_place) = self.places.try_acquire() else { return Err(busy()) };
        let deadline = Instant::now() + self.timeout;
        let turn = timeout_at(deadline, self.asking.clone().acquire_owned()).await.map_err(|_| busy())?;
        let turn = turn.expect("the semaphore is never closed");
        let headers = self.headers(parts);
        let asking = async {
            match &self.way {
                Way::Http(http) => http.ask(parts, host, headers, turn).await,
                Way::Grpc(service) => {
                    let _turn = turn;
                    by_grpc(&**service, parts, host, from, headers).await
                }
            }
        };
        let why = match timeout_at(deadline, asking).await {
            Ok(Ok(told)) => return Ok(told),
            Ok(Err(Unasked::Refused(refusal))) => return Err(refusal),
            Ok(Err(Unasked::Unavailable(why))) => why,
            Err(_) => format!("it did not answer within {:?}", self.timeout),
        };
        tracing::warn!(why, fail_open = self.fail_open, "an authorisation service cannot be asked");
        if self.fail_open {
            return Ok(Told::default());
        }
        let message = "the service that decides who may come in does not answer";
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "AuthorizationUnavailable", message);
        Err(Refusal { retry_after: Some(super::LATER), detail: Some(why), ..refusal })
    }

    /// What the service sees of the headers.
    fn headers(&self, parts: &Parts) -> HeaderMap {
        let each = self.shown.iter().flat_map(|name| {
            parts.headers.get_all(name).iter().map(move |value| (name.clone(), value.clone()))
        });
        let mut headers = HeaderMap::new();
        for (name, value) in each {
            headers.append(name, value);
        }
        headers
    }
}

async fn by_grpc(
    service: &dyn Authorizer,
    parts: &Parts,
    host: &str,
    from: Origin,
    headers: HeaderMap,
) -> Result<Told, Unasked> {
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let Origin { address: client, scheme } = from;
    let question =
        Question { method: parts.method.clone(), scheme, host: host.to_owned(), target, headers, client };
    match service.check(question).await.map_err(Unasked::Unavailable)? {
        Answer::Yes { mut set, mut remove } => {
            // It has no word on how messages are read, nor on what is the gateway's own.
            let taboo = |name: &HeaderName| super::settable(name.as_str()).is_err();
            for name in set.keys().filter(|name| taboo(name)).cloned().collect::<Vec<_>>() {
                set.remove(name);
            }
            remove.retain(|name| !taboo(name));
            Ok(Told { set, remove })
        }
        Answer::No { status, headers } => Err(Unasked::Refused(no(status, &headers))),
    }
}

impl Http {
    async fn ask(
        &self,
        parts: &Parts,
        host: &str,
        headers: HeaderMap,
        turn: OwnedSemaphorePermit,
    ) -> Result<Told, Unasked> {
        let question = self.question(parts, host, headers)?;
        let sent = self.service.send(&question).await;
        let (response, sender) = sent.map_err(|error| Unasked::Unavailable(error.to_string()))?;
        let (head, body) = response.into_parts();
        self.finish(body, sender, turn);
        // The head decides: a no counts before its last byte has come.
        match head.status {
            StatusCode::OK => {
                let set =
                    those(&self.taken, &head.headers).into_iter().fold(HeaderMap::new(), |mut all, one| {
                        all.append(one.0, one.1);
                        all
                    });
                Ok(Told { set, remove: Vec::new() })
            }
            status if status.is_server_error() => Err(Unasked::Unavailable(format!("it answered {status}"))),
            status => Err(no(status, &head.headers).into()),
        }
    }

    /// What it says is not read on, but a connection with something left on it is of no more use. It is one of those that
    /// the service is asked on until then.
    fn finish(&self, body: Incoming, sender: Sender, turn: OwnedSemaphorePermit) {
        if body.is_end_stream() {
            return self.service.keep(sender);
        }
        let service = self.service.clone();
        tokio::spawn(async move {
            if timeout(REST, drain(body)).await == Ok(true) {
                service.keep(sender);
            }
            drop(turn);
        });
    }

    fn question(&self, parts: &Parts, host: &str, headers: HeaderMap) -> Result<Request<()>, Refusal> {
        let own = parts.uri.path_and_query().map_or("/", |target| target.as_str());
        let mut request = Request::new(());
        *request.method_mut() = parts.method.clone();
        // Never about another path than the one that is asked for.
        *request.uri_mut() = format!("{}{own}", self.path).parse::<Uri>().map_err(|_| {
            let message = "the service that decides who may come in cannot be asked about this path";
            Refusal::new(StatusCode::BAD_REQUEST, "PathInvalid", message)
        })?;
        *request.headers_mut() = headers;
        if let Ok(host) = HeaderValue::from_str(host) {
            request.headers_mut().insert(HOST, host);
        }
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        Ok(request)
    }
}

/// The service, if it can be asked.
fn service(backend: &BackendRef, namespace: &str, reach: Reach) -> Result<Arc<Service>, String> {
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
    Ok(Arc::new(Service::new(reach, namespace.to_owned(), backend.name.clone(), backend.port)))
}

fn dial(service: Arc<Service>) -> Dial {
    Arc::new(move || {
        let service = service.clone();
        Box::pin(async move { service.dial().await.map_err(io::Error::other) })
    })
}

fn those(names: &[HeaderName], said: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let each = |name: &HeaderName| {
        let values = said.get_all(name).iter();
        values.map(|value| (name.clone(), value.clone())).collect::<Vec<_>>()
    };
    names.iter().flat_map(each).collect()
}

/// What a client is told of a no. What is neither that nor a way to a yes would be taken for the instance's word.
fn no(status: StatusCode, said: &HeaderMap) -> Refusal {
    let told = status.is_client_error() || status.is_redirection();
    let status = if told { status } else { StatusCode::FORBIDDEN };
    let message = "the service that decides who may come in does not let this request in";
    Refusal { headers: those(&TOLD, said), ..Refusal::new(status, "NotAuthorized", message) }
}

/// The path that stands before those of requests, without a slash at its end.
fn path(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let whole = format!("{path}/");
    let valid = whole.starts_with('/')
        && whole.parse::<PathAndQuery>().is_ok_and(|it| it.path() == whole && it.query().is_none());
    if !valid {
        return Err(format!(
            "authentication.extAuth.http.path {text:?} is no path: it has to begin with a slash"
        ));
    }
    Ok(path.to_owned())
}

fn shown(names: &[String]) -> Result<Vec<HeaderName>, String> {
    let mut shown = vec![AUTHORIZATION];
    for text in names {
        let name = text.parse().map_err(|_| format!("{text:?} is no name of a header"))?;
        if !NOT_SHOWN.contains(&name) && !shown.contains(&name) {
            shown.push(name);
        }
    }
    Ok(shown)
}

fn busy() -> Refusal {
    let message = "too many requests wait for the service that decides who may come in";
    let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "AuthorizationBusy", message);
    Refusal { retry_after: Some(super::LATER), ..refusal }
}

/// Reads to the end; false if that does not come, or too late.
async fn drain(mut body: Incoming) -> bool {
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        read += frame.as_ref().ok().and_then(|frame| frame.data_ref()).map_or(0, |bytes| bytes.len());
        if frame.is_err() || read > LARGEST {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_with_a_slash() {
        for (text, expected) in [("", ""), ("/", ""), ("/check", "/check"), ("/a/b/", "/a/b")] {
            assert_eq!(path(text).as_deref(), Ok(expected));
        }
        for bad in ["check", "check/", "http://a/b", "/a?b", "/a#b", "/a b"] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_header_is_shown_once() {
        let names = ["Authorization", "X-A", "x-a", "Host", "Transfer-Encoding"].map(str::to_owned);
        assert_eq!(shown(&names).unwrap(), ["authorization", "x-a"]);
        assert!(shown(&["a b".to_owned()]).is_err());
    }
}
