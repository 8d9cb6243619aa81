//! `agentcube install` on a cluster that has Envoy Gateway's definitions and nothing else of ours: its roles run as
//! processes, each with the token of its own ServiceAccount and the words of its own Deployment; then `agentcube uninstall`
//! leaves the cluster as it was. On the real server every role may do what a golden table says, and nothing else.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use agentcube_testkit::cluster::{kubeconfig_json, process};
use agentcube_testkit::supervise::Process;
use agentcube_testkit::tape::MERGE_PATCH;
use agentcube_testkit::{Cluster, Kind, Request, inventory};
use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

const NAMESPACE: &str = "agentcube-system";
/// Longer than anything takes, unless it is broken.
const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// What the role may not do is told by these words.
const LOG: &str = "info,agentcube_operator=debug,agentcube_instance=debug,agentcube_task=debug,agentcube_sandbox=debug,agentcube_middleware=debug";
const ROLES: [&str; 3] = ["controllers", "router", "fastpath"];

/// One cluster, and what is needed to work on it.
struct World<'a> {
    cluster: &'a Cluster,
    program: PathBuf,
    directory: tempfile::TempDir,
}

/// Installs, runs, removes.
pub(crate) async fn whole(cluster: &Cluster, definitions: &[Value]) -> Result<()> {
    let program = process::build_program()?;
    let world = World { cluster, program, directory: tempfile::tempdir()? };
    for definition in definitions {
        world.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await?;
    }
    world.served("/apis/gateway.envoyproxy.io/v1alpha1/envoypatchpolicies").await?;
    let before = inventory::objects(&cluster.http).await?;

    world.install()?;
    let again = world.install()?;
    // What has defaults in its status, the real server writes once more.
    let changed =
        again.lines().filter(|line| !line.ends_with(" unchanged") && !line.starts_with("gatewayclass."));
    let changed: Vec<&str> = changed.collect();
    ensure!(changed.is_empty(), "installed twice, it changes {changed:?}");
    let mut running = Vec::new();
    for role in ROLES {
        running.push((role, world.start(role).await?));
    }
    world.works().await?;
    world.runs_an_app().await?;
    let refused = world.run(&["uninstall"])?;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(2) && told.contains("1 tasks"), "{told}");
    // Until its Pods have ended a Deployment stays; here the processes are its Pods.
    world.finalizers(json!(["agentcube.io/test"])).await?;
    let removing = world.program(&["uninstall", "--all", "--timeout", "60"]).spawn()?;
    let removing = tokio::task::spawn_blocking(move || removing.wait_with_output());
    let deployment = deployment("controllers");
    let is_ending = |object: &Value| object["metadata"]["deletionTimestamp"].is_string();
    world.until(&deployment, "is being deleted", is_ending).await?;
    for (role, process) in running {
        stop(role, &process).await?;
        let log = process.log().to_lowercase();
        let line = log.lines().find(|line| line.contains("forbidden") || line.contains("panicked"));
        ensure!(line.is_none(), "{role}: {}", line.unwrap_or_default());
    }
    world.finalizers(Value::Null).await?;
    let removed = removing.await??;
    ensure!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    world.delete_namespace("team").await?;
    // The real server lists kinds for a moment that it does not know any more.
    let deadline = Instant::now() + LIMIT;
    loop {
        let after = inventory::objects(&cluster.http).await;
        match after {
            Ok(after) if after == before => return Ok(()),
            _ if Instant::now() < deadline => tokio::time::sleep(LOOK).await,
            after => {
                let after = after?;
                let left: Vec<_> = after.difference(&before).collect();
                let gone: Vec<_> = before.difference(&after).collect();
                bail!("left: {left:?}; gone: {gone:?}");
            }
        }
    }
}

