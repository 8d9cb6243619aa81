//! The Gateway of a TaskGateway. Pure.

use std::collections::BTreeMap;

use agentcube_api::TaskGateway;
use agentcube_api::agentcube::gateway::{ListenerProtocol, ListenerSpec, TlsMode, TlsSpec};
use agentcube_instance::revision::label_value;
use gateway_api::gateways::{
    Gateway, GatewayInfrastructure, GatewayInfrastructureParametersRef, GatewayListeners,
    GatewayListenersAllowedRoutes, GatewayListenersAllowedRoutesKinds,
    GatewayListenersAllowedRoutesNamespaces, GatewayListenersAllowedRoutesNamespacesFrom,
    GatewayListenersTls, GatewayListenersTlsCertificateRefs, GatewayListenersTlsMode, GatewaySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::core::ObjectMeta;

use crate::child::{MANAGED_BY, MANAGED_BY_US};
use crate::envoy::EnvoyProxy;

/// The Gateway, of the same name.
pub(crate) fn gateway(gateway: &TaskGateway, class: &str, proxy: Option<&EnvoyProxy>) -> Gateway {
    let parameters = proxy.map(|proxy| GatewayInfrastructureParametersRef {
        group: "gateway.envoyproxy.io".into(),
        kind: "EnvoyProxy".into(),
        name: proxy.name_any(),
    });
    let spec = GatewaySpec {
        infrastructure: parameters.map(|parameters| GatewayInfrastructure {
            parameters_ref: Some(parameters),
            ..GatewayInfrastructure::default()
        }),
        gateway_class_name: class.into(),
        listeners: gateway.spec.listeners.iter().map(listener).collect(),
        ..GatewaySpec::default()
    };
    Gateway { metadata: metadata(gateway, gateway.name_any()), spec, status: None }
}

fn listener(listener: &ListenerSpec) -> GatewayListeners {
    let protocol = match listener.protocol {
        ListenerProtocol::Https => "HTTPS",
        // An upgrade begins as a plain request.
        ListenerProtocol::Http | ListenerProtocol::WebSocket => "HTTP",
    };
    let routes = GatewayListenersAllowedRoutes {
        kinds: Some(vec![GatewayListenersAllowedRoutesKinds {
            group: Some("gateway.networking.k8s.io".into()),
            kind: "HTTPRoute".into(),
        }]),
        namespaces: Some(GatewayListenersAllowedRoutesNamespaces {
            from: Some(GatewayListenersAllowedRoutesNamespacesFrom::Same),
            selector: None,
        }),
    };
    GatewayListeners {
        name: listener.name.clone(),
        protocol: protocol.into(),
        port: listener.port,
        hostname: listener.hostname.clone(),
        tls: listener.tls.as_ref().map(tls),
        allowed_routes: Some(routes),
    }
}

fn tls(tls: &TlsSpec) -> GatewayListenersTls {
    let certificates = tls.certificate_refs.iter().map(|object| GatewayListenersTlsCertificateRefs {
        group: Some(object.group.clone()),
        kind: Some(object.kind.clone()),
        name: object.name.clone(),
        namespace: object.namespace.clone(),
    });
    GatewayListenersTls {
        certificate_refs: Some(certificates.collect()),
        mode: Some(match tls.mode {
            TlsMode::Terminate => GatewayListenersTlsMode::Terminate,
        }),
        options: Some(tls.options.clone()).filter(|options| !options.is_empty()),
    }
}

/// What all children of a TaskGateway carry.
pub(crate) fn metadata(gateway: &TaskGateway, name: String) -> ObjectMeta {
    let labels = BTreeMap::from([
        (MANAGED_BY.into(), MANAGED_BY_US.into()),
        (agentcube_api::labels::GATEWAY.into(), label_value(&gateway.name_any())),
    ]);
    let owner = OwnerReference {
        api_version: "agentcube.io/v1alpha1".into(),
        kind: "TaskGateway".into(),
        name: gateway.name_any(),
        uid: gateway.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    ObjectMeta {
        name: Some(name),
        namespace: gateway.namespace(),
        labels: Some(labels),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    }
}
