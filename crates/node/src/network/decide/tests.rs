use std::sync::Arc;

use agentcube_runtime::SandboxId;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use serde_json::{Value, json};

use super::super::closed::Closed;
use super::super::view::Guest;
use super::*;

/// A small cluster: web-1, web-2 and client in `shop`, spy in `other`, a Service `web` before the two.
pub(in crate::network) struct World {
    pub(in crate::network) view: View,
    pub(in crate::network) plan: Plan,
}

pub(in crate::network) const CLIENT: &str = "10.244.0.2";
const WEB_1: &str = "10.244.0.3";
const WEB_2: &str = "10.244.0.4";
const SPY: &str = "10.244.0.5";
const OWN: &str = "192.168.7.7";

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of this kind")
}

impl World {
    pub(in crate::network) fn new() -> Self {
        let range = |text: &str| text.parse().expect("a range");
        let plan = Plan {
            pods: range("10.244.0.0/16"),
            services: range("10.96.0.0/16"),
            gateway: Ipv4Addr::new(10, 244, 0, 1),
            api_port: Some(6443),
            platform: None,
            egress: Egress::Open,
        };
        let mut world = Self { view: View::default(), plan };
        for namespace in ["shop", "other", "kube-system", "default"] {
            world.namespace(namespace, json!({}));
        }
        for (address, namespace, name, app) in [
            (CLIENT, "shop", "client", "client"),
            (WEB_1, "shop", "web-1", "web"),
            (WEB_2, "shop", "web-2", "web"),
            (SPY, "other", "spy", "spy"),
        ] {
            world.pod(address, namespace, name, json!({ "app": app }));
        }
        let port = json!({"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"});
        world.service("shop", "web", json!({"clusterIP": "10.96.0.7", "ports": [port]}));
        world.slice("shop", "web", json!([endpoint(WEB_1, true), endpoint(WEB_2, true)]));
        let port = json!({"name": "https", "port": 443, "targetPort": 6443});
        world.service("default", "kubernetes", json!({"clusterIP": "10.96.0.1", "ports": [port]}));
        world
    }

    pub(in crate::network) fn namespace(&mut self, name: &str, labels: Value) {
        let mut labels = labels;
        labels["kubernetes.io/metadata.name"] = name.into();
        let namespace: Namespace = object(json!({"metadata": {"name": name, "labels": labels}}));
        self.view.namespace(None, Some(&namespace));
    }

    fn pod(&mut self, address: &str, namespace: &str, name: &str, labels: Value) {
        let ports =
            json!([{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}]);
        let pod: Pod = object(json!({
            "metadata": {"namespace": namespace, "name": name, "labels": labels},
            "spec": {"containers": [{"name": "a", "ports": ports}]},
        }));
        let sandbox = SandboxId::new(name).expect("a fitting id");
        self.view.attach(Member::new(sandbox, address.parse().expect("an address"), &pod));
    }

