//! Pools that grow with demand and shrink by empty agents only, and the streams of the fast path.

use std::time::Duration;

use agentcube_api::sandbox::SandboxPhase;
use agentcube_protos::fastpath::update_request::Change;
use agentcube_protos::fastpath::{
    CreateRequest, ExecRequest, GetRequest, ListRequest, LogsRequest, UpdateRequest,
};
use agentcube_protos::session::ExecStart;
use agentcube_protos::session::exec_output::Output;
use agentcube_sandbox::Options;
use futures_util::stream;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch};
use serde_json::json;
use tonic::Code;

use crate::stage::fuse::Fuse;
use crate::stage::{NAMESPACE, POOL, Stage, ask, phase, until, unwanted, wanted};

/// Members are there at once.
pub(super) fn members() -> Options {
    Options { wait_for_agent: Duration::from_secs(30), ..Options::default() }
}

pub(super) async fn resize(stage: &Stage, capacity: serde_json::Value) {
    let patch = Patch::Merge(json!({ "spec": { "capacity": capacity } }));
    stage.pools().patch(POOL, &Default::default(), &patch).await.unwrap();
}

pub(crate) async fn a_create_is_refused_only_at_the_most_agents_and_empty_ones_go() {
    let stage = Stage::open(0).await;
    resize(&stage, json!({ "poolMin": 0, "poolMax": 3, "bufferMin": 0, "bufferMax": 0 })).await;
    let (mut controller, ready) = stage.start_with(&Fuse::never(), members());
    ready.await;
    assert_eq!(stage.agents.count(), 0);
    let mut names = Vec::new();
    for _ in 0..12 {
        names
            .push(controller.fastpath.create_sandbox(ask(wanted(""))).await.unwrap().into_inner().sandbox_id);
    }
    let full = controller.fastpath.create_sandbox(ask(wanted(""))).await.unwrap_err();
    assert_eq!((full.code(), stage.agents.count()), (Code::ResourceExhausted, 3));
    until("all objects are there", async || (stage.objects().await.len() == 12).then_some(())).await;
    stage.until_at_rest(&controller).await;
    // One stays on each: none of the agents is empty, and none goes.
    let mut kept = std::collections::HashSet::new();
    let objects = stage.objects().await;
    let stays: Vec<String> = objects
        .iter()
        .filter(|object| kept.insert(object.status.as_ref().unwrap().assigned_pod.clone()))
        .map(ResourceExt::name_any)
        .collect();
    for name in names.iter().filter(|name| !stays.contains(name)) {
        controller.fastpath.delete_sandbox(ask(unwanted(name))).await.unwrap();
    }
    until("the pool says so", async || {
        let status = stage.pools().get(POOL).await.unwrap().status.unwrap_or_default();
        status.sandboxes.is_some_and(|counts| counts.active == 3).then_some(())
    })
    .await;
    stage.until_at_rest(&controller).await;
    assert_eq!(stage.agents.count(), 3, "none was empty");
    let last = stay_of(&objects, &stays, "pool-agent-2");
    controller.fastpath.delete_sandbox(ask(unwanted(&last))).await.unwrap();
    until("the empty one goes", async || (stage.agents.count() == 2).then_some(())).await;
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

/// Which of these is at this agent.
fn stay_of(objects: &[agentcube_api::Sandbox], stays: &[String], agent: &str) -> String {
    let there = objects.iter().filter(|object| stays.contains(&object.name_any()));
    let mut there =
        there.filter(|object| object.status.as_ref().unwrap().assigned_pod.as_deref() == Some(agent));
    there.next().unwrap().name_any()
}

pub(crate) async fn objects_that_wait_have_the_pool_grow() {
    let stage = Stage::open(0).await;
    resize(&stage, json!({ "poolMin": 0, "poolMax": 2, "bufferMin": 0 })).await;
    let controller = stage.start().await;
    for number in 0..6 {
        stage.create(&format!("box-{number}"), json!({})).await;
    }
    for number in 0..6 {
        stage.until_phase(&format!("box-{number}"), SandboxPhase::Running).await;
    }
    assert_eq!(stage.agents.count(), 2);
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

pub(crate) async fn a_sandbox_whose_pool_is_missing_waits_for_it() {
    let stage = Stage::open(1).await;
    stage.pools().delete(POOL, &DeleteParams::default()).await.unwrap();
    let controller = stage.start().await;
    stage.create("one", json!({})).await;
    let waits = stage.until_phase("one", SandboxPhase::Pending).await;
    assert_eq!(waits.status.unwrap().conditions[0].reason, "SandboxPoolMissing");
    stage
        .create_pool(
            json!({ "capacity": { "poolMin": 1, "poolMax": 1, "bufferMin": 0 }, "maxSandboxesPerPod": 4 }),
        )
        .await;
    stage.until_phase("one", SandboxPhase::Running).await;
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

pub(crate) async fn a_watch_tells_of_every_change_and_ends_with_the_sandbox() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    let get = GetRequest { sandbox_id: "one".into(), namespace: NAMESPACE.into() };
    let unknown = controller.fastpath.watch_sandbox(ask(get.clone())).await;
    assert_eq!(unknown.unwrap_err().code(), Code::NotFound);
    controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap();
    let mut watch = controller.fastpath.watch_sandbox(ask(get.clone())).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!((first.phase.as_str(), first.deleted), ("Running", false));
    stage.until_at_rest(&controller).await;
    let paused = UpdateRequest {
        sandbox_id: "one".into(),
        namespace: NAMESPACE.into(),
        change: Some(Change::Paused(true)),
        labels: [("team".to_string(), "a".to_string())].into(),
    };
    controller.fastpath.update_sandbox(ask(paused)).await.unwrap();
    until("its agent has it stand still", async || {
        stage.agents.get(0).entries().iter().all(|entry| entry.paused).then_some(())
    })
    .await;
    while !watch.message().await.unwrap().unwrap().paused {}
    let list = ListRequest {
        namespace: NAMESPACE.into(),
        label_selector: "team=a".into(),
        ..ListRequest::default()
    };
    let listed = controller.fastpath.list_sandboxes(ask(list)).await.unwrap().into_inner();
    assert_eq!(listed.items.len(), 1);
    let expires = UpdateRequest {
        sandbox_id: "one".into(),
        namespace: NAMESPACE.into(),
        change: Some(Change::ExpireSeconds(3600)),
        ..UpdateRequest::default()
    };
    controller.fastpath.update_sandbox(ask(expires)).await.unwrap();
    until("its agent is told when it ends", async || {
        let told = stage.agents.get(0).told();
        told.iter().any(|told| told.expire_unix_ms.is_some_and(|at| at > 0)).then_some(())
    })
    .await;
    controller.fastpath.delete_sandbox(ask(unwanted("one"))).await.unwrap();
    let mut last = first;
    while let Some(next) = watch.message().await.unwrap() {
        last = next;
    }
    assert!(last.deleted && last.paused, "{last:?}");
    assert_eq!(controller.fastpath.get_sandbox(ask(get)).await.unwrap_err().code(), Code::NotFound);
    controller.stop().await;
}

pub(crate) async fn logs_and_commands_reach_the_run() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    let created = controller.fastpath.create_sandbox(ask(wanted("one"))).await.unwrap().into_inner();
    let (sandbox_id, namespace) = ("one".to_string(), NAMESPACE.to_string());
    let request = LogsRequest { sandbox_id: sandbox_id.clone(), namespace: namespace.clone(), options: None };
    let mut logs = controller.fastpath.logs(ask(request)).await.unwrap().into_inner();
    let chunk = logs.message().await.unwrap().unwrap();
    assert_eq!(chunk.content, format!("log of {}", created.run_id).into_bytes());
    let start = Some(ExecStart { command: vec!["echo".into(), "hi".into()], ..ExecStart::default() });
    let first = ExecRequest { sandbox_id, namespace, start, input: None };
    let mut output = controller.fastpath.exec(ask(stream::iter([first]))).await.unwrap().into_inner();
    assert_eq!(output.message().await.unwrap().unwrap().output, Some(Output::Stdout(b"echo hi".to_vec())));
    assert!(matches!(output.message().await.unwrap().unwrap().output, Some(Output::Exit(_))));
    let nothing = controller.fastpath.exec(ask(stream::iter(Vec::<ExecRequest>::new()))).await;
    assert_eq!(nothing.unwrap_err().code(), Code::InvalidArgument);
    controller.stop().await;
}

pub(crate) async fn a_client_that_does_not_wait_leaves_nothing_behind() {
    let stage = Stage::open(1).await;
    let mut controller = stage.start().await;
    stage.agents.get(0).hold_starts(true);
    let mut request = ask(CreateRequest { request_id: "r".into(), ..wanted("") });
    request.set_timeout(Duration::from_millis(50));
    let late = controller.fastpath.create_sandbox(request).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    stage.agents.get(0).hold_starts(false);
    until("it was started all the same", async || (stage.agents.book.begun() == 1).then_some(())).await;
    until("nothing runs for nobody", async || stage.agents.runs().is_empty().then_some(())).await;
    stage.until_at_rest(&controller).await;
    assert!(stage.objects().await.iter().all(|object| phase(object).is_none()));
    controller.stop().await;
}

pub(crate) async fn agents_go_with_their_pool_when_they_are_empty() {
    let stage = Stage::open(0).await;
    resize(&stage, json!({ "poolMin": 2, "poolMax": 2 })).await;
    let (mut controller, ready) = stage.start_with(&Fuse::never(), members());
    ready.await;
    until("there are two", async || (stage.agents.count() == 2).then_some(())).await;
    let created = controller.fastpath.create_sandbox(ask(wanted(""))).await.unwrap().into_inner();
    stage.until_phase(&created.sandbox_id, SandboxPhase::Running).await;
    stage.pools().delete(POOL, &DeleteParams::default()).await.unwrap();
    until("the empty one goes", async || (stage.agents.count() == 1).then_some(())).await;
    controller.fastpath.delete_sandbox(ask(unwanted(&created.sandbox_id))).await.unwrap();
    until("the other goes", async || (stage.agents.count() == 0).then_some(())).await;
    controller.stop().await;
}
