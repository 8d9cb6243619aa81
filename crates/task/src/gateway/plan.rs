//! Decides what is to be there for a TaskGateway. Synchronous and total: no client, no clock.

use std::sync::Arc;

use agentcube_api::{TaskGateway, conditions};
use agentcube_instance::revision::label_value;
use gateway_api::gateways::Gateway;
use kube::ResourceExt;

use super::listeners::{self, metadata};
use super::observe::Observed;
use crate::envoy::{
    BackendTrafficPolicy, BackendTrafficPolicySpec, ClientTrafficPolicy, ClientTrafficPolicySpec,
    EnvoyExtensionPolicy, EnvoyExtensionPolicySpec, EnvoyPatchPolicy, EnvoyPatchPolicySpec, EnvoyProxy,
    EnvoyProxySpec, SecurityPolicy, SecurityPolicySpec, client, extension, patch, security, telemetry,
    traffic,
};
use crate::options::{Envoy, Implementation, Options, Picking};

/// What is to be there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) gateway: Gateway,
    pub(crate) policies: Policies,
    /// Why the Gateway must not be there: it would let everybody in.
    pub(crate) withheld: Option<String>,
    /// Why authentication and CORS, and why rate limits cannot be had, where they cannot.
    pub(crate) no_security: Option<String>,
    pub(crate) no_limits: Option<String>,
    /// Why the gateway cannot be served at all.
    pub(crate) unsupported: Option<String>,
    pub(crate) implementation: Implementation,
    pub(crate) stale: Stale,
    /// The Gateway was made before.
    pub(crate) gateway_known: bool,
    /// All of this was made before.
    pub(crate) settled: bool,
}

/// The policies that are to be there.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Policies {
    pub(crate) security: Option<SecurityPolicy>,
    pub(crate) traffic: Option<BackendTrafficPolicy>,
    pub(crate) client: Vec<ClientTrafficPolicy>,
    pub(crate) extension: Option<EnvoyExtensionPolicy>,
    pub(crate) patch: Option<EnvoyPatchPolicy>,
    pub(crate) proxy: Option<EnvoyProxy>,
}

/// The policies that are to go.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stale {
    pub(crate) security: Vec<Arc<SecurityPolicy>>,
    pub(crate) traffic: Vec<Arc<BackendTrafficPolicy>>,
    pub(crate) client: Vec<Arc<ClientTrafficPolicy>>,
    pub(crate) extension: Vec<Arc<EnvoyExtensionPolicy>>,
    pub(crate) patch: Vec<Arc<EnvoyPatchPolicy>>,
    pub(crate) proxies: Vec<Arc<EnvoyProxy>>,
}

/// Decides.
pub(crate) fn plan(observed: &Observed, options: &Options) -> Plan {
    let gateway = &*observed.gateway;
    let class = gateway.spec.gateway_class_name.as_deref().unwrap_or(&options.gateway_class);
    let implementation = Implementation::of(class);
    let (mut policies, mut no_security, mut no_limits) = (Policies::default(), None, None);
    let mut unsupported = None;
    match (implementation, &options.envoy) {
        // It reads the TaskGateway itself, and says on the Gateway what it makes of it.
        (Implementation::BuiltIn, _) => {}
        (Implementation::Envoy, Some(envoy)) => {
            policies = shared(observed, envoy);
            match security::spec(gateway) {
                Ok(spec) => policies.security = spec.map(|spec| new_security(gateway, spec)),
                Err(why) => no_security = Some(why),
            }
            match traffic::of_gateway(gateway, envoy.rate_limits) {
                Ok(spec) => policies.traffic = spec.map(|spec| new_traffic(gateway, spec)),
                Err(why) => no_limits = Some(why),
            }
        }
        (Implementation::Envoy, None) => {
            unsupported = Some(format!(
                "class {class} needs Envoy Gateway, which this operator is not set up for: set gatewayClassName to \
                 agentcube, or configure the operator for Envoy Gateway"
            ));
        }
    }
    let status = gateway.status.clone().unwrap_or_default();
    let before = conditions::find(&status.conditions, conditions::gateway::GATEWAY_READY);
    let unmade = [conditions::gateway::REASON_CREATION_FAILED, conditions::gateway::REASON_UNSUPPORTED];
    let made = before.is_some_and(|before| !unmade.contains(&before.reason.as_str()));
    let unguarded = no_security.as_ref().or(unsupported.as_ref()).filter(|_| authenticates(gateway));
    Plan {
        gateway: listeners::gateway(gateway, class, policies.proxy.as_ref()),
        withheld: unguarded.map(|why| format!("{why}; until then nothing is served")),
        stale: stale(observed, &policies),
        policies,
        no_security,
        no_limits,
        unsupported,
        implementation,
        gateway_known: made,
        settled: made && status.observed_generation == gateway.metadata.generation,
    }
}

