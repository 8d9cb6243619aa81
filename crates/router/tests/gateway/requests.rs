//! Requests that come whole: routing, sessions, headers, refusals.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::world::{World, echo, read, serve};

fn by_session() -> serde_json::Value {
    json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "BySession", "sessionIdentifier": {
        "extractors": [{ "type": "httpHeader", "name": "X-Session-ID" }, { "type": "query", "name": "s" }] } } })
}

#[tokio::test]
async fn a_session_stays_with_its_instance_and_the_instance_hears_what_it_should() {
    let world = World::new().await;
    world.task("chat", by_session(), &[echo("one").await, echo("two").await]).await;
    let request = Request::post("/default/chat/v1/say?x=1")
        .header("host", "localhost")
        .header("x-session-id", "u1")
        .header("x-reserved-token", "forged")
        .header("x-tenant-id", "t1")
        .header("x-forwarded-for", "10.0.0.9");
    let (status, first) = world.ask(request, "hello").await;
    assert_eq!(status, StatusCode::OK, "{first}");
    assert_eq!((&first["method"], &first["target"]), (&json!("POST"), &json!("/v1/say?x=1")));
    assert_eq!(first["body"], "hello");
    let headers = &first["headers"];
    assert_eq!(headers["x-forwarded-for"], "10.0.0.9, 127.0.0.1");
    assert_eq!(headers["x-forwarded-prefix"], "/default/chat");
    assert_eq!(headers["host"], "localhost");
    assert!(headers["x-request-id"].is_string());
    let token = headers["x-reserved-token"].as_str().unwrap();
    assert_ne!(token, "forged");
    let asked = world.instances.asked.lock()[0].clone();
    assert_eq!(asked.key.unwrap().as_str(), "u1");
    assert_eq!(asked.tenant.as_deref(), Some("t1"));
    let (_, other) = world.get("/default/chat", &[("x-session-id", "u2")]).await;
    assert_eq!((&other["target"], &other["instance"]), (&json!("/"), &json!("two")));
    for _ in 0..3 {
        let (_, again) = world.get("/default/chat?s=u1", &[]).await;
        assert_eq!(again["instance"], first["instance"]);
    }
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let world = World::new().await;
    world.task("chat", by_session(), &[echo("one").await]).await;
    let says = |answer: (StatusCode, serde_json::Value)| {
        let error = answer.1["error"].clone();
        (answer.0.as_u16(), error["code"].as_str().unwrap().to_owned(), error["message"].to_string())
    };
    let (status, code, message) = says(world.get("/default/nobody", &[]).await);
    assert_eq!((status, code.as_str()), (404, "NoRoute"));
    assert!(message.contains("/default/nobody"), "{message}");
    let (status, code, message) = says(world.get("/default/chat", &[]).await);
    assert_eq!((status, code.as_str()), (400, "SessionKeyMissing"));
    assert!(message.contains("the header x-session-id, or the query parameter s"), "{message}");
    let long = "x".repeat(600);
    let (status, code, _) = says(world.get("/default/chat", &[("x-session-id", &long)]).await);
    assert_eq!((status, code.as_str()), (400, "SessionKeyInvalid"));
    let large = "x".repeat(70 << 10);
    let (status, code, _) = says(world.get("/default/chat", &[("x-large", &large)]).await);
    assert_eq!((status, code.as_str()), (431, "HeadersTooLarge"));
    let huge = "x".repeat(200 << 10);
    assert_eq!(world.get("/default/chat", &[("x-huge", &huge)]).await.0.as_u16(), 431);
    let many: Vec<(String, String)> = (0..120).map(|n| (format!("x-{n}"), "1".into())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(world.get("/default/chat", &many).await.0.as_u16(), 431);
    let twice = [("x-session-id", "u1"), ("host", "other")];
    let (status, code, _) = says(world.get("/default/chat", &twice).await);
    assert_eq!((status, code.as_str()), (400, "HostInvalid"));

    let oneshot = json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "Oneshot" } });
    world.task("unready", oneshot.clone(), &[]).await;
    world.instances.forget("unready");
    let (status, code, message) = says(world.get("/default/unready", &[]).await);
    assert_eq!((status, code.as_str()), (503, "TaskNotReady"));
    assert!(message.contains("describe task") && !message.contains("do not start"), "{message}");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let spec = json!({ "routing": oneshot["routing"],
        "requestHandling": { "timeout": { "tcp": { "connectTimeout": "50ms" } } } });
    world.task("closed", spec, &[closed]).await;
    let request = Request::get("/default/closed").header("host", "localhost");
    let response = world.send(request.body(Full::new(Bytes::new())).unwrap()).await;
    assert_eq!(response.headers()["retry-after"], "1");
    let (status, code, message) = says(read(response).await);
    assert_eq!((status, code.as_str()), (503, "InstanceUnreachable"));
    assert!(message.contains("closed-0"), "{message}");
}

