//! ReferenceGrants: Envoy Gateway lets an object of one namespace name a Service of another only if that other allows
//! it. One for each namespace with a gateway of Envoy's, beside the routers' Services. An object of another namespace
//! cannot own it, so it is removed here when the last such gateway is gone.

use std::collections::{BTreeMap, BTreeSet};

use gateway_api::referencegrants::{
    ReferenceGrant, ReferenceGrantFrom, ReferenceGrantSpec, ReferenceGrantTo,
};
use kube::ResourceExt;
use kube::core::ObjectMeta;

use crate::child::{MANAGED_BY, MANAGED_BY_US};
use crate::options::Envoy;

/// Annotation: the namespace that is allowed something.
pub(crate) const FOR_NAMESPACE: &str = "agentcube.io/for-namespace";

/// The grants that a namespace needs.
pub(crate) fn grants(namespace: &str, envoy: &Envoy) -> Vec<ReferenceGrant> {
    let services = [&envoy.ext_proc, &envoy.placeholder];
    let of: BTreeSet<&str> = services.iter().map(|service| service.namespace.as_str()).collect();
    let grant = |target: &str| {
        let names: BTreeSet<&str> =
            services.iter().filter(|one| one.namespace == target).map(|one| one.name.as_str()).collect();
        let from = [
            ("gateway.networking.k8s.io", "HTTPRoute"),
            ("gateway.envoyproxy.io", "EnvoyExtensionPolicy"),
            ("gateway.envoyproxy.io", "EnvoyProxy"),
        ];
        let from = from.map(|(group, kind)| ReferenceGrantFrom {
            group: group.into(),
            kind: kind.into(),
            namespace: namespace.into(),
        });
        let to = names.into_iter().map(|name| ReferenceGrantTo {
            group: String::new(),
            kind: "Service".into(),
            name: Some(name.into()),
        });
        ReferenceGrant {
            metadata: ObjectMeta {
                name: Some(format!("agentcube-{namespace}")),
                namespace: Some(target.into()),
                labels: Some(BTreeMap::from([(MANAGED_BY.into(), MANAGED_BY_US.into())])),
                annotations: Some(BTreeMap::from([(FOR_NAMESPACE.into(), namespace.into())])),
                ..ObjectMeta::default()
            },
            spec: ReferenceGrantSpec { from: from.into(), to: to.collect() },
        }
    };
    of.into_iter().filter(|target| *target != namespace).map(grant).collect()
}

/// The namespace that a grant of ours is for.
pub(crate) fn namespace_of(grant: &ReferenceGrant) -> Option<String> {
    grant.annotations().get(FOR_NAMESPACE).cloned()
}