/// Tells a process to stop; it has to end by itself.
async fn stop(role: &str, process: &Process) -> Result<()> {
    let pid = process.pid().to_string();
    ensure!(Command::new("kill").args(["-TERM", &pid]).status()?.success(), "{role} cannot be told to stop");
    let deadline = Instant::now() + LIMIT;
    while !process.has_ended() {
        ensure!(Instant::now() < deadline, "{role} does not stop: {}", process.log_tail());
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

fn deployment(role: &str) -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/agentcube-{role}")
}

impl World<'_> {
    fn program(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--kubeconfig").arg(self.cluster.kubeconfig());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Result<Output> {
        Ok(self.program(words).output()?)
    }

    fn install(&self) -> Result<String> {
        let output = self.run(&["install", "--image", "agentcube:test", "--apply", "--no-wait"])?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let reply = self.cluster.http.send(Request::new(Method::GET, path)).await?;
        ensure!(reply.is_success(), "{path}: {}", reply.value()["message"]);
        Ok(reply.value())
    }

    async fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let reply = self.cluster.http.send(Request::new(Method::POST, path).json(object)).await?;
        ensure!(reply.is_success(), "{path}: {}", reply.value()["message"]);
        Ok(reply.value())
    }

    /// What has to happen before the Deployment of the controllers may go.
    async fn finalizers(&self, finalizers: Value) -> Result<()> {
        let patch = json!({ "metadata": { "finalizers": finalizers } }).to_string();
        let request = Request::new(Method::PATCH, deployment("controllers")).body(MERGE_PATCH, patch);
        let reply = self.cluster.http.send(request).await?;
        ensure!(reply.is_success(), "{}", reply.value());
        Ok(())
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{name}");
        let deadline = Instant::now() + LIMIT;
        while self.cluster.http.send(Request::new(Method::DELETE, &path)).await?.status != 404 {
            ensure!(Instant::now() < deadline, "namespace {name} never goes");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn served(&self, path: &str) -> Result<()> {
        self.until(path, "is served", |_| true).await.map(drop)
    }

    /// What is there as soon as it is as it should be.
    async fn until(&self, path: &str, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let reply = self.cluster.http.send(Request::new(Method::GET, path)).await?;
            if reply.is_success() && fits(&reply.value()) {
                return Ok(reply.value());
            }
            ensure!(Instant::now() < deadline, "{path} never {what}: {}", reply.value());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// A kubeconfig with the token of a role. The embedded server has one user only.
    async fn kubeconfig(&self, role: &str) -> Result<PathBuf> {
        if self.cluster.kind == Kind::Embedded {
            return Ok(self.cluster.kubeconfig().to_owned());
        }
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/agentcube-{role}/token");
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let answer = self.create(&path, &request).await?;
        let token = answer["status"]["token"].as_str().context("a token")?;
        let server = format!("https://{}", self.cluster.http.addr());
        let file = self.directory.path().join(format!("{role}.kubeconfig"));
        std::fs::write(&file, kubeconfig_json(&server, None, token))?;
        Ok(file)
    }

    /// Starts a role with the words of its Deployment, but for places that only a Pod has.
    async fn start(&self, role: &str) -> Result<Process> {
        let deployment = self.get(&deployment(role)).await?;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let list = |name: &str| container[name].as_array().cloned().unwrap_or_default();
        let (config, token) = (self.file("config.yaml", "{}\n")?, self.file("token", "0123456789abcdef")?);
        let data = self.directory.path().join("data");
        let words = list("command").into_iter().skip(1).chain(list("args"));
        let mut words: Vec<String> = words
            .map(|word| {
                let word = word.as_str().unwrap_or_default();
                match word.split_once('=') {
                    Some((name, _)) if name.ends_with("listen") => format!("{name}=127.0.0.1:0"),
                    Some((name @ "--peer-ip", _)) => format!("{name}=127.0.0.1"),
                    Some((name @ ("--config" | "--middleware-config"), _)) => {
                        format!("{name}={}", config.display())
                    }
                    Some((name @ "--admin-token-file", _)) => format!("{name}={}", token.display()),
                    Some((name @ "--data-dir", _)) => format!("{name}={}", data.display()),
                    _ => word.to_owned(),
                }
            })
            .collect();
        let kubeconfig = self.kubeconfig(role).await?;
        words.extend(["--kubeconfig".to_owned(), kubeconfig.display().to_string()]);
        words.extend(["--log".to_owned(), LOG.to_owned()]);
        let log = self.directory.path().join(format!("{role}.log"));
        let process = Process::start(&self.program, &words, &log)?;
        let admin = process.told("admin at ").await?;
        process.told(if role == "router" { "ready at " } else { "leads in term " }).await?;
        ensure!(!admin.is_empty());
        Ok(process)
    }

    fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// An App gets everything that its plugin's templates make, and its agents are closed to others.
    async fn runs_an_app(&self) -> Result<()> {
        let set = concat!(
            "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: {{ .Values.name }}}\nspec:\n",
            "  replicas: {{ .Values.replicas }}\n  serviceName: {{ .Values.name }}\n",
            "  selector: {matchLabels: {{ toJson .Values.selectorLabels }}}\n  template:\n",
            "    metadata: {labels: {{ toJson .Values.labels }}}\n",
            "    spec: {containers: [{name: store, image: {{ .Values.image }}}]}\n",
        );
        let service =
            "apiVersion: v1\nkind: Service\nmetadata: {name: {{ .Values.name }}}\nspec: {clusterIP: None}\n";
        let path = |plural: &str| format!("/apis/middleware.io/v1alpha1/namespaces/team/{plural}");
        let plugin = json!({ "apiVersion": "middleware.io/v1alpha1", "kind": "Plugin",
            "metadata": { "name": "store-v1" }, "spec": { "name": "store", "version": "1",
            "runtimes": [{ "name": "store", "versions": ["1"] }], "images": { "1": "store:1" },
            "templates": [{ "name": "pods", "type": "statefulset", "template": set },
                { "name": "names", "type": "service", "template": service }] } });
        self.create(&path("plugins"), &plugin).await?;
        let app = json!({ "apiVersion": "middleware.io/v1alpha1", "kind": "App", "metadata": { "name": "memory" },
            "spec": { "plugin": { "name": "store", "version": "1" }, "runtime": { "name": "store", "version": "1" },
            "components": [{ "name": "nodes", "groups": [{ "name": "all", "replicas": 2 }] }] } });
        self.create(&path("apps"), &app).await?;
        let app = "memory";
        self.until("/apis/apps/v1/namespaces/team/statefulsets", "has one", has_one).await?;
        self.until("/apis/apps/v1/namespaces/team/controllerrevisions", "has one", has_one).await?;
        self.until(&format!("/api/v1/namespaces/team/secrets/{app}-agent"), "is there", |_| true).await?;
        let policy = format!("/apis/networking.k8s.io/v1/namespaces/team/networkpolicies/{app}-agents");
        let lets_in = |policy: &Value| {
            let rules = policy["spec"]["ingress"].as_array().into_iter().flatten();
            rules.into_iter().any(|rule| {
                rule["ports"][0]["port"] == 50052
                    && rule["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
                        == NAMESPACE
            })
        };
        self.until(&policy, "lets the controllers in", lets_in).await?;
        let events = "/api/v1/namespaces/team/events";
        let of_app = |events: &Value| {
            let mut all = events["items"].as_array().into_iter().flatten();
            all.any(|event| event["involvedObject"]["kind"] == "App")
        };
        self.until(events, "has one of the App", of_app).await.map(drop)
    }

    /// A Task is served, and a pool gets its agents.
    async fn works(&self) -> Result<()> {
        self.create("/api/v1/namespaces", &json!({ "metadata": { "name": "team" } })).await?;
        for (file, path) in [
            ("gateways/default.yaml", "/apis/agentcube.io/v1alpha1/namespaces/team/taskgateways"),
            ("tasks/customer-support.yaml", "/apis/agentcube.io/v1alpha1/namespaces/team/tasks"),
            ("sandboxes/host-pool.yaml", "/apis/sandbox.fast.io/v1alpha1/namespaces/team/sandboxpools"),
        ] {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(file);
            let kind = if path.ends_with("tasks") { "Task" } else { "" };
            let mut documents = crate::documents(&root)?;
            let object = documents.iter_mut().find(|object| kind.is_empty() || object["kind"] == kind);
            let object = object.with_context(|| format!("{file} has none"))?;
            object["metadata"]["namespace"] = json!("team");
            if kind == "Task" {
                object["metadata"]["name"] = json!("chat");
                object["spec"]["routing"]["gatewayRefs"] = json!(["default"]);
            }
            self.create(path, object).await?;
        }
        let deny = "agentcube-deny";
        let route = "/apis/gateway.networking.k8s.io/v1/namespaces/team/httproutes/chat";
        let leads_to = |route: &Value| route["spec"]["rules"][0]["backendRefs"][0]["name"] == deny;
        self.until(route, "leads to what denies", leads_to).await?;
        let policies = "/apis/gateway.envoyproxy.io/v1alpha1/namespaces/team";
        for kind in ["envoyextensionpolicies", "envoypatchpolicies", "envoyproxies", "clienttrafficpolicies"]
        {
            self.until(&format!("{policies}/{kind}"), "has one", has_one).await?;
        }
        self.until("/api/v1/namespaces/team/podtemplates", "has one", has_one).await?;
        self.until("/api/v1/namespaces/team/secrets/chat-token", "is there", |_| true).await?;
        self.until("/api/v1/namespaces/team/pods", "has an agent", |pods| {
            let pods = pods["items"].as_array().into_iter().flatten();
            pods.into_iter().any(|pod| {
                pod["metadata"]["name"] == "quick-agent-0"
                    && pod["spec"]["containers"][0]["image"] == "agentcube:test"
            })
        })
        .await?;
        self.until("/api/v1/namespaces/team/secrets/quick-agent-token", "is there", |_| true).await?;
        Ok(())
    }
}

fn has_one(list: &Value) -> bool {
    list["items"].as_array().is_some_and(|items| !items.is_empty())
}

/// What each role may do is what the table says.
pub(crate) async fn rights(cluster: &Cluster, record: bool) -> Result<()> {
    let program = process::build_program()?;
    let world = World { cluster, program, directory: tempfile::tempdir()? };
    world.install()?;
    agentcube_testkit::rights::check(&cluster.http, record).await
}
