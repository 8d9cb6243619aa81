//! A stage: an API server, a build service with the real bundler, something that runs Jobs, and controllers. Each stage has a
//! namespace of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use agentcube_api::frontend::FrontendIntegrationStatus;
use agentcube_api::frontend::integration::IntegrationPhase;
use agentcube_api::{FrontendIntegration, JSBundle};
use agentcube_apiserver::Server;
use agentcube_forge::gate::Gate;
use agentcube_forge::options::{Access, Limits};
use agentcube_forge::runner::{Runner, Settings};
use agentcube_forge::service::{self, Service};
use agentcube_forge::token::Key;
use agentcube_forge::{Controllers, Options};
use agentcube_operator::metrics::Registry;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Tools;
use crate::jobs::{self, Script};

/// Longer than anything takes, unless it is broken.
pub(crate) const LONG: Duration = Duration::from_secs(300);
/// How long a bundler may take on a machine that is busy with other tests.
pub(crate) const BUILD: Duration = Duration::from_secs(120);
pub(crate) const LOOK: Duration = Duration::from_millis(20);
static STAGES: AtomicU32 = AtomicU32::new(0);

/// The API server under a stage.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Embedded,
    Real(PathBuf),
}

pub(crate) struct Stage {
    _server: Option<Server>,
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) key: Key,
    pub(crate) address: String,
    pub(crate) script: Arc<Script>,
    place: Place,
    _directory: tempfile::TempDir,
    stop: CancellationToken,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Controllers that run.
pub(crate) struct Running {
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

impl Running {
    /// Ends them as a crash would.
    pub(crate) async fn crash(self) {
        self.running.abort();
        let _ = self.running.await;
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.expect("nothing panicked");
    }
}

/// A spec that shows Tasks under this name.
pub(crate) fn spec(title: &str) -> Value {
    json!({
        "displayName": title, "enabled": true,
        "integration": { "type": "crd", "crd": { "names": { "kind": "Task", "plural": "tasks" },
            "group": "agentcube.io", "version": "v1alpha1", "scope": "Namespaced" } },
        "routing": { "path": "agents/tasks" },
        "columns": [{ "key": "name", "title": "Name", "render": { "path": "metadata.name", "payload": { "ratio": 0.1, "odd": -6.154066783934039e299 } } }],
        "menu": { "name": title, "placements": ["global"] },
    })
}

impl Stage {
    pub(crate) async fn open(tools: &Tools, place: Place) -> Stage {
        let (client, server) = connect(&place).await;
        let namespace = format!("forge-{}-{}", std::process::id(), STAGES.fetch_add(1, Ordering::Relaxed));
        let object = serde_json::from_value(json!({ "metadata": { "name": namespace } })).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let key = Key::new("a key that nobody else knows").unwrap();
        let options = service::Options {
            directory: directory.path().to_owned(),
            bundler: Some(tools.bundler.clone()),
            path: Vec::new(),
            confiner: tools.program.clone(),
            key: key.clone(),
            limits: service::Limits { build: BUILD, ..service::Limits::default() },
        };
        let builds = Service::open(options, &Registry::new()).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (stop, script) = (CancellationToken::new(), Arc::new(Script::default()));
        let gate = Gate { client: client.clone(), key: key.clone(), builds };
        tokio::spawn(gate.run(listener, stop.clone()));
        let stage = Stage {
            _server: server,
            client,
            namespace,
            key,
            address,
            script,
            place,
            _directory: directory,
            stop,
        };
        tokio::spawn(jobs::play(stage.jobs(), stage.stop.clone()));
        stage
    }

    fn jobs(&self) -> jobs::Player {
        let kubeconfig = match &self.place {
            Place::Embedded => None,
            Place::Real(kubeconfig) => Some(kubeconfig.clone()),
        };
        jobs::Player {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            kubeconfig,
            script: self.script.clone(),
        }
    }

    /// On the real server Jobs have accounts of their own; the embedded one knows none.
    fn options(&self) -> Options {
        Options {
            image: "agentcube".into(),
            program: "agentcube".into(),
            build_service: self.address.clone(),
            key: self.key.clone(),
            access: match self.place {
                Place::Embedded => Access::Gate(self.address.clone()),
                Place::Real(_) => Access::ServiceAccounts,
            },
            restricted: true,
            watch_namespace: Some(self.namespace.clone()),
            limits: Limits { retry_delay: Duration::ZERO, build: 2 * BUILD, ..Limits::default() },
        }
    }

    pub(crate) fn start(&self) -> Running {
        self.start_by(self.client.clone())
    }

