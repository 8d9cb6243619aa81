//! The runner as the process that a Job runs: its exit codes, its one line for people, and its last word for the controller.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use agentcube_api::FrontendIntegration;
use agentcube_api::frontend::integration::IntegrationPhase::Succeeded;
use agentcube_forge::Integration;
use agentcube_forge::runner::environment as variables;
use kube::api::{Api, DeleteParams};
use serde_json::Value;

use crate::Tools;
use crate::builds;
use crate::stage::{LONG, Place, Stage, spec, until};

type Variables = BTreeMap<&'static str, String>;

struct Ended {
    code: i32,
    out: String,
    err: String,
    /// What the controller reads.
    last: Option<Value>,
}

async fn run(tools: &Tools, directory: &Path, variables: &Variables) -> Ended {
    let file = directory.join("termination-log");
    let _absent = std::fs::remove_file(&file);
    let mut command = tokio::process::Command::new(&tools.program);
    command.args(["forge-runner", "--say"]).arg(&file).env_clear().envs(variables);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(LONG, command.output()).await.expect("it ends").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended {
        code: output.status.code().expect("it ended by itself"),
        out: text(&output.stdout),
        err: text(&output.stderr),
        last: std::fs::read(&file).ok().map(|said| serde_json::from_slice(&said).unwrap()),
    }
}

/// As the Job of a first build has them.
async fn environment(stage: &Stage, hash: &str) -> Variables {
    [
        (variables::FI_NAMESPACE, stage.namespace.as_str()),
        (variables::FI_NAME, "tasks"),
        (variables::SPEC_HASH, hash),
        (variables::JSBUNDLE_NAME, "fi-tasks"),
        (variables::BUILD_JOB, "by-hand"),
        (variables::BUILD_SERVICE_BASE_URL, &stage.address),
        (variables::BUILD_SERVICE_TOKEN, &stage.key.token(&stage.namespace, "tasks")),
        (variables::API_BASE_URL, &stage.address),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into()
}

pub(crate) async fn exit_codes(tools: Tools) {
    let (stage, directory) = (Stage::open(&tools, Place::Embedded).await, tempfile::tempdir().unwrap());
    let running = stage.start();
    stage.create("tasks", spec("Failing")).await;
    stage.until_phase("tasks", Succeeded).await;
    let api: Api<Integration> = stage.api();
    let usual = environment(&stage, &api.get("tasks").await.unwrap().hash()).await;

    let done = run(&tools, directory.path(), &usual).await;
    assert_eq!((done.code, done.err.as_str(), &done.last), (0, "", &None));
    assert_eq!(done.out, "FrontendIntegration tasks is built: JSBundle fi-tasks is written\n");

    wrong_environment(&tools, directory.path(), &usual).await;
    failures(&tools, directory.path(), &usual).await;

    // What nobody wants any more.
    let other = format!("sha256:{}", "0".repeat(64));
    let old = changed(&usual, variables::SPEC_HASH, &other);
    fails(&tools, directory.path(), &old, (3, "nothing is written", Some("Stale"))).await;
    stage.api::<FrontendIntegration>().delete("tasks", &DeleteParams::default()).await.unwrap();
    until("it is gone", async || api.get_opt("tasks").await.unwrap().is_none().then_some(())).await;
    fails(&tools, directory.path(), &usual, (3, "is gone: nothing is written", Some("Stale"))).await;
    running.stop().await;
}

fn changed(usual: &Variables, name: &'static str, value: &str) -> Variables {
    let mut all = usual.clone();
    all.insert(name, value.to_owned());
    all
}

/// Whether it ends with this code, one line that says this, and this reason for the controller.
async fn fails(tools: &Tools, directory: &Path, variables: &Variables, expected: (i32, &str, Option<&str>)) {
    let (code, says, reason) = expected;
    let ended = run(tools, directory, variables).await;
    assert_eq!((ended.code, ended.out.as_str()), (code, ""), "{}", ended.err);
    assert!(ended.err.starts_with("error: ") && ended.err.contains(says), "{says}: {}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    let told = ended.last.as_ref().map(|last| last["reason"].as_str().unwrap());
    assert_eq!(told, reason, "{:?}", ended.last);
}

async fn wrong_environment(tools: &Tools, directory: &Path, usual: &Variables) {
    fails(tools, directory, &Variables::new(), (2, "SPEC_HASH: it is not set", None)).await;
    for name in [
        variables::FI_NAMESPACE,
        variables::FI_NAME,
        variables::SPEC_HASH,
        variables::JSBUNDLE_NAME,
        variables::BUILD_SERVICE_BASE_URL,
        variables::BUILD_SERVICE_TOKEN,
    ] {
        let mut missing = usual.clone();
        missing.remove(name);
        fails(tools, directory, &missing, (2, &format!("{name}: it is not set"), None)).await;
    }
    for (name, value, code, says) in [
        (variables::SPEC_HASH, "nonsense", 2, "SPEC_HASH: \"nonsense\" is no hash"),
        (variables::BUILD_SERVICE_TIMEOUT_SECONDS, "soon", 2, "\"soon\" is no number of seconds"),
        (variables::STALE_CHECK_GRACE_SECONDS, "0", 2, "\"0\" is no number of seconds"),
        (variables::API_BASE_URL, "no address", 1, "API_BASE_URL \"no address\" is no address"),
    ] {
        fails(tools, directory, &changed(usual, name, value), (code, says, None)).await;
    }
}

async fn failures(tools: &Tools, directory: &Path, usual: &Variables) {
    let failed = Some("BuildFailed");
    let nobody = "http://127.0.0.1:1";
    let no_api = changed(usual, variables::API_BASE_URL, nobody);
    fails(tools, directory, &no_api, (1, "the API server: ", failed)).await;
    let mut no_service = changed(usual, variables::BUILD_SERVICE_BASE_URL, nobody);
    no_service.insert(variables::BUILD_SERVICE_TIMEOUT_SECONDS, "1".into());
    fails(tools, directory, &no_service, (1, "the build service: not done after 1 s", failed)).await;
    let stranger = changed(usual, variables::BUILD_SERVICE_TOKEN, "fi1.wrong");
    fails(tools, directory, &stranger, (1, "the API server: ", failed)).await;
    // A build that may work another time, and one that cannot.
    let bundler = builds::strange(tools, directory);
    for (bundler, code, says, reason) in [
        (
            bundler.as_str(),
            1,
            "the build failed: the bundler failed (exit status: 7): no luck today",
            "BuildFailed",
        ),
        ("/nowhere/esbuild", 4, "the build failed: the build service has no bundler", "BundlerMissing"),
    ] {
        let served = builds::start(tools, directory, &["--bundler", bundler]).ready().await;
        let address = format!("http://{}", served.address);
        let elsewhere = changed(usual, variables::BUILD_SERVICE_BASE_URL, &address);
        fails(tools, directory, &elsewhere, (code, says, Some(reason))).await;
    }
}
