//! Runs Jobs in the place of a node: the real runner in this process, with the environment that the Job says, and with the account
//! that it names. What each does beyond that, a script says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentcube_forge::runner::{Runner, Settings, Step};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::stage::{LONG, LOOK};

/// What a Job does.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    Run,
    /// It is killed when it has done this.
    DieAfter(Step),
    /// It stands still when it has done this, until it is let go.
    HoldAfter(Step, Arc<Notify>),
    /// It says that it is done, and has done nothing.
    Lie,
}

/// What the next Jobs do, and what those before did. Without an entry a Job just runs.
#[derive(Debug, Default)]
pub(crate) struct Script {
    next: Mutex<VecDeque<Behaviour>>,
    /// Each Job that came to an end, by its name: 0 or the runner's code, 137 if it was killed.
    codes: Mutex<BTreeMap<String, u8>>,
    held: Mutex<BTreeSet<String>>,
}

impl Script {
    pub(crate) fn then(&self, behaviour: Behaviour) {
        self.next.lock().push_back(behaviour);
    }

    pub(crate) fn code(&self, job: &str) -> Option<u8> {
        self.codes.lock().get(job).copied()
    }

    pub(crate) fn runs(&self) -> usize {
        self.codes.lock().len()
    }

    pub(crate) fn is_held(&self, job: &str) -> bool {
        self.held.lock().contains(job)
    }
}

#[derive(Clone)]
pub(crate) struct Player {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    /// Of the real server, which gives out tokens of accounts.
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) script: Arc<Script>,
}

