use serde_json::json;

use super::super::message::{A, AAAA, PTR};
use super::*;
use crate::network::decide::tests::{CLIENT, World, endpoint};

fn world() -> World {
    let mut world = World::new();
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
    world.service("shop", "db", json!({"clusterIP": "None", "ports": ports}));
    let mut named = endpoint("10.244.0.3", true);
    named["hostname"] = "db-0".into();
    world.slice("shop", "db", json!([named, endpoint("10.244.0.4", true), endpoint("10.244.0.5", false)]));
    world.service("shop", "idle", json!({"clusterIP": "None"}));
    world.service("shop", "mail", json!({"type": "ExternalName", "externalName": "mail.example.org"}));
    world
}

/// An answer in short: its code if it is none, its records, the kinds of the others.
fn asked(name: &str, kind: u16) -> String {
    let (world, name) = (world(), Name::from_text(name).expect("a name"));
    match answer(&world.view, &world.plan, &name, kind) {
        Answer::Outside => "outside".into(),
        Answer::Alias(target) => format!("alias {target}"),
        Answer::Ours(response) => {
            assert_eq!(response.answers.is_empty(), !response.authority.is_empty());
            let data = response.answers.iter().map(|record| match &record.data {
                Data::A(address) => address.to_string(),
                Data::Ptr(name) => name.to_string(),
                Data::Srv { port, target, .. } => format!("{target}:{port}"),
                other => format!("{other:?}"),
            });
            let additional = response.additional.iter().map(|record| format!("+{}", record.name));
            match response.code {
                Code::NoError => data.chain(additional).collect::<Vec<_>>().join(" "),
                code => format!("{code:?}"),
            }
        }
    }
}

#[test]
fn names_of_the_cluster() {
    for (name, kind, answer) in [
        ("web.shop.svc.cluster.local", A, "10.96.0.7"),
        ("WEB.shop.svc.cluster.local", A, "10.96.0.7"),
        ("web.shop.svc.cluster.local", AAAA, ""),
        ("web.other.svc.cluster.local", A, "NoSuchName"),
        ("db.shop.svc.cluster.local", A, "10.244.0.3 10.244.0.4"),
        ("db-0.db.shop.svc.cluster.local", A, "10.244.0.3"),
        ("10-244-0-4.db.shop.svc.cluster.local", A, "10.244.0.4"),
        ("10-244-0-5.db.shop.svc.cluster.local", A, "NoSuchName"),
        ("db-1.db.shop.svc.cluster.local", A, "NoSuchName"),
        ("idle.shop.svc.cluster.local", A, "NoSuchName"),
        ("mail.shop.svc.cluster.local", A, "alias mail.example.org."),
        ("mail.shop.svc.cluster.local", AAAA, "alias mail.example.org."),
        ("10-244-0-2.shop.pod.cluster.local", A, "10.244.0.2"),
        ("10-244-0-2.other.pod.cluster.local", A, "NoSuchName"),
        ("10-244-0.shop.pod.cluster.local", A, "NoSuchName"),
        ("cluster.local", A, ""),
        ("svc.cluster.local", A, ""),
        ("shop.svc.cluster.local", A, ""),
        ("nowhere.svc.cluster.local", A, "NoSuchName"),
        ("a.b.c.d.e.svc.cluster.local", A, "NoSuchName"),
        ("example.org", A, "outside"),
        ("local", A, "outside"),
        ("web.shop.svc", A, "outside"),
    ] {
        assert_eq!(asked(name, kind), answer, "{name}");
    }
}

#[test]
fn ports_with_names() {
    let web = "web.shop.svc.cluster.local";
    let found = format!("{web}.:80 +{web}.");
    assert_eq!(asked(&format!("_http._tcp.{web}"), SRV), found);
    assert_eq!(asked(&format!("_http._udp.{web}"), SRV), "NoSuchName");
    assert_eq!(asked(&format!("_https._tcp.{web}"), SRV), "NoSuchName");
    assert_eq!(asked(&format!("http.tcp.{web}"), SRV), "NoSuchName");
    assert_eq!(asked(&format!("_http._tcp.{web}"), A), "");
    let db = "db.shop.svc.cluster.local";
    assert_eq!(
        asked(&format!("_http._tcp.{db}"), SRV),
        format!("db-0.{db}.:8080 10-244-0-4.{db}.:8080 +db-0.{db}. +10-244-0-4.{db}.")
    );
}

#[test]
fn addresses_have_names() {
    let reverse = |address: &str| {
        let octets: Vec<_> = address.split('.').rev().collect();
        asked(&format!("{}.in-addr.arpa", octets.join(".")), PTR)
    };
    assert_eq!(reverse("10.96.0.7"), "web.shop.svc.cluster.local.");
    assert_eq!(reverse("10.244.0.3"), "db-0.db.shop.svc.cluster.local.");
    assert_eq!(reverse(CLIENT), "NoSuchName");
    assert_eq!(reverse("8.8.8.8"), "outside");
}
