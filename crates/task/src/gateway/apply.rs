//! Carries out what was planned for a TaskGateway, and writes its status.

use std::sync::Arc;

use agentcube_api::TaskGateway;
use agentcube_api::agentcube::TaskGatewayStatus;
use agentcube_operator::cache::Cache;
use agentcube_operator::controller::Requeue;
use agentcube_operator::events::Recorder;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};

use super::grants;
use super::observe::{Children, Observed};
use super::plan::{Plan, plan};
use super::status::{self, Outcome, Part};
use crate::caches::{Caches, EnvoyCaches};
use crate::child::{self, Child, Ensured, Look, MANAGER};
use crate::options::{Implementation, Options};
use crate::passes::Passes;
use crate::{DRIFT_REPAIRED, Name, RECREATED};

/// What is reconciled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Gateway(Name),
    /// What the gateways of a namespace are allowed.
    Grants(String),
}

/// Why a pass over a TaskGateway has to be repeated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Child(#[from] child::Error),
    #[error("writing to the server: {0}")]
    Write(#[from] kube::Error),
}

/// Reconciles TaskGateways.
#[derive(Clone)]
pub(crate) struct Reconciler {
    pub(crate) client: Client,
    pub(crate) caches: Caches,
    pub(crate) options: Arc<Options>,
    pub(crate) events: Recorder,
    pub(crate) passes: Passes<Name>,
}

impl Reconciler {
    pub(crate) async fn reconcile(self, key: Key) -> Result<Requeue, Error> {
        match key {
            Key::Gateway(name) => self.gateway(&name).await,
            Key::Grants(namespace) => self.grants(&namespace).await,
        }
    }

    async fn gateway(&self, key: &Name) -> Result<Requeue, Error> {
        let found = self.caches.gateways.get(&key.namespace, &key.name);
        let Some(gateway) = found.filter(|gateway| gateway.metadata.deletion_timestamp.is_none()) else {
            // What was made for it goes with it.
            self.passes.forget(key);
            return Ok(Requeue::No);
        };
        let closely = self.passes.begin(key, self.options.full_pass);
        let observed = Observed::new(gateway, &self.caches, closely);
        let plan = plan(&observed, &self.options);
        let outcome = self.apply(&observed, &plan).await;
        let children = Children::new(&observed.gateway, &self.caches);
        let now = Time(Timestamp::now());
        let status = status::status(&observed, &plan, &outcome, &children, &now);
        self.write_status(&observed.gateway, status).await?;
        let mut after = self.passes.rest(key, self.options.full_pass);
        let parts = [outcome.gateway, outcome.security, outcome.limits];
        for error in parts.into_iter().flat_map(|part| part.errors) {
            match error {
                child::Error::Transient(_) => return Err(error.into()),
                child::Error::Refused(_) => after = after.min(self.options.missing_every),
            }
        }
        Ok(Requeue::After(after))
    }

    async fn apply(&self, observed: &Observed, plan: &Plan) -> Outcome {
        let gateway = &*observed.gateway;
        let look = |known| Look { known, closely: observed.closely };
        let mut outcome = Outcome::default();
        let (caches, wanted) = (self.caches.envoy.as_ref(), &plan.policies);
        // Who may send requests is said before there is anything to send them to.
        if let (Some(caches), Some(policy)) = (caches, &wanted.security) {
            self.put(gateway, &caches.security, policy, look(plan.settled), &mut outcome.security).await;
        }
        // The Gateway names it.
        if let (Some(caches), Some(proxy)) = (caches, &wanted.proxy) {
            self.put(gateway, &caches.proxies, proxy, look(plan.settled), &mut outcome.gateway).await;
        }
        let (api_gateways, part) = (&self.caches.api_gateways, &mut outcome.gateway);
        match plan.withheld {
            Some(_) => {
                part.errors.extend(child::withhold(&self.client, api_gateways, &plan.gateway).await.err())
            }
            None => self.put(gateway, api_gateways, &plan.gateway, look(plan.gateway_known), part).await,
        }
        let Some(caches) = caches else { return outcome };
        let look = look(plan.settled);
        for policy in &wanted.client {
            self.put(gateway, &caches.client, policy, look, &mut outcome.gateway).await;
        }
        if let Some(policy) = &wanted.extension {
            self.put(gateway, &caches.extension, policy, look, &mut outcome.gateway).await;
        }
        if let Some(policy) = &wanted.patch {
            self.put(gateway, &caches.patch, policy, look, &mut outcome.gateway).await;
        }
        if let Some(policy) = &wanted.traffic {
            self.put(gateway, &caches.traffic, policy, look, &mut outcome.limits).await;
        }
        self.clear(caches, plan, &mut outcome).await;
        outcome
    }

