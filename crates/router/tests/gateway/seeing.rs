//! What operators see of requests: counts, and lines of the access log.

use std::io::Write;
use std::sync::Arc;

use agentcube_instance::token::{KeyId, Keys};
use agentcube_operator::metrics::Registry;
use agentcube_router::Options;
use agentcube_router::observe::{AccessLog, Hiding};
use http::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::world::{World, echo, serve};

/// What was written.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A gateway that is watched.
struct Watched {
    world: World,
    metrics: Registry,
    written: Written,
}

impl Watched {
    async fn new() -> Watched {
        let (metrics, written) = (Registry::new(), Written::default());
        let hiding = Hiding::new(Keys::generate(KeyId::new("k1").unwrap()).hiding_key());
        let log = AccessLog::to(Box::new(written.clone()), 1000, hiding, &metrics).unwrap();
        let options = Options { metrics: metrics.clone(), access_log: Some(log), ..Options::default() };
        Watched { world: World::with(options).await, metrics, written }
    }

    fn text(&self) -> String {
        String::from_utf8(self.written.0.lock().clone()).unwrap()
    }

    /// Waits for a line that fits.
    async fn line(&self, fits: impl Fn(&Value) -> bool) -> Value {
        let find = || {
            let text = self.text();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).find(|line| fits(line))
        };
        self.world.eventually(|| std::future::ready(find())).await
    }

    /// Waits until a metric has come to this.
    async fn counts(&self, name: &str, number: u64) {
        let wanted = format!("{name} {number}\n");
        let is_so = || self.metrics.encode().contains(&wanted).then_some(());
        let waiting = self.world.eventually(|| std::future::ready(is_so()));
        let limit = tokio::time::timeout(std::time::Duration::from_secs(20), waiting).await;
        assert!(limit.is_ok(), "no {wanted} in\n{}", self.metrics.encode());
    }
}

fn by_path() -> Value {
    json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "BySession", "sessionIdentifier": {
        "extractors": [{ "type": "pathVar", "name": "id", "path": "/{id}" }] } } })
}

fn oneshot() -> Value {
    json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "Oneshot" } })
}

#[tokio::test]
async fn a_request_is_counted_and_told_of_without_its_secrets() {
    let watched = Watched::new().await;
    let task = watched.world.task("chat", by_path(), &[echo("one").await]).await;
    let request = Request::post("/default/chat/top-secret/say?key=top-secret")
        .header("host", "localhost")
        .header("authorization", "Bearer top-secret")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let (status, answer) = watched.world.ask(request, "hello").await;
    assert_eq!(status, StatusCode::OK);
    let line = watched.line(|line| line["status"] == 200).await;
    for (name, value) in [
        ("front", "gateway"),
        ("method", "POST"),
        ("path", "/default/chat/{id}/say"),
        ("outcome", "passed"),
        ("namespace", "default"),
        ("task", "chat"),
        ("gateway", "default/default"),
        ("instance", "chat-0"),
        ("reserve", "reused"),
        ("traceId", "0af7651916cd43dd8448eb211c80319c"),
    ] {
        assert_eq!(line[name], value, "{name} of {line}");
    }
    assert_eq!(line["bytesIn"], 5);
    assert!(line["bytesOut"].as_u64() > Some(50) && line["session"].as_str().unwrap().len() == 16, "{line}");
    let token = answer["headers"]["x-reserved-token"].as_str().unwrap();
    let text = watched.text();
    assert!(!text.contains("top-secret") && !text.contains(token), "{text}");

    let of_task = r#"namespace="default",task="chat""#;
    let requests =
        format!("agentcube_requests_total{{{of_task},outcome=\"passed\",reason=\"\",status=\"2xx\"}}");
    watched.counts(&requests, 1).await;
    watched.counts(&format!("agentcube_requests_in_flight{{{of_task}}}"), 0).await;
    // With the Task, its series go.
    watched.world.delete(&task).await;
    let gone = || (!watched.metrics.encode().contains(of_task)).then_some(());
    watched.world.eventually(|| std::future::ready(gone())).await;
}

