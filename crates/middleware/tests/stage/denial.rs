//! What somebody forbids the controllers: writes of a resource are answered as a role, a quota or an admission policy does.

use std::sync::Arc;

use http::{Method, Response};
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;

use super::NAMESPACE;

#[derive(Clone, Default)]
pub(crate) struct Denial(Arc<Mutex<Option<(&'static str, &'static str)>>>);

impl Denial {
    /// From now on nobody may write this resource, such as `secrets`.
    pub(crate) fn set(&self, resource: &'static str, message: &'static str) {
        *self.0.lock() = Some((resource, message));
    }

    fn answer(&self, request: &http::Request<Body>) -> Option<Response<Body>> {
        let (resource, message) = (*self.0.lock())?;
        let meant = request.uri().path().split('/').any(|part| part == resource);
        if request.method() == Method::GET || !meant {
            return None;
        }
        let status = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden",
            "code": 403, "message": message });
        let answer = Response::builder().status(403).header("content-type", "application/json");
        Some(answer.body(Body::from(status.to_string().into_bytes())).unwrap())
    }

    /// A client that is told so.
    pub(crate) fn client(&self, client: &Client) -> Client {
        let (client, denial) = (client.clone(), self.clone());
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (client, denied) = (client.clone(), denial.answer(&request));
            async move {
                match denied {
                    Some(answer) => Ok(answer),
                    None => client.send(request).await,
                }
            }
        });
        Client::new(service, NAMESPACE)
    }
}
