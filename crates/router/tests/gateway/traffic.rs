//! CORS and rate limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::issuer::{Issuer, Pair};
use crate::world::{World, condition, echo, gateway_object, serve};

fn oneshot() -> Value {
    json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "Oneshot" } })
}

async fn send(world: &World, method: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
    let mut request = Request::builder().method(method).uri("/default/echo").header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    world.send(request.body(Empty::<Bytes>::new()).unwrap()).await
}

fn origin(response: &Response<Incoming>) -> Option<&str> {
    response.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN)?.to_str().ok()
}

#[tokio::test]
async fn browsers_ask_beforehand_and_wake_nobody() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let cors = json!({ "allowOrigins": ["https://*.example.com"], "allowMethods": ["POST"], "allowCredentials": true });
    let jwt = json!({ "jwt": { "providers": [issuer.provider()] } });
    let world = World::guarded(json!({ "cors": cors, "authentication": jwt })).await;
    world.task("echo", oneshot(), &[echo("one").await]).await;
    let page = ("origin", "https://app.example.com");
    let asks = ("access-control-request-method", "POST");
    let answer = send(&world, "OPTIONS", &[page, asks]).await;
    assert_eq!((answer.status(), origin(&answer)), (StatusCode::NO_CONTENT, Some("https://app.example.com")));
    assert_eq!(answer.headers()["access-control-allow-methods"], "POST");
    let answer = send(&world, "OPTIONS", &[("origin", "https://evil.com"), asks]).await;
    assert_eq!((answer.status(), origin(&answer)), (StatusCode::NO_CONTENT, None));
    assert!(world.instances.asked.lock().is_empty());
    // A page may read why it was refused, and what it gets; another may not.
    let answer = send(&world, "POST", &[page]).await;
    assert_eq!(
        (answer.status(), origin(&answer)),
        (StatusCode::UNAUTHORIZED, Some("https://app.example.com"))
    );
    let bearer = format!("Bearer {}", issuer.token("ada"));
    let token = ("authorization", bearer.as_str());
    let answer = send(&world, "POST", &[page, token]).await;
    assert_eq!((answer.status(), origin(&answer)), (StatusCode::OK, Some("https://app.example.com")));
    assert_eq!(answer.headers()["access-control-allow-credentials"], "true");
    let answer = send(&world, "POST", &[("origin", "https://evil.com"), token]).await;
    assert_eq!((answer.status(), origin(&answer)), (StatusCode::OK, None));
    // What only looks like a question is a request like any other.
    assert_eq!(send(&world, "OPTIONS", &[page]).await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn too_many_requests_are_told_when_to_come_back() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let day = |most: u32| json!({ "requestsPerUnit": most, "unit": "Day" });
    let each = json!([{ "headers": [{ "type": "Distinct", "name": "x-user-id" }] }]);
    let world = World::guarded(json!({
        "authentication": { "jwt": { "providers": [issuer.provider()] } },
        "rateLimiting": { "perRoute": day(5), "rules": [{ "name": "users", "limit": day(2), "clientSelectors": each }] },
    }))
    .await;
    for task in ["echo", "other"] {
        world.task(task, oneshot(), &[echo("one").await]).await;
    }
    let ask = async |user: &str, path: &str| {
        let bearer = format!("Bearer {}", issuer.token(user));
        // A client's own word on who it is does not give it a bucket of its own.
        let headers = [("authorization", bearer.as_str()), ("x-user-id", path)];
        world.get(path, &headers).await
    };
    for _ in 0..2 {
        assert_eq!(ask("ada", "/default/echo").await.0, StatusCode::OK);
    }
    let (status, answer) = ask("ada", "/default/other").await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("RateLimited")));
    assert!(answer["error"]["message"].as_str().unwrap().contains("rule users"), "{answer}");
    for user in ["bob", "bob", "eve"] {
        assert_eq!(ask(user, "/default/echo").await.0, StatusCode::OK);
    }
    let (status, answer) = ask("eve", "/default/echo").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "five for the Task");
    let seconds = answer["error"]["retryAfterSeconds"].as_u64().unwrap();
    assert!((1..=86_400 / 5 + 1).contains(&seconds), "{seconds}");
    assert_eq!(ask("eve", "/default/other").await.0, StatusCode::OK, "another Task has its own");
    // Who is refused for another reason has used nothing up, and no instance was asked for in vain.
    assert_eq!(world.instances.asked.lock().len(), 6);
    let bearer = format!("Bearer {}", issuer.token("ada"));
    let response = send(&world, "GET", &[("authorization", &bearer)]).await;
    assert!(response.headers().contains_key(RETRY_AFTER));
    assert!(response.into_body().collect().await.is_ok());
    let gateway = gateway_object("default", json!([]));
    let gateway = world.until(&gateway, |it| it["status"]["conditions"].is_array()).await;
    let said = condition(&gateway["status"], "agentcube.io/RateLimitsInForce").unwrap();
    assert_eq!(said["status"], "True");
}

