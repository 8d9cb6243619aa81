//! The variables by which a container finds the Services that were there when it started.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort};

/// The variables of all Services that have an address.
pub(super) fn variables(services: &[Arc<Service>]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for service in services {
        let Some((name, address, ports)) = reachable(service) else { continue };
        let prefix = upper(name);
        let Some(first) = ports.first() else { continue };
        all.insert(format!("{prefix}_SERVICE_HOST"), address.to_owned());
        all.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        all.insert(format!("{prefix}_PORT"), url(address, first));
        for port in ports {
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                all.insert(format!("{prefix}_SERVICE_PORT_{}", upper(name)), port.port.to_string());
            }
            let protocol = protocol(port);
            let link = format!("{prefix}_PORT_{}_{protocol}", port.port);
            all.insert(format!("{link}_PROTO"), protocol.to_lowercase());
            all.insert(format!("{link}_PORT"), port.port.to_string());
            all.insert(format!("{link}_ADDR"), address.to_owned());
            all.insert(link, url(address, port));
        }
    }
    all
}

fn reachable(service: &Service) -> Option<(&str, &str, &[ServicePort])> {
    let spec = service.spec.as_ref()?;
    let address = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None")?;
    Some((service.metadata.name.as_deref()?, address, spec.ports.as_deref()?))
}

fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().filter(|name| !name.is_empty()).unwrap_or("TCP")
}

fn url(address: &str, port: &ServicePort) -> String {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    format!("{}://{host}:{}", protocol(port).to_lowercase(), port.port)
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_names_of_docker_links_and_of_kubernetes() {
        let service = |value| Arc::new(serde_json::from_value::<Service>(value).unwrap());
        let services = [
            service(json!({"metadata": {"name": "redis-main"}, "spec": {"clusterIP": "10.96.0.7", "ports": [
                {"name": "client", "port": 6379, "protocol": "TCP"}, {"name": "dns-udp", "port": 53, "protocol": "UDP"}]}})),
            service(
                json!({"metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "ports": [{"port": 1}]}}),
            ),
            service(json!({"metadata": {"name": "external"}, "spec": {"type": "ExternalName"}})),
        ];
        let lines: Vec<String> =
            variables(&services).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            lines,
            [
                "REDIS_MAIN_PORT=tcp://10.96.0.7:6379",
                "REDIS_MAIN_PORT_53_UDP=udp://10.96.0.7:53",
                "REDIS_MAIN_PORT_53_UDP_ADDR=10.96.0.7",
                "REDIS_MAIN_PORT_53_UDP_PORT=53",
                "REDIS_MAIN_PORT_53_UDP_PROTO=udp",
                "REDIS_MAIN_PORT_6379_TCP=tcp://10.96.0.7:6379",
                "REDIS_MAIN_PORT_6379_TCP_ADDR=10.96.0.7",
                "REDIS_MAIN_PORT_6379_TCP_PORT=6379",
                "REDIS_MAIN_PORT_6379_TCP_PROTO=tcp",
                "REDIS_MAIN_SERVICE_HOST=10.96.0.7",
                "REDIS_MAIN_SERVICE_PORT=6379",
                "REDIS_MAIN_SERVICE_PORT_CLIENT=6379",
                "REDIS_MAIN_SERVICE_PORT_DNS_UDP=53",
            ]
        );
    }
}
