//! An API server of a few lines: the reviews are requests, and what counts is what is asked how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tonic::Code;

use super::*;

#[derive(Default)]
struct Server {
    asked: AtomicUsize,
    away: AtomicBool,
}

impl Server {
    fn answer(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        if self.away.load(Ordering::SeqCst) {
            return (
                StatusCode::SERVICE_UNAVAILABLE,
                json!({ "kind": "Status", "code": 503, "message": "away" }),
            );
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        let spec = &body["spec"];
        let status = if path.ends_with("/tokenreviews") {
            let known = spec["token"] == "secret";
            json!({ "authenticated": known, "user": { "username": "eve", "groups": ["people"] } })
        } else {
            let asked = &spec["resourceAttributes"];
            let right = asked["group"] == "sandbox.fast.io" && asked["resource"] == "sandboxes";
            let allowed =
                asked["namespace"] == "hers" && asked["verb"] == "create" && asked["subresource"].is_null();
            json!({ "allowed": right && allowed && spec["user"] == "eve" && spec["groups"][0] == "people" })
        };
        (StatusCode::CREATED, json!({ "spec": spec, "status": status }))
    }
}

fn reviews() -> (Reviews, Arc<Server>) {
    let server = Arc::new(Server::default());
    let served = server.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = served.clone();
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect_bytes().await?;
            let (code, answer) = server.answer(&path, &serde_json::from_slice(&body)?);
            let response =
                Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))?;
            Ok::<_, tower::BoxError>(response)
        }
    });
    (Reviews::new(Client::new(service, "default")), server)
}

fn shown(token: &str) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    metadata.insert("authorization", format!("Bearer {token}").parse().expect("text"));
    metadata
}

async fn code(reviews: &Reviews, token: &str, verb: Verb, namespace: &str) -> Code {
    match reviews.allow(&shown(token), verb, namespace).await {
        Ok(subject) => {
            assert_eq!(subject, Subject("eve".into()));
            Code::Ok
        }
        Err(status) => status.code(),
    }
}

#[tokio::test(start_paused = true)]
async fn each_namespace_and_verb_is_asked_for() {
    let (reviews, _) = reviews();
    let table = [
        ("secret", Verb::Create, "hers", Code::Ok),
        ("secret", Verb::Create, "others", Code::PermissionDenied),
        ("secret", Verb::Delete, "hers", Code::PermissionDenied),
        // `create` of a subresource is another permission.
        ("secret", Verb::Exec, "hers", Code::PermissionDenied),
        ("guessed", Verb::Create, "hers", Code::Unauthenticated),
        ("", Verb::Create, "hers", Code::Unauthenticated),
    ];
    for (token, verb, namespace, expected) in table {
        assert_eq!(code(&reviews, token, verb, namespace).await, expected, "{token} {verb:?} {namespace}");
    }
    assert_eq!(
        reviews.allow(&MetadataMap::new(), Verb::Get, "hers").await.unwrap_err().code(),
        Code::Unauthenticated
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_believed_for_a_moment_and_for_longer_only_in_need() {
    let (reviews, server) = reviews();
    assert_eq!(code(&reviews, "secret", Verb::Create, "hers").await, Code::Ok);
    let asked = server.asked.load(Ordering::SeqCst);
    assert_eq!(code(&reviews, "secret", Verb::Create, "hers").await, Code::Ok);
    assert_eq!(server.asked.load(Ordering::SeqCst), asked, "it was known");
    tokio::time::advance(FRESH).await;
    assert_eq!(code(&reviews, "secret", Verb::Create, "hers").await, Code::Ok);
    assert!(server.asked.load(Ordering::SeqCst) > asked, "it is asked again");

    server.away.store(true, Ordering::SeqCst);
    tokio::time::advance(FRESH * 2).await;
    assert_eq!(code(&reviews, "secret", Verb::Create, "hers").await, Code::Ok, "what was allowed goes on");
    assert_eq!(code(&reviews, "secret", Verb::Create, "others").await, Code::Unavailable, "nobody knows");
    tokio::time::advance(STALE).await;
    assert_eq!(code(&reviews, "secret", Verb::Create, "hers").await, Code::Unavailable, "not for ever");
}

#[tokio::test(start_paused = true)]
async fn what_is_known_is_bounded() {
    let (reviews, _) = reviews();
    for number in 0..MOST_KNOWN + 10 {
        reviews.remember((vec![], Verb::Get, number.to_string()), Answer::Unknown);
    }
    assert!(reviews.known.lock().len() <= MOST_KNOWN);
}
