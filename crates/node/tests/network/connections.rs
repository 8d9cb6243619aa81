//! Who reaches whom.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::Ordering;

use agentcube_node::network::{API_ACCESS, Options};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Cluster, PATIENCE, line};

const REFUSED: &str = "ConnectionReset";

#[tokio::test(flavor = "multi_thread")]
async fn pods_reach_each_other_under_their_own_addresses() {
    let cluster = Cluster::start(Options::default()).await;
    cluster.namespace("shop").await;
    let (one, two) =
        (cluster.pod("shop", "one", json!({})).await, cluster.pod("shop", "two", json!({})).await);
    let _servers = (cluster.serve(&one, "one", "8080").await, cluster.serve(&two, "two", "8080").await);
    let (to_one, to_two) = (format!("{}:8080", one.address), format!("{}:8080", two.address));
    assert_eq!(cluster.fetch(&one, &to_two).await, format!("two sees {} got 0 sum 0", one.address));
    assert_eq!(cluster.fetch(&two, &to_one).await, format!("one sees {} got 0 sum 0", two.address));
    // Itself, without the node.
    assert_eq!(cluster.fetch(&one, &to_one).await, format!("one sees {} got 0 sum 0", one.address));
    assert_eq!(cluster.fetch(&one, "127.0.0.1:8080").await, "one sees 127.0.0.1 got 0 sum 0");
    assert_eq!(cluster.fetch(&one, format!("{}:81", two.address)).await, REFUSED);
    let counters = cluster.network.counters(&one.sandbox).unwrap();
    assert_eq!(counters.opened.load(Ordering::Relaxed), 1);
    assert_eq!(counters.failed.load(Ordering::Relaxed), 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_transfers_arrive_whole_and_half_closed() {
    let cluster = Cluster::start(Options::default()).await;
    cluster.namespace("shop").await;
    let (one, two) =
        (cluster.pod("shop", "one", json!({})).await, cluster.pod("shop", "two", json!({})).await);
    let _server = cluster.serve(&two, "two", "8080").await;
    let bytes = 64u64 << 20;
    let answer = cluster.ask(&one, &["fetch", &format!("{}:8080", two.address), &bytes.to_string()]).await;
    // Every byte value comes equally often.
    let sum = bytes / 256 * (255 * 256 / 2);
    assert_eq!(answer, format!("two sees {} got {bytes} sum {sum}", one.address));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_connections_are_open_at_once() {
    let cluster = Cluster::start(Options::default()).await;
    cluster.namespace("shop").await;
    let (one, two) =
        (cluster.pod("shop", "one", json!({})).await, cluster.pod("shop", "two", json!({})).await);
    let _server = cluster.serve(&two, "two", "8080").await;
    let to = format!("{}:8080", two.address);
    assert_eq!(cluster.ask(&one, &["crowd", &to, "200"]).await, "200 answers");
    assert_eq!(cluster.network.counters(&one.sandbox).unwrap().opened.load(Ordering::Relaxed), 200);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_balanced_over_what_is_ready() {
    let cluster = Cluster::start(Options::default()).await;
    cluster.namespace("shop").await;
    let labels = || json!({"app": "web"});
    let (one, two) = (cluster.pod("shop", "one", labels()).await, cluster.pod("shop", "two", labels()).await);
    let _servers = (cluster.serve(&one, "one", "8080").await, cluster.serve(&two, "two", "8080").await);
    let client = cluster.pod("shop", "client", json!({})).await;
    let ports = json!([{"port": 80, "targetPort": "http"}]);
    let spec = json!({"clusterIP": "10.96.7.7", "selector": labels(), "ports": ports});
    cluster.create::<Service>("shop", json!({"metadata": {"name": "web"}, "spec": spec})).await;
    cluster.balanced("shop", "web", 80, 2).await;
    let mut answers = Vec::new();
    for _ in 0..6 {
        answers.push(cluster.fetch(&client, "10.96.7.7:80").await);
    }
    for name in ["one", "two"] {
        let own = format!("{name} sees {} got 0 sum 0", client.address);
        assert_eq!(answers.iter().filter(|answer| **answer == own).count(), 3, "{answers:?}");
    }
    assert_eq!(cluster.fetch(&client, "10.96.7.7:81").await, REFUSED);
    // A Pod behind a Service reaches itself through it, too.
    cluster.report("shop", "two", two.address, false).await;
    cluster.balanced("shop", "web", 80, 1).await;
    assert_eq!(cluster.fetch(&one, "10.96.7.7:80").await, format!("one sees {} got 0 sum 0", one.address));
    cluster.report("shop", "one", one.address, false).await;
    cluster.balanced("shop", "web", 80, 0).await;
    assert_eq!(cluster.fetch(&client, "10.96.7.7:80").await, REFUSED);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_namespaces_are_closed_until_a_policy_opens_them() {
    let cluster = Cluster::start(Options::default()).await;
    cluster.namespace("shop").await;
    cluster.namespace("other").await;
    let web = cluster.pod("shop", "web", json!({"app": "web"})).await;
    let _server = cluster.serve(&web, "web", "8080").await;
    let spy = cluster.pod("other", "spy", json!({})).await;
    let to = format!("{}:8080", web.address);
    assert_eq!(cluster.fetch(&spy, &to).await, REFUSED);
    assert_eq!(cluster.network.counters(&spy.sandbox).unwrap().refused.load(Ordering::Relaxed), 1);
    let from = json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}]);
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": from}]});
    cluster.create::<NetworkPolicy>("shop", json!({"metadata": {"name": "open"}, "spec": spec})).await;
    let opened = async { while cluster.fetch(&spy, &to).await == REFUSED {} };
    tokio::time::timeout(PATIENCE, opened).await.expect("the policy comes into force");
    assert_eq!(cluster.fetch(&spy, &to).await, format!("web sees {} got 0 sum 0", spy.address));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_is_out_of_reach() {
    let cluster = Cluster::start(Options::default()).await;
    cluster.namespace("shop").await;
    let pod = cluster.pod("shop", "pod", json!({})).await;
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    // Its own loopback: nobody listens there.
    assert_eq!(cluster.fetch(&pod, format!("127.0.0.1:{port}")).await, "ConnectionRefused");
    // All that means the host, from any address that it has; a machine without network has none.
    let mut addresses = vec![cluster.network.gateway(), Ipv4Addr::new(169, 254, 169, 254)];
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("192.0.2.1:9").is_ok()
        && let Ok(std::net::SocketAddr::V4(own)) = probe.local_addr()
    {
        addresses.push(*own.ip());
    }
    for address in addresses {
        assert_eq!(cluster.fetch(&pod, format!("{address}:{port}")).await, REFUSED, "{address}");
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    }
    // The listener of the node itself is no way around.
    assert_eq!(cluster.fetch(&pod, "127.0.0.1:65535").await, REFUSED);
    for to in ["8.8.8.8:123", "224.0.0.251:5353"] {
        assert_eq!(cluster.ask(&pod, &["send", to]).await, "PermissionDenied");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_is_for_those_with_the_label() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let cluster = Cluster::start(Options { api_server: Some(address), ..Options::default() }).await;
    cluster.namespace("shop").await;
    let allowed = cluster.pod("shop", "allowed", json!({API_ACCESS: "true"})).await;
    let other = cluster.pod("shop", "other", json!({})).await;
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"hello").await.unwrap();
        }
    });
    let gateway = format!("{}:{}", cluster.network.gateway(), address.port());
    for to in ["10.96.0.1:443", &gateway] {
        assert_eq!(cluster.fetch(&allowed, to).await, "hello");
        assert_eq!(cluster.fetch(&other, to).await, REFUSED);
    }
    serving.abort();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_connects_to_pods_and_ends_what_it_carries() {
    let cluster = Cluster::start(Options { connections_per_pod: 2, ..Options::default() }).await;
    cluster.namespace("shop").await;
    let (web, client) =
        (cluster.pod("shop", "web", json!({})).await, cluster.pod("shop", "client", json!({})).await);
    let _server = cluster.serve(&web, "web", "8080").await;
    let mut stream = cluster.network.connect(web.address, 8080).await.unwrap();
    stream.write_all(b"abc").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "web sees 10.244.0.1 got 3 sum 294");
    let error = cluster.network.connect(web.address, 81).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let error = cluster.network.connect(Ipv4Addr::new(10, 244, 9, 9), 80).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HostUnreachable);
    let error = cluster.network.connect_service("shop", "none", 80).await.unwrap_err();
    assert_eq!(error.to_string(), "no Service has this address and port");

    let to = format!("{}:8080", web.address);
    let mut held = [cluster.run(&client, &["hold", &to]).await, cluster.run(&client, &["hold", &to]).await];
    for output in &mut held {
        assert_eq!(line(output).await, "held");
    }
    // Two are all that it may have.
    assert_eq!(cluster.fetch(&client, &to).await, REFUSED);
    cluster.network.detach(&client.sandbox);
    for output in &mut held {
        assert!(["ended", REFUSED].contains(&line(output).await.as_str()));
    }
    assert!(cluster.network.counters(&client.sandbox).is_none());
    cluster.stop().await;
}
