//! One pass over a Group: looks, plans, has agents answer what the plan asks, and carries it out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::conditions::middleware as reasons;
use agentcube_api::labels::{MIDDLEWARE_CONFIGURATION, MIDDLEWARE_GROUP, MIDDLEWARE_ROLE};
use agentcube_api::middleware::group::{ActiveHighAvailability, Policies, RoleDetection};
use agentcube_api::{Group, Plugin};
use agentcube_operator::children;
use agentcube_operator::controller::Requeue;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as KubePod};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, ObjectMeta, PostParams};
use serde_json::{Value, json};

use super::check::{before_asking, is_idle};
use super::look;
use super::observe::{Answers, Fault, Observed, Pod, Role};
use super::plan::{Operation, Plan, Question, plan};
use super::revision::Revision;
use super::roll::may_still_go;
use crate::agents::{Place, within};
use crate::caches::resource;
use crate::core::{Core, Error, MANAGER, Name, REFUSED_LOOK, TAKEN_FOR, is_code, owner};
use crate::refusals::{self, Refused};
use crate::render::{group_labels, render};

/// A plan asks about each Pod at most once, and of little else.
const MOST_QUESTIONS: usize = 2_000;
/// Time for a Pod to stop in order, before it is deleted.
const STOPPING: Duration = Duration::from_secs(10);
/// Before it is planned again what was planned on Pods that have changed since.
const STALE_LOOK: Duration = Duration::from_millis(10);
/// As what a Group's revisions are refused.
const REVISION: &str = "revision";
/// Time between two looks at roles, if nobody says.
const LOOK_EVERY: Duration = Duration::from_secs(10);

struct Pass {
    core: Arc<Core>,
    group: Arc<Group>,
    plugin: Option<Arc<Plugin>>,
    policies: Policies,
    pods: Vec<(Arc<KubePod>, Pod)>,
    limit: Duration,
}

/// One pass over a Group.
pub(crate) async fn reconcile(core: Arc<Core>, key: Name) -> Result<Requeue, Error> {
    let Some(group) = core.caches.groups.get(&key.namespace, &key.name) else {
        core.refused.forget(&(REVISION, key));
        return Ok(Requeue::No);
    };
    let namespace = group.spec.plugin_ref.namespace.clone().unwrap_or_else(|| key.namespace.clone());
    let plugin = core.plugin(&namespace, &group.spec.plugin_ref.name);
    let defaults = plugin.as_ref().map(|plugin| plugin.spec.policies.clone()).unwrap_or_default();
    let policies = group.spec.policies.over(&defaults).over(&core.options.settings.policies());
    let pods = look::pods(&core, &group);
    let limit = core.options.settings.group.grpc_timeout.to_std();
    Pass { core, group, plugin, policies, pods, limit }.run(&key).await
}

impl Pass {
    async fn run(&self, key: &Name) -> Result<Requeue, Error> {
        let rendered = self.rendered(key).await?;
        let (plan, now) = self.plan(&rendered).await;
        let mut taken = Vec::new();
        for operation in &plan.operations {
            match self.apply(operation, &mut taken).await {
                Err(Error::Stale) => return Ok(Requeue::After(STALE_LOOK)),
                Err(Error::Child(error)) => {
                    let Some(fault) = refusals::fault(&error) else { return Err(error.into()) };
                    self.refuse(key, &rendered, fault);
                    return Ok(Requeue::After(REFUSED_LOOK));
                }
                other => other?,
            }
        }
        let mut wait = self.core.options.settings.group.resync_period.to_std();
        if let Some(again) = plan.again {
            wait = wait.min(Duration::try_from(again.duration_since(now)).unwrap_or_default());
        }
        if let Some(detection) = self.detection() {
            wait = wait.min(detection.interval.map_or(LOOK_EVERY, |interval| interval.to_std()));
        }
        Ok(Requeue::After(wait))
    }