    async fn put<K: Child>(
        &self,
        gateway: &TaskGateway,
        cache: &Cache<K>,
        desired: &K,
        look: Look,
        part: &mut Part,
    ) {
        let (kind, name) = (K::kind(&()), desired.name_any());
        match child::ensure(&self.client, cache, desired, look).await {
            Ok(how @ Ensured::Recreated) => {
                let message = format!("{kind} {name} was deleted, automatically recreated");
                self.events.warning(gateway, RECREATED, message);
                part.repaired.push((kind.into_owned(), name, how));
            }
            Ok(how @ Ensured::Restored) => {
                let message = format!("{kind} {name} was changed, automatically restored");
                self.events.warning(gateway, DRIFT_REPAIRED, message);
                part.repaired.push((kind.into_owned(), name, how));
            }
            Ok(Ensured::Unchanged | Ensured::Written | Ensured::Going) => {}
            Err(error) => part.errors.push(error),
        }
    }

    async fn clear(&self, caches: &EnvoyCaches, plan: &Plan, outcome: &mut Outcome) {
        let stale = &plan.stale;
        let gateway = &mut outcome.gateway.errors;
        for policy in &stale.client {
            gateway.extend(child::remove(&self.client, &caches.client, &**policy).await.err());
        }
        for policy in &stale.extension {
            gateway.extend(child::remove(&self.client, &caches.extension, &**policy).await.err());
        }
        for policy in &stale.patch {
            gateway.extend(child::remove(&self.client, &caches.patch, &**policy).await.err());
        }
        for proxy in &stale.proxies {
            gateway.extend(child::remove(&self.client, &caches.proxies, &**proxy).await.err());
        }
        for policy in &stale.security {
            outcome
                .security
                .errors
                .extend(child::remove(&self.client, &caches.security, &**policy).await.err());
        }
        for policy in &stale.traffic {
            outcome.limits.errors.extend(child::remove(&self.client, &caches.traffic, &**policy).await.err());
        }
    }

    async fn grants(&self, namespace: &str) -> Result<Requeue, Error> {
        let (Some(caches), Some(envoy)) = (&self.caches.envoy, &self.options.envoy) else {
            return Ok(Requeue::No);
        };
        let gateways = self.caches.gateways.list(Some(namespace));
        let needed = gateways.iter().any(|gateway| {
            let class = gateway.spec.gateway_class_name.as_deref().unwrap_or(&self.options.gateway_class);
            Implementation::of(class) == Implementation::Envoy
                && gateway.metadata.deletion_timestamp.is_none()
        });
        let wanted = if needed { grants::grants(namespace, envoy) } else { Vec::new() };
        for grant in &wanted {
            let (target, name) = (grant.namespace().unwrap_or_default(), grant.name_any());
            if caches.grants.get(&target, &name).is_some_and(|have| have.spec == grant.spec) {
                continue;
            }
            let api: Api<_> = Api::namespaced(self.client.clone(), &target);
            let parameters = PatchParams::apply(MANAGER).force();
            caches.grants.put(api.patch(&name, &parameters, &Patch::Apply(grant)).await?);
        }
        for have in caches.grants.list(None) {
            let for_this = grants::namespace_of(&have).as_deref() == Some(namespace);
            let wanted = wanted.iter().any(|grant| grant.namespace() == have.namespace());
            if for_this && !wanted {
                child::remove(&self.client, &caches.grants, &*have).await?;
            }
        }
        Ok(Requeue::No)
    }

    /// Writes the status if it says anything new.
    async fn write_status(
        &self,
        gateway: &TaskGateway,
        status: TaskGatewayStatus,
    ) -> Result<(), kube::Error> {
        if gateway.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut object = gateway.clone();
        object.status = Some(status);
        object.metadata.managed_fields = None;
        let api: Api<TaskGateway> =
            Api::namespaced(self.client.clone(), &gateway.namespace().unwrap_or_default());
        let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        self.caches.gateways.put(api.replace_status(&gateway.name_any(), &parameters, &object).await?);
        Ok(())
    }
}