/// Whether the gateway is to know who sends a request.
pub(crate) fn authenticates(gateway: &TaskGateway) -> bool {
    let authentication = gateway.spec.authentication.as_ref();
    authentication
        .is_some_and(|authentication| authentication.jwt.is_some() || authentication.ext_auth.is_some())
}

/// What every gateway of Envoy's has.
fn shared(observed: &Observed, envoy: &Envoy) -> Policies {
    let gateway = &*observed.gateway;
    let name = gateway.name_any();
    let client = client::specs(gateway).into_iter().map(|(name, spec)| ClientTrafficPolicy {
        metadata: metadata(gateway, name),
        spec: ClientTrafficPolicySpec(spec),
        status: None,
    });
    let set = observed.children.extension.iter().find_map(|policy| extension::limit_of(&policy.spec.0));
    let limit = extension::limit(observed.longest_wait, set);
    let patch = (envoy.picking == Picking::PatchPolicy).then(|| EnvoyPatchPolicy {
        metadata: metadata(gateway, name.clone()),
        spec: EnvoyPatchPolicySpec(patch::spec(gateway, envoy)),
        status: None,
    });
    Policies {
        client: client.collect(),
        extension: Some(EnvoyExtensionPolicy {
            metadata: metadata(gateway, name.clone()),
            spec: EnvoyExtensionPolicySpec(extension::spec(&label_value(&name), envoy, limit)),
            status: None,
        }),
        patch,
        proxy: envoy.access_log.then(|| EnvoyProxy {
            metadata: metadata(gateway, name),
            spec: EnvoyProxySpec(telemetry::spec(envoy)),
            status: None,
        }),
        ..Policies::default()
    }
}

fn new_security(gateway: &TaskGateway, spec: serde_json::Value) -> SecurityPolicy {
    let metadata = metadata(gateway, gateway.name_any());
    SecurityPolicy { metadata, spec: SecurityPolicySpec(spec), status: None }
}

fn new_traffic(gateway: &TaskGateway, spec: serde_json::Value) -> BackendTrafficPolicy {
    let metadata = metadata(gateway, gateway.name_any());
    BackendTrafficPolicy { metadata, spec: BackendTrafficPolicySpec(spec), status: None }
}

fn stale(observed: &Observed, wanted: &Policies) -> Stale {
    fn others<'a, K: ResourceExt + 'a>(
        have: &[Arc<K>],
        wanted: impl IntoIterator<Item = &'a K>,
    ) -> Vec<Arc<K>> {
        let names: Vec<String> = wanted.into_iter().map(ResourceExt::name_any).collect();
        have.iter().filter(|one| !names.contains(&one.name_any())).cloned().collect()
    }
    let have = &observed.children;
    Stale {
        security: others(&have.security, &wanted.security),
        traffic: others(&have.traffic, &wanted.traffic),
        client: others(&have.client, &wanted.client),
        extension: others(&have.extension, &wanted.extension),
        patch: others(&have.patch, &wanted.patch),
        proxies: others(&have.proxies, &wanted.proxy),
    }
}
