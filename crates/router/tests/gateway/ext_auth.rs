//! Services that decide who may come in: what they are asked, what becomes of their answers, and of their silence.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use agentcube_router::Options;
use agentcube_router::authorize::{Answer, Authorizer, Dial, Protocol, Question};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::world::{World, condition, echo, gateway_object, read, serve};

fn oneshot() -> Value {
    json!({ "gatewayRefs": ["default"], "routePolicy": "Oneshot" })
}

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_default()
}

/// A Service `auth` at this address, as the controllers of a cluster leave it.
async fn service(world: &World, address: std::net::SocketAddr) {
    let ports = json!([{ "name": "http", "port": 80, "targetPort": address.port() }]);
    world.create(json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "auth" }, "spec": { "ports": ports } })).await;
    let ports = json!([{ "name": "http", "port": address.port(), "protocol": "TCP" }]);
    world
        .create(json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "auth-1", "labels": { "kubernetes.io/service-name": "auth" } },
        "addressType": "IPv4", "ports": ports, "endpoints": [{ "addresses": ["10.9.9.9"] }] }))
        .await;
}

fn by_service(fail_open: bool) -> Value {
    json!({ "authentication": { "extAuth": {
        "http": { "backendRef": { "name": "auth", "port": 80 }, "path": "/check", "headersToBackend": ["X-User-ID"] },
        "headersToExtAuth": ["X-Badge"], "failOpen": fail_open, "timeout": "5s",
    } } })
}

#[tokio::test]
async fn a_service_decides_who_may_come_in() {
    let world = World::guarded(by_service(false)).await;
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = asked.clone();
    let address = serve(move |request: Request<Incoming>| {
        let head = |name: &str| {
            request.headers().get(name).and_then(|it| it.to_str().ok()).unwrap_or("-").to_owned()
        };
        let badge = head("x-badge");
        let told = [
            request.method().to_string(),
            request.uri().to_string(),
            head("host"),
            badge.clone(),
            head("authorization"),
            head("x-other"),
            head("x-user-id"),
        ];
        seen.lock().push(told.join(" "));
        async move {
            let response = match badge.as_str() {
                "good" => Response::builder().status(200).header("x-user-id", "ada").header("x-else", "no"),
                "login" => Response::builder().status(302).header("location", "https://login.example.com/"),
                "odd" => Response::builder().status(201),
                "broken" => Response::builder().status(500),
                _ => Response::builder().status(403).header("x-user-id", "eve"),
            };
            response.body(Full::new(Bytes::from("whatever"))).unwrap()
        }
    })
    .await;
    service(&world, address).await;
    world.task("echo", json!({ "routing": oneshot() }), &[echo("one").await]).await;
    let ask = async |badge: &str| {
        let headers =
            [("x-badge", badge), ("x-user-id", "root"), ("authorization", "Basic x"), ("x-other", "y")];
        world.get("/default/echo/deep?q=1", &headers).await
    };
    let (status, answer) = ask("good").await;
    assert_eq!((status, &answer["headers"]["x-user-id"]), (StatusCode::OK, &json!("ada")), "{answer}");
    assert_eq!(answer["headers"]["x-else"], Value::Null);
    assert_eq!(asked.lock()[0], "GET /check/default/echo/deep?q=1 localhost good Basic x - -");
    for (badge, status, word) in [
        ("bad", StatusCode::FORBIDDEN, "NotAuthorized"),
        ("login", StatusCode::FOUND, "NotAuthorized"),
        ("odd", StatusCode::FORBIDDEN, "NotAuthorized"),
        ("broken", StatusCode::SERVICE_UNAVAILABLE, "AuthorizationUnavailable"),
    ] {
        let (said, answer) = ask(badge).await;
        assert_eq!((said, code(&answer)), (status, word), "{badge}");
    }
    assert_eq!(world.instances.asked.lock().len(), 1, "no instance is woken for the others");
}

#[tokio::test]
async fn a_service_that_is_not_there_lets_in_only_where_that_was_asked_for() {
    for (fail_open, expected) in [(false, StatusCode::SERVICE_UNAVAILABLE), (true, StatusCode::OK)] {
        let world = World::guarded(by_service(fail_open)).await;
        world.task("echo", json!({ "routing": oneshot() }), &[echo("one").await]).await;
        let (status, answer) = world.get("/default/echo", &[("x-user-id", "root")]).await;
        assert_eq!(status, expected, "{answer}");
        assert!(!answer.to_string().contains("root"), "who it is it cannot say by itself: {answer}");
    }
}

