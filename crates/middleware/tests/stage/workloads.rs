//! Stands in for the StatefulSet controller, the volume controller and the kubelet, and keeps books of what it sees: how
//! many Pods were down at once, and who led when it was deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::NAMESPACE;

#[derive(Default)]
struct Books {
    leader: Option<String>,
    /// Pods by name and uid, as they were last.
    known: BTreeMap<String, String>,
    /// Every Pod that was there once and went, in order, while its set wanted it.
    restarted: Vec<String>,
    /// Who led when it went, though others could have.
    leaders_lost: Vec<String>,
    most_down: usize,
    counted: BTreeMap<String, u32>,
    /// Pods by uid whose middleware was told to stop, and how often they were looked at since.
    stopped: BTreeMap<String, u32>,
    /// Pods by uid that take a configuration only by a restart.
    stiff: BTreeSet<String>,
}

/// Looks after which a probe sees that a middleware is stopped.
const SEEN_AFTER: u32 = 20;
/// Looks after which an agent starts one again whose Pod was not deleted.
const STARTED_AFTER: u32 = 60;

/// What happens around the controllers.
#[derive(Default)]
pub(crate) struct World {
    books: Mutex<Books>,
}

impl World {
    pub(crate) fn leader(&self) -> Option<String> {
        self.books.lock().leader.clone()
    }

    pub(crate) fn lead(&self, pod: &str) {
        self.books.lock().leader = Some(pod.into());
    }

    /// Counts something.
    pub(crate) fn note(&self, what: &str) {
        *self.books.lock().counted.entry(what.into()).or_default() += 1;
    }

    /// The middleware of a Pod is stopped: nobody can ask it anything, and for a while its probe does not know.
    pub(crate) fn stop(&self, uid: &str) {
        self.books.lock().stopped.insert(uid.into(), 0);
    }

    pub(crate) fn is_stopped(&self, uid: &str) -> bool {
        self.books.lock().stopped.contains_key(uid)
    }

    /// The next configuration can be taken only by Pods that are made anew.
    #[allow(dead_code, reason = "the suite on kube-apiserver has no deaths")]
    pub(crate) fn stiffen(&self) {
        let mut books = self.books.lock();
        books.stiff = books.known.values().cloned().collect();
    }

    pub(crate) fn has_to_restart(&self, uid: &str) -> bool {
        self.books.lock().stiff.contains(uid)
    }

    /// Time passes for a Pod: whether its probe says that it is ready.
    fn probe(&self, uid: &str, before: bool) -> bool {
        let mut books = self.books.lock();
        let Some(looks) = books.stopped.get_mut(uid) else { return true };
        *looks += 1;
        match *looks {
            ..SEEN_AFTER => before,
            SEEN_AFTER..STARTED_AFTER => false,
            _ => {
                books.stopped.remove(uid);
                true
            }
        }
    }

