//! The build service as a process, with the real bundler.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::time::Duration;

use agentcube_api::frontend::bundle::BundleFile;
use agentcube_forge::token::Key;
use agentcube_forge::{canonical, files, hash, manifest};
use agentcube_testkit::supervise::Process;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::Tools;
use crate::stage::{BUILD, spec, until, until_by};

type Body = fn(Tools) -> Pin<Box<dyn Future<Output = ()>>>;
const KEY: &str = "a key that nobody else knows";
/// How often one of many clients looks.
const CALM: Duration = Duration::from_millis(200);

macro_rules! trials {
    ($($name:ident,)*) => {
        pub(crate) fn all() -> Vec<(&'static str, Body)> {
            vec![$((stringify!($name), |tools| Box::pin($name(tools)))),*]
        }
    };
}

trials! {
    a_module_can_be_loaded_and_holds_its_title,
    the_same_is_built_once_and_found_after_a_restart,
    fifty_builds_at_once,
    nothing_is_done_for_strangers,
    hostile_manifests_are_refused,
    what_is_too_large_is_refused,
    what_is_damaged_on_disk_is_never_served,
    a_kill_in_the_middle_leaves_nothing_wrong,
    a_service_without_a_bundler_says_how_to_get_one,
    a_bundler_that_misbehaves_is_stopped,
    a_full_queue_sends_clients_away,
}

pub(crate) struct Served {
    process: Process,
    pub(crate) address: String,
}

/// A build service that is to be started.
pub(crate) struct Wanted {
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
}

pub(crate) fn start(tools: &Tools, directory: &Path, more: &[&str]) -> Wanted {
    let (key, log) = (directory.join("key"), directory.join("log"));
    std::fs::write(&key, KEY).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mut arguments =
        ["build-service", "--key-file", &text(&key), "--dir", &text(&directory.join("builds"))]
            .map(str::to_owned)
            .to_vec();
    if !more.contains(&"--bundler") {
        arguments.extend(["--bundler".into(), text(&tools.bundler)]);
    }
    if !more.contains(&"--build-seconds") {
        arguments.extend(["--build-seconds".into(), BUILD.as_secs().to_string()]);
    }
    arguments.extend(more.iter().map(ToString::to_string));
    Wanted { program: tools.program.clone(), arguments, log }
}

impl Wanted {
    /// Starts it, and waits until it listens. A port that was free may be somebody else's by then; then on another one.
    pub(crate) async fn ready(self) -> Served {
        loop {
            let port = agentcube_testkit::cluster::free_port().unwrap();
            let address = format!("127.0.0.1:{port}");
            let mut arguments = self.arguments.clone();
            arguments.extend(["--listen".into(), address.clone()]);
            let process = Process::start(&self.program, &arguments, &self.log).unwrap();
            let served = Served { process, address };
            let listens = until("the build service listens", async || {
                let answered = served.send(Method::GET, "/v1/builds/x", None, Vec::new()).await;
                let refused =
                    || std::fs::read_to_string(&self.log).is_ok_and(|log| log.contains("cannot listen on"));
                answered.map(|_| true).or_else(|| refused().then_some(false))
            });
            if listens.await {
                return served;
            }
        }
    }
}

impl Served {
    async fn send(
        &self,
        method: Method,
        path: &str,
        token: Option<&str>,
        body: Vec<u8>,
    ) -> Option<(StatusCode, Value)> {
        let stream = tokio::net::TcpStream::connect(&self.address).await.ok()?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "build");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.ok()?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await.ok()?.to_bytes();
        Some((status, serde_json::from_slice(&bytes).unwrap_or_default()))
    }

    async fn post(&self, manifest: &Value) -> (StatusCode, Value) {
        let order = order(manifest);
        until("it answers", async || {
            self.send(Method::POST, "/v1/builds", Some(&token()), order.to_string().into_bytes()).await
        })
        .await
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        until("it answers", async || self.send(Method::GET, path, Some(&token()), Vec::new()).await).await
    }

    /// Has it built until it ends like this: a machine may be too busy for a short limit.
    async fn ends(&self, manifest: &Value, how: &str) -> Value {
        until_by(CALM, how, async || {
            let (_, begun) = self.post(manifest).await;
            let id = begun["buildId"].as_str()?.to_owned();
            let ended = until_by(CALM, "it ends", async || {
                let (_, build) = self.get(&format!("/v1/builds/{id}")).await;
                ["FAILED", "SUCCEEDED"].iter().any(|end| build["status"] == *end).then_some(build)
            });
            Some(ended.await).filter(|build| build["status"] == how)
        })
        .await
    }

    /// Builds, and gives the files.
    async fn build(&self, manifest: &Value) -> Vec<BundleFile> {
        let id = until_by(CALM, "it is taken", async || {
            let (status, build) = self.post(manifest).await;
            assert!(status.is_success() || status == StatusCode::SERVICE_UNAVAILABLE, "{status} {build}");
            build["buildId"].as_str().map(str::to_owned)
        })
        .await;
        until_by(CALM, "it is built", async || {
            let (_, build) = self.get(&format!("/v1/builds/{id}")).await;
            assert_ne!(build["status"], "FAILED", "{build}");
            (build["status"] == "SUCCEEDED").then_some(())
        })
        .await;
        let (status, answer) = self.get(&format!("/v1/builds/{id}/files")).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let files: Vec<BundleFile> = serde_json::from_value(answer["files"].clone()).unwrap();
        check(manifest, &files);
        files
    }
}

