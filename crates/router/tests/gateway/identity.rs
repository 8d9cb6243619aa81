//! Headers by which instances are told who sends a request: nobody else says them, by whichever gateway it comes.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

use crate::issuer::{Issuer, Pair};
use crate::world::{World, echo, gateway_object, http_listener, read};

fn taskgateway(name: &str, issuer: &Issuer) -> Value {
    json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "TaskGateway", "metadata": { "name": name },
        "spec": { "gatewayClassName": "envoy", "listeners": [{ "name": "http", "port": 80, "protocol": "HTTP" }],
            "authentication": { "jwt": { "providers": [issuer.provider()] } } } })
}

/// What the instance hears of who it is, once requests are let through.
async fn heard(world: &World) -> Value {
    let forged = [("x-user-id", "root"), ("x_user_id", "root"), ("x-other", "mine")];
    let ask = || async {
        let (status, answer) = world.get("/default/echo", &forged).await;
        (status == StatusCode::OK).then_some(answer)
    };
    let answer = world.eventually(ask).await;
    assert_eq!(answer["headers"]["x-other"], "mine");
    answer
}

#[tokio::test]
async fn what_a_gateway_of_others_sets_is_not_a_clients_to_say() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let world = World::new().await;
    // One that somebody else serves: nothing here guards it.
    let theirs = world.create(taskgateway("theirs", &issuer)).await;
    let routing = json!({ "gatewayRefs": ["default", "theirs"], "routePolicy": "Oneshot" });
    world.task("echo", json!({ "routing": routing }), &[echo("one").await]).await;
    let answer = heard(&world).await;
    assert!(!answer.to_string().contains("root"), "{answer}");
    // Nor when it is gone: instances may believe it yet.
    world.delete(&theirs).await;
    world.until_gone(&theirs).await;
    world.create(gateway_object("other", json!([http_listener("http", world.second_port)]))).await;
    for _ in 0..20 {
        let answer = heard(&world).await;
        assert!(!answer.to_string().contains("root"), "{answer}");
    }
}

#[tokio::test]
async fn a_gateway_that_is_nowhere_stands_in_nobodys_way() {
    let world = World::new().await;
    let routing = json!({ "gatewayRefs": ["default", "nowhere"], "routePolicy": "Oneshot" });
    world.task("echo", json!({ "routing": routing }), &[echo("one").await]).await;
    assert_eq!(heard(&world).await["headers"]["x-user-id"], "root", "there is nobody to say it instead");
}

#[tokio::test]
async fn by_an_open_gateway_nobody_passes_for_somebody_known_by_another() {
    let issuer = Issuer::new("https://one.example.com/", Pair::ec()).await;
    let world =
        World::guarded(json!({ "authentication": { "jwt": { "providers": [issuer.provider()] } } })).await;
    world.create(gateway_object("open", json!([http_listener("http", world.second_port)]))).await;
    let routing = json!({ "gatewayRefs": ["default", "open"], "routePolicy": "Oneshot" });
    world.task("echo", json!({ "routing": routing }), &[echo("one").await]).await;
    let open = || async {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", world.second_port)).await.ok()?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let request = Request::get("/default/echo").header("host", "localhost").header("x-user-id", "root");
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.ok()?;
        let (status, answer) = read(response).await;
        (status == StatusCode::OK).then_some(answer)
    };
    assert_eq!(world.eventually(open).await["headers"]["x-user-id"], Value::Null);
    assert_eq!(world.get("/default/echo", &[]).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn cookies_that_come_one_by_one_arrive_as_one() {
    let world = World::new().await;
    let routing = json!({ "gatewayRefs": ["default"], "routePolicy": "BySession", "sessionIdentifier": {
        "extractors": [{ "type": "httpHeader", "name": "Cookie" }] } });
    world.task("echo", json!({ "routing": routing }), &[echo("one").await]).await;
    let io = TokioIo::new(world.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request =
        Request::get("http://localhost/default/echo").header("cookie", "a=1").header("cookie", "b=2");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let (status, answer) = read(sender.send_request(request).await.unwrap()).await;
    assert_eq!((status, &answer["headers"]["cookie"]), (StatusCode::OK, &json!("a=1; b=2")));
    let asked = world.instances.asked.lock().last().unwrap().key.clone();
    assert_eq!(asked.unwrap().as_str(), "a=1; b=2");
}