    pub(in crate::network) fn service(&mut self, namespace: &str, name: &str, spec: Value) {
        let service = object(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}));
        self.view.change_service(None, Some(&Arc::new(service)));
    }

    pub(in crate::network) fn slice(&mut self, namespace: &str, service: &str, endpoints: Value) {
        let slice = object(json!({
            "metadata": {"namespace": namespace, "name": service,
                "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }));
        self.view.change_slice(None, Some(&Arc::new(slice)));
    }

    pub(in crate::network) fn policy(&mut self, namespace: &str, spec: Value) {
        let policy = object(json!({"metadata": {"namespace": namespace, "name": "policy"}, "spec": spec}));
        self.view.change_policy(None, Some(&policy));
    }

    fn decide(&self, from: &str, to: &str) -> Decision {
        let source = self.view.member(from.parse().expect("an address")).expect("a Pod");
        decide(&self.view, &self.plan, source, to.parse().expect("a destination"), |address| {
            address.to_string() == OWN
        })
    }

    /// Why a connection is refused, if it is.
    fn refused(&self, from: &str, to: &str) -> Option<Reason> {
        match self.decide(from, to) {
            Decision::Refused(reason) => Some(reason),
            _ => None,
        }
    }
}

pub(in crate::network) fn endpoint(address: &str, ready: bool) -> Value {
    json!({"addresses": [address], "conditions": {"ready": ready, "serving": ready, "terminating": false}})
}

#[test]
fn what_is_reachable_without_policies() {
    let world = World::new();
    let web = "10.244.0.3:8080";
    assert_eq!(world.decide(CLIENT, web), Decision::Pod(web.parse().unwrap()));
    assert_eq!(world.decide(CLIENT, "8.8.8.8:443"), Decision::Egress("8.8.8.8:443".parse().unwrap()));
    assert_eq!(world.decide(CLIENT, "192.168.1.1:80"), Decision::Egress("192.168.1.1:80".parse().unwrap()));
    assert_eq!(world.decide(CLIENT, "10.244.0.1:53"), Decision::NameServer);
    for (from, to, reason) in [
        (SPY, web, Reason::OtherNamespace),
        (CLIENT, "10.244.9.9:80", Reason::NoPod),
        (CLIENT, "10.96.9.9:80", Reason::NoService),
        (CLIENT, "10.96.0.7:81", Reason::NoService),
        (SPY, "10.96.0.7:80", Reason::OtherNamespace),
        (CLIENT, "10.96.0.1:443", Reason::ApiServer),
        (CLIENT, "10.244.0.1:6443", Reason::ApiServer),
        (CLIENT, "10.244.0.1:22", Reason::Host),
        (CLIENT, "192.168.7.7:22", Reason::Host),
        (CLIENT, "127.0.0.1:65535", Reason::Host),
        (CLIENT, "169.254.169.254:80", Reason::Host),
        (CLIENT, "168.63.129.16:80", Reason::Host),
        (CLIENT, "100.100.100.200:80", Reason::Host),
        (CLIENT, "192.0.0.192:80", Reason::Host),
        (CLIENT, "0.0.0.0:80", Reason::Host),
        (CLIENT, "0.1.2.3:80", Reason::Host),
        (CLIENT, "224.0.0.1:80", Reason::Host),
        (CLIENT, "255.255.255.255:80", Reason::Host),
    ] {
        assert_eq!(world.refused(from, to), Some(reason), "{from} to {to}");
    }
}

#[test]
fn services_lead_to_endpoints_that_are_ready() {
    let mut world = World::new();
    let endpoints = |world: &World| match world.decide(CLIENT, "10.96.0.7:80") {
        Decision::Service { endpoints, .. } => endpoints.iter().map(ToString::to_string).collect(),
        other => vec![format!("{other:?}")],
    };
    assert_eq!(endpoints(&world), ["10.244.0.3:8080", "10.244.0.4:8080"]);
    world.slice("shop", "web", json!([endpoint(WEB_1, false), endpoint(WEB_2, true)]));
    assert_eq!(endpoints(&world), ["10.244.0.4:8080"]);
    let ending =
        json!({"addresses": [WEB_1], "conditions": {"ready": false, "serving": true, "terminating": true}});
    world.slice("shop", "web", json!([ending, endpoint(WEB_2, false)]));
    assert_eq!(endpoints(&world), ["10.244.0.3:8080"]);
    world.slice("shop", "web", json!([endpoint(WEB_2, false)]));
    assert_eq!(endpoints(&world), ["Refused(NoEndpoint)"]);
    // Endpoints by hand are no way to the host, nor to other namespaces.
    for address in [OWN, "127.0.0.1", SPY, "10.96.0.1"] {
        world.slice("shop", "web", json!([endpoint(address, true)]));
        assert!(world.refused(CLIENT, "10.96.0.7:80").is_some(), "{address}");
    }
    world.slice("shop", "web", json!([endpoint("8.8.8.8", true)]));
    assert_eq!(endpoints(&world), ["8.8.8.8:8080"]);
}

#[test]
fn the_api_server_is_for_those_with_the_label() {
    let mut world = World::new();
    world.pod(WEB_1, "shop", "web-1", json!({API_ACCESS: "true"}));
    for to in ["10.96.0.1:443", "10.244.0.1:6443"] {
        assert_eq!(world.decide(WEB_1, to), Decision::ApiServer);
        assert_eq!(world.refused(WEB_2, to), Some(Reason::ApiServer));
    }
    world.namespace("shop", json!({API_ACCESS: "true"}));
    assert_eq!(world.decide(WEB_2, "10.96.0.1:443"), Decision::ApiServer);
    assert_eq!(world.refused(WEB_2, "10.96.0.1:80"), Some(Reason::NoService));
    world.plan.api_port = None;
    assert_eq!(world.refused(WEB_2, "10.96.0.1:443"), Some(Reason::ApiServer));
}

#[test]
fn the_platform_is_reached_by_its_service_and_by_nothing_else() {
    let mut world = World::new();
    world.service("system", "builds", json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80}]}));
    assert_eq!(world.refused(CLIENT, "10.96.0.9:80"), Some(Reason::NoEndpoint));
    world.plan.platform = Some(Platform { namespace: "system", service: "builds" });
    for pod in [CLIENT, SPY] {
        assert_eq!(world.decide(pod, "10.96.0.9:80"), Decision::Platform);
        assert_eq!(world.refused(pod, "10.96.0.9:81"), Some(Reason::NoService));
    }
    // A Service of the same name elsewhere is somebody else's.
    world.service("shop", "builds", json!({"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}));
    assert_eq!(world.refused(CLIENT, "10.96.0.10:80"), Some(Reason::NoEndpoint));
    world.policy("shop", json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    assert_eq!(world.refused(CLIENT, "10.96.0.9:80"), Some(Reason::EgressPolicy));
}

#[test]
fn policies_of_the_target() {
    let everyone = json!({});
    let from_other =
        json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}]);
    let spies = json!([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "spy"}}}]);
    let own_spies = json!([{"podSelector": {"matchLabels": {"app": "spy"}}}]);
    let clients = json!([{"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}]);
    let block = json!([{"ipBlock": {"cidr": "10.244.0.0/24", "except": ["10.244.0.4/31"]}}]);
    let port = |port: Value| json!([{ "port": port }]);
    // Rules, and who then reaches port 8080 of web-1: client, web-2, spy.
    for (ingress, reached) in [
        (json!([]), [false, false, false]),
        (json!([everyone]), [true, true, true]),
        (json!([{"from": []}]), [true, true, true]),
        (json!([{"from": from_other}]), [false, false, true]),
        (json!([{"from": spies}]), [false, false, true]),
        (json!([{"from": own_spies}]), [false, false, false]),
        (json!([{"from": clients}]), [true, false, false]),
        (json!([{"from": block}]), [true, false, false]),
        (json!([{"from": own_spies}, {"from": clients}]), [true, false, false]),
        (json!([{"ports": port(8080.into())}]), [true, true, true]),
        (json!([{"ports": port(80.into())}]), [false, false, false]),
        (json!([{"ports": [{"port": 8000, "endPort": 8080}]}]), [true, true, true]),
        (json!([{"ports": port("http".into())}]), [true, true, true]),
        (json!([{"ports": port("metrics".into())}]), [false, false, false]),
        (json!([{"ports": [{"port": 8080, "protocol": "UDP"}]}]), [false, false, false]),
        (json!([{"ports": [{"protocol": "TCP"}], "from": clients}]), [true, false, false]),
        (
            json!([{"from": [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Odd"}]}}]}]),
            [false; 3],
        ),
        (json!([{"from": [{"ipBlock": {"cidr": "nonsense"}}]}]), [false; 3]),
    ] {
        let mut world = World::new();
        let selector = json!({"matchLabels": {"app": "web"}});
        world
            .policy("shop", json!({"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}));
        let found = [CLIENT, WEB_2, SPY].map(|from| world.refused(from, "10.244.0.3:8080").is_none());
        assert_eq!(found, reached, "{ingress}");
        // Whom it does not select, it does not concern.
        assert_eq!(world.refused(WEB_1, "10.244.0.2:8080"), None);
    }
}

#[test]
fn policies_of_the_source() {
    let web = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    let outside = json!([{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]);
    // Rules, and what the client then reaches: web-1, the Service, outside, names outside.
    for (egress, reached) in [
        (json!([]), [false, false, false, false]),
        (json!([{}]), [true, true, true, true]),
        (json!([{"to": web}]), [true, true, false, false]),
        (json!([{"to": outside}]), [false, false, true, false]),
        (
            json!([{"to": outside, "ports": [{"port": 443}]}, {"ports": [{"port": 53, "protocol": "UDP"}]}]),
            [false, false, true, true],
        ),
        (
            json!([{"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]}]),
            [false, false, false, true],
        ),
    ] {
        let mut world = World::new();
        let selector = json!({"matchLabels": {"app": "client"}});
        world.policy("shop", json!({"podSelector": selector, "policyTypes": ["Egress"], "egress": egress}));
        let [pod, service, outside] =
            ["10.244.0.3:8080", "10.96.0.7:80", "8.8.8.8:443"].map(|to| world.refused(CLIENT, to).is_none());
        let client = world.view.member(CLIENT.parse().unwrap()).unwrap();
        let names = may_resolve(&world.view, &world.plan, client);
        assert_eq!([pod, service, outside, names], reached, "{egress}");
        assert_eq!(world.decide(CLIENT, "10.244.0.1:53"), Decision::NameServer);
        assert_eq!(world.refused(WEB_1, "8.8.8.8:443"), None);
    }
}

#[test]
fn both_sides_must_agree() {
    let mut world = World::new();
    world.policy("shop", json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}));
    assert_eq!(world.refused(SPY, "10.244.0.3:8080"), None);
    world.policy("other", json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    assert_eq!(world.refused(SPY, "10.244.0.3:8080"), Some(Reason::EgressPolicy));
    // A policy without types is about what comes in, and about what goes out if it has such rules.
    world.policy("other", json!({"podSelector": {}, "egress": [{}]}));
    assert_eq!(world.refused(SPY, "10.244.0.3:8080"), None);
    assert_eq!(world.refused(CLIENT, "10.244.0.5:8080"), Some(Reason::Ingress));
}

#[test]
fn a_closed_node_lets_nobody_out() {
    let mut world = World::new();
    world.plan.egress = Egress::Closed;
    assert_eq!(world.refused(CLIENT, "8.8.8.8:443"), Some(Reason::Closed));
    assert_eq!(world.refused(CLIENT, "10.244.0.3:8080"), None);
    assert!(!may_resolve(&world.view, &world.plan, world.view.member(CLIENT.parse().unwrap()).unwrap()));
}

const NOWHERE: &str = "10.244.0.20";
const PUBLIC: &str = "10.244.0.21";
const OPEN: &str = "10.244.0.22";

/// A guest of each reach, in the namespace `team`.
fn guests(world: &mut World) {
    for (address, reach) in [(NOWHERE, Reach::Nothing), (PUBLIC, Reach::Public), (OPEN, Reach::Cluster)] {
        let name = "neighbour".to_owned();
        let guest = Guest { namespace: "team".into(), name, labels: Labels::new(), reach };
        let sandbox = SandboxId::new(address.replace('.', "-")).expect("a fitting id");
        world.view.attach(Member::guest(sandbox, address.parse().expect("an address"), guest));
    }
}

#[test]
fn what_is_closed_to_guests() {
    let mut world = World::new();
    guests(&mut world);
    let closed = ["10.32.0.0/16", "52.1.0.0/16"].map(|range| range.parse().expect("a range"));
    world.view.closed = Closed::new(closed.to_vec());
    for controller in ["10.33.0.7", "52.2.0.7"] {
        world.view.closed.hear(controller.parse().expect("an address"));
    }
    let own = format!("{OWN}:7070");
    // For a destination: whether a guest that gets to the internet reaches it, one that gets as far as a Pod, and a Pod.
    for (to, public, open, pod) in [
        // In ranges that are closed, of the internet and not.
        ("10.32.0.1:443", Some(Reason::NotPublic), Some(Reason::ClosedToGuests), None),
        ("52.1.255.255:80", Some(Reason::ClosedToGuests), Some(Reason::ClosedToGuests), None),
        // Controllers, at every port.
        ("10.33.0.7:9100", Some(Reason::NotPublic), Some(Reason::ClosedToGuests), None),
        ("52.2.0.7:9100", Some(Reason::ClosedToGuests), Some(Reason::ClosedToGuests), None),
        ("52.2.0.7:1", Some(Reason::ClosedToGuests), Some(Reason::ClosedToGuests), None),
        // Their neighbours are open.
        ("10.33.0.8:9100", Some(Reason::NotPublic), None, None),
        ("52.2.0.8:9100", None, None, None),
        ("10.31.255.255:443", Some(Reason::NotPublic), None, None),
        // The machine, and its neighbours on the wire.
        (&own, Some(Reason::NotPublic), Some(Reason::Host), Some(Reason::Host)),
        ("127.0.0.1:7070", Some(Reason::NotPublic), Some(Reason::Host), Some(Reason::Host)),
        ("169.254.169.254:80", Some(Reason::NotPublic), Some(Reason::Host), Some(Reason::Host)),
        ("168.63.129.16:80", Some(Reason::NotPublic), Some(Reason::Host), Some(Reason::Host)),
    ] {
        assert_eq!(world.refused(NOWHERE, to), Some(Reason::Nothing), "nothing: {to}");
        assert_eq!(world.refused(PUBLIC, to), public, "public: {to}");
        assert_eq!(world.refused(OPEN, to), open, "open: {to}");
        assert_eq!(world.refused(CLIENT, to), pod, "a Pod: {to}");
    }
    // Nor by a Service with endpoints that somebody wrote by hand.
    let port = json!({"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"});
    world.service("team", "web", json!({"clusterIP": "10.96.0.8", "ports": [port]}));
    world.slice("team", "web", json!([endpoint("10.33.0.7", true)]));
    assert_eq!(world.refused(OPEN, "10.96.0.8:80"), Some(Reason::ClosedToGuests));
    assert_eq!(world.refused(CLIENT, "10.96.0.8:80"), None);
}

#[test]
fn guests_get_as_far_as_their_reach() {
    let mut world = World::new();
    world.namespace("team", json!({"agentcube.io/api-access": "true"}));
    world.pod("10.244.0.9", "team", "neighbour", json!({}));
    guests(&mut world);

    let inside = ["10.244.0.9:8080", "10.244.0.22:80", "10.96.0.1:443", "10.244.0.1:6443"];
    let private = ["192.168.0.1:80", "10.0.0.1:80", "172.16.0.1:80", "100.64.0.1:80", "169.254.169.254:80"];
    for to in inside.into_iter().chain(private) {
        assert_eq!(world.refused(NOWHERE, to), Some(Reason::Nothing), "{to}");
        assert_eq!(world.refused(PUBLIC, to), Some(Reason::NotPublic), "{to}");
    }
    assert_eq!(world.refused(NOWHERE, "10.244.0.1:53"), Some(Reason::Nothing));
    assert_eq!(world.refused(NOWHERE, "1.1.1.1:443"), Some(Reason::Nothing));
    assert_eq!(world.decide(PUBLIC, "10.244.0.1:53"), Decision::NameServer);
    assert!(matches!(world.decide(PUBLIC, "1.1.1.1:443"), Decision::Egress(_)));
    assert!(matches!(world.decide(OPEN, "10.244.0.9:8080"), Decision::Pod(_)));
    assert_eq!(world.refused(OPEN, "10.96.0.1:443"), Some(Reason::ApiServer));

    world.view.detach(PUBLIC.parse().expect("an address"));
    let pod = json!({"metadata": {"namespace": "team", "name": "neighbour", "labels": {"a": "b"}}});
    world.view.pod(&object(pod));
    let labels = &world.view.member("10.244.0.9".parse().expect("an address")).expect("the Pod").labels;
    assert_eq!(labels.get("a").map(String::as_str), Some("b"), "a guest of the same name is not the Pod");
}
