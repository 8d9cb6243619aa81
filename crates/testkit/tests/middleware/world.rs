//! `agentcube up` with the plugins of the examples, what is asked of its API, and ways into its Pods.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agentcube_testkit::cluster::up::{Place, Up};
use agentcube_testkit::cluster::whole::{IMAGE, Whole};
use agentcube_testkit::watch::{self, Objects};
use agentcube_testkit::{HttpClient, Request};
use anyhow::{Context, Result, bail, ensure};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, AttachParams, DeleteParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::resp::{Client, Stream};

/// A debug build on a busy machine is slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);
/// Time for something small in a Pod.
/// Between two looks at what is not told.
pub(crate) const LOOK: Duration = Duration::from_millis(200);
const ANSWER: Duration = Duration::from_secs(10);
pub(crate) const APPS: &str = "/apis/middleware.io/v1alpha1/namespaces/default/apps";
pub(crate) const BACKUPS: &str = "/apis/middleware.io/v1alpha1/namespaces/default/backups";
pub(crate) const GROUPS: &str = "/apis/middleware.io/v1alpha1/namespaces/default/groups";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PLUGINS: &str = "/apis/middleware.io/v1alpha1/namespaces/default/plugins";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// Where two versions of an engine are: directories with its programs.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) older: PathBuf,
    pub(crate) newer: PathBuf,
    /// They are not the same.
    pub(crate) differ: bool,
    /// One of an older series, which has the server only: what else there is comes from the newer one.
    pub(crate) oldest: Option<PathBuf>,
}

impl Engine {
    pub(crate) fn redis(cache: &Path) -> Result<Engine> {
        let oldest = Some(cache.join("redis-6.2")).filter(|place| place.join("version").is_file());
        Ok(Engine { oldest, ..Engine::find(cache, "redis-debian", "redis-server", &["/usr/bin"])? })
    }

    /// Where its programs are.
    pub(crate) fn places(&self) -> Vec<&Path> {
        let all = [Some(&self.older), Some(&self.newer), self.oldest.as_ref()];
        all.into_iter().flatten().map(PathBuf::as_path).collect()
    }

    /// What `cargo xtask setup` has unpacked, or what the machine has.
    pub(crate) fn find(cache: &Path, directory: &str, program: &str, usual: &[&str]) -> Result<Engine> {
        let (older, newer) = (cache.join(directory).join("older"), cache.join(directory).join("newer"));
        let version = |place: &Path| std::fs::read_to_string(place.join("version")).ok();
        if let (Some(first), Some(second)) = (version(&older), version(&newer)) {
            return Ok(Engine { older, newer, differ: first != second, oldest: None });
        }
        let usual = usual.iter().map(PathBuf::from).find(|place| place.join(program).is_file());
        let place = usual
            .with_context(|| format!("there is no {program}: `cargo xtask setup` gets one, or install it"))?;
        Ok(Engine { older: place.clone(), newer: place, differ: false, oldest: None })
    }
}

pub(crate) struct World {
    pub(crate) http: HttpClient,
    pub(crate) client: kube::Client,
    platform: Platform,
}

/// What runs Pods.
enum Platform {
    Up {
        place: Place,
        arguments: Vec<String>,
        /// There is always one, but for the moment of a restart.
        up: Mutex<Option<Up>>,
    },
    Cluster(Box<Whole>),
}

impl World {
    pub(crate) async fn start(program: &Path, shown: &[&Path], more: &[&str]) -> Result<World> {
        let place = Place::new(program)?;
        let shown = shown.iter().flat_map(|path| ["--host-image-dir".into(), path.display().to_string()]);
        let arguments: Vec<String> = shown.chain(more.iter().map(|word| (*word).to_owned())).collect();
        let up = place.start_with(&arguments).await?;
        let (http, client) = (up.http.clone(), client(&place.kubeconfig()).await?);
        let platform = Platform::Up { place, arguments, up: Mutex::new(Some(up)) };
        Ok(World { http, client, platform })
    }

