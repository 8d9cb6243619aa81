//! Probes against servers on loopback that behave well or badly.

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;

use agentcube_runtime::{Answer, ContainerId, ContainerSpec, ExecSpec, Process, Runtime, Stdio, Usage};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Connects to loopback, whatever the address: there is no Pod here.
struct Loopback;

impl Dial for Loopback {
    fn dial(
        &self,
        _: Ipv4Addr,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send + '_>> {
        Box::pin(TcpStream::connect((Ipv4Addr::LOCALHOST, port)))
    }
}

/// Nothing is run in these tests.
struct Nothing;

impl Runtime for Nothing {
    fn start<'a>(&'a self, _: ContainerSpec, _: Stdio) -> Answer<'a, Process> {
        Box::pin(async { Err(agentcube_runtime::Error::SpawnerGone) })
    }
    fn signal<'a>(&'a self, _: &'a ContainerId, _: i32) -> Answer<'a, ()> {
        Box::pin(async { Err(agentcube_runtime::Error::SpawnerGone) })
    }
    fn exec<'a>(&'a self, _: &'a ContainerId, _: ExecSpec, _: Stdio) -> Answer<'a, Process> {
        Box::pin(async { Err(agentcube_runtime::Error::SpawnerGone) })
    }
    fn remove<'a>(&'a self, _: &'a ContainerId) -> Answer<'a, ()> {
        Box::pin(async { Err(agentcube_runtime::Error::SpawnerGone) })
    }
    fn usage<'a>(&'a self, _: &'a ContainerId) -> Answer<'a, Usage> {
        Box::pin(async { Err(agentcube_runtime::Error::SpawnerGone) })
    }
}

fn target() -> Target {
    Target {
        address: Ipv4Addr::new(10, 244, 0, 9),
        id: ContainerId::new("c").unwrap(),
        runtime: Arc::new(Nothing),
        env: Arc::default(),
        dial: Arc::new(Loopback),
    }
}

async fn ask(probe: Value) -> Verdict {
    let container: Container =
        serde_json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": 1}]})).unwrap();
    super::probe(&container, &serde_json::from_value(probe).unwrap(), &target()).await
}

/// A server that answers each path in its own way; the port it listens at.
async fn serve(answer: fn(&str) -> String) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut text = Vec::new();
                while !text.ends_with(b"\r\n\r\n")
                    && stream.read_buf(&mut text).await.is_ok_and(|count| count > 0)
                {}
                let text = String::from_utf8_lossy(&text).into_owned();
                let _gone = stream.write_all(answer(&text).as_bytes()).await;
            });
        }
    });
    port
}

fn answers(request: &str) -> String {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let plain = |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
    match path {
        "/agent" if !request.contains("user-agent: kube-probe/1.36\r\n") => plain("400 Bad Request"),
        "/headers" if !(request.contains("x-a: b\r\n") && request.contains("host: other\r\n")) => {
            plain("400 Bad Request")
        }
        "/there" => "HTTP/1.1 302 Found\r\nlocation: /good\r\ncontent-length: 0\r\n\r\n".into(),
        "/away" => "HTTP/1.1 302 Found\r\nlocation: http://192.0.2.1/\r\ncontent-length: 2\r\n\r\nhi".into(),
        "/around" => "HTTP/1.1 302 Found\r\nlocation: /around\r\ncontent-length: 0\r\n\r\n".into(),
        "/bad" => plain("500 Internal Server Error"),
        "/nonsense" => "nonsense\r\n\r\n".into(),
        _ => plain("200 OK"),
    }
}

#[tokio::test]
async fn statuses_and_redirects() {
    let port = serve(answers).await;
    let get = |path: &str| json!({"timeoutSeconds": 30, "httpGet": {"port": port, "path": path}});
    for good in ["/good", "good", "/agent", "/there"] {
        assert_eq!(ask(get(good)).await, Verdict::Success, "{good}");
    }
    assert_eq!(ask(get("/bad")).await, Verdict::Failure("HTTP probe failed with statuscode: 500".into()));
    let away = "Probe terminated redirects, Response body: hi".to_owned();
    assert_eq!(ask(get("/away")).await, Verdict::Warning(away), "the node asks nobody else");
    let around = format!("Get \"http://10.244.0.9:{port}/around\": stopped after 10 redirects");
    assert_eq!(ask(get("/around")).await, Verdict::Failure(around));
    assert!(matches!(ask(get("/nonsense")).await, Verdict::Failure(_)));
    let mut headers = get("/headers");
    headers["httpGet"]["httpHeaders"] =
        json!([{"name": "X-A", "value": "b"}, {"name": "Host", "value": "other"}]);
    assert_eq!(ask(headers).await, Verdict::Success);
}

#[tokio::test]
async fn nobody_answers() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let refused = format!("dial tcp 10.244.0.9:{port}: connect: connection refused");
    assert_eq!(ask(json!({"tcpSocket": {"port": port}})).await, Verdict::Failure(refused.clone()));
    let get = format!("Get \"http://10.244.0.9:{port}/\": {refused}");
    assert_eq!(ask(json!({"httpGet": {"port": port}})).await, Verdict::Failure(get));
}

#[tokio::test(start_paused = true)]
async fn silence_is_a_failure() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let Verdict::Failure(message) = ask(json!({"httpGet": {"port": port}})).await else {
        panic!("it failed")
    };
    assert!(message.contains("context deadline exceeded"), "{message}");
}

#[tokio::test]
async fn only_the_pod_itself_is_asked() {
    for probe in [
        json!({"tcpSocket": {"port": 1, "host": "127.0.0.1"}}),
        json!({"httpGet": {"port": 1, "host": "localhost"}}),
    ] {
        let Verdict::Failure(message) = ask(probe).await else { panic!("it failed") };
        assert!(message.contains("own address only"), "{message}");
    }
    assert!(matches!(ask(json!({"tcpSocket": {"port": "no-such"}})).await, Verdict::Error(_)));
    assert!(matches!(ask(json!({})).await, Verdict::Error(_)));
}
