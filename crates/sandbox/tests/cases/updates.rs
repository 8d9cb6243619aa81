//! What UpdateSandbox changes of a sandbox that runs: it is in the object, and decides what happens when the agent fails.

use agentcube_api::sandbox::{FailurePolicy as Policy, SandboxPhase};
use agentcube_protos::fastpath::update_request::Change;
use agentcube_protos::fastpath::{FailurePolicy, UpdateRequest};
use serde_json::json;
use tonic::Code;

use super::pools::resize;
use crate::stage::{Controller, NAMESPACE, Stage, ask, phase, run_of, until};

async fn update(controller: &mut Controller, name: &str, change: Change) -> Result<(), Code> {
    let request = UpdateRequest {
        sandbox_id: name.into(),
        namespace: NAMESPACE.into(),
        change: Some(change),
        ..UpdateRequest::default()
    };
    controller.fastpath.update_sandbox(ask(request)).await.map(drop).map_err(|status| status.code())
}

pub(crate) async fn a_changed_policy_decides_what_a_dead_agent_means() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    for (name, policy) in [("taken-up", "Manual"), ("given-up", "AutoRecreate"), ("later", "Manual")] {
        stage.create(name, json!({ "spec": { "failurePolicy": policy } })).await;
    }
    let mut before = Vec::new();
    for name in ["taken-up", "given-up", "later"] {
        before.push(run_of(&stage.until_phase(name, SandboxPhase::Running).await));
    }
    for (name, asked, written) in [
        ("taken-up", FailurePolicy::AutoRecreate, Policy::AutoRecreate),
        ("given-up", FailurePolicy::Manual, Policy::Manual),
    ] {
        update(&mut controller, name, Change::FailurePolicy(asked.into())).await.unwrap();
        assert_eq!(stage.sandboxes().get(name).await.unwrap().spec.failure_policy, written, "{name}");
    }
    let unknown = update(&mut controller, "later", Change::FailurePolicy(7)).await;
    assert_eq!(unknown, Err(Code::InvalidArgument));
    let absent = update(&mut controller, "nobody", Change::FailurePolicy(1)).await;
    assert_eq!(absent, Err(Code::NotFound));
    stage.agents.kill(0);
    for name in ["given-up", "later"] {
        stage.until_phase(name, SandboxPhase::Lost).await;
    }
    stage.agents.add(0);
    let anew = async |name: &str, before: &Option<String>| {
        let runs_anew = |now: &_| run_of(now) != *before && phase(now) == Some(SandboxPhase::Running);
        stage.until(name, runs_anew).await;
    };
    anew("taken-up", &before[0]).await;
    // Who has lost it already may still decide.
    let policy = Change::FailurePolicy(FailurePolicy::AutoRecreate.into());
    update(&mut controller, "later", policy).await.unwrap();
    anew("later", &before[2]).await;
    let given_up = stage.sandboxes().get("given-up").await.unwrap();
    assert_eq!((phase(&given_up), run_of(&given_up)), (Some(SandboxPhase::Lost), before[1].clone()));
    stage.until_at_rest_with(&controller, &[SandboxPhase::Running, SandboxPhase::Lost]).await;
    controller.stop().await;
}

/// What an agent does with it is `stands_still_without_a_controller` of the agent.
pub(crate) async fn a_longer_recovery_timeout_reaches_the_agent() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    for name in ["patient", "hasty"] {
        let spec = json!({ "failurePolicy": "AutoRecreate", "recoveryTimeoutSeconds": 0 });
        stage.create(name, json!({ "spec": spec })).await;
    }
    let patient = run_of(&stage.until_phase("patient", SandboxPhase::Running).await).unwrap();
    let hasty = run_of(&stage.until_phase("hasty", SandboxPhase::Running).await);
    update(&mut controller, "patient", Change::RecoveryTimeoutSeconds(3_600)).await.unwrap();
    assert_eq!(stage.sandboxes().get("patient").await.unwrap().spec.recovery_timeout_seconds, 3_600);
    let agent = stage.agents.get(0);
    until("its agent is told", async || {
        let told = agent.told();
        let mut told = told.iter().filter(|told| told.recovery_timeout_seconds == Some(3_600));
        told.any(|told| told.run_id == patient).then_some(())
    })
    .await;
    resize(&stage, json!({ "poolMin": 2, "poolMax": 2 })).await;
    until("there is another agent", async || (stage.agents.count() == 2).then_some(())).await;
    agent.cut(true);
    agent.fence_all();
    let moved =
        stage.until("hasty", |now| run_of(now) != hasty && phase(now) == Some(SandboxPhase::Running)).await;
    assert_eq!(moved.status.unwrap().assigned_pod.as_deref(), Some("pool-agent-1"));
    stage.until_phase("patient", SandboxPhase::Lost).await;
    agent.cut(false);
    let back = stage.until_phase("patient", SandboxPhase::Running).await;
    assert_eq!(run_of(&back), Some(patient));
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

/// An agent out of contact goes by what it was told: started elsewhere sooner than that, a sandbox would run twice.
pub(crate) async fn a_shorter_recovery_timeout_is_refused() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    stage.create("one", json!({ "spec": { "recoveryTimeoutSeconds": 300 } })).await;
    stage.until_phase("one", SandboxPhase::Running).await;
    for seconds in [299, 0, -1, 86_401] {
        let refused = update(&mut controller, "one", Change::RecoveryTimeoutSeconds(seconds)).await;
        assert_eq!(refused, Err(Code::InvalidArgument), "{seconds}");
    }
    for seconds in [300, 86_400] {
        update(&mut controller, "one", Change::RecoveryTimeoutSeconds(seconds)).await.unwrap();
    }
    assert_eq!(stage.sandboxes().get("one").await.unwrap().spec.recovery_timeout_seconds, 86_400);
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}
