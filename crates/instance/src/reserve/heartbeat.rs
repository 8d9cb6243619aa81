//! The router's own Lease: that it is alive, and up to which revisions it has seen and respects every change. Whoever
//! ends sessions waits for this, so it is written promptly when a mark was seen, and never says more than is true.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::labels;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::core::ObjectMeta;

use super::Shared;
use super::writes::Failure;
use crate::identity::Kind;

/// Marks come in groups: one write answers all that came within this time.
const GATHER: Duration = Duration::from_millis(50);
const REST: Duration = Duration::from_millis(500);
/// How often it is tried to remove the Lease.
const SIGN_OFFS: usize = 3;

impl Shared {
    /// Writes the Lease until it is written once. Whoever ends sessions has to know of this router before it serves.
    pub(super) async fn announce(&self) {
        while let Err(failure) = self.beat().await {
            tracing::warn!("this router's Lease cannot be written: {failure}");
            tokio::time::sleep(REST).await;
        }
        self.announced.send_replace(true);
    }

    /// Keeps the Lease current for as long as it is polled.
    pub(super) async fn keep_beating(self: &Arc<Self>) {
        self.announce().await;
        let mut trouble = String::new();
        loop {
            let wait = match self.beat().await {
                Ok(()) => {
                    trouble.clear();
                    self.timing.heartbeat
                }
                Err(failure) => {
                    let why = failure.to_string();
                    // Told once, not twice a second for as long as it lasts.
                    if why != trouble {
                        tracing::warn!("this router's Lease cannot be written: {why}");
                        trouble = why;
                    }
                    self.timing.heartbeat.min(REST)
                }
            };
            let begun = tokio::time::Instant::now();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.marked.notified() => {
                    tokio::time::sleep_until(begun + wait.min(begun.elapsed() + GATHER)).await;
                }
            }
        }
    }

    async fn beat(&self) -> Result<(), Failure> {
        let sent = self.clock.now();
        self.writes.beat(&self.router_lease()).await?;
        self.contact.renewed(sent);
        Ok(())
    }

    fn router_lease(&self) -> Lease {
        // What is remembered from before a silence is not served from, so it respects nothing either.
        let leases = if self.contact.is_good() { self.index.seen_leases() } else { 0 };
        let seen = |kind| if self.contact.is_good_for(kind) { self.index.seen_instances(kind) } else { 0 };
        let mut annotations = BTreeMap::from([
            (labels::SEEN_LEASES.into(), leases.to_string()),
            (labels::SEEN_PODS.into(), seen(Kind::Pod).to_string()),
            (labels::SEEN_SANDBOXES.into(), seen(Kind::Sandbox).to_string()),
        ]);
        annotations.extend(self.address.get().map(|at| (labels::ROUTER_ADDRESS.into(), at.to_string())));
        let seconds = i32::try_from(self.timing.silent.as_secs().max(1)).unwrap_or(i32::MAX);
        Lease {
            metadata: ObjectMeta {
                name: Some(self.lease_name.clone()),
                namespace: Some(self.namespace.clone()),
                labels: Some(BTreeMap::from([(labels::LEASE.into(), labels::LEASE_OF_ROUTER.into())])),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.binder.to_string()),
                renew_time: Some(MicroTime(Timestamp::now())),
                lease_duration_seconds: Some(seconds),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Takes the Lease away: this router serves nothing any more. One that a successor of the same name has written in
    /// the meantime stays.
    pub(super) async fn sign_off(&self) {
        for _ in 0..SIGN_OFFS {
            match self.writes.delete_own(&self.namespace, &self.lease_name, &self.binder).await {
                // A write of our own was still under way.
                Err(Failure::Conflict) => {}
                Err(failure) => {
                    tracing::warn!("this router's Lease cannot be removed: {failure}");
                    return;
                }
                Ok(()) => return,
            }
        }
    }
}
