//! Code that comes from a server: to Pods, where it is not what it should be, and to Sandboxes of a pool.

use agentcube_testkit::Request;
use agentcube_testkit::watch::{self, Objects};
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use crate::pools;
use crate::world::{LIMIT, PODS, TASKS, World, condition, expect, sessions};

/// Serves an archive of one program on its own address.
const SERVER: &str = r#"
import http.server, os, zipfile
os.chdir("/tmp")
code = '''
import http.server, os
class Agent(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"fetched")
http.server.HTTPServer(("", int(os.environ["PORT"])), Agent).serve_forever()
'''
with zipfile.ZipFile("code.zip", "w") as archive:
    archive.writestr("main.py", code)
http.server.HTTPServer(("", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"#;

/// What a Task says of what its instances are made from: reason and message.
fn spec_ready(task: &Value) -> Option<(&str, &str)> {
    let mut conditions = task["status"]["conditions"].as_array()?.iter();
    let said = conditions.find(|it| it["type"] == "SpecReady" && it["status"] == "False")?;
    Some((said["reason"].as_str()?, said["message"].as_str()?))
}

/// The address of the Pod that serves the archive.
async fn serve(world: &World) -> Result<String> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "archives" },
        "spec": { "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "server", "image": "host", "command": ["python3", "-u", "-c", SERVER],
            "readinessProbe": { "tcpSocket": { "port": 8000 }, "periodSeconds": 1 },
        }] },
    });
    let reply = world.http.send(Request::new(Method::POST, PODS).json(&pod)).await?;
    ensure!(reply.status == 201, "cannot make the server: {}", reply.value());
    let ready = |pods: &Objects| pods.get("archives").is_some_and(|pod| condition(pod, "Ready"));
    let pods = watch::until(&world.http, PODS, "archives are served", LIMIT, ready).await?;
    let address = pods["archives"]["status"]["podIP"].as_str().context("the server has an address")?;
    Ok(format!("http://{address}:8000/code.zip"))
}

pub(crate) async fn wrong_digest(world: &World) -> Result<()> {
    let wrong = "0".repeat(64);
    let task = |digest: Option<&str>, address: &str| {
        let mut code = json!({ "zipUrl": address, "entrypoint": "main.py",
            "codeRuntime": { "name": "python3.11", "image": "host" } });
        if let Some(digest) = digest {
            code["sha256"] = json!(digest);
        }
        json!({ "apiVersion": "agentcube.io/v1alpha1", "kind": "Task", "metadata": { "name": "fetched" },
            "spec": { "deployment": { "type": "code-bundle", "codeBundle": code },
                "scaling": { "scalingMode": "OnDemand", "minInstances": 0 } } })
    };
    let address = serve(world).await?;
    let reply = world.http.send(Request::new(Method::POST, TASKS).json(&task(None, &address))).await?;
    let refused = reply.value();
    let why = refused["message"].as_str().unwrap_or_default();
    expect(reply.status == 422 && why.contains("unless sha256 is set"), "http needs a digest", &refused)?;
    let made = world.http.send(Request::new(Method::POST, TASKS).json(&task(Some(&wrong), &address))).await?;
    ensure!(made.status == 201, "cannot make the Task: {}", made.value());
    let told = |tasks: &Objects| {
        tasks.get("fetched").and_then(spec_ready).is_some_and(|(_, message)| message.contains("SHA-256"))
    };
    let tasks = watch::until(&world.http, TASKS, "the digest is told", LIMIT, told).await?;
    let (reason, message) = spec_ready(&tasks["fetched"]).context("it was told")?;
    expect(reason == "BundleBroken", "the reason is told", &(reason, message))?;
    let whole = message.contains("the code cannot be prepared: container fetch") && message.contains(&wrong);
    expect(whole, "what failed and the last lines of its log are told", &message)?;
    let found = message.split("has the SHA-256 ").nth(1).and_then(|rest| rest.get(..64));
    let found = found.with_context(|| format!("the digest that was found is told: {message}"))?;

    // Put right, it is tried again at once.
    let patch = json!({ "spec": { "deployment": { "codeBundle": { "sha256": found } } } });
    let request = Request::new(Method::PATCH, format!("{TASKS}/fetched"))
        .body("application/merge-patch+json", patch.to_string());
    let reply = world.http.send(request).await?;
    ensure!(reply.is_success(), "cannot change the Task: {}", reply.value());
    let ready = |tasks: &Objects| tasks.get("fetched").is_some_and(|task| condition(task, "Ready"));
    watch::until(&world.http, TASKS, "the Task is ready", LIMIT, ready).await?;
    let answer = world.ask(Method::GET, "/default/fetched/", &[], "").await?;
    expect((answer.status, answer.text().as_str()) == (200, "fetched"), "the code runs", &answer)?;
    world.remove("fetched").await?;
    world.run(&["delete", "pod", "archives", "--now"]).await?;
    Ok(())
}

/// In a Sandbox there is nobody to fetch it before: each fetches it itself, and then runs it.
pub(crate) async fn on_a_pool(world: &World) -> Result<()> {
    let address = serve(world).await?;
    let told = world.run(&["exec", "archives", "--", "sha256sum", "/tmp/code.zip"]).await?;
    let digest = told.split_whitespace().next().context("the archive has a digest")?;
    // The server is a Pod: what is Public reaches none.
    let open = json!({ "network": { "egress": "Open" } });
    pools::pool_with(world, "fetchers", json!({ "sandboxDefaults": open })).await?;
    let mut spec = sessions(json!({ "scalingMode": "OnDemand" }));
    spec["deployment"] = json!({ "type": "code-bundle", "codeBundle": {
        "poolRef": "fetchers", "zipUrl": address, "sha256": digest, "entrypoint": "main.py",
        "codeRuntime": { "name": "python3.11" } } });
    world.task("pool-fetched", spec).await?;
    for session in ["ada", "bob"] {
        let headers = [("x-session-id", session)];
        let answer = world.ask(Method::GET, "/default/pool-fetched/", &headers, "").await?;
        expect((answer.status, answer.text().as_str()) == (200, "fetched"), "the code runs", &answer)?;
    }
    let made = pools::sandboxes(world, "pool-fetched", "are listed", |_| true).await?;
    expect(made.len() == 2, "each session has its Sandbox", &made)?;
    pools::remove(world, "pool-fetched").await?;
    world.run(&["delete", "pod", "archives", "--now"]).await?;
    Ok(())
}