/// Plays until it is told to stop.
pub(crate) async fn play(player: Player, stop: CancellationToken) {
    let jobs: Api<Job> = Api::namespaced(player.client.clone(), &player.namespace);
    let (mut seen, mut running) = (BTreeSet::new(), JoinSet::new());
    while !stop.is_cancelled() {
        // What fails is tried again.
        let all = jobs.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        for job in all {
            if seen.insert(job.uid().unwrap()) {
                let behaviour = player.script.next.lock().pop_front().unwrap_or(Behaviour::Run);
                running.spawn(player.clone().run(job, behaviour));
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Player {
    async fn run(self, job: Job, behaviour: Behaviour) {
        let (code, said) = match behaviour {
            Behaviour::Lie => (0, String::new()),
            other => match self.work(&job, other).await {
                None => (137, String::new()),
                Some(Ok(())) => (0, String::new()),
                Some(Err(error)) => (error.code(), serde_json::to_string(&error.failure()).unwrap()),
            },
        };
        // Before anybody can hear of its end.
        self.script.codes.lock().insert(job.name_any(), code);
        self.end(&job, code, &said).await;
    }

    /// `None` if it was killed.
    async fn work(
        &self,
        job: &Job,
        behaviour: Behaviour,
    ) -> Option<Result<(), agentcube_forge::runner::Error>> {
        let variables = self.environment(job).await;
        let settings = Settings::read(|name| variables.get(name).cloned()).expect("a Job has all variables");
        let client = match &settings.api {
            Some(address) => {
                let mut config = kube::Config::new(address.parse().unwrap());
                config.auth_info.token = Some(settings.token.clone().into());
                Client::try_from(config).unwrap()
            }
            None => self.account(job, &settings).await,
        };
        let runner = Runner { client, settings };
        let (dead, name) = (Notify::new(), job.name_any());
        let after = |step: Step| {
            let (dead, behaviour, name, script) = (&dead, &behaviour, &name, &self.script);
            async move {
                match behaviour {
                    Behaviour::DieAfter(last) if *last == step => {
                        dead.notify_one();
                        std::future::pending().await
                    }
                    Behaviour::HoldAfter(last, until) if *last == step => {
                        script.held.lock().insert(name.clone());
                        until.notified().await;
                    }
                    _ => {}
                }
            }
        };
        tokio::select! {
            biased;
            () = dead.notified() => None,
            ended = runner.run_with(&after) => Some(ended),
        }
    }

    async fn environment(&self, job: &Job) -> BTreeMap<String, String> {
        let pod = job.spec.clone().unwrap().template.spec.unwrap();
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut variables = BTreeMap::new();
        for variable in pod.containers[0].env.clone().unwrap() {
            let value = match (variable.value, variable.value_from.and_then(|from| from.secret_key_ref)) {
                (Some(value), _) => value,
                (None, Some(from)) => {
                    let data = secrets.get(&from.name).await.unwrap().data.unwrap();
                    String::from_utf8(data[&from.key].0.clone()).unwrap()
                }
                (None, None) => continue,
            };
            variables.insert(variable.name, value);
        }
        variables
    }

    /// A client with the rights of the Job's account and no others. A server learns of them a little later than they are written.
    async fn account(&self, job: &Job, settings: &Settings) -> Client {
        let name = job.spec.clone().unwrap().template.spec.unwrap().service_account_name.unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
        let token = accounts.create_token_request(&name, &PostParams::default(), &request).await.unwrap();
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig.as_ref().unwrap()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let mut config = config.unwrap();
        config.auth_info = kube::config::AuthInfo::default();
        config.auth_info.token = Some(token.status.unwrap().token.unwrap().into());
        let client = Client::try_from(config).unwrap();
        let (integration, bundle) = (settings.name.as_str(), settings.bundle.as_str());
        let rights = [
            ("get", "frontendintegrations", Some(integration)),
            ("update", "jsbundles", Some(bundle)),
            ("create", "jsbundles", None),
        ];
        let granted = async {
            for (verb, resource, name) in rights {
                while !self.may(&client, verb, resource, name).await {
                    tokio::time::sleep(LOOK).await;
                }
            }
        };
        tokio::time::timeout(LONG, granted).await.expect("an account gets its rights");
        client
    }

    async fn may(&self, client: &Client, verb: &str, resource: &str, name: Option<&str>) -> bool {
        let mut review = SelfSubjectAccessReview::default();
        review.spec.resource_attributes = Some(ResourceAttributes {
            group: Some(agentcube_api::frontend::GROUP.into()),
            namespace: Some(self.namespace.clone()),
            resource: Some(resource.into()),
            verb: Some(verb.into()),
            name: name.map(str::to_owned),
            ..ResourceAttributes::default()
        });
        let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await;
        answer.is_ok_and(|answer| answer.status.is_some_and(|status| status.allowed))
    }

    /// What kubelet and Job controller would say. It may all be gone by now.
    async fn end(&self, job: &Job, code: u8, said: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let jobs: Api<Job> = Api::namespaced(self.client.clone(), &self.namespace);
        let template = job.spec.clone().unwrap().template;
        let mut pod =
            Pod { metadata: template.metadata.unwrap_or_default(), spec: template.spec, status: None };
        let name = format!("{}-pod", job.name_any());
        pod.metadata.name = Some(name.clone());
        pod.metadata.owner_references = job.controller_owner_ref(&()).map(|owner| vec![owner]);
        let _gone = pods.create(&PostParams::default(), &pod).await;
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let ended = json!({ "name": "runner", "ready": false, "restartCount": 0, "image": "a", "imageID": "a",
            "state": { "terminated": { "exitCode": code, "message": said } } });
        let status = json!({ "status": { "phase": phase, "containerStatuses": [ended] } });
        let _gone = pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await;
        let now = jiff::Timestamp::now().to_string();
        let condition = |type_: &str| json!({ "type": type_, "status": "True", "lastProbeTime": now, "lastTransitionTime": now, "reason": "Test" });
        let status = match code {
            0 => json!({ "startTime": now, "completionTime": now, "succeeded": 1,
                "conditions": [condition("SuccessCriteriaMet"), condition("Complete")] }),
            _ => {
                json!({ "startTime": now, "failed": 1, "conditions": [condition("FailureTarget"), condition("Failed")] })
            }
        };
        let patch = Patch::Merge(json!({ "metadata": { "uid": job.uid() }, "status": status }));
        match jobs.patch_status(&job.name_any(), &PatchParams::default(), &patch).await {
            Ok(_) => {}
            // Deleted meanwhile.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(error) => panic!("a Job cannot end: {error}"),
        }
    }
}