    /// What the plugin's templates give, unless the server has just refused it.
    async fn rendered(&self, key: &Name) -> Result<Result<Revision, Fault>, Error> {
        let Some(plugin) = &self.plugin else {
            let message = format!("there is no Plugin {}", self.group.spec.plugin_ref.name);
            return Ok(Err(Fault { reason: reasons::REASON_PLUGIN_MISSING, message }));
        };
        let texts = match look::texts(&self.core, plugin).await? {
            Ok(texts) => texts,
            Err(fault) => return Ok(Err(fault)),
        };
        let rendered = render(&self.group, plugin, &texts);
        let Ok(revision) = &rendered else { return Ok(rendered) };
        let key = (REVISION, key.clone());
        let Some(refused) = self.core.refused.get(&key) else { return Ok(rendered) };
        match refused.of(&revision.name) {
            Some(fault) => Ok(Err(fault.clone())),
            None => {
                self.core.refused.forget(&key);
                Ok(rendered)
            }
        }
    }

    /// Remembers that the server does not want this; it is said in the status, and not tried again for a while.
    fn refuse(&self, key: &Name, rendered: &Result<Revision, Fault>, fault: Fault) {
        let Ok(revision) = rendered else { return };
        self.core.events.warning(&*self.group, fault.reason, &fault.message);
        let what = refusals::form(&revision.name);
        self.core.refused.keep((REVISION, key.clone()), Refused { what, fault });
    }

    /// Plans, and has the plan's questions answered.
    async fn plan(&self, rendered: &Result<Revision, Fault>) -> (Plan, Timestamp) {
        let (core, group) = (&*self.core, &*self.group);
        let mut answers = Answers { roles: self.roles().await, ..Answers::default() };
        let pods = self.pods.iter().map(|(_, pod)| pod.as_said(answers.roles.get(&pod.name)));
        let pods: Vec<Pod> = pods.collect();
        let (set, claims) = (look::set(core, group), look::claims(core, group));
        let revisions = look::revisions(core, group);
        let now = Timestamp::now();
        let failover =
            self.plugin.as_ref().and_then(|plugin| plugin.spec.capabilities).is_some_and(|can| can.failover);
        for _ in 0..MOST_QUESTIONS {
            let stands = |object: &Value| look::stands(core, group, object);
            let planned = plan(&Observed {
                group,
                policies: &self.policies,
                failover,
                rendered: rendered.as_ref(),
                revisions: &revisions,
                stands: &stands,
                set: set.as_ref(),
                others_ready: look::others_ready(core, group),
                pods: &pods,
                claims: &claims,
                answers: &answers,
                pause: core.options.settings.group.rolling_update.interval.to_std(),
                since: core.begun,
                now,
            });
            match planned.question.clone() {
                Some(question) => self.answer(question, &mut answers).await,
                None => return (planned, now),
            }
        }
        (Plan::default(), now)
    }

    fn detection(&self) -> Option<&RoleDetection> {
        let available = self.policies.high_availability.as_ref()?;
        available.passive.as_ref().map(|passive| &passive.role_detection)
    }

    /// What Pods say of their roles; who does not answer is left out. They do not answer at one moment: if two say that they lead,
    /// the role may just have moved, so all are asked once more.
    async fn roles(&self) -> BTreeMap<String, Role> {
        let Some(detection) = self.detection() else { return BTreeMap::new() };
        let said = self.ask_for_roles(detection).await;
        match said.values().filter(|role| role.leader).count() {
            0 | 1 => said,
            _ => self.ask_for_roles(detection).await,
        }
    }

