//! A gate to the API server for runners, where it knows one account only, which may do everything: on one machine. Whoever shows the
//! token of an integration may read that integration, and read and write its bundle, which is what its Role allows on a cluster.
//! The build service is behind the same socket.

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::http_server::{self, Answer, body, bytes, refuse};
use crate::names;
use crate::service::Service;
use crate::token::{Holder, Key};

/// The largest object that the API server takes is smaller.
const LARGEST: usize = 3 << 20;
const GROUP: &str = "/apis/frontend-forge.io/v1alpha1/namespaces/";

#[derive(Clone)]
pub struct Gate {
    pub client: Client,
    pub key: Key,
    pub builds: Service,
}

impl Gate {
    /// Serves until it is told to stop.
    pub async fn run(self, listener: TcpListener, stop: CancellationToken) {
        let builds = self.builds.clone();
        let handle = move |request| {
            let gate = self.clone();
            async move { gate.answer(request).await }
        };
        http_server::serve(listener, handle, stop).await;
        builds.stop().await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        if Service::is_for(request.uri().path()) {
            return self.builds.answer(request).await;
        }
        let (parts, incoming) = request.into_parts();
        let Some(holder) = self.key.of_request(&parts.headers) else {
            return refuse(StatusCode::UNAUTHORIZED, "it takes a token of a FrontendIntegration");
        };
        let body = match body(incoming, LARGEST).await {
            Ok(body) => body,
            Err(refusal) => return refusal,
        };
        let Some(target) = permitted(&holder, &parts.method, parts.uri.path(), &body) else {
            return refuse(
                StatusCode::FORBIDDEN,
                "the token is good for one FrontendIntegration and its bundle",
            );
        };
        let request = Request::builder()
            .method(parts.method)
            .uri(target)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Body::from(body));
        match request {
            Ok(request) => self.pass(request).await,
            Err(_) => refuse(StatusCode::BAD_REQUEST, "it cannot be asked like this"),
        }
    }

    async fn pass(&self, request: Request<Body>) -> Answer {
        let answer = match self.client.send(request).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(%error, "the API server does not answer");
                return refuse(StatusCode::SERVICE_UNAVAILABLE, "the API server does not answer");
            }
        };
        let status = answer.status();
        match http_body_util::BodyExt::collect(answer.into_body()).await {
            Ok(body) => bytes(status, "application/json", body.to_bytes()),
            Err(_) => refuse(StatusCode::BAD_GATEWAY, "the answer of the API server broke off"),
        }
    }
}

/// Where a request goes, if it may.
fn permitted(holder: &Holder, method: &Method, path: &str, body: &[u8]) -> Option<String> {
    let rest = path.strip_prefix(GROUP)?.strip_prefix(holder.namespace.as_str())?.strip_prefix('/')?;
    let bundle = names::bundle(&holder.name);
    let integration = format!("frontendintegrations/{}", holder.name);
    let own = format!("jsbundles/{bundle}");
    let allowed = match *method {
        Method::GET => rest == integration || rest == own,
        Method::PUT => rest == own,
        Method::POST => rest == "jsbundles" && names_of(body).as_deref() == Some(&bundle),
        _ => false,
    };
    // Nothing of a query is passed on.
    allowed.then(|| path.to_owned())
}

fn names_of(body: &[u8]) -> Option<String> {
    let object: Value = serde_json::from_slice(body).ok()?;
    Some(object.pointer("/metadata/name")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_what_a_build_needs() {
        let holder = Holder { namespace: "team".into(), name: "tasks".into() };
        let may = |method: Method, rest: &str, body: &str| {
            permitted(&holder, &method, &format!("{GROUP}{rest}"), body.as_bytes()).is_some()
        };
        let bundle = r#"{"metadata":{"name":"fi-tasks"}}"#;
        assert!(may(Method::GET, "team/frontendintegrations/tasks", ""));
        assert!(may(Method::GET, "team/jsbundles/fi-tasks", ""));
        assert!(may(Method::PUT, "team/jsbundles/fi-tasks", bundle));
        assert!(may(Method::POST, "team/jsbundles", bundle));
        for (method, rest, body) in [
            (Method::GET, "team/frontendintegrations/others", ""),
            (Method::GET, "team/frontendintegrations", ""),
            (Method::GET, "other/frontendintegrations/tasks", ""),
            (Method::GET, "teams/frontendintegrations/tasks", ""),
            (Method::GET, "team/jsbundles", ""),
            (Method::PUT, "team/frontendintegrations/tasks", ""),
            (Method::PUT, "team/jsbundles/fi-tasks/status", ""),
            (Method::PUT, "team/jsbundles/fi-others", ""),
            (Method::POST, "team/jsbundles", r#"{"metadata":{"name":"fi-others"}}"#),
            (Method::POST, "team/jsbundles", r#"{"metadata":{"generateName":"fi-tasks"}}"#),
            (Method::DELETE, "team/jsbundles/fi-tasks", ""),
            (Method::PATCH, "team/jsbundles/fi-tasks", bundle),
            (Method::GET, "team/../other/frontendintegrations/tasks", ""),
        ] {
            assert!(!may(method.clone(), rest, body), "{method} {rest}");
        }
        assert_eq!(permitted(&holder, &Method::GET, "/api/v1/namespaces/team/secrets/x", b""), None);
    }
}
