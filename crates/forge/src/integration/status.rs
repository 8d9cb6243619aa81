//! What is said of a FrontendIntegration. Pure.

use agentcube_api::conditions::frontend as reasons;
use agentcube_api::conditions::{self, FALSE, READY, TRUE};
use agentcube_api::frontend::FrontendIntegrationStatus;
use agentcube_api::frontend::integration::{ActiveBuild, IntegrationPhase, LocalRef};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use super::plan::{Observed, SeenBundle};
use crate::names;

/// Longest message in a status.
const LONGEST: usize = 2000;

/// Why a build failed: what a runner leaves as the last word of its Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// One word, for programs.
    pub reason: String,
    pub message: String,
    /// Trying again does not help.
    #[serde(rename = "final", default)]
    pub is_final: bool,
}

impl Failure {
    /// One that says no more than this.
    pub fn text(message: &str) -> Failure {
        let reason = reasons::REASON_BUILD_FAILED.to_owned();
        Failure { reason, message: cut(message), is_final: false }
    }

    /// What a Pod has said at its end, in whatever words.
    pub fn said(text: &str) -> Failure {
        let text = text.trim();
        match serde_json::from_str::<Failure>(text) {
            Ok(failure) => Failure { message: cut(&failure.message), ..failure },
            Err(_) => Failure::text(text),
        }
    }
}

pub(super) fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

pub(super) fn building(
    observed: &Observed<'_>,
    status: &mut FrontendIntegrationStatus,
    active: &ActiveBuild,
    failed: Option<&Failure>,
) {
    let (attempt, job) = (active.attempt, &active.job_ref.name);
    let message = match failed {
        None => format!("Job {job} builds it, attempt {attempt} of {}", observed.limits.attempts),
        Some(failed) => format!("attempt {attempt} failed, and is made again: {}", failed.message),
    };
    if observed.bundle.is_none() {
        status.bundle_ref = None;
    }
    set(observed, status, IntegrationPhase::Building, reasons::REASON_BUILDING, &message);
}

pub(super) fn succeeded(
    observed: &Observed<'_>,
    status: &mut FrontendIntegrationStatus,
    bundle: &SeenBundle,
) {
    let name = names::bundle(&observed.integration.name_any());
    let settled = status.phase == Some(IntegrationPhase::Succeeded)
        && status.observed_spec_hash.as_deref() == Some(observed.hash);
    // What was said of a rebuild that failed stays until there is news.
    let kept = status.message.clone().filter(|_| settled);
    let message = kept.unwrap_or_else(|| format!("JSBundle {name} is that of the spec"));
    status.observed_manifest_hash = Some(bundle.manifest_hash.clone());
    status.bundle_ref = Some(LocalRef { name, uid: Some(bundle.uid.clone()) });
    set(observed, status, IntegrationPhase::Succeeded, reasons::REASON_BUNDLE_CURRENT, &message);
}

pub(super) fn failed(
    observed: &Observed<'_>,
    status: &mut FrontendIntegrationStatus,
    said: &Failure,
    message: &str,
) {
    let is_word = !said.reason.is_empty() && said.reason.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let reason = if is_word && said.reason.len() <= 64 { &said.reason } else { reasons::REASON_BUILD_FAILED };
    set(observed, status, IntegrationPhase::Failed, reason, message);
}

/// It has failed before, and nothing that would help has happened.
pub(super) fn stay(observed: &Observed<'_>, status: &mut FrontendIntegrationStatus) {
    let built = conditions::find(&status.conditions, reasons::BUILT).map(|built| built.reason.clone());
    let reason = built.unwrap_or_else(|| reasons::REASON_BUILD_FAILED.to_owned());
    let message = status.message.clone().unwrap_or_default();
    set(observed, status, IntegrationPhase::Failed, &reason, &message);
}

pub(super) fn disabled(observed: &Observed<'_>, status: &mut FrontendIntegrationStatus, is_current: bool) {
    let built = match is_current {
        true => (TRUE, reasons::REASON_BUNDLE_CURRENT),
        false => (FALSE, reasons::REASON_DISABLED),
    };
    status.phase = Some(IntegrationPhase::Disabled);
    status.message = Some("Disabled".to_owned());
    status.observed_generation = observed.integration.metadata.generation;
    condition(observed, status, reasons::BUILT, built, "it is switched off");
    condition(observed, status, READY, (FALSE, reasons::REASON_DISABLED), "it is switched off");
}

/// Both conditions say the same, unless it is switched off.
fn set(
    observed: &Observed<'_>,
    status: &mut FrontendIntegrationStatus,
    phase: IntegrationPhase,
    reason: &str,
    message: &str,
) {
    let message = cut(message);
    status.phase = Some(phase);
    status.observed_spec_hash = Some(observed.hash.to_owned());
    status.observed_generation = observed.integration.metadata.generation;
    let holds = if phase == IntegrationPhase::Succeeded { TRUE } else { FALSE };
    condition(observed, status, reasons::BUILT, (holds, reason), &message);
    condition(observed, status, READY, (holds, reason), &message);
    status.message = Some(message);
}

fn condition(
    observed: &Observed<'_>,
    status: &mut FrontendIntegrationStatus,
    type_: &str,
    (holds, reason): (&str, &str),
    message: &str,
) {
    let update = conditions::Update {
        type_,
        status: holds,
        reason,
        message: message.to_owned(),
        observed_generation: observed.integration.metadata.generation,
    };
    conditions::set(&mut status.conditions, update, &Time(observed.now));
}