    async fn ask_for_roles(&self, detection: &RoleDetection) -> BTreeMap<String, Role> {
        // Also of those that are not ready: somebody has to be chosen before anybody is.
        let there = self.pods.iter().filter(|(_, pod)| !pod.terminating);
        let asked = there.map(|(kube, pod)| async move {
            let place = look::place(&self.core, kube);
            let role = within(self.limit, self.core.agents.role(&place, detection)).await;
            role.ok().map(|role| (pod.name.clone(), role))
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    fn ready(&self) -> Vec<Place> {
        let ready = self.pods.iter().filter(|(_, pod)| pod.ready && !pod.terminating);
        ready.map(|(kube, _)| look::place(&self.core, kube)).collect()
    }

    async fn answer(&self, question: Question, answers: &mut Answers) {
        let agents = &self.core.agents;
        match question {
            Question::Order { scenario, pods } => {
                let name = self.group.name_any();
                let mut answer = Err("no Pod of it is ready".to_owned());
                for place in self.ready() {
                    answer = within(self.limit, agents.pod_order(&place, &name, scenario, &pods)).await;
                    if answer.is_ok() {
                        break;
                    }
                }
                answers.order = Some(answer);
            }
            Question::Check => answers.checked = Some(self.check(&answers.roles).await),
            Question::Verify => {
                let verify = self.policies.post_upgrade_verify.clone().unwrap_or_default();
                let mut result = Ok(());
                for place in self.ready() {
                    let said = within(self.limit, agents.verify(&place, &verify)).await;
                    result = result.and(said.map_err(|error| format!("{}: {error}", place.pod)));
                }
                answers.verified = Some(result);
            }
            Question::Reload { uid, files, .. } => {
                let answer = match self.pods.iter().find(|(_, pod)| pod.uid == uid) {
                    Some((kube, _)) => {
                        let place = look::place(&self.core, kube);
                        within(self.limit, agents.reload(&place, &files)).await
                    }
                    None => Err("it is gone".into()),
                };
                answers.reloaded.insert(uid, answer);
            }
        }
    }

    /// The check before an upgrade: every Pod that is ready agrees, and there is one.
    async fn check(&self, roles: &BTreeMap<String, Role>) -> Result<(), String> {
        let check = self.policies.pre_upgrade_check.clone().unwrap_or_default();
        let limit = check.timeout.map_or(self.limit, |timeout| timeout.to_std());
        let pods: Vec<Pod> = self.pods.iter().map(|(_, pod)| pod.as_said(roles.get(&pod.name))).collect();
        if is_idle(look::set(&self.core, &self.group).as_ref(), &pods) {
            return Ok(());
        }
        before_asking(&check, &pods, self.detection(), roles)?;
        for place in self.ready() {
            let said = within(limit, self.core.agents.check(&place, &check)).await;
            said.map_err(|error| format!("{}: {error}", place.pod))?;
        }
        Ok(())
    }

    /// Carries out an operation, after those by which Pods were `taken` down.
    async fn apply(&self, operation: &Operation, taken: &mut Vec<String>) -> Result<(), Error> {
        let (core, group) = (&*self.core, &*self.group);
        let groups = &core.caches.groups;
        match operation {
            Operation::Hold => core.set_finalizer(groups, group, true).await,
            Operation::Release => core.set_finalizer(groups, group, false).await,
            Operation::WriteStatus(status) => {
                let object = Group { status: Some((**status).clone()), ..group.clone() };
                core.write_status(groups, object).await
            }
            Operation::Record(revision) => self.record(revision).await,
            Operation::Forget { revision } => {
                let owned = core.caches.revisions.owned_by(group.metadata.uid.as_deref().unwrap_or_default());
                match owned.iter().find(|kept| kept.name_any() == revision_name(group, revision)) {
                    Some(kept) => core.delete(&core.caches.revisions, &**kept).await,
                    None => Ok(()),
                }
            }
            Operation::Apply(object) => self.ensure(object).await,
            Operation::Expand { claim, size } => {
                let Some(claim) = core.caches.claims.get(&self.namespace(), claim) else { return Ok(()) };
                let patch = json!({ "spec": { "resources": { "requests": { "storage": size } } } });
                let patched = core.patch(&core.caches.claims, &*claim, &patch).await.map(drop);
                patched.map_err(|error| error.about::<PersistentVolumeClaim>(&claim.name_any()))
            }
            Operation::Failover { from, to } => self.fail_over(from, to).await,
            Operation::Fence { pod } => self.tell(pod, "Fence", |how| how.fence_command.as_ref(), "").await,
            Operation::Follow { pod, leader } => {
                self.tell(pod, "Follow", |how| how.follow_command.as_ref(), leader).await
            }
            Operation::Promote { pod } => self.promote(pod).await,
            Operation::Restart { uid, revision, .. } => {
                let pod = self.still_due(uid, taken).await?;
                taken.push(uid.clone());
                self.restart(&pod, revision).await
            }
            Operation::MarkConfiguration { pod, configuration } => {
                let annotations = json!({ MIDDLEWARE_CONFIGURATION: configuration });
                self.patch_pod(pod, json!({ "metadata": { "annotations": annotations } })).await
            }
            Operation::LabelRole { pod, role } => {
                let role = (!role.is_empty()).then_some(role);
                self.patch_pod(pod, json!({ "metadata": { "labels": { MIDDLEWARE_ROLE: role } } })).await
            }
            Operation::Dismantle => self.dismantle().await,
        }
    }

    fn namespace(&self) -> String {
        self.group.namespace().unwrap_or_default()
    }

    async fn record(&self, revision: &Revision) -> Result<(), Error> {
        let (core, group) = (&*self.core, &*self.group);
        let kept = look::revisions(core, group);
        let number = kept.values().map(|(number, _)| number + 1).max().unwrap_or(1);
        let data = serde_json::to_value(revision).unwrap_or_default();
        let object = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(revision_name(group, &revision.name)),
                namespace: group.namespace(),
                labels: Some(group_labels(group)),
                owner_references: owner(group).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data)),
            revision: number,
        };
        let api = core.api::<ControllerRevision>(&self.namespace());
        match api.create(&PostParams::default(), &object).await {
            Ok(created) => core.caches.revisions.put(created),
            // The cache is late.
            Err(error) if is_code(&error, 409) => {
                if let Some(found) = api.get_opt(&object.name_any()).await? {
                    core.caches.revisions.put(found);
                }
            }
            Err(error) => {
                return Err(Error::from(error).about::<ControllerRevision>(&object.name_any()));
            }
        }
        Ok(())
    }

