//! What does not come whole: event streams, large bodies, upgrades, and the end of the gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};

use crate::world::{World, echo, serve};

fn oneshot() -> Value {
    json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "Oneshot" } })
}

fn frames(
    receiver: mpsc::UnboundedReceiver<&'static str>,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, std::io::Error>> {
    futures_util::stream::unfold(receiver, |mut receiver| async move {
        let text = receiver.recv().await?;
        let frame = match text {
            "break" => Err(std::io::Error::other("broken")),
            text => Ok(Frame::data(Bytes::from_static(text.as_bytes()))),
        };
        Some((frame, receiver))
    })
}

/// A server whose one answer is what is sent into the channel.
async fn speaker(content: &'static str) -> (std::net::SocketAddr, mpsc::UnboundedSender<&'static str>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let receiver = std::sync::Arc::new(parking_lot::Mutex::new(Some(receiver)));
    let address = serve(move |_request: Request<Incoming>| {
        let receiver = receiver.lock().take().expect("is asked once");
        async move {
            let mut response = Response::new(StreamBody::new(frames(receiver).boxed()));
            response.headers_mut().insert("content-type", content.parse().unwrap());
            response
        }
    })
    .await;
    (address, sender)
}

#[tokio::test]
async fn events_arrive_as_they_are_sent() {
    let world = World::new().await;
    let (address, say) = speaker("text/event-stream").await;
    world.task("events", oneshot(), &[address]).await;
    say.send("data: 0\n\n").unwrap();
    let request = Request::get("/default/events").header("host", "localhost");
    let response = world.send(request.body(Full::new(Bytes::new())).unwrap()).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    for (next, expected) in
        [("data: 1\n\n", "data: 0\n\n"), ("data: 2\n\n", "data: 1\n\n"), ("", "data: 2\n\n")]
    {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, expected, "each comes before the next is sent");
        if !next.is_empty() {
            say.send(next).unwrap();
        }
    }
    drop(say);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_broken_stream_does_not_end_as_if_it_were_whole() {
    let world = World::new().await;
    let (address, say) = speaker("text/plain").await;
    world.task("broken", oneshot(), &[address]).await;
    say.send("half").unwrap();
    let request = Request::get("/default/broken").header("host", "localhost");
    let response = world.send(request.body(Full::new(Bytes::new())).unwrap()).await;
    let mut body = response.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
    say.send("break").unwrap();
    assert!(body.frame().await.unwrap().is_err());
}

#[tokio::test]
async fn a_silent_stream_is_cut() {
    let world = World::new().await;
    let (address, say) = speaker("text/event-stream").await;
    let spec = json!({ "routing": oneshot()["routing"],
        "requestHandling": { "timeout": { "http": { "streamIdleTimeout": "2s" } } } });
    world.task("silent", spec, &[address]).await;
    say.send("data: 0\n\n").unwrap();
    let request = Request::get("/default/silent").header("host", "localhost");
    let mut body = world.send(request.body(Full::new(Bytes::new())).unwrap()).await.into_body();
    assert!(body.frame().await.unwrap().is_ok());
    assert!(body.frame().await.unwrap().is_err());
    // The instance is told as well.
    tokio::time::timeout(Duration::from_secs(30), say.closed()).await.unwrap();
}

#[tokio::test]
async fn large_bodies_pass_both_ways() {
    let world = World::new().await;
    let mirror = serve(|request: Request<Incoming>| async move { Response::new(request.into_body()) }).await;
    world.task("mirror", oneshot(), &[mirror]).await;
    const CHUNKS: u64 = 512;
    let chunks = futures_util::stream::iter(0..CHUNKS)
        .map(|n| Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![n as u8; 64 << 10]))));
    let request = Request::post("/default/mirror").header("host", "localhost");
    let response = world.send(request.body(StreamBody::new(chunks.boxed())).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body();
    let mut at = 0_u64;
    while let Some(frame) = body.frame().await {
        for byte in frame.unwrap().into_data().unwrap() {
            assert_eq!(byte, (at >> 16) as u8);
            at += 1;
        }
    }
    assert_eq!(at, CHUNKS << 16);
}

/// A server that agrees to speak something else than HTTP, and then repeats what it hears in capitals.
async fn upgrading() -> std::net::SocketAddr {
    serve(|mut request: Request<Incoming>| async move {
        let asked = request.headers().get("upgrade").is_some_and(|protocol| protocol == "websocket");
        let mut response = Response::new(Full::new(Bytes::new()));
        if !asked {
            *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
            return response;
        }
        tokio::spawn(async move {
            let mut io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
            let mut bytes = [0; 64];
            loop {
                match io.read(&mut bytes).await {
                    Ok(0) | Err(_) => return,
                    Ok(read) => {
                        bytes[..read].make_ascii_uppercase();
                        io.write_all(&bytes[..read]).await.unwrap();
                    }
                }
            }
        });
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("connection", "upgrade".parse().unwrap());
        response.headers_mut().insert("upgrade", "websocket".parse().unwrap());
        response
    })
    .await
}