    pub(crate) fn start_by(&self, client: Client) -> Running {
        let shutdown = CancellationToken::new();
        let controllers = Controllers::new(client, self.options(), &Registry::new());
        Running { running: tokio::spawn(controllers.run(shutdown.clone())), shutdown }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn create(&self, name: &str, spec: Value) -> FrontendIntegration {
        let object = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
        self.api().create(&PostParams::default(), &object).await.expect("the server takes it")
    }

    pub(crate) async fn patch(&self, name: &str, patch: Value) {
        let api: Api<FrontendIntegration> = self.api();
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is taken");
    }

    /// Changes what the menu says, and so the spec.
    pub(crate) async fn rename(&self, name: &str, title: &str) {
        self.patch(name, json!({ "spec": { "displayName": title, "menu": { "name": title } } })).await;
    }

    pub(crate) async fn status(&self, name: &str) -> FrontendIntegrationStatus {
        self.api::<FrontendIntegration>().get(name).await.unwrap().status.unwrap_or_default()
    }

    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&FrontendIntegration) -> bool,
    ) -> FrontendIntegration {
        let api: Api<FrontendIntegration> = self.api();
        let mut last = None;
        let found = tokio::time::timeout(LONG, async {
            loop {
                let now = api.get(name).await.unwrap();
                if wanted(&now) {
                    return now;
                }
                last = Some(now);
                tokio::time::sleep(LOOK).await;
            }
        });
        match found.await {
            Ok(found) => found,
            Err(_) => panic!("{name} is not {what}: {:#?}", last.and_then(|last| last.status)),
        }
    }

    /// Until what is said is about the present spec, and it is this.
    pub(crate) async fn until_phase(&self, name: &str, phase: IntegrationPhase) -> FrontendIntegration {
        self.until(name, &format!("{phase:?}"), |now| {
            let status = now.status.clone().unwrap_or_default();
            status.observed_generation == now.metadata.generation && status.phase == Some(phase)
        })
        .await
    }

    pub(crate) async fn until_event(&self, reason: &str) -> Event {
        until(&format!("an Event {reason}"), async || {
            let events = self.api::<Event>().list(&ListParams::default()).await.unwrap().items;
            events.into_iter().find(|event| event.reason.as_deref() == Some(reason))
        })
        .await
    }

    pub(crate) async fn bundle(&self, integration: &str) -> JSBundle {
        self.api().get(&agentcube_forge::names::bundle(integration)).await.unwrap()
    }

    pub(crate) async fn job_names(&self) -> Vec<String> {
        let jobs = self.api::<Job>().list(&ListParams::default()).await.unwrap().items;
        let mut names: Vec<String> = jobs.iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    }

    /// A runner as a Job of another time would run it.
    pub(crate) fn runner(&self, integration: &str, spec_hash: &str, job: &str) -> Runner {
        let settings = Settings {
            namespace: self.namespace.clone(),
            name: integration.to_owned(),
            spec_hash: spec_hash.to_owned(),
            bundle: agentcube_forge::names::bundle(integration),
            job: job.to_owned(),
            build_service: self.address.clone(),
            token: self.key.token(&self.namespace, integration),
            api: None,
            build_limit: 2 * BUILD,
            stale_grace: Duration::from_secs(1),
        };
        Runner { client: self.client.clone(), settings }
    }
}

async fn connect(place: &Place) -> (Client, Option<Server>) {
    let (client, server) = match place {
        Place::Embedded => {
            let server = Server::builder().memory().embed().await.expect("a server in memory starts");
            (Client::new(server.front(), "default"), Some(server))
        }
        Place::Real(path) => {
            let kubeconfig = Kubeconfig::read_from(path).expect("there is a kubeconfig");
            let config =
                kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            (Client::try_from(config.expect("it names a server")).expect("it can be reached"), None)
        }
    };
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in agentcube_api::crds().into_iter().filter(|crd| crd.spec.group == "frontend-forge.io") {
        match api.create(&PostParams::default(), &definition).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => continue,
            Err(error) => panic!("{error}"),
        }
        until("it is established", async || {
            let now = api.get(&definition.name_any()).await.unwrap();
            let said = now.status.and_then(|status| status.conditions).unwrap_or_default();
            said.iter().any(|one| one.type_ == "Established" && one.status == "True").then_some(())
        })
        .await;
    }
    (client, server)
}

pub(crate) async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    until_by(LOOK, what, look).await
}

/// With this pause between one look and the next.
pub(crate) async fn until_by<T>(pause: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let searching = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(pause).await;
        }
    };
    match tokio::time::timeout(LONG, searching).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain: {what}"),
    }
}