    pub(crate) fn count(&self, what: &str) -> u32 {
        self.books.lock().counted.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn restarted(&self) -> Vec<String> {
        self.books.lock().restarted.clone()
    }

    pub(crate) fn forget(&self) {
        let mut books = self.books.lock();
        books.restarted.clear();
        books.counted.clear();
    }

    /// Never more than one Pod was down, and nobody lost its leader who had another.
    pub(crate) fn check(&self) {
        let books = self.books.lock();
        assert!(books.most_down <= 1, "{} Pods were down at once", books.most_down);
        assert_eq!(books.leaders_lost, Vec::<String>::new(), "leaders were deleted");
    }

    /// What is there now, compared with what was.
    fn see(&self, pods: &[Pod], wanted: usize, settled: bool) {
        let mut books = self.books.lock();
        let now: BTreeMap<String, String> =
            pods.iter().map(|pod| (pod.name_any(), pod.uid().unwrap_or_default())).collect();
        let gone: Vec<String> = books
            .known
            .iter()
            .filter(|(name, uid)| now.get(*name) != Some(uid))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            if settled && books.leader.as_ref() == Some(&name) && wanted > 1 {
                books.leaders_lost.push(name.clone());
            }
            books.restarted.push(name);
        }
        let serves =
            |pod: &&Pod| is_ready(pod) && !books.stopped.contains_key(&pod.uid().unwrap_or_default());
        let ready: BTreeSet<String> = pods.iter().filter(serves).map(ResourceExt::name_any).collect();
        if settled {
            books.most_down = books.most_down.max(wanted.saturating_sub(ready.len()));
        }
        if !books.leader.as_ref().is_some_and(|leader| ready.contains(leader)) {
            books.leader = ready.first().cloned();
        }
        books.known = now;
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    pod.metadata.deletion_timestamp.is_none()
        && conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True")
}

/// Plays until told to stop.
pub(crate) async fn play(client: Client, world: Arc<World>, stop: CancellationToken) {
    // Once a set had all its Pods, what is missing is down.
    let mut settled: BTreeMap<String, usize> = BTreeMap::new();
    while !stop.is_cancelled() {
        // What fails is tried again.
        let _tried = step(&client, &world, &mut settled).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn step(
    client: &Client,
    world: &World,
    settled: &mut BTreeMap<String, usize>,
) -> Result<(), kube::Error> {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), NAMESPACE);
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
    let every = ListParams::default();
    let all = pods.list(&every).await?.items;
    for set in sets.list(&every).await?.items {
        let spec = set.spec.clone().unwrap_or_default();
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap();
        let of_set =
            |pod: &&Pod| pod.owner_references().iter().any(|owner| Some(&owner.uid) == set.uid().as_ref());
        let own: Vec<Pod> = all.iter().filter(of_set).cloned().collect();
        let ordinal = |pod: &Pod| pod.name_any().rsplit_once('-').unwrap().1.parse::<usize>().unwrap();
        let within: Vec<Pod> = own.iter().filter(|pod| ordinal(pod) < wanted).cloned().collect();
        let before = settled.entry(set.name_any()).or_insert(usize::MAX);
        world.see(&within, wanted, *before == wanted);
        let up = within.iter().filter(|pod| is_ready(pod)).count();
        if up == wanted {
            *before = wanted;
        } else if *before != wanted {
            *before = usize::MAX;
        }
        for pod in own.iter().filter(|pod| ordinal(pod) >= wanted) {
            let _ = pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
        }
        for number in 0..wanted {
            let name = format!("{}-{number}", set.name_any());
            for template in spec.volume_claim_templates.iter().flatten() {
                claim(&claims, &set, template, &name).await?;
            }
            match within.iter().find(|pod| pod.name_any() == name) {
                None => make(&pods, &set, &name).await?,
                Some(pod) if pod.metadata.deletion_timestamp.is_none() => {
                    let before = is_ready(pod);
                    let now = world.probe(&pod.uid().unwrap_or_default(), before);
                    if now != before {
                        show(&pods, pod, now).await?;
                    }
                }
                Some(_) => {}
            }
        }
    }
    for claim in claims.list(&every).await?.items {
        let requested = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.clone());
        if claim.status.as_ref().and_then(|status| status.capacity.clone()) != requested {
            let status = json!({ "status": { "phase": "Bound", "capacity": requested } });
            claims.patch_status(&claim.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
        }
    }
    Ok(())
}

async fn make(pods: &Api<Pod>, set: &StatefulSet, name: &str) -> Result<(), kube::Error> {
    let template = set.spec.as_ref().unwrap().template.clone();
    let mut pod = Pod { metadata: template.metadata.unwrap_or_default(), spec: template.spec, status: None };
    pod.metadata.name = Some(name.into());
    pod.metadata.owner_references = set.controller_owner_ref(&()).map(|owner| vec![owner]);
    pods.create(&PostParams::default(), &pod).await.map(drop)
}

/// Shows whether a Pod is ready. One whose image is no good never is.
async fn show(pods: &Api<Pod>, pod: &Pod, ready: bool) -> Result<(), kube::Error> {
    if pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("redis:bad") {
        return Ok(());
    }
    let word = if ready { "True" } else { "False" };
    let conditions = json!([{ "type": "Ready", "status": word }]);
    let status = json!({ "metadata": { "uid": pod.uid() }, "status": { "phase": "Running", "conditions": conditions } });
    match pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await {
        // It went meanwhile.
        Err(kube::Error::Api(_)) => Ok(()),
        other => other.map(drop),
    }
}

async fn claim(
    claims: &Api<PersistentVolumeClaim>,
    set: &StatefulSet,
    template: &PersistentVolumeClaim,
    pod: &str,
) -> Result<(), kube::Error> {
    let name = format!("{}-{pod}", template.name_any());
    if claims.get_opt(&name).await?.is_some() {
        return Ok(());
    }
    let mut claim = template.clone();
    claim.metadata.name = Some(name);
    claim.metadata.labels = set.spec.as_ref().unwrap().selector.match_labels.clone();
    claim.status = None;
    claims.create(&PostParams::default(), &claim).await.map(drop)
}