/// Whether these are the files of this manifest.
fn check(manifest: &Value, files: &[BundleFile]) {
    assert_eq!(files::check(files), Ok(()));
    let text = |path: &str| {
        let file = files.iter().find(|file| file.path == path).unwrap();
        String::from_utf8(files::content(file).unwrap()).unwrap()
    };
    assert_eq!(text(files::MANIFEST), canonical::canonical(manifest));
    assert!(text(files::MODULE).contains("sourceMappingURL=index.js.map"));
}

fn token() -> String {
    Key::new(KEY).unwrap().token("team", "tasks")
}

fn rendered(title: &str) -> Value {
    manifest::render("tasks", &spec(title)).unwrap()
}

fn order(manifest: &Value) -> Value {
    json!({ "manifestHash": hash::of(manifest), "manifest": canonical::canonical(manifest),
        "context": { "namespace": "team", "frontendIntegration": "tasks" } })
}

/// What its page shows is seen in a browser, by the suite `console`.
async fn a_module_can_be_loaded_and_holds_its_title(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let served = start(&tools, directory.path(), &[]).ready().await;
    let hostile = "</script> \u{2028}`${globalThis.broken = 1}\\\" é";
    let files = served.build(&rendered(hostile)).await;
    let place = directory.path().join("index.mjs");
    let source = files::content(&files[0]).unwrap();
    std::fs::write(&place, &source).unwrap();
    let source = String::from_utf8(source.to_vec()).unwrap();
    assert!(!source.contains("</script") && !source.contains('\u{2028}'), "it could end what it stands in");
    let script = format!(
        "const module = await import({place:?}); console.log(JSON.stringify({{ version: module.apiVersion, \
         mounts: typeof module.default, broken: globalThis.broken ?? null }}));"
    );
    let output = Command::new("node").args(["--input-type=module", "-e", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let loaded: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(loaded, json!({ "version": 1, "mounts": "function", "broken": null }));
    let manifest = files.iter().find(|file| file.path == "manifest.json").unwrap();
    let manifest: Value = serde_json::from_slice(&files::content(manifest).unwrap()).unwrap();
    assert_eq!(manifest["displayName"], hostile);
}

async fn the_same_is_built_once_and_found_after_a_restart(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let served = start(&tools, directory.path(), &[]).ready().await;
    let first = served.build(&rendered("A")).await;
    let (status, again) = served.post(&rendered("A")).await;
    assert_eq!((status, &again["status"]), (StatusCode::OK, &json!("SUCCEEDED")));
    let other = served.post(&rendered("B")).await.1;
    assert_ne!(other["buildId"], again["buildId"]);
    drop(served.process);
    let served = start(&tools, directory.path(), &[]).ready().await;
    let (status, found) = served.post(&rendered("A")).await;
    assert_eq!((status, &found["buildId"]), (StatusCode::OK, &again["buildId"]));
    assert_eq!(served.build(&rendered("A")).await, first);
}

async fn fifty_builds_at_once(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    // Fewer may wait than come: those who are sent away come again.
    let served = start(&tools, directory.path(), &["--waiting", "20"]).ready().await;
    let manifests: Vec<Value> = (0..50).map(|number| rendered(&format!("Page {number}"))).collect();
    let all = futures_util::future::join_all(manifests.iter().map(|manifest| served.build(manifest))).await;
    let modules: std::collections::BTreeSet<&String> = all.iter().map(|files| &files[0].content).collect();
    assert_eq!(modules.len(), 50);
    // And fifty who want the same.
    let same = rendered("The same");
    let all = futures_util::future::join_all((0..50).map(|_| served.build(&same))).await;
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    let kept = std::fs::read_dir(directory.path().join("builds/builds")).unwrap().count();
    assert_eq!(kept, 51);
}

async fn nothing_is_done_for_strangers(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let served = start(&tools, directory.path(), &[]).ready().await;
    let body = order(&rendered("A")).to_string().into_bytes();
    let other = Key::new(KEY).unwrap().token("team", "others");
    let forged = Key::new("some other key, of somebody").unwrap().token("team", "tasks");
    for (token, expected) in
        [(None, 401), (Some("x"), 401), (Some(forged.as_str()), 401), (Some(other.as_str()), 403)]
    {
        let (status, _) = served.send(Method::POST, "/v1/builds", token, body.clone()).await.unwrap();
        assert_eq!(status.as_u16(), expected, "{token:?}");
    }
    let (status, _) = served.send(Method::GET, "/v1/builds/bld_0/files", None, Vec::new()).await.unwrap();
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(std::fs::read_dir(directory.path().join("builds/builds")).unwrap().count(), 0);
}

async fn hostile_manifests_are_refused(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let served = start(&tools, directory.path(), &[]).ready().await;
    for (pointer, value) in [
        ("/routes/0/path", json!("../../../../etc/passwd")),
        ("/pages/0/id", json!("../../escape")),
        ("/name", json!("../tasks")),
        ("/pages/0/entryComponent", json!("/etc/passwd")),
        ("/pages/0/props", json!({ "src": "javascript:alert(1)" })),
        ("/pages/0/props/resource/plural", json!("tasks/../../secrets")),
    ] {
        let mut manifest = rendered("A");
        *manifest.pointer_mut(pointer).unwrap() = value;
        let (status, told) = served.post(&manifest).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{pointer}: {told}");
    }
    // One whose hash is that of another.
    let mut order = order(&rendered("A"));
    order["manifestHash"] = json!(hash::of(&rendered("B")));
    let body = order.to_string().into_bytes();
    let (status, _) = served.send(Method::POST, "/v1/builds", Some(&token()), body).await.unwrap();
    assert_eq!(status, StatusCode::BAD_REQUEST);
    for path in [
        "/v1/builds/..%2f..%2fkey",
        "/v1/builds/../key",
        "/v1/builds/bld_/files",
        "/v1/builds/bld_0/../../key",
    ] {
        assert_eq!(served.get(path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(std::fs::read_dir(directory.path().join("builds/builds")).unwrap().count(), 0);
}

async fn what_is_too_large_is_refused(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let served = start(&tools, directory.path(), &[]).ready().await;
    let body = order(&rendered(&"x".repeat(10 << 20))).to_string().into_bytes();
    let answer = served.send(Method::POST, "/v1/builds", Some(&token()), body).await;
    // It may close the connection while we are still sending.
    assert!(answer.is_none_or(|(status, _)| status == StatusCode::PAYLOAD_TOO_LARGE));
    // This fits into an order and not into an object.
    let (_, build) = served.post(&rendered(&"x".repeat(100_000))).await;
    let id = build["buildId"].as_str().unwrap().to_owned();
    let failed = until("it has failed", async || {
        let (_, build) = served.get(&format!("/v1/builds/{id}")).await;
        (build["status"] == "FAILED").then_some(build)
    })
    .await;
    assert_eq!((&failed["reason"], &failed["final"]), (&json!("BundleTooLarge"), &json!(true)));
    served.build(&rendered("A")).await;
}

async fn what_is_damaged_on_disk_is_never_served(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let served = start(&tools, directory.path(), &[]).ready().await;
    let whole = served.build(&rendered("A")).await;
    let id = served.post(&rendered("A")).await.1["buildId"].as_str().unwrap().to_owned();
    let place = directory.path().join("builds/builds").join(&id);
    for (file, content) in [("index.js", "alert(1)"), ("build.json", "{"), ("index.js.map", "")] {
        std::fs::write(place.join(file), content).unwrap();
        let (status, told) = served.get(&format!("/v1/builds/{id}/files")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{told}");
        assert_eq!(served.build(&rendered("A")).await, whole);
    }
}

/// Again and again, at whatever moment: what is served afterwards is whole, and what was served before is still the same.
async fn a_kill_in_the_middle_leaves_nothing_wrong(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let kept = start(&tools, directory.path(), &[]).ready().await.build(&rendered("Kept")).await;
    let results = || std::fs::read_dir(directory.path().join("builds/builds")).unwrap().count();
    for round in 0..12 {
        let before = results();
        let served = start(&tools, directory.path(), &[]).ready().await;
        let manifests: Vec<Value> =
            (0..6).map(|number| rendered(&format!("Round {round}, page {number}"))).collect();
        for manifest in &manifests {
            assert!(served.post(manifest).await.0.is_success());
        }
        // From round to round after one more of them.
        until("some are built", async || (results() >= before + round % 6).then_some(())).await;
        served.process.kill();
        let served = start(&tools, directory.path(), &[]).ready().await;
        for manifest in &manifests {
            served.build(manifest).await;
        }
        assert_eq!(served.build(&rendered("Kept")).await, kept);
    }
    let left = std::fs::read_dir(directory.path().join("builds/work")).unwrap().count();
    assert_eq!(left, 0, "what was half done is gone");
}

async fn a_service_without_a_bundler_says_how_to_get_one(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let served = start(&tools, directory.path(), &["--bundler", "/nowhere/esbuild"]).ready().await;
    let (_, build) = served.post(&rendered("A")).await;
    assert_eq!((&build["status"], &build["reason"]), (&json!("FAILED"), &json!("BundlerMissing")));
    assert!(build["message"].as_str().unwrap().contains("install esbuild"), "{build}");
}

/// Does what the title asks for, and builds everything else. Without `#!`, which only a script of npm has.
const STRANGE: &str = r#"case $1 in --version) echo 0; exit;; esac
while read -r line; do
  case $line in
    *Endless*) while :; do :; done;;
    *Sleepy*) exec /bin/sleep 1000;;
    *Greedy*) text=xxxxxxxx; while :; do text=$text$text; done;;
    *Failing*) echo "no luck today" >&2; exit 7;;
  esac
done <entry.js
exec "${0%/*}/esbuild" "$@"
"#;

/// Writes [`STRANGE`], with the real bundler beside it.
pub(crate) fn strange(tools: &Tools, directory: &Path) -> String {
    use std::os::unix::fs::PermissionsExt;
    let place = directory.join("bundler");
    std::fs::create_dir(&place).unwrap();
    std::fs::copy(&tools.bundler, place.join("esbuild")).unwrap();
    let script = place.join("strange");
    std::fs::write(&script, STRANGE).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script.to_str().unwrap().to_owned()
}

/// How many processes this one has started that still run.
fn children(pid: u32) -> usize {
    let parent = |entry: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(parent).filter(|parent| *parent == pid).count()
}

async fn a_bundler_that_misbehaves_is_stopped(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let bundler = strange(&tools, directory.path());
    let more = ["--bundler", &bundler, "--build-seconds", "4", "--build-memory", "256", "--workers", "1"];
    let served = start(&tools, directory.path(), &more).ready().await;
    for (title, says) in [
        ("Endless", "the bundler was not done after 4 s, and was stopped"),
        ("Sleepy", "the bundler was not done after 4 s, and was stopped"),
        ("Greedy", "the bundler failed"),
        ("Failing", "the bundler failed (exit status: 7): no luck today"),
    ] {
        let failed = served.ends(&rendered(title), "FAILED").await;
        let message = failed["message"].as_str().unwrap();
        assert!(message.contains(says), "{title}: {message}");
        assert_eq!((&failed["reason"], &failed["final"]), (&json!("BuildFailed"), &Value::Null), "{title}");
        until("it runs no longer", async || (children(served.process.pid()) == 0).then_some(())).await;
    }
    served.ends(&rendered("Harmless"), "SUCCEEDED").await;
    served.build(&rendered("Harmless")).await;
    let kept = |place: &str| std::fs::read_dir(directory.path().join("builds").join(place)).unwrap().count();
    assert_eq!((kept("builds"), kept("work")), (1, 0), "nothing else is left");
}

async fn a_full_queue_sends_clients_away(tools: Tools) {
    let directory = tempfile::tempdir().unwrap();
    let bundler = strange(&tools, directory.path());
    let more = ["--bundler", &bundler, "--workers", "1", "--waiting", "2"];
    let served = start(&tools, directory.path(), &more).ready().await;
    let sleepy = |number: u32| rendered(&format!("Sleepy {number}"));
    let (_, first) = served.post(&sleepy(1)).await;
    let id = first["buildId"].as_str().unwrap().to_owned();
    until("the first one runs", async || {
        (served.get(&format!("/v1/builds/{id}")).await.1["status"] == "RUNNING").then_some(())
    })
    .await;
    for number in [2, 3] {
        let (status, build) = served.post(&sleepy(number)).await;
        assert_eq!((status, &build["status"]), (StatusCode::ACCEPTED, &json!("PENDING")));
    }
    let (status, told) = served.post(&sleepy(4)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{told}");
    assert!(told["message"].as_str().unwrap().contains("come again"), "{told}");
    // Whoever has a place is not sent away.
    for (number, expected) in [(1, "RUNNING"), (2, "PENDING"), (3, "PENDING")] {
        let (status, build) = served.post(&sleepy(number)).await;
        assert_eq!((status, &build["status"]), (StatusCode::ACCEPTED, &json!(expected)));
    }
}
