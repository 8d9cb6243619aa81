//! What the gateway says of GatewayClasses, Gateways and HTTPRoutes, and which of them it serves.

use http::StatusCode;
use serde_json::{Value, json};

use crate::world::{World, condition, echo, gateway_object, http_listener};

fn oneshot(gateway: &str) -> Value {
    json!({ "routing": { "gatewayRefs": [gateway], "routePolicy": "Oneshot" } })
}

fn says(object: &Value, type_: &str) -> (String, String) {
    let condition = condition(object, type_).unwrap_or_else(|| panic!("no {type_} in {object:#}"));
    let text = |key: &str| condition[key].as_str().unwrap().to_owned();
    (text("status"), text("reason"))
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[tokio::test]
async fn classes_gateways_and_routes_are_told_how_they_fare() {
    let world = World::new().await;
    world.task("chat", oneshot("default"), &[echo("one").await]).await;
    let class = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": { "name": "agentcube" } });
    let class = world.until(&class, |class| class["status"]["conditions"].is_array()).await;
    assert_eq!(says(&class["status"], "Accepted"), pair("True", "Accepted"));
    let gateway = gateway_object("default", json!([]));
    let gateway = world.until(&gateway, |it| it["status"]["listeners"][0]["attachedRoutes"] == 1).await;
    let status = &gateway["status"];
    assert_eq!(says(status, "Accepted"), pair("True", "Accepted"));
    assert_eq!(says(status, "Programmed"), pair("True", "Programmed"));
    assert_eq!(status["addresses"], json!([{ "type": "IPAddress", "value": "127.0.0.1" }]));
    let listener = &status["listeners"][0];
    assert_eq!(listener["supportedKinds"][0]["kind"], "HTTPRoute");
    for type_ in ["Accepted", "Programmed", "ResolvedRefs"] {
        assert_eq!(says(listener, type_).0, "True", "{type_}");
    }
    let route = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": { "name": "chat" } });
    let route = world.until(&route, |_| true).await;
    let parent = &route["status"]["parents"][0];
    assert_eq!(parent["controllerName"], "agentcube.io/gateway");
    assert_eq!(parent["parentRef"]["name"], "default");
    assert_eq!(says(parent, "Accepted"), pair("True", "Accepted"));
    // Another controller's word stays; the word of ours goes with the Gateway.
    let foreign =
        json!({ "parentRef": { "name": "other" }, "controllerName": "example.com/other", "conditions": [] });
    let both = json!({ "status": { "parents": [parent, foreign] } });
    world.patch_status(&route, both).await;
    world.delete(&gateway).await;
    let route = world.until(&route, |it| it["status"]["parents"].as_array().unwrap().len() == 1).await;
    assert_eq!(route["status"]["parents"][0], foreign);
    assert_eq!(refused(&world, world.port).await, None);
}

/// What a request to a port gets: a status, or nothing if nobody listens.
async fn refused(world: &World, port: u16) -> Option<StatusCode> {
    for _ in 0..2000 {
        if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            return None;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    Some(world.get("/", &[]).await.0)
}

#[tokio::test]
async fn what_cannot_be_served_says_why() {
    let world = World::new().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let listeners = json!([
        http_listener("taken", port),
        { "name": "tls", "port": 443, "protocol": "TLS", "hostname": "a.example.com" },
        http_listener("shared", world.port),
    ]);
    let gateway = world.create(gateway_object("mixed", listeners)).await;
    let told = |it: &Value| it["status"]["listeners"].is_array();
    let gateway = world.until(&gateway, told).await;
    let listeners = &gateway["status"]["listeners"];
    assert_eq!(says(&listeners[0], "Accepted"), pair("False", "PortUnavailable"));
    let message = condition(&listeners[0], "Accepted").unwrap()["message"].as_str().unwrap();
    assert!(message.contains(&port.to_string()), "{message}");
    assert_eq!(says(&listeners[1], "Accepted"), pair("False", "UnsupportedProtocol"));
    assert_eq!(says(&listeners[2], "Programmed"), pair("True", "Programmed"));
    assert_eq!(says(&gateway["status"], "Programmed"), pair("True", "Programmed"));

    // A port shared by two Gateways serves the Tasks of both.
    world.task("first", oneshot("default"), &[echo("first").await]).await;
    world.instances.set("second", &[echo("second").await]);
    let second = json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": "second" },
        "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} }, "routing": oneshot("mixed")["routing"] } });
    let second = world.create(second).await;
    let route = world.route(&second, "mixed").await;
    world.until(&route, |it| it["status"]["parents"].is_array()).await;
    for name in ["first", "second"] {
        let (status, answer) = world.get(&format!("/default/{name}"), &[]).await;
        assert_eq!((status, &answer["instance"]), (StatusCode::OK, &json!(name)));
    }
    // Without the Gateway that it names, a Task is not served, though the port is.
    world.delete(&gateway).await;
    for _ in 0..2000 {
        if world.get("/default/second", &[]).await.0 == StatusCode::NOT_FOUND {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(world.get("/default/second", &[]).await.0, StatusCode::NOT_FOUND);
    assert_eq!(world.get("/default/first", &[]).await.0, StatusCode::OK);
}

#[tokio::test]
async fn routes_that_are_not_accepted() {
    let world = World::new().await;
    let odd = json!({ "routing": { "gatewayRefs": ["default"], "routePolicy": "BySession" } });
    world.task("odd", odd, &[]).await;
    let (status, answer) = world.get("/default/odd", &[]).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::NOT_IMPLEMENTED, &json!("NotSupported")));
    let route = |name: &str| {
        json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": { "name": name },
            "spec": { "parentRefs": [{ "name": "default" }] } })
    };
    let told = |it: &Value| it["status"]["parents"][0].is_object();
    let odd = world.until(&route("odd"), told).await;
    assert_eq!(says(&odd["status"]["parents"][0], "Accepted"), pair("False", "UnsupportedValue"));
    let nobody = world.create(route("nobody")).await;
    let nobody = world.until(&nobody, told).await;
    assert_eq!(says(&nobody["status"]["parents"][0], "Accepted"), pair("False", "UnsupportedValue"));
    let gateway = gateway_object("default", json!([]));
    let gateway = world.until(&gateway, |it| it["status"]["listeners"].is_array()).await;
    assert_eq!(gateway["status"]["listeners"][0]["attachedRoutes"], 0);
}