async fn upgraded(world: &World, path: &str) -> TokioIo<hyper::upgrade::Upgraded> {
    let request = Request::get(path)
        .header("host", "localhost")
        .header("x-session-id", "1")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let mut response = world.send(request).await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()["upgrade"], "websocket");
    TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap())
}

#[tokio::test]
async fn upgraded_connections_are_carried_until_the_end() {
    let world = World::new().await;
    world.task("talk", oneshot(), &[upgrading().await]).await;
    let mut io = upgraded(&world, "/default/talk").await;
    for word in ["hello", "again"] {
        io.write_all(word.as_bytes()).await.unwrap();
        let mut heard = vec![0; word.len()];
        io.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, word.to_uppercase().into_bytes());
    }
    // Refusals of the instance come through as they are.
    let (status, _) = world.get("/default/talk", &[("connection", "upgrade"), ("upgrade", "other")]).await;
    assert_eq!(status, StatusCode::UPGRADE_REQUIRED);
    // It is drained like a request: the gateway stops only when it is over.
    world.shutdown.cancel();
    io.write_all(b"late").await.unwrap();
    let mut heard = [0; 4];
    io.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"LATE");
    assert!(!world.running.is_finished());
    io.shutdown().await.unwrap();
    assert_eq!(io.read(&mut heard).await.unwrap(), 0);
    tokio::time::timeout(Duration::from_secs(30), world.running).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_upgraded_connection_keeps_its_place_at_the_instance_until_its_end() {
    let world = World::new().await;
    let session = json!({ "extractors": [{ "type": "httpHeader", "name": "X-Session-ID" }] });
    let spec = json!({
        "routing": { "gatewayRefs": ["default"], "routePolicy": "BySession", "sessionIdentifier": session },
        "requestHandling": { "circuitBreaker": { "maxParallelRequests": 1, "maxPendingRequests": 0 } },
    });
    world.task("talk", spec, &[upgrading().await]).await;
    let mut io = upgraded(&world, "/default/talk").await;
    let ask = async || world.get("/default/talk", &[("x-session-id", "1")]).await;
    for _ in 0..3 {
        let (status, answer) = ask().await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (StatusCode::SERVICE_UNAVAILABLE, &json!("InstanceBusy"))
        );
    }
    io.shutdown().await.unwrap();
    assert_eq!(io.read(&mut [0; 4]).await.unwrap(), 0);
    let free = || async { (ask().await.0 == StatusCode::UPGRADE_REQUIRED).then_some(()) };
    world.eventually(free).await;
}

#[tokio::test]
async fn a_request_that_is_sent_again_has_one_place() {
    let world = World::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // Each connection serves one request, and is closed at the second, before it is answered.
    let (served, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (count, held) = (served.clone(), gate.clone());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (count, held) = (count.clone(), held.clone());
            tokio::spawn(async move {
                let mut head = [0; 4096];
                assert!(stream.read(&mut head).await.unwrap() > 0);
                count.fetch_add(1, Ordering::SeqCst);
                held.acquire().await.unwrap().forget();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                let _next = stream.read(&mut head).await;
            });
        }
    });
    let session = json!({ "extractors": [{ "type": "httpHeader", "name": "X-Session-ID" }] });
    let spec = json!({
        "routing": { "gatewayRefs": ["default"], "routePolicy": "BySession", "sessionIdentifier": session },
        "requestHandling": { "circuitBreaker": { "maxParallelRequests": 1, "maxPendingRequests": 0 } },
    });
    world.task("again", spec, &[address]).await;
    let ask = async || world.get("/default/again", &[("x-session-id", "1")]).await;
    gate.add_permits(1);
    assert_eq!(ask().await.0, StatusCode::OK);
    // It comes in on the kept connection, which is closed, and then on a new one: in its one place all the time.
    let second = async {
        let (status, answer) = ask().await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    };
    let others = async {
        world.eventually(|| async { (served.load(Ordering::SeqCst) == 2).then_some(()) }).await;
        assert_eq!(ask().await.1["error"]["code"], "InstanceBusy");
        gate.add_permits(1);
    };
    tokio::join!(second, others);
    gate.add_permits(1);
    assert_eq!(ask().await.0, StatusCode::OK, "the place is free again");
}

#[tokio::test]
async fn stopping_lets_responses_end_and_takes_no_more() {
    let world = World::new().await;
    let (address, say) = speaker("text/plain").await;
    world.task("slow", oneshot(), &[address]).await;
    world.task("quick", oneshot(), &[echo("quick").await]).await;
    say.send("one").unwrap();
    let request = Request::get("/default/slow").header("host", "localhost");
    let mut body = world.send(request.body(Full::new(Bytes::new())).unwrap()).await.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one");
    world.shutdown.cancel();
    let refused = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", world.port)).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), refused).await.expect("the port is closed");
    say.send("two").unwrap();
    drop(say);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "two");
    assert!(body.frame().await.is_none());
    tokio::time::timeout(Duration::from_secs(30), world.running).await.unwrap().unwrap();
}
