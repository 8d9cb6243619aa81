//! The behaviours of the controllers and the runner, one at a time, on whichever server.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use agentcube_api::conditions::{self, frontend as reasons};
use agentcube_api::frontend::bundle::BundleState;
use agentcube_api::frontend::integration::IntegrationPhase::{Building, Disabled, Failed, Succeeded};
use agentcube_api::labels::{
    FORGE_BUILD_JOB, FORGE_FI_NAME, FORGE_GENERATION, FORGE_MANAGED_BY, FORGE_MANIFEST_HASH, FORGE_REBUILD,
    FORGE_SPEC_HASH, hash_label,
};
use agentcube_api::{FrontendIntegration, JSBundle};
use agentcube_forge::runner::{Error, Runner, Step};
use agentcube_forge::{files, hash, manifest};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::Tools;
use crate::jobs::Behaviour;
use crate::stage::{Place, Stage, spec, until};

type Body = fn(Tools, Place) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! cases {
    ($($name:ident,)*) => {
        pub(crate) fn all() -> Vec<(&'static str, Body)> {
            vec![$((stringify!($name), |tools, place| Box::pin(async move {
                $name(Stage::open(&tools, place).await).await;
            }))),*]
        }
    };
}

cases! {
    a_spec_becomes_a_bundle_with_both_hashes,
    names_that_do_not_fit_are_cut_and_do_not_collide,
    there_and_back_builds_nothing_twice,
    failures_are_tried_again_and_then_a_rebuild_has_to_be_asked_for,
    a_job_of_an_old_spec_does_not_begin,
    a_job_whose_spec_changes_does_not_write,
    a_late_write_does_not_replace_a_newer_bundle,
    a_write_between_a_look_and_a_write_is_noticed,
    a_job_that_lies_is_not_believed,
    a_runner_killed_at_any_step_is_replaced,
    switching_off_and_on_builds_nothing,
    a_bundle_that_is_spoilt_or_gone_is_made_again,
    controllers_and_runners_of_other_versions_get_along,
    what_cannot_be_built_fails_at_once_and_says_why,
    hostile_titles_become_harmless_pages,
    a_foreign_bundle_is_left_alone,
}

async fn hash_of(stage: &Stage, name: &str) -> String {
    let api: Api<agentcube_forge::Integration> = stage.api();
    api.get(name).await.unwrap().hash()
}

fn module(bundle: &JSBundle) -> String {
    let file = bundle.spec.files.iter().find(|file| file.path == files::MODULE).unwrap();
    String::from_utf8(files::content(file).unwrap()).unwrap()
}

fn builds(integration: &FrontendIntegration) -> i64 {
    integration.status.as_ref().unwrap().builds.unwrap_or_default()
}