    /// A real cluster that everything is installed in.
    pub(crate) async fn on_cluster(cluster: Whole, kubeconfig: &Path) -> Result<World> {
        let (http, client) = (cluster.http.clone(), client(kubeconfig).await?);
        Ok(World { http, client, platform: Platform::Cluster(Box::new(cluster)) })
    }

    /// Ends `agentcube up`, or takes everything of ours out of the cluster.
    pub(crate) fn stop(self) -> Result<()> {
        match self.platform {
            Platform::Up { place, up, .. } => up.into_inner().context("it runs")?.down(&place),
            Platform::Cluster(cluster) => cluster.run(&["uninstall", "--all"]).map(drop),
        }
    }

    /// Whether there is anybody who makes volumes.
    pub(crate) fn has_volumes(&self) -> bool {
        matches!(self.platform, Platform::Up { .. })
    }

    /// Kills all of it, with every Pod, and starts it again.
    pub(crate) async fn die_and_rise(&self) -> Result<()> {
        let Platform::Up { place, arguments, up } = &self.platform else { bail!("a cluster is not killed") };
        let address = std::fs::read_to_string(place.kubeconfig())?;
        let before = up.lock().take().context("it runs")?;
        before.kill();
        let after = place.start_with(arguments).await?;
        *up.lock() = Some(after);
        ensure!(std::fs::read_to_string(place.kubeconfig())? == address, "it is somewhere else now");
        Ok(())
    }