#[tokio::test]
async fn who_floods_without_a_token_is_counted_before_it_is_asked_who_it_is() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let near = json!([{ "sourceCIDR": "127.0.0.0/8" }]);
    let rules = json!([{ "name": "near", "limit": { "requestsPerUnit": 2, "unit": "Day" }, "clientSelectors": near },
        { "name": "broken", "limit": { "requestsPerUnit": 2, "unit": "Day" }, "clientSelectors": [{ "sourceCIDR": "x" }] }]);
    let world = World::guarded(json!({
        "authentication": { "jwt": { "providers": [issuer.provider()] } }, "rateLimiting": { "rules": rules },
    }))
    .await;
    world.task("echo", oneshot(), &[echo("one").await]).await;
    let ask = async || world.get("/default/echo", &[("authorization", "Bearer x")]).await.0;
    assert_eq!((ask().await, ask().await), (StatusCode::UNAUTHORIZED, StatusCode::UNAUTHORIZED));
    assert_eq!(ask().await, StatusCode::TOO_MANY_REQUESTS);
    // A rule that cannot be kept is told, and the other is kept.
    let gateway = gateway_object("default", json!([]));
    let said = |it: &Value| condition(&it["status"], "agentcube.io/RateLimitsInForce").cloned();
    let gateway = world.until(&gateway, |it| said(it).is_some()).await;
    let said = said(&gateway).unwrap();
    assert!(said["status"] == "False" && said["message"].as_str().unwrap().contains("broken"), "{said}");
}

#[tokio::test]
async fn an_instance_gets_no_more_than_its_task_allows() {
    let world = World::new().await;
    let (arrived, release) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (count, gate) = (arrived.clone(), release.clone());
    let slow = serve(move |_request: Request<Incoming>| {
        count.fetch_add(1, Ordering::SeqCst);
        let gate = gate.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Response::new(Full::new(Bytes::from("{}")))
        }
    })
    .await;
    let session = json!({ "extractors": [{ "type": "httpHeader", "name": "X-Session-ID" }] });
    let spec = json!({
        "routing": { "gatewayRefs": ["default"], "routePolicy": "BySession", "sessionIdentifier": session },
        "requestHandling": { "circuitBreaker": { "maxParallelRequests": 2, "maxPendingRequests": 1 } },
    });
    world.task("slow", spec, &[slow]).await;
    let refused = AtomicUsize::new(0);
    let ask = || async {
        let (status, answer) = world.get("/default/slow", &[("x-session-id", "1")]).await;
        if answer["error"]["code"] == "InstanceBusy" {
            refused.fetch_add(1, Ordering::SeqCst);
        }
        status
    };
    let asking = async { futures_util::future::join_all((0..6).map(|_| ask())).await };
    let releasing = async {
        // Two are served and one waits; the others are refused. Then the one has its turn.
        world.eventually(|| async { (refused.load(Ordering::SeqCst) == 3).then_some(()) }).await;
        world.eventually(|| async { (arrived.load(Ordering::SeqCst) == 2).then_some(()) }).await;
        release.add_permits(2);
        world.eventually(|| async { (arrived.load(Ordering::SeqCst) == 3).then_some(()) }).await;
        release.add_permits(1);
    };
    let (answers, ()) = tokio::join!(asking, releasing);
    let served = answers.iter().filter(|status| **status == StatusCode::OK).count();
    assert_eq!((served, arrived.load(Ordering::SeqCst)), (3, 3), "{answers:?}");
}