#[tokio::test]
async fn a_no_is_a_no_before_its_last_byte() {
    let world = World::guarded(json!({ "authentication": { "extAuth": {
        "http": { "backendRef": { "name": "auth", "port": 80 } }, "failOpen": true, "timeout": "30s" } } }))
    .await;
    let address = serve(|_request: Request<Incoming>| async {
        let never = futures_util::stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
        Response::builder().status(403).body(StreamBody::new(never)).unwrap()
    })
    .await;
    service(&world, address).await;
    world.task("echo", json!({ "routing": oneshot() }), &[echo("one").await]).await;
    let (status, answer) = world.get("/default/echo", &[]).await;
    assert_eq!((status, code(&answer)), (StatusCode::FORBIDDEN, "NotAuthorized"));
}

#[tokio::test]
async fn a_question_is_about_the_path_that_is_asked_for_and_shows_each_header_once() {
    let mut policy = by_service(false);
    policy["authentication"]["extAuth"]["headersToExtAuth"] = json!(["Authorization", "X-Badge"]);
    let world = World::guarded(policy).await;
    let asked: Arc<Mutex<Vec<(String, usize)>>> = Arc::default();
    let seen = asked.clone();
    let address = serve(move |request: Request<Incoming>| {
        let tokens = request.headers().get_all("authorization").iter().count();
        seen.lock().push((request.uri().to_string(), tokens));
        async { Response::new(Full::new(Bytes::new())) }
    })
    .await;
    service(&world, address).await;
    world.task("echo", json!({ "routing": oneshot() }), &[echo("one").await]).await;
    for path in
        ["/default/echo/../other", "/default/echo/%2e%2e/x", "/default/echo/a%2Fb", "/default/echo/a%5cb"]
    {
        let (status, answer) = world.get(path, &[]).await;
        assert_eq!((status, code(&answer)), (StatusCode::BAD_REQUEST, "PathAmbiguous"), "{path}");
    }
    assert!(asked.lock().is_empty() && world.instances.asked.lock().is_empty(), "nothing is decided by them");
    let (status, _) = world.get("/default/echo/a.b", &[("authorization", "Basic x")]).await;
    assert_eq!(
        (status, asked.lock().clone()),
        (StatusCode::OK, vec![("/check/default/echo/a.b".to_owned(), 1)])
    );
}

#[tokio::test]
async fn a_path_that_is_none_closes_the_gateway() {
    let mut policy = by_service(true);
    policy["authentication"]["extAuth"]["http"]["path"] = json!("check");
    let world = World::guarded(policy).await;
    world.task("echo", json!({ "routing": oneshot() }), &[echo("one").await]).await;
    assert_eq!(world.get("/default/echo", &[]).await.0, StatusCode::SERVICE_UNAVAILABLE);
    let said = |it: &Value| condition(&it["status"], "agentcube.io/SecurityInForce").cloned();
    let gateway = world.until(&gateway_object("default", json!([])), |it| said(it).is_some()).await;
    assert!(said(&gateway).unwrap()["message"].as_str().unwrap().contains("begin with a slash"));
}

/// How many questions the gateway asks at once, and how many more requests may wait.
const ASKED: usize = 256;
const WAITING: usize = 1024;