#[tokio::test]
async fn an_instance_that_dies_in_flight_is_a_502_and_the_next_request_works() {
    let world = World::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dying = listener.local_addr().unwrap();
    let oneshot = json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "Oneshot" } });
    world.task("mortal", oneshot, &[dying]).await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut some = [0; 16];
        stream.read_exact(&mut some).await.unwrap();
        // And gone, in the middle of the request.
    });
    let request = Request::post("/default/mortal").header("host", "localhost");
    let (status, answer) = world.ask(request, "important").await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert_eq!(answer["error"]["code"], "InstanceFailed");
    assert!(answer["error"]["message"].as_str().unwrap().contains("mortal-0"), "{answer}");
    world.instances.set("mortal", &[echo("new").await]);
    let (status, answer) = world.get("/default/mortal", &[]).await;
    assert_eq!((status, &answer["instance"]), (StatusCode::OK, &json!("new")));
}

#[tokio::test]
async fn connections_are_kept_and_a_closed_one_is_replaced() {
    let world = World::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = accepted.clone();
    // Serves two requests on each connection, and closes it without having said so.
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                for _ in 0..2 {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            Ok(byte) => request.push(byte),
                            Err(_) => return,
                        }
                    }
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                }
            });
        }
    });
    let oneshot = json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "Oneshot" } });
    world.task("kept", oneshot, &[address]).await;
    for _ in 0..6 {
        assert_eq!(world.get("/default/kept", &[]).await.0, StatusCode::OK);
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn an_instance_that_listens_late_is_waited_for() {
    let world = World::new().await;
    let late = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let oneshot = json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "Oneshot" } });
    world.task("late", oneshot, &[late]).await;
    let asking = world.get("/default/late", &[]);
    let listening = async {
        // The gateway asks first: nobody listens yet.
        while world.instances.asked.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        let listener = TcpListener::bind(late).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 16];
        stream.read_exact(&mut head).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    };
    let ((status, _), ()) = tokio::join!(asking, listening);
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn http2_clients_are_served() {
    let world = World::new().await;
    world.task("chat", by_session(), &[echo("one").await]).await;
    let io = TokioIo::new(world.connect().await);
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let asking = (0..20).map(|n| {
        let mut sender = sender.clone();
        let request = Request::post(format!("http://localhost/default/chat/{n}"))
            .header("x-session-id", "u1")
            .body(Full::new(Bytes::from(format!("body {n}"))))
            .unwrap();
        async move { read(sender.send_request(request).await.unwrap()).await }
    });
    let answers = futures_util::future::join_all(asking).await;
    for (n, (status, answer)) in answers.into_iter().enumerate() {
        assert_eq!((status, &answer["target"]), (StatusCode::OK, &json!(format!("/{n}"))));
        assert_eq!(
            (&answer["body"], &answer["headers"]["host"]),
            (&json!(format!("body {n}")), &json!("localhost"))
        );
    }
}

#[tokio::test]
async fn a_slow_instance_is_a_504_and_is_told() {
    let world = World::new().await;
    let (held, gone) = tokio::sync::oneshot::channel::<()>();
    let held = Arc::new(parking_lot::Mutex::new(Some(held)));
    let slow = serve(move |request: Request<hyper::body::Incoming>| {
        // Dropped with the future, when the gateway hangs up.
        let held = held.lock().take();
        async move {
            let _ = request.into_body().collect().await;
            let _held = held;
            std::future::pending::<Response<Full<Bytes>>>().await
        }
    })
    .await;
    let spec = json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "Oneshot" },
        "requestHandling": { "timeout": { "http": { "request": "2s" } } } });
    world.task("slow", spec, &[slow]).await;
    let request = Request::post("/default/slow").header("host", "localhost");
    let (status, answer) = world.ask(request, "work").await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(answer["error"]["code"], "RequestTimeout");
    assert!(tokio::time::timeout(std::time::Duration::from_secs(30), gone).await.unwrap().is_err());
}

#[tokio::test]
async fn a_client_that_leaves_stops_waiting() {
    let world = World::new().await;
    *world.instances.stuck.lock() = true;
    world.task("chat", by_session(), &[]).await;
    let mut stream = world.connect().await;
    stream.write_all(b"GET /default/chat?s=1 HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    drop(stream);
    // It also must not hold up the end.
    world.shutdown.cancel();
    tokio::time::timeout(std::time::Duration::from_secs(10), world.running).await.unwrap().unwrap();
}