    /// Runs the program as users do; what it printed.
    pub(crate) async fn cli(&self, words: &[&str]) -> Result<String> {
        let mut command = match &self.platform {
            Platform::Up { place, .. } => {
                let mut command = tokio::process::Command::new(place.program());
                command.env("KUBECONFIG", place.kubeconfig()).env("HOME", place.home());
                command
            }
            Platform::Cluster(cluster) => cluster.command().into(),
        };
        command.args(words);
        let output = tokio::time::timeout(LIMIT * 2, command.kill_on_drop(true).output()).await;
        let output = output.with_context(|| format!("agentcube {words:?} does not end"))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "agentcube {words:?}: {}", text(&output.stderr));
        Ok(text(&output.stdout))
    }

    /// What there is to see when something went wrong.
    pub(crate) async fn told(&self) -> String {
        let mut told = String::new();
        for path in [APPS, GROUPS, PODS] {
            let Ok(reply) = self.http.send(Request::new(Method::GET, path)).await else { continue };
            for item in reply.value()["items"].as_array().into_iter().flatten() {
                let (name, status) = (&item["metadata"]["name"], &item["status"]);
                let status: String = status.to_string().chars().take(3000).collect();
                told.push_str(&format!("{path} {name} {} {status}\n", item["metadata"]["labels"]));
            }
        }
        let log = match &self.platform {
            Platform::Up { up, .. } => up.lock().as_ref().map(Up::log).unwrap_or_default(),
            Platform::Cluster(cluster) => cluster.told(),
        };
        let lines: Vec<&str> = log.lines().collect();
        format!("{told}the end of the log:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"))
    }

    pub(crate) async fn create(&self, path: &str, object: &Value) -> Result<()> {
        let reply = self.http.send(Request::new(Method::POST, path).json(object)).await?;
        ensure!(reply.status == 201, "cannot create at {path}: {}", reply.value());
        Ok(())
    }

    pub(crate) async fn get(&self, path: &str, name: &str) -> Result<Value> {
        let reply = self.http.send(Request::new(Method::GET, format!("{path}/{name}"))).await?;
        ensure!(reply.is_success(), "{path}/{name}: {}", reply.value());
        Ok(reply.value())
    }

    pub(crate) async fn patch(&self, path: &str, name: &str, patch: &Value) -> Result<Value> {
        let request = Request::new(Method::PATCH, format!("{path}/{name}"))
            .body("application/merge-patch+json", patch.to_string());
        let reply = self.http.send(request).await?;
        ensure!(reply.is_success(), "{path}/{name}: {}", reply.value());
        Ok(reply.value())
    }

    /// Deletes an object, and waits until it is gone.
    pub(crate) async fn delete(&self, path: &str, name: &str) -> Result<()> {
        let reply = self.http.send(Request::new(Method::DELETE, format!("{path}/{name}"))).await?;
        ensure!(reply.is_success(), "{path}/{name}: {}", reply.value());
        let gone = |objects: &Objects| !objects.contains_key(name);
        watch::until(&self.http, path, &format!("{name} is gone"), LIMIT, gone).await.map(drop)
    }

    /// A plugin of the examples, for two versions of its engine that are the machine's own, or in an image.
    pub(crate) async fn install(&self, example: &str, engine: &Engine) -> Result<()> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/middleware").join(example);
        let read = |name: &str| -> Result<Value> {
            let text = std::fs::read_to_string(directory.join(name))?;
            serde_saphyr::from_str(&text).map_err(|error| anyhow::anyhow!("{name}: {error}"))
        };
        self.create(MAPS, &read("templates.yaml")?).await?;
        let mut plugin = read("plugin.yaml")?;
        let spec = &mut plugin["spec"];
        spec["runtimes"][0]["versions"] = json!(["older", "newer"]);
        spec["compatibility"] = json!({ "migrateFrom": { "newer": ["older"] } });
        spec["defaultValues"]["paths"] = json!({ "older": engine.older, "newer": engine.newer });
        let image = match &self.platform {
            Platform::Up { .. } => "host".to_owned(),
            Platform::Cluster(_) => {
                spec["defaultValues"]["agent"] = json!({ "image": IMAGE, "copy": true });
                format!("{example}:dev")
            }
        };
        spec["images"] = json!({ "older": image, "newer": image });
        if let Some(oldest) = &engine.oldest {
            spec["runtimes"][0]["versions"] = json!(["oldest", "older", "newer"]);
            spec["compatibility"] = json!({ "migrateFrom": { "newer": ["older", "oldest"] } });
            let path = format!("{}:{}", oldest.display(), engine.newer.display());
            spec["defaultValues"]["paths"]["oldest"] = path.into();
            spec["images"]["oldest"] = image.into();
        }
        self.create(PLUGINS, &plugin).await
    }

    /// An object when it is as wanted.
    pub(crate) async fn until(
        &self,
        path: &str,
        name: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let seen = |objects: &Objects| objects.get(name).is_some_and(&wanted);
        let mut objects = watch::until(&self.http, path, &format!("{name}: {what}"), LIMIT, seen).await?;
        objects.remove(name).context("it was there")
    }

    /// Waits until an App has carried out its present spec.
    pub(crate) async fn settled(&self, app: &str) -> Result<Value> {
        self.until(APPS, app, "everything is carried out", |app| {
            let (generation, status) = (&app["metadata"]["generation"], &app["status"]);
            status["lastCompletedGeneration"] == *generation
                && status["observedGeneration"] == *generation
                && status["phase"] == "Running"
        })
        .await
    }

    pub(crate) async fn password(&self, app: &str) -> Result<String> {
        use base64::Engine as _;
        let secret = self.get(SECRETS, &format!("{app}-connection")).await?;
        let encoded = secret["data"]["password"].as_str().context("a password")?;
        Ok(String::from_utf8(base64::engine::general_purpose::STANDARD.decode(encoded)?)?)
    }

    /// The Pods of a group that are not going, by name.
    pub(crate) async fn pods(&self, group: &str) -> Result<Vec<Value>> {
        let path = format!("{PODS}?labelSelector=middleware.io%2Fgroup%3D{group}");
        let reply = self.http.send(Request::new(Method::GET, path)).await?;
        let items = reply.value()["items"].as_array().cloned().context("a list")?;
        Ok(items.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect())
    }

    /// The name of the Pod behind a Service.
    pub(crate) async fn behind(&self, service: &str) -> Result<Option<String>> {
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{service}"
        );
        let reply = self.http.send(Request::new(Method::GET, path)).await?.value();
        let slices = reply["items"].as_array().context("a list")?.iter();
        let mut endpoints = slices.filter_map(|slice| slice["endpoints"].as_array()).flatten();
        let ready = endpoints.find(|one| one["conditions"]["ready"] == true);
        Ok(ready.and_then(|one| one["targetRef"]["name"].as_str()).map(str::to_owned))
    }

    pub(crate) fn kube_pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// A connection to a port of a Pod.
    pub(crate) async fn connect(&self, pod: &str, port: u16) -> Result<Box<dyn Stream>> {
        let mut forwarder = self.kube_pods().portforward(pod, &[port]).await?;
        let stream = forwarder.take_stream(port).context("a stream")?;
        Ok(Box::new(stream))
    }

    pub(crate) async fn redis(&self, pod: &str, password: &str) -> Result<Client> {
        let connecting = async { Client::new(self.connect(pod, 6379).await?, password).await };
        tokio::time::timeout(ANSWER, connecting).await.context("nobody answers")?
    }

    /// Runs a command in a Pod; what it printed.
    pub(crate) async fn exec(&self, pod: &str, words: &[&str]) -> Result<String> {
        let running = tokio::time::timeout(LIMIT, self.exec_without_limit(pod, words));
        running.await.with_context(|| format!("{words:?} in {pod} does not end"))?
    }

    async fn exec_without_limit(&self, pod: &str, words: &[&str]) -> Result<String> {
        let parameters = AttachParams::default().stdin(false).stdout(true).stderr(true);
        let mut process = self.kube_pods().exec(pod, words.to_vec(), &parameters).await?;
        let (mut out, mut err) = (String::new(), String::new());
        let status = process.take_status().context("a status")?;
        if let Some(mut reader) = process.stdout() {
            reader.read_to_string(&mut out).await?;
        }
        if let Some(mut reader) = process.stderr() {
            reader.read_to_string(&mut err).await?;
        }
        let status = status.await.context("a command ends with a status")?;
        if status.status.as_deref() != Some("Success") {
            bail!("{words:?} in {pod}: {} {out}{err}", status.message.unwrap_or_default());
        }
        Ok(out)
    }

    /// Sends a signal to a process of a Pod, until that is known to be done. The container may be gone before it can say so.
    pub(crate) async fn signal(&self, pod: &str, signal: &str, pid: &str) -> Result<()> {
        let before = self.life(pod).await;
        let mut last = String::new();
        let sending = async {
            loop {
                let said = tokio::time::timeout(ANSWER, self.exec(pod, &["kill", signal, pid])).await;
                last = format!("{said:?}");
                let killed = signal == "-9" && last.contains("No such process");
                if matches!(said, Ok(Ok(_))) || killed || self.life(pod).await != before {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let sent = tokio::time::timeout(LIMIT, sending).await;
        anyhow::ensure!(sent.is_ok(), "{pid} of {pod} does not get {signal}: {last}");
        Ok(())
    }

    /// Which Pod of this name it is, and how often its containers were started again; nothing when it is gone.
    async fn life(&self, pod: &str) -> Option<(Value, Vec<Value>)> {
        let pod = self.get(PODS, pod).await.ok()?;
        let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
        Some((pod["metadata"]["uid"].clone(), containers.map(|one| one["restartCount"].clone()).collect()))
    }

    /// Takes a Pod away at once, as a machine that dies does.
    pub(crate) async fn destroy(&self, pod: &str) -> Result<()> {
        self.kube_pods().delete(pod, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }
}

async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}
