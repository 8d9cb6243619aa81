//! Names as Pods look them up.

use std::io::Write;
use std::sync::Arc;

use agentcube_node::network::Options;
use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::json;
use tokio::net::UdpSocket;

use crate::cluster::{Cluster, PATIENCE, Running, object};

impl Cluster {
    async fn resolve(&self, pod: &Running, name: &str, kind: &str) -> String {
        self.ask(pod, &["resolve", "udp", &self.network.gateway().to_string(), name, kind]).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_the_cluster() {
    let cluster = Cluster::start(Options::default()).await;
    cluster.namespace("shop").await;
    cluster.namespace("other").await;
    let labels = || json!({"app": "web"});
    let (one, two) = (cluster.pod("shop", "one", labels()).await, cluster.pod("shop", "two", labels()).await);
    let _servers = (cluster.serve(&one, "one", "8080").await, cluster.serve(&two, "two", "8080").await);
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
    for (name, address) in [("front", "10.96.7.7"), ("web", "None")] {
        let spec = json!({"clusterIP": address, "selector": labels(), "ports": ports});
        cluster.create::<Service>("shop", json!({"metadata": {"name": name}, "spec": spec})).await;
        cluster.balanced("shop", name, 80, 2).await;
    }
    // Names are for everyone, whoever may connect.
    let client = cluster.pod("other", "client", json!({})).await;
    let both = format!("{} {}", one.address, two.address);
    for (name, kind, answer) in [
        ("front.shop.svc.cluster.local", "A", "10.96.7.7"),
        ("front.shop.svc.cluster.local", "AAAA", ""),
        ("web.shop.svc.cluster.local", "A", &both),
        ("one.web.shop.svc.cluster.local", "A", &one.address.to_string()),
        ("_http._tcp.front.shop.svc.cluster.local", "SRV", "front.shop.svc.cluster.local:80"),
        (
            "_http._tcp.web.shop.svc.cluster.local",
            "SRV",
            "one.web.shop.svc.cluster.local:8080 two.web.shop.svc.cluster.local:8080",
        ),
        ("7.7.96.10.in-addr.arpa", "PTR", "front.shop.svc.cluster.local"),
        ("none.shop.svc.cluster.local", "A", "code 3"),
    ] {
        assert_eq!(cluster.resolve(&client, name, kind).await, answer, "{name}");
    }
    // Whatever address is asked, over TCP too.
    let front = "front.shop.svc.cluster.local";
    assert_eq!(cluster.ask(&client, &["resolve", "udp", "8.8.8.8", front, "A"]).await, "10.96.7.7");
    assert_eq!(cluster.ask(&client, &["resolve", "tcp", "10.244.0.1", front, "A"]).await, "10.96.7.7");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_outside_are_asked_of_the_host() {
    // Port 53 of an address of the host's loopback is for root alone.
    let Ok(upstream) = UdpSocket::bind("127.53.0.1:53").await else {
        eprintln!("skipped: this user cannot play a name server");
        return;
    };
    let upstream = Arc::new(upstream);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "nameserver 127.53.0.1\nsearch corp.example").unwrap();
    let options = Options { resolv_conf: file.path().to_owned(), ..Options::default() };
    let cluster = Cluster::start(options).await;
    cluster.namespace("shop").await;
    let spec = json!({"type": "ExternalName", "externalName": "www.example.org"});
    cluster.create::<Service>("shop", json!({"metadata": {"name": "alias"}, "spec": spec})).await;
    let client = cluster.pod("shop", "client", json!({})).await;
    let server = upstream.clone();
    let serving = tokio::spawn(async move {
        let mut buffer = [0; 512];
        loop {
            let (length, peer) = server.recv_from(&mut buffer).await.unwrap();
            let mut answer = buffer[..length].to_vec();
            (answer[2], answer[3], answer[7]) = (0x81, 0x80, 1);
            answer.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x5d\xb8\xd8\x22");
            // An answer to somebody else's question comes first, and is no answer.
            let mut forged = answer.clone();
            forged[0] ^= 1;
            server.send_to(&forged, peer).await.unwrap();
            server.send_to(&answer, peer).await.unwrap();
        }
    });
    assert_eq!(cluster.resolve(&client, "www.example.org", "A").await, "93.184.216.34");
    let alias = async {
        while cluster.resolve(&client, "alias.shop.svc.cluster.local", "A").await == "code 3" {}
        cluster.resolve(&client, "alias.shop.svc.cluster.local", "A").await
    };
    let alias = tokio::time::timeout(PATIENCE, alias).await.expect("the Service becomes known");
    assert_eq!(alias, "93.184.216.34 www.example.org");
    serving.abort();
    let pod: Pod = object(json!({"metadata": {"namespace": "shop"}, "spec": {"containers": []}}));
    assert_eq!(
        cluster.network.resolv_conf(&pod),
        "search shop.svc.cluster.local svc.cluster.local cluster.local corp.example\n\
         nameserver 10.244.0.1\noptions ndots:5\n"
    );
    cluster.stop().await;
}
