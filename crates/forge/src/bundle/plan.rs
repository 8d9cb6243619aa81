//! Whether a bundle may be served. Pure.

use agentcube_api::conditions::frontend as reasons;
use agentcube_api::conditions::{self, FALSE, READY, TRUE};
use agentcube_api::frontend::bundle::BundleState;
use agentcube_api::frontend::{JSBundle, JSBundleStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::files;
use crate::raw::Integration;

pub(super) struct Observed<'a> {
    pub(super) bundle: &'a JSBundle,
    /// That it was built for; none if it is gone.
    pub(super) integration: Option<&'a Integration>,
    pub(super) now: Timestamp,
}

/// The status to write, if it is another than there is.
pub(super) fn plan(observed: &Observed<'_>) -> Option<JSBundleStatus> {
    let bundle = observed.bundle;
    let (state, reason, message) = match (files::check(&bundle.spec.files), observed.integration) {
        (Err(fault), _) => (BundleState::Invalid, reasons::REASON_DIGEST_MISMATCH, fault.to_string()),
        (Ok(()), None) => {
            (BundleState::Disabled, reasons::REASON_DISABLED, "it belongs to no FrontendIntegration".into())
        }
        (Ok(()), Some(integration)) if !integration.is_enabled() => (
            BundleState::Disabled,
            reasons::REASON_DISABLED,
            "its FrontendIntegration is switched off".into(),
        ),
        (Ok(()), Some(_)) => (BundleState::Available, reasons::REASON_AVAILABLE, "it may be loaded".into()),
    };
    let old = bundle.status.clone().unwrap_or_default();
    let generation = bundle.metadata.generation;
    let mut status = JSBundleStatus { state: Some(state), observed_generation: generation, ..old.clone() };
    let update = conditions::Update {
        type_: READY,
        status: if state == BundleState::Available { TRUE } else { FALSE },
        reason,
        message,
        observed_generation: generation,
    };
    conditions::set(&mut status.conditions, update, &Time(observed.now));
    (status != old).then_some(status)
}

#[cfg(test)]
mod tests {
    use agentcube_api::frontend::JSBundleSpec;
    use kube::api::ObjectMeta;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_whole_and_wanted_is_available() {
        let spec = JSBundleSpec { manifest_hash: String::new(), files: files::tests::whole() };
        let integration =
            |enabled: bool| Integration::new(ObjectMeta::default(), json!({ "enabled": enabled }));
        let state = |spec: &JSBundleSpec, integration: Option<&Integration>| {
            let mut bundle = JSBundle::new("fi-a", spec.clone());
            let status =
                plan(&Observed { bundle: &bundle, integration, now: Timestamp::UNIX_EPOCH }).unwrap();
            bundle.status = Some(status.clone());
            assert_eq!(plan(&Observed { bundle: &bundle, integration, now: Timestamp::MAX }), None);
            status.state.unwrap()
        };
        assert_eq!(state(&spec, Some(&integration(true))), BundleState::Available);
        assert_eq!(state(&spec, Some(&integration(false))), BundleState::Disabled);
        assert_eq!(state(&spec, None), BundleState::Disabled);
        let mut spoilt = spec;
        spoilt.files[0].sha256 = Some("0".repeat(64));
        assert_eq!(state(&spoilt, Some(&integration(true))), BundleState::Invalid);
    }
}