    async fn ensure(&self, object: &Value) -> Result<(), Error> {
        let core = &*self.core;
        let kind = object["kind"].as_str().unwrap_or_default();
        let malformed = |error: String| children::Error::Malformed(error);
        let resource = resource(kind).ok_or_else(|| malformed(format!("{kind} is not made by templates")))?;
        let api: Api<DynamicObject> = Api::namespaced_with(core.client.clone(), &self.namespace(), &resource);
        let read = |value: Value| serde_json::from_value(value).map_err(|error| malformed(error.to_string()));
        let desired: DynamicObject = read(look::desired(&self.group, object))?;
        let current: Option<DynamicObject> = core.caches.current(object).map(read).transpose()?;
        let ensured = children::ensure(&api, MANAGER, &desired, current.as_ref()).await?;
        if let Some(written) = ensured.written() {
            core.caches.put(written);
        }
        Ok(())
    }

    async fn fail_over(&self, from: &str, to: &str) -> Result<(), Error> {
        let Some((kube, _)) = self.pods.iter().find(|(_, pod)| pod.name == to) else { return Ok(()) };
        let how = self.active();
        let place = look::place(&self.core, kube);
        let leader = self.pods.iter().find(|(_, pod)| pod.name == from);
        let leader = leader.and_then(|(_, pod)| pod.address.as_deref());
        match within(self.limit, self.core.agents.failover(&place, how, leader)).await {
            Ok(()) => {
                self.core.events.normal(&*self.group, "Switchover", format!("{to} leads instead of {from}"));
                Ok(())
            }
            Err(error) => {
                let message = format!("{to} did not take over from {from}: {error}");
                self.core.events.warning(&*self.group, "SwitchoverFailed", &message);
                Err(Error::Agent(message))
            }
        }
    }

    fn active(&self) -> Option<&ActiveHighAvailability> {
        self.policies.high_availability.as_ref().and_then(|available| available.active.as_ref())
    }

    /// Nobody leads: has a Pod do so. Whether it does shows when it is asked again.
    async fn promote(&self, pod: &str) -> Result<(), Error> {
        let Some((kube, _)) = self.pods.iter().find(|(_, one)| one.name == pod) else { return Ok(()) };
        let place = look::place(&self.core, kube);
        match within(self.limit, self.core.agents.failover(&place, self.active(), None)).await {
            Ok(()) => self.core.events.normal(&*self.group, "Failover", format!("{pod} leads")),
            Err(error) => {
                let message = format!("{pod} was to lead, and does not: {error}");
                self.core.events.warning(&*self.group, "FailoverFailed", &message);
            }
        }
        Ok(())
    }

