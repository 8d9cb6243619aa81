//! The server as a library: what a process that embeds it relies on, through the tower service alone.

use agentcube_apiserver::Server;
use agentcube_apiserver::http::Front;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::Service;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn ask(front: &Front, method: Method, path: &str, body: Option<(&str, Value)>) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method).uri(path);
    if let Some((media, _)) = &body {
        request = request.header("content-type", *media);
    }
    let bytes = body.map(|(_, value)| Bytes::from(value.to_string())).unwrap_or_default();
    let response = front
        .clone()
        .call(request.body(Full::new(bytes)).expect("a valid request"))
        .await
        .expect("never fails");
    let status = response.status();
    let bytes = response.into_body().collect().await.expect("never fails").to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn create(front: &Front, name: &str) -> (StatusCode, Value) {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    ask(front, Method::POST, MAPS, Some(("application/json", body))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn patches_that_race_all_succeed() {
    let server = Server::builder().memory().embed().await.unwrap();
    let front = server.front();
    assert_eq!(create(&front, "a").await.0, StatusCode::CREATED);
    let writers: Vec<_> = (0..16)
        .map(|writer| {
            let front = front.clone();
            tokio::spawn(async move {
                for round in 0..20 {
                    let patch = json!({"data": {format!("w{writer}"): round.to_string()}});
                    let body = Some(("application/merge-patch+json", patch));
                    let (status, answer) = ask(&front, Method::PATCH, &format!("{MAPS}/a"), body).await;
                    assert_eq!(status, StatusCode::OK, "{answer}");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let (_, object) = ask(&front, Method::GET, &format!("{MAPS}/a"), None).await;
    let data = object["data"].as_object().unwrap();
    assert!(data.len() == 16 && data.values().all(|value| value == "19"), "{data:?}");
    server.shutdown().await;
}

#[tokio::test]
async fn a_directory_opens_again_as_soon_as_its_server_is_shut_down() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let server = Server::builder().data_dir(directory.path()).embed().await.unwrap();
        // A service that outlives its server answers reads, refuses writes, and holds no lock on the directory.
        let front = server.front();
        let (_, list) = ask(&front, Method::GET, MAPS, None).await;
        assert_eq!(list["items"].as_array().map(Vec::len), Some(round));
        assert_eq!(create(&front, &format!("n{round}")).await.0, StatusCode::CREATED);
        server.shutdown().await;
        assert_eq!(create(&front, "late").await.0, StatusCode::INTERNAL_SERVER_ERROR);
        drop(front);
    }
}

/// The mark that a Pod gets before it goes is not a change that the caller's version has to answer for.
#[tokio::test]
async fn a_pod_that_has_ended_goes_with_the_version_that_was_named() {
    let server = Server::builder().memory().embed().await.unwrap();
    let (front, pods) = (server.front(), "/api/v1/namespaces/default/pods");
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec});
    let (_, pod) = ask(&front, Method::POST, pods, Some(("application/json", pod))).await;
    let options = json!({"preconditions": {"resourceVersion": pod["metadata"]["resourceVersion"]}});
    let body = Some(("application/json", options));
    let (status, answer) = ask(&front, Method::DELETE, &format!("{pods}/a"), body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let (status, _) = ask(&front, Method::GET, &format!("{pods}/a"), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    server.shutdown().await;
}

fn widgets(size: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {"type": "object", "properties": {"size": size}}},
            }}}],
        },
    })
}

/// Asks until the answer is as wanted; the server does what it does by itself soon, but not at once.
async fn until(front: &Front, path: &str, wanted: impl Fn(StatusCode, &Value) -> bool) -> Value {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let (status, answer) = ask(front, Method::GET, path, None).await;
        if wanted(status, &answer) {
            return answer;
        }
        assert!(std::time::Instant::now() < deadline, "{path} never came to what was awaited: {answer}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_default_that_came_later_shows_in_older_objects() {
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
    let server = Server::builder().memory().embed().await.expect("starts");
    let front = server.front();
    let definition = widgets(json!({"type": "integer"}));
    ask(&front, Method::POST, DEFINITIONS, Some(("application/json", definition))).await;
    until(&front, WIDGETS, |status, _| status == StatusCode::OK).await;
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {}});
    let (status, answer) = ask(&front, Method::POST, WIDGETS, Some(("application/json", widget))).await;
    assert_eq!((status, answer["spec"].clone()), (StatusCode::CREATED, json!({})));
    let changed =
        json!({"spec": {"versions": widgets(json!({"type": "integer", "default": 7}))["spec"]["versions"]}});
    let path = format!("{DEFINITIONS}/widgets.example.com");
    ask(&front, Method::PATCH, &path, Some(("application/merge-patch+json", changed))).await;
    until(&front, &format!("{WIDGETS}/a"), |_, answer| answer["spec"]["size"] == 7).await;
    let list = until(&front, WIDGETS, |status, _| status == StatusCode::OK).await;
    assert_eq!(list["items"][0]["spec"]["size"], 7);
    server.shutdown().await;
}