#[tokio::test]
async fn a_service_is_asked_so_much_at_a_time_and_nobody_comes_in_for_asking_more() {
    let mut policy = by_service(true);
    policy["authentication"]["extAuth"]["timeout"] = json!("60s");
    let world = World::guarded(policy).await;
    let (now, most, gate) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (count, highest, closed) = (now.clone(), most.clone(), gate.clone());
    let address = serve(move |_request: Request<Incoming>| {
        highest.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let (count, closed) = (count.clone(), closed.clone());
        async move {
            closed.acquire().await.unwrap().forget();
            count.fetch_sub(1, Ordering::SeqCst);
            Response::new(Full::new(Bytes::new()))
        }
    })
    .await;
    service(&world, address).await;
    world.task("echo", json!({ "routing": oneshot() }), &[echo("one").await]).await;
    let (mut answers, too_many) = (FuturesUnordered::new(), 20);
    for _ in 0..(ASKED + WAITING + too_many) / 100 {
        let io = TokioIo::new(world.connect().await);
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        for _ in 0..100 {
            let mut sender = sender.clone();
            answers.push(async move {
                let request =
                    Request::get("http://localhost/default/echo").body(Empty::<Bytes>::new()).unwrap();
                read(sender.send_request(request).await.unwrap()).await
            });
        }
    }
    assert_eq!(answers.len(), ASKED + WAITING + too_many);
    for _ in 0..too_many {
        let (status, answer) = answers.next().await.unwrap();
        assert_eq!((status, code(&answer)), (StatusCode::SERVICE_UNAVAILABLE, "AuthorizationBusy"));
    }
    gate.add_permits(ASKED + WAITING);
    while let Some((status, answer)) = answers.next().await {
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    assert!((1..=ASKED).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

/// Speaks for a service of another protocol.
#[derive(Clone, Default)]
struct Doorman(Arc<Mutex<Vec<Question>>>);

impl Protocol for Doorman {
    fn open(&self, name: &str, _dial: Dial) -> Arc<dyn Authorizer> {
        assert_eq!(name, "auth.default");
        Arc::new(self.clone())
    }
}

impl Authorizer for Doorman {
    fn check(&self, question: Question) -> BoxFuture<'_, Result<Answer, String>> {
        let badge = question.headers.get("x-badge").map(|badge| badge.to_str().unwrap().to_owned());
        self.0.lock().push(question);
        let set = [("x-user-id", "ada"), ("x-reserved-token", "forged"), ("mcp_session_id", "forged")];
        let set = set.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let remove = ["x-secret", "host"].map(|name| name.parse().unwrap());
        Box::pin(async move {
            match badge.as_deref() {
                Some("good") => Ok(Answer::Yes { set: HeaderMap::from_iter(set), remove: remove.to_vec() }),
                Some("slow") => std::future::pending().await,
                Some("broken") => Err("not now".to_owned()),
                _ => Ok(Answer::No { status: StatusCode::UNAUTHORIZED, headers: HeaderMap::new() }),
            }
        })
    }
}

#[tokio::test]
async fn a_service_may_be_asked_by_grpc() {
    let doorman = Doorman::default();
    let options = Options { grpc: Some(Arc::new(doorman.clone())), ..Options::default() };
    let grpc = json!({ "backendRef": { "name": "auth", "port": 80 } });
    let policy = json!({ "authentication": { "extAuth": {
        "grpc": grpc, "headersToExtAuth": ["X-Badge"], "timeout": "2s" } } });
    let world = World::start(options, Some(policy)).await;
    world.task("echo", json!({ "routing": oneshot() }), &[echo("one").await]).await;
    let ask = async |badge: &str| {
        let headers = [("x-badge", badge), ("x_user_id", "root"), ("x-secret", "s"), ("x-other", "y")];
        world.get("/default/echo/deep?q=1", &headers).await
    };
    let (status, answer) = ask("good").await;
    let seen = &answer["headers"];
    assert_eq!((status, &seen["x-user-id"]), (StatusCode::OK, &json!("ada")), "{answer}");
    assert_eq!(
        (&seen["x-secret"], &seen["x-other"], &seen["host"]),
        (&Value::Null, &json!("y"), &json!("localhost"))
    );
    assert!(!answer.to_string().contains("root") && !answer.to_string().contains("forged"), "{answer}");
    let question = doorman.0.lock()[0].clone();
    assert_eq!(
        (&*question.target, &*question.host, question.scheme),
        ("/default/echo/deep?q=1", "localhost", "http")
    );
    assert_eq!(question.headers.len(), 1, "what it is not to see it does not: {:?}", question.headers);
    for (badge, status, word) in [
        ("bad", StatusCode::UNAUTHORIZED, "NotAuthorized"),
        ("slow", StatusCode::SERVICE_UNAVAILABLE, "AuthorizationUnavailable"),
        ("broken", StatusCode::SERVICE_UNAVAILABLE, "AuthorizationUnavailable"),
    ] {
        let (said, answer) = ask(badge).await;
        assert_eq!((said, code(&answer)), (status, word), "{badge}");
    }
    assert_eq!(world.instances.asked.lock().len(), 1, "no instance is woken for the others");
}