#[tokio::test]
async fn what_goes_wrong_is_told_apart() {
    let watched = Watched::new().await;
    // Nobody listens there, and nobody else gets the port.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    watched.world.task("dead", oneshot(), &[taken.local_addr().unwrap()]).await;
    // Closes before it answers.
    let rude = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rude_at = rude.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = rude.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
        }
    });
    watched.world.task("rude", oneshot(), &[rude_at]).await;
    // Promises more than it says.
    let short = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let short_at = short.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = short.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhal").await;
        }
    });
    watched.world.task("short", oneshot(), &[short_at]).await;

    assert_eq!(watched.world.get("/default/dead", &[]).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(watched.world.get("/default/rude", &[]).await.0, StatusCode::BAD_GATEWAY);
    let broken = Request::get("/default/short").header("host", "localhost");
    let broken = watched.world.send(broken.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap()).await;
    assert!(http_body_util::BodyExt::collect(broken.into_body()).await.is_err());
    assert_eq!(watched.world.get("/default/nobody", &[]).await.0, StatusCode::NOT_FOUND);
    for (task, outcome, reason, status, kind, times) in [
        ("dead", "failed", "InstanceUnreachable", "5xx", Some("connect"), 1),
        ("rude", "failed", "InstanceFailed", "5xx", Some("closed"), 1),
        ("short", "broken", "", "2xx", Some("broken"), 1),
        ("", "refused", "NoRoute", "4xx", None, 0),
    ] {
        let of_task = match task {
            "" => r#"namespace="",task="""#.to_owned(),
            task => format!("namespace=\"default\",task=\"{task}\""),
        };
        let name = format!("{of_task},outcome=\"{outcome}\",reason=\"{reason}\",status=\"{status}\"");
        watched.counts(&format!("agentcube_requests_total{{{name}}}"), 1).await;
        if let Some(kind) = kind {
            watched
                .counts(&format!("agentcube_upstream_errors_total{{{of_task},kind=\"{kind}\"}}"), times)
                .await;
        }
    }
    let line = watched.line(|line| line["task"] == "short").await;
    assert_eq!((&line["outcome"], &line["bytesOut"]), (&json!("broken"), &json!(3)), "{line}");
}

#[tokio::test]
async fn an_upgraded_connection_is_told_of_when_it_has_ended() {
    let watched = Watched::new().await;
    let talker = serve(|mut request: Request<hyper::body::Incoming>| async move {
        tokio::spawn(async move {
            let mut io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
            let mut heard = [0; 5];
            io.read_exact(&mut heard).await.unwrap();
            io.write_all(b"yes").await.unwrap();
        });
        let upgrade = http::Response::builder().status(101);
        let upgrade = upgrade.header("connection", "upgrade").header("upgrade", "websocket");
        upgrade.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap()
    })
    .await;
    watched.world.task("talk", oneshot(), &[talker]).await;
    let request = Request::get("/default/talk")
        .header("host", "localhost")
        .header("connection", "upgrade")
        .header("upgrade", "websocket");
    let body = http_body_util::Empty::<bytes::Bytes>::new();
    let mut response = watched.world.send(request.body(body).unwrap()).await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let on_their_way = r#"agentcube_requests_in_flight{namespace="default",task="talk"}"#;
    watched.counts(on_their_way, 1).await;
    io.write_all(b"hello").await.unwrap();
    let mut heard = Vec::new();
    io.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, b"yes");
    drop(io);
    let line = watched.line(|line| line["task"] == "talk").await;
    assert_eq!((&line["status"], &line["outcome"]), (&json!(101), &json!("passed")), "{line}");
    assert_eq!((&line["bytesIn"], &line["bytesOut"]), (&json!(5), &json!(3)), "{line}");
    watched.counts(on_their_way, 0).await;
}
