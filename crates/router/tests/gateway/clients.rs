//! Clients that do not do their part: they stop reading, stop sending, leave, or never say anything.

use std::time::Duration;

use agentcube_router::Options;
use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::{Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::world::{World, echo, read, serve};

/// Long enough for anything that happens at all.
const LIMIT: Duration = Duration::from_secs(30);

fn oneshot(http: Value) -> Value {
    json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "Oneshot" },
        "requestHandling": { "timeout": { "http": http } } })
}

/// All that comes until the other side closes, as text.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("it is closed");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn who_stops_reading_cannot_hold_an_instance_beyond_its_limits() {
    let world = World::new().await;
    for (name, limits) in
        [("late", json!({ "request": "2s" })), ("silent", json!({ "streamIdleTimeout": "2s" }))]
    {
        let (held, mut gone) = mpsc::channel::<()>(1);
        // Says something for as long as somebody listens.
        let endless = serve(move |_request: Request<Incoming>| {
            let held = held.clone();
            let frames = futures_util::stream::repeat_with(move || {
                let _held = &held;
                Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![b'x'; 64 << 10])))
            });
            async move { Response::new(StreamBody::new(frames.boxed())) }
        })
        .await;
        world.task(name, oneshot(limits), &[endless]).await;
        let mut stream = world.connect().await;
        let request = format!("GET /default/{name} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.readable().await.unwrap();
        // The server itself holds one until the test ends: the response has to be gone, not the server.
        let closed = async {
            while gone.sender_strong_count() > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, closed).await.expect("the instance is told that nobody listens");
        gone.close();
        assert!(rest(&mut stream).await.starts_with("HTTP/1.1 200"));
    }
}

#[tokio::test]
async fn who_stops_in_the_middle_of_a_request_is_told() {
    let world = World::new().await;
    world.task("echo", oneshot(json!({ "streamIdleTimeout": "2s" })), &[echo("one").await]).await;
    let mut stream = world.connect().await;
    let half =
        "POST /default/echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    stream.write_all(half.as_bytes()).await.unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("\"RequestStalled\""), "{answer}");
    // One that goes on in time is served.
    let mut stream = world.connect().await;
    stream.write_all(half.as_bytes()).await.unwrap();
    stream.write_all(b"4\r\nrest\r\n0\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn who_leaves_while_an_instance_is_waited_for_waits_no_more() {
    let world = World::new().await;
    world.task("stuck", oneshot(json!({})), &[]).await;
    *world.instances.stuck.lock() = true;
    let mut waiting = world.instances.waiting.subscribe();
    let chunked =
        "POST /default/stuck HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    let long = "POST /default/stuck HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\nhalf";
    let none = "GET /default/stuck HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for request in [chunked, long, none] {
        let mut stream = world.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        tokio::time::timeout(LIMIT, waiting.wait_for(|count| *count == 1)).await.expect("it waits").unwrap();
        drop(stream);
        tokio::time::timeout(LIMIT, waiting.wait_for(|count| *count == 0))
            .await
            .expect("it is gone")
            .unwrap();
    }
}

#[tokio::test]
async fn what_was_read_ahead_arrives_whole_and_in_order() {
    let world = World::new().await;
    world.task("late", oneshot(json!({})), &[echo("one").await]).await;
    world.instances.hold.send_replace(true);
    let body: String = (0..40_000).map(|n| format!("{n} ")).collect();
    let request = Request::post("/default/late").header("host", "localhost");
    let asking = world.ask(request, &body);
    let freeing = async {
        let mut waiting = world.instances.waiting.subscribe();
        waiting.wait_for(|count| *count == 1).await.unwrap();
        world.instances.hold.send_replace(false);
    };
    let ((_, answer), ()) = tokio::join!(asking, freeing);
    assert_eq!(answer["body"].as_str(), Some(&*body));
    assert_eq!(answer["headers"]["content-length"], body.len().to_string());
}

#[tokio::test]
async fn who_says_nothing_is_not_kept() {
    let options = Options { head_timeout: Duration::from_millis(100), ..Options::default() };
    let world = World::with(options).await;
    world.task("echo", oneshot(json!({})), &[echo("one").await]).await;
    // Nothing at all; what may become HTTP/2; half a head.
    for begin in ["", "PR", "GET /default/echo HTT"] {
        let mut stream = world.connect().await;
        stream.write_all(begin.as_bytes()).await.unwrap();
        assert!(!rest(&mut stream).await.contains("200 OK"), "{begin:?}");
    }
}