    /// Has a Pod run a command of the plugin. Whether it helped shows when it is asked again; nobody waits for one that is ill.
    async fn tell(
        &self,
        pod: &str,
        what: &str,
        command: impl Fn(&ActiveHighAvailability) -> Option<&String>,
        leader: &str,
    ) -> Result<(), Error> {
        let Some((kube, _)) = self.pods.iter().find(|(_, one)| one.name == pod) else { return Ok(()) };
        let Some(command) = self.active().and_then(command) else { return Ok(()) };
        let place = look::place(&self.core, kube);
        if let Err(error) = within(self.limit, self.core.agents.tell(&place, command, leader)).await {
            tracing::warn!(group = %self.group.name_any(), pod, what, %error, "a Pod does not do what it is told");
        }
        Ok(())
    }

    /// A Pod that may still be taken down, by what the server itself says right now: caches are late, also about what a
    /// controller before us has done, and agents take their time to answer.
    async fn still_due(&self, uid: &str, taken: &[String]) -> Result<KubePod, Error> {
        let of_group = ListParams::default().labels(&format!("{MIDDLEWARE_GROUP}={}", self.group.name_any()));
        let mut listed = self.core.api::<KubePod>(&self.namespace()).list(&of_group).await?.items;
        let now: Vec<Pod> = listed.iter().filter_map(look::seen).collect();
        let before: Vec<&Pod> = self.pods.iter().map(|(_, pod)| pod).collect();
        let place = listed.iter().position(|pod| pod.metadata.uid.as_deref() == Some(uid));
        match place.filter(|_| may_still_go(uid, taken, &before, &now)) {
            Some(place) => Ok(listed.swap_remove(place)),
            None => {
                let pods = &self.core.caches.pods;
                let gone = self.pods.iter().filter(|(_, pod)| now.iter().all(|one| one.uid != pod.uid));
                gone.for_each(|(kube, _)| pods.gone(kube));
                listed.into_iter().for_each(|pod| pods.put(pod));
                Err(Error::Stale)
            }
        }
    }

    /// Stops the middleware in order, if it listens, and deletes the Pod. Before that it is written on the Pod, if nothing about it
    /// has changed, so that whoever comes after us ends what we have begun. One that was stopped is down, whatever else changes
    /// about it before it is deleted; one that was down anyway is deleted only as it was seen, for it may get up.
    async fn restart(&self, pod: &KubePod, revision: &str) -> Result<(), Error> {
        let pods = &self.core.caches.pods;
        let Some(seen) = look::seen(pod).filter(|seen| seen.ready) else {
            return self.core.delete_unchanged(pods, pod).await;
        };
        if seen.taken_for.as_deref() != Some(revision) {
            let annotations = json!({ TAKEN_FOR: revision });
            let version = pod.resource_version();
            let mark = json!({ "metadata": { "resourceVersion": version, "annotations": annotations } });
            match self.core.patch(pods, pod, &mark).await {
                Err(Error::Api(error)) if is_code(&error, 404) || is_code(&error, 409) => {
                    return Err(Error::Stale);
                }
                other => other.map(drop)?,
            }
        }
        let _ = within(STOPPING, self.core.agents.stop(&look::place(&self.core, pod))).await;
        self.core.delete(pods, pod).await
    }

    async fn patch_pod(&self, pod: &str, patch: Value) -> Result<(), Error> {
        let Some((kube, _)) = self.pods.iter().find(|(_, one)| one.name == pod) else { return Ok(()) };
        match self.core.patch(&self.core.caches.pods, &**kube, &patch).await {
            // It went meanwhile; another comes.
            Err(Error::Api(error)) if is_code(&error, 404) => Ok(()),
            other => other.map(drop),
        }
    }

    async fn dismantle(&self) -> Result<(), Error> {
        let core = &*self.core;
        let stopping = self.ready();
        let stopped = stopping.iter().map(|place| within(STOPPING, core.agents.stop(place)));
        futures_util::future::join_all(stopped).await;
        let uid = self.group.metadata.uid.as_deref().unwrap_or_default();
        for set in core.caches.sets.owned_by(uid) {
            core.delete(&core.caches.sets, &*set).await?;
        }
        for deployment in core.caches.deployments.owned_by(uid) {
            core.delete(&core.caches.deployments, &*deployment).await?;
        }
        Ok(())
    }
}

fn revision_name(group: &Group, revision: &str) -> String {
    format!("{}-{revision}", group.name_any())
}