async fn a_spec_becomes_a_bundle_with_both_hashes(stage: Stage) {
    let running = stage.start();
    stage.create("tasks", spec("Tasks")).await;
    let done = stage.until_phase("tasks", Succeeded).await;
    let (bundle, spec_hash) = (stage.bundle("tasks").await, hash_of(&stage, "tasks").await);
    let api: Api<agentcube_forge::Integration> = stage.api();
    let rendered = manifest::render("tasks", &api.get("tasks").await.unwrap().spec).unwrap();
    let manifest_hash = hash::of(&rendered);
    let status = done.status.clone().unwrap();
    assert_eq!(status.observed_spec_hash.as_deref(), Some(spec_hash.as_str()));
    assert_eq!(status.observed_manifest_hash.as_deref(), Some(manifest_hash.as_str()));
    assert_ne!(spec_hash, manifest_hash);
    assert_eq!((status.builds, status.active_build), (Some(1), None));
    assert_eq!(status.bundle_ref.unwrap().uid, bundle.uid());
    assert_eq!(bundle.spec.manifest_hash, manifest_hash);
    let expected = BTreeMap::from(
        [
            (FORGE_MANAGED_BY, "frontend-forge"),
            (FORGE_FI_NAME, "tasks"),
            (FORGE_SPEC_HASH, hash_label(&spec_hash)),
            (FORGE_MANIFEST_HASH, hash_label(&manifest_hash)),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    assert_eq!(bundle.labels(), &expected);
    assert_eq!(bundle.labels()[FORGE_SPEC_HASH].len(), 63);
    assert_eq!(bundle.annotations()[FORGE_BUILD_JOB], format!("fi-tasks-{}-1", &hash_label(&spec_hash)[..8]));
    assert_eq!(bundle.owner_references()[0].uid, done.uid().unwrap());
    assert_eq!(files::check(&bundle.spec.files), Ok(()));
    let paths: Vec<&str> = bundle.spec.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["index.js", "index.js.map", "manifest.json"]);
    assert!(module(&bundle).contains("as apiVersion") && module(&bundle).contains("as default"));
    for type_ in [conditions::READY, reasons::BUILT] {
        let condition = conditions::find(&status.conditions, type_).unwrap();
        let said = (condition.status.as_str(), condition.reason.as_str(), condition.observed_generation);
        assert_eq!(said, ("True", reasons::REASON_BUNDLE_CURRENT, done.metadata.generation));
    }
    for reason in ["BuildStarted", "BuildSucceeded"] {
        stage.until_event(reason).await;
    }
    until("the bundle is available", async || {
        let state = stage.bundle("tasks").await.status.and_then(|status| status.state);
        (state == Some(BundleState::Available)).then_some(())
    })
    .await;
    running.stop().await;
}

async fn names_that_do_not_fit_are_cut_and_do_not_collide(stage: Stage) {
    let running = stage.start();
    let long = format!("{}.{}", "a".repeat(60), "b".repeat(60));
    let names = [long.as_str(), &format!("{long}c"), "a.b", "a-b"];
    for name in names {
        stage.create(name, spec(name)).await;
    }
    let mut bundles = std::collections::BTreeSet::new();
    for name in names {
        let done = stage.until_phase(name, Succeeded).await;
        let bundle = done.status.unwrap().bundle_ref.unwrap().name;
        assert!(bundle.len() <= 63, "{bundle}");
        bundles.insert(bundle);
    }
    assert_eq!(bundles.len(), names.len(), "{bundles:?}");
    assert!(bundles.contains("fi-a-b"));
    running.stop().await;
}

async fn there_and_back_builds_nothing_twice(stage: Stage) {
    let running = stage.start();
    stage.create("tasks", spec("A")).await;
    stage.until_phase("tasks", Succeeded).await;
    let first = stage.bundle("tasks").await;
    // B is held before it writes, so A's bundle is still there.
    let release = Arc::new(Notify::new());
    stage.script.then(Behaviour::HoldAfter(Step::Fetched, release.clone()));
    stage.rename("tasks", "B").await;
    let building = stage.until_phase("tasks", Building).await;
    let of_b = building.status.unwrap().active_build.unwrap().job_ref.name;
    until("B is held", async || stage.script.is_held(&of_b).then_some(())).await;
    stage.rename("tasks", "A").await;
    let done = stage.until_phase("tasks", Succeeded).await;
    assert_eq!(builds(&done), 2);
    assert_eq!(written(&stage.bundle("tasks").await), written(&first));
    // And B, which finishes late, changes nothing.
    release.notify_one();
    until("B has ended", async || stage.script.code(&of_b)).await;
    assert_eq!(stage.script.code(&of_b), Some(3));
    assert_eq!(stage.bundle("tasks").await.spec, first.spec);
    stage.until_event("BundleKept").await;
    // When B was written meanwhile, A is built again; its old Job's end is no news.
    stage.rename("tasks", "B").await;
    stage.until_phase("tasks", Succeeded).await;
    stage.rename("tasks", "A").await;
    let again = stage.until("tasks", "built again", |now| builds(now) == 4).await;
    assert_eq!(builds(&again), 4);
    stage.until_phase("tasks", Succeeded).await;
    assert_eq!(stage.bundle("tasks").await.spec, first.spec);
    running.stop().await;
}

async fn failures_are_tried_again_and_then_a_rebuild_has_to_be_asked_for(stage: Stage) {
    let running = stage.start();
    stage.script.then(Behaviour::DieAfter(Step::Read));
    stage.create("once", spec("Once")).await;
    let done = stage.until_phase("once", Succeeded).await;
    assert_eq!(builds(&done), 2);
    stage.until_event("BuildRetried").await;
    for _ in 0..3 {
        stage.script.then(Behaviour::DieAfter(Step::Begun));
    }
    stage.create("thrice", spec("Thrice")).await;
    let failed = stage.until_phase("thrice", Failed).await;
    assert_eq!(builds(&failed), 3);
    let status = failed.status.unwrap();
    assert!(status.active_build.is_none() && status.message.unwrap().contains("after 3 attempts"));
    let ready = conditions::find(&status.conditions, conditions::READY).unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", reasons::REASON_BUILD_FAILED));
    stage.until_event("BuildFailed").await;
    let ask = |value: &str| json!({ "metadata": { "annotations": { FORGE_REBUILD: value } } });
    stage.patch("thrice", ask("please")).await;
    let done = stage.until_phase("thrice", Succeeded).await;
    assert_eq!(builds(&done), 4);
    // The same wish, written again, is no other one; and another controller does not obey it either.
    stage.patch("thrice", ask("please")).await;
    running.crash().await;
    let running = stage.start();
    stage.patch("thrice", ask("again")).await;
    let done = stage.until("thrice", "built once more", |now| builds(now) > 4).await;
    assert_eq!(builds(&done), 5);
    let done = stage.until_phase("thrice", Succeeded).await;
    assert_eq!((builds(&done), done.status.unwrap().observed_rebuild.as_deref()), (5, Some("again")));
    running.stop().await;
}

async fn a_job_of_an_old_spec_does_not_begin(stage: Stage) {
    stage.create("tasks", spec("A")).await;
    let old = hash_of(&stage, "tasks").await;
    stage.rename("tasks", "B").await;
    let error = stage.runner("tasks", &old, "old").run().await.unwrap_err();
    assert!(matches!(error, Error::Stale(_)) && error.code() == 3, "{error}");
    let api: Api<JSBundle> = stage.api();
    assert!(api.get_opt("fi-tasks").await.unwrap().is_none());
    // Neither does one whose integration is gone.
    stage.api::<FrontendIntegration>().delete("tasks", &DeleteParams::default()).await.unwrap();
    let error = stage.runner("tasks", &old, "old").run().await.unwrap_err();
    assert_eq!(error.code(), 3, "{error}");
}

/// Whatever a runner writes of a bundle; its status is the controller's, and may come later.
fn written(bundle: &JSBundle) -> serde_json::Value {
    let meta = &bundle.metadata;
    serde_json::json!({ "uid": meta.uid, "generation": meta.generation, "labels": meta.labels,
        "annotations": meta.annotations, "spec": bundle.spec })
}

async fn a_job_whose_spec_changes_does_not_write(stage: Stage) {
    let running = stage.start();
    let release = Arc::new(Notify::new());
    stage.script.then(Behaviour::HoldAfter(Step::Fetched, release.clone()));
    stage.create("tasks", spec("A")).await;
    let building = stage.until_phase("tasks", Building).await;
    let old = building.status.unwrap().active_build.unwrap().job_ref.name;
    until("A is held", async || stage.script.is_held(&old).then_some(())).await;
    stage.rename("tasks", "B").await;
    stage.until_phase("tasks", Succeeded).await;
    let newer = stage.bundle("tasks").await;
    release.notify_one();
    until("A has ended", async || stage.script.code(&old)).await;
    assert_eq!(stage.script.code(&old), Some(3));
    assert_eq!(written(&stage.bundle("tasks").await), written(&newer));
    until("A's Job is gone", async || (!stage.job_names().await.contains(&old)).then_some(())).await;
    running.stop().await;
}

async fn a_late_write_does_not_replace_a_newer_bundle(stage: Stage) {
    let running = stage.start();
    let release = Arc::new(Notify::new());
    // It has looked for the last time, and would write next.
    stage.script.then(Behaviour::HoldAfter(Step::Checked, release.clone()));
    stage.create("tasks", spec("A")).await;
    let building = stage.until_phase("tasks", Building).await;
    let old = building.status.unwrap().active_build.unwrap().job_ref.name;
    until("A is held", async || stage.script.is_held(&old).then_some(())).await;
    stage.rename("tasks", "B").await;
    stage.until_phase("tasks", Succeeded).await;
    let newer = stage.bundle("tasks").await;
    release.notify_one();
    until("A has ended", async || stage.script.code(&old)).await;
    assert_eq!(stage.script.code(&old), Some(3));
    assert_eq!(written(&stage.bundle("tasks").await), written(&newer));
    running.stop().await;
}

/// A client in whose first replacement somebody else is faster, with this patch of the bundle.
fn overtaken(stage: &Stage, patch: Value) -> Client {
    let (client, bundles) = (stage.client.clone(), stage.api::<JSBundle>());
    let patch = Arc::new(Mutex::new(Some(patch)));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (client, bundles, patch) = (client.clone(), bundles.clone(), patch.clone());
        async move {
            let due = if request.method() == http::Method::PUT { patch.lock().take() } else { None };
            if let Some(patch) = due {
                let name = agentcube_forge::names::bundle("tasks");
                bundles.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

async fn a_write_between_a_look_and_a_write_is_noticed(stage: Stage) {
    let running = stage.start();
    stage.create("tasks", spec("A")).await;
    stage.until_phase("tasks", Succeeded).await;
    running.stop().await;
    let hash = hash_of(&stage, "tasks").await;
    let run = async |job: &str, patch: Value| {
        let settings = stage.runner("tasks", &hash, job).settings;
        Runner { client: overtaken(&stage, patch), settings }.run().await
    };
    // What somebody else has put there stays, and the bundle is written at the second try.
    run("second", json!({ "metadata": { "annotations": { "example.com/mark": "kept" } } })).await.unwrap();
    let bundle = stage.bundle("tasks").await;
    assert_eq!(bundle.annotations()["example.com/mark"], "kept");
    assert_eq!(bundle.annotations()[FORGE_BUILD_JOB], "second");
    // A bundle of a newer spec is not replaced.
    let newer = json!({ "metadata": { "annotations": { FORGE_GENERATION: "99" } } });
    let error = run("late", newer).await.unwrap_err();
    assert!(matches!(error, Error::Stale(_)), "{error}");
    assert_eq!(stage.bundle("tasks").await.annotations()[FORGE_BUILD_JOB], "second");
}

async fn a_job_that_lies_is_not_believed(stage: Stage) {
    let running = stage.start();
    stage.script.then(Behaviour::Lie);
    stage.create("tasks", spec("A")).await;
    let done = stage.until_phase("tasks", Succeeded).await;
    assert_eq!(builds(&done), 2);
    running.stop().await;
}

async fn a_runner_killed_at_any_step_is_replaced(stage: Stage) {
    let running = stage.start();
    for (number, step) in Step::ALL.into_iter().enumerate() {
        let name = format!("step-{number}");
        stage.script.then(Behaviour::DieAfter(step));
        stage.create(&name, spec(&name)).await;
        let done = stage.until_phase(&name, Succeeded).await;
        // Whoever has written has done everything.
        let expected = if step == Step::Written { 1 } else { 2 };
        assert_eq!(builds(&done), expected, "killed after {step:?}");
        let bundle = stage.bundle(&name).await;
        assert_eq!(files::check(&bundle.spec.files), Ok(()));
        assert_eq!(bundle.labels()[FORGE_SPEC_HASH], hash_label(&hash_of(&stage, &name).await));
    }
    running.stop().await;
}

async fn switching_off_and_on_builds_nothing(stage: Stage) {
    let running = stage.start();
    stage.create("tasks", spec("A")).await;
    stage.until_phase("tasks", Succeeded).await;
    let first = stage.bundle("tasks").await;
    let state = async |wanted: BundleState| {
        until(&format!("the bundle is {wanted:?}"), async || {
            let state = stage.bundle("tasks").await.status.and_then(|status| status.state);
            (state == Some(wanted)).then_some(())
        })
        .await;
    };
    stage.patch("tasks", json!({ "spec": { "enabled": false } })).await;
    let off = stage.until_phase("tasks", Disabled).await.status.unwrap();
    assert_eq!(
        (off.message.as_deref(), off.bundle_ref.unwrap().name.as_str()),
        (Some("Disabled"), "fi-tasks")
    );
    let ready = conditions::find(&off.conditions, conditions::READY).unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", reasons::REASON_DISABLED));
    state(BundleState::Disabled).await;
    stage.patch("tasks", json!({ "spec": { "enabled": true } })).await;
    let on = stage.until_phase("tasks", Succeeded).await;
    assert_eq!((builds(&on), stage.script.runs()), (1, 1));
    state(BundleState::Available).await;
    assert_eq!(stage.bundle("tasks").await.spec, first.spec);
    // One that is made switched off is not built at all.
    stage.patch("tasks", json!({ "spec": { "enabled": false, "displayName": "B" } })).await;
    stage.until_phase("tasks", Disabled).await;
    assert_eq!(stage.script.runs(), 1);
    running.stop().await;
}

async fn a_bundle_that_is_spoilt_or_gone_is_made_again(stage: Stage) {
    let running = stage.start();
    stage.create("tasks", spec("A")).await;
    stage.until_phase("tasks", Succeeded).await;
    let first = stage.bundle("tasks").await;
    let api: Api<JSBundle> = stage.api();
    let mut files = json!(first.spec.files);
    files[0]["content"] = json!("YWxlcnQoMSk=");
    let spoilt = json!({ "spec": { "files": files } });
    api.patch("fi-tasks", &PatchParams::default(), &Patch::Merge(spoilt)).await.unwrap();
    stage.until("tasks", "built again", |now| builds(now) == 2).await;
    stage.until_phase("tasks", Succeeded).await;
    assert_eq!(stage.bundle("tasks").await.spec, first.spec);
    api.delete("fi-tasks", &DeleteParams::default()).await.unwrap();
    stage.until("tasks", "built again", |now| builds(now) == 3).await;
    stage.until_phase("tasks", Succeeded).await;
    assert_eq!(stage.bundle("tasks").await.spec, first.spec);
    running.stop().await;
}

/// A status of a controller that knew one hash, and a runner that gets the hash under its old name: the variables are read by
/// the runner's own tests, the status is here.
async fn controllers_and_runners_of_other_versions_get_along(stage: Stage) {
    stage.create("tasks", spec("A")).await;
    let hash = hash_of(&stage, "tasks").await;
    let api: Api<FrontendIntegration> = stage.api();
    let said = async |status: Value| {
        api.patch_status("tasks", &PatchParams::default(), &Patch::Merge(json!({ "status": status })))
            .await
            .unwrap();
    };
    // Nobody has said anything: it waits for as long as it is told to, and has written nothing.
    let error = stage.runner("tasks", &hash, "old").run().await.unwrap_err();
    assert_eq!(error.code(), 1, "{error}");
    said(json!({ "observed_manifest_hash": "sha256:of another" })).await;
    let error = stage.runner("tasks", &hash, "old").run().await.unwrap_err();
    assert_eq!(error.code(), 3, "{error}");
    said(json!({ "observed_manifest_hash": hash })).await;
    stage.runner("tasks", &hash, "old").run().await.unwrap();
    // The new controller finds what the old runner has written, and builds nothing.
    let running = stage.start();
    let done = stage.until_phase("tasks", Succeeded).await;
    assert_eq!((builds(&done), stage.script.runs()), (0, 0));
    running.stop().await;
}

async fn what_cannot_be_built_fails_at_once_and_says_why(stage: Stage) {
    let running = stage.start();
    let with = |change: Value| {
        let mut spec = spec("A");
        for (name, value) in change.as_object().unwrap() {
            spec[name] = value.clone();
        }
        spec
    };
    let menus =
        json!({ "menu": null, "menus": [{ "name": "Nowhere", "page": "none", "placements": ["global"] }] });
    for (name, spec, reason, told) in [
        (
            "engine",
            with(json!({ "builder": { "engineVersion": "v9" } })),
            reasons::REASON_UNSUPPORTED_ENGINE,
            "v9",
        ),
        ("menus", with(menus), reasons::REASON_SPEC_INVALID, "there is no page"),
        ("path", with(json!({ "routing": { "path": "a/../b" } })), reasons::REASON_SPEC_INVALID, "no path"),
    ] {
        stage.create(name, spec).await;
        let failed = stage.until_phase(name, Failed).await;
        assert_eq!(builds(&failed), 1, "{name}");
        let status = failed.status.unwrap();
        assert!(status.message.clone().unwrap().contains(told), "{:?}", status.message);
        assert_eq!(conditions::find(&status.conditions, reasons::BUILT).unwrap().reason, reason);
    }
    stage.patch("engine", json!({ "spec": { "builder": { "engineVersion": "1.0" } } })).await;
    stage.until_phase("engine", Succeeded).await;
    running.stop().await;
}

async fn hostile_titles_become_harmless_pages(stage: Stage) {
    let running = stage.start();
    let title = "</script><script>alert(1)</script>\u{2028}\u{2029}`${alert(1)}\\\"--><!--";
    let mut hostile = spec(title);
    hostile["columns"][0]["title"] = json!(title);
    hostile["columns"][0]["render"]["payload"] =
        json!({ "__proto__": { "polluted": true }, "constructor": title });
    stage.create("tasks", hostile).await;
    stage.until_phase("tasks", Succeeded).await;
    let text = module(&stage.bundle("tasks").await);
    for wrong in ["</script", "<script", "<!--", "\u{2028}", "\u{2029}"] {
        assert!(!text.contains(wrong), "{wrong}: {text}");
    }
    running.stop().await;
}

async fn a_foreign_bundle_is_left_alone(stage: Stage) {
    let api: Api<JSBundle> = stage.api();
    let foreign = json!({ "metadata": { "name": "fi-tasks" }, "spec": { "manifest_hash": "", "files": [] } });
    api.create(&Default::default(), &serde_json::from_value(foreign).unwrap()).await.unwrap();
    let running = stage.start();
    stage.create("tasks", spec("A")).await;
    let failed = stage.until_phase("tasks", Failed).await;
    assert!(failed.status.unwrap().message.unwrap().contains("belongs to somebody else"));
    assert_eq!(stage.bundle("tasks").await.spec.files, []);
    api.delete("fi-tasks", &DeleteParams::default()).await.unwrap();
    stage.patch("tasks", json!({ "metadata": { "annotations": { FORGE_REBUILD: "now" } } })).await;
    stage.until_phase("tasks", Succeeded).await;
    running.stop().await;
}