#[tokio::test]
async fn beyond_the_limit_connections_wait() {
    let world = World::with(Options { connections: 1, ..Options::default() }).await;
    world.task("echo", oneshot(json!({})), &[echo("one").await]).await;
    let request = b"GET /default/echo HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut first = world.connect().await;
    first.write_all(request).await.unwrap();
    first.readable().await.unwrap();
    let mut second = world.connect().await;
    second.write_all(request).await.unwrap();
    // The first is served again meanwhile, so there was time for the second.
    let mut some = [0; 4096];
    for _ in 0..10 {
        assert!(first.read(&mut some).await.unwrap() > 0);
        first.write_all(request).await.unwrap();
    }
    assert!(second.try_read(&mut some).is_err(), "it is not taken in");
    drop(first);
    tokio::time::timeout(LIMIT, second.readable()).await.expect("its turn comes").unwrap();
    assert!(second.read(&mut some).await.unwrap() > 0);
}

#[tokio::test]
async fn http2_that_is_not_used_is_not_kept() {
    let options = Options { head_timeout: Duration::from_secs(2), ..Options::default() };
    let world = World::with(options).await;
    world.task("echo", oneshot(json!({})), &[echo("one").await]).await;
    let io = TokioIo::new(world.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let closed = tokio::spawn(connection);
    let request = Request::get("http://localhost/default/echo").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(read(response).await.0, StatusCode::OK);
    tokio::time::timeout(LIMIT, closed).await.expect("it is closed").unwrap().unwrap();
}

#[tokio::test]
async fn a_refusal_that_is_not_taken_does_not_keep_a_connection() {
    let options = Options { head_timeout: Duration::from_secs(2), ..Options::default() };
    let world = World::with(options).await;
    world.task("echo", oneshot(json!({})), &[echo("one").await]).await;
    let io = TokioIo::new(world.connect().await);
    // A client that gives nobody leave to send a body.
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(0)
        .handshake(io)
        .await
        .unwrap();
    let closed = tokio::spawn(connection);
    let request = Request::get("http://localhost/nowhere").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    let _ended = tokio::time::timeout(LIMIT, closed).await.expect("it is closed");
}

#[tokio::test]
async fn one_address_does_not_take_all_connections() {
    let world = World::with(Options { connections_per_address: 1, ..Options::default() }).await;
    world.task("echo", oneshot(json!({})), &[echo("one").await]).await;
    let request = b"GET /default/echo HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut some = [0; 4096];
    // Those that asked before may not have gone yet.
    let first = || async {
        let mut stream = world.connect().await;
        let _sent = stream.write_all(request).await;
        let mut some = [0; 4096];
        stream.read(&mut some).await.is_ok_and(|read| read > 0).then_some(stream)
    };
    let mut first = world.eventually(first).await;
    let mut second = world.connect().await;
    let _sent = second.write_all(request).await;
    assert_eq!(rest(&mut second).await, "", "it is closed");
    first.write_all(request).await.unwrap();
    assert!(first.read(&mut some).await.unwrap() > 0, "the first goes on");
    drop(first);
    let again = || async {
        let mut stream = world.connect().await;
        let _sent = stream.write_all(request).await;
        let mut some = [0; 4096];
        stream.read(&mut some).await.is_ok_and(|read| read > 0).then_some(())
    };
    world.eventually(again).await;
}

#[tokio::test]
async fn a_body_that_has_to_be_read_comes_in_time() {
    let options = Options { head_timeout: Duration::from_millis(200), ..Options::default() };
    let world = World::with(options).await;
    let routing = json!({ "gatewayRefs": ["default"], "routePolicy": "BySession", "protocol": "MCP" });
    world.task("tools", json!({ "routing": routing }), &[echo("one").await]).await;
    let mut stream = world.connect().await;
    let half = "POST /default/tools HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        accept: application/json, text/event-stream\r\ncontent-length: 1000\r\n\r\n{";
    stream.write_all(half.as_bytes()).await.unwrap();
    // Silence alone would be allowed for much longer.
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\"RequestSlow\""), "{answer}");
}

#[tokio::test]
async fn a_head_has_its_limits() {
    let world = World::new().await;
    world.task("echo", oneshot(json!({})), &[echo("one").await]).await;
    let many: Vec<(String, String)> = (0..150).map(|n| (format!("x-{n}"), "y".into())).collect();
    let long = format!("http://localhost/default/echo?{}", "q".repeat(40_000));
    let io = TokioIo::new(world.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::get("http://localhost/default/echo");
    for (name, value) in &many {
        request = request.header(name, value);
    }
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let (status, answer) = read(response).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &json!("TooManyHeaders"))
    );
    let response =
        sender.send_request(Request::get(&long).body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let (status, answer) = read(response).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::URI_TOO_LONG, &json!("TargetTooLong")));
    // The connection goes on.
    let good = Request::get("http://localhost/default/echo").body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(read(sender.send_request(good).await.unwrap()).await.0, StatusCode::OK);
    let pairs: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(world.get("/default/echo", &pairs).await.0, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
}
