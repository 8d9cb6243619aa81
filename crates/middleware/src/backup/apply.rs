//! Carries out what was planned for a Backup.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_api::labels::{MIDDLEWARE_APP, MIDDLEWARE_BACKUP, MIDDLEWARE_PLUGIN};
use agentcube_api::middleware::{App, Backup};
use agentcube_api::{Group, Plugin};
use agentcube_operator::controller::Requeue;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, Pod, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as KubeQuantity;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::plan::{CLAIM, ORIGIN, Observed, Step, claim_of, failed, plan, taken_as};
use crate::app::plan::plugin_name;
use crate::core::{Core, Error, Name, is_code, owner};
use crate::group::look;
use crate::group::observe::Fault;
use crate::outputs::serving_group;
use crate::{refusals, render};

/// Consistency commands that do not say take this long at most.
const CONSISTENCY: Duration = Duration::from_secs(60);
/// How hard archives are compressed that do not say.
const LEVEL: i32 = 6;
/// Of claims that nobody has made before.
const SIZE: &str = "1Gi";
/// Of the App's spec in bytes, to be kept with a Backup: all annotations of an object have 256 KiB.
const LARGEST_SPEC: usize = 128 << 10;
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// One pass over a Backup.
pub(crate) async fn reconcile(core: Arc<Core>, key: Name) -> Result<Requeue, Error> {
    let Some(backup) = core.caches.backups.get(&key.namespace, &key.name) else { return Ok(Requeue::No) };
    if backup.metadata.deletion_timestamp.is_some() {
        return Ok(Requeue::No);
    }
    let app = core.caches.apps.get(&key.namespace, &backup.spec.app_ref.name);
    let job = core.caches.backup_jobs.get(&key.namespace, &taken_as(&backup));
    let said = said(&core, &key.namespace, &taken_as(&backup));
    let observed = Observed {
        backup: &backup,
        app: app.as_deref(),
        job: job.as_deref(),
        said: said.as_deref(),
        now: Timestamp::now(),
    };
    let step = match (plan(&observed), &app) {
        (Step::Begin, Some(app)) => match wanted(&core, &backup, app).await? {
            Ok(job) => match begin(&core, app, job).await {
                Ok(()) => return Ok(Requeue::After(core.options.settings.app.resync_period.to_std())),
                Err(error) => failed(&observed, &refusals::of(error)?),
            },
            Err(fault) => failed(&observed, &fault),
        },
        (step, _) => step,
    };
    if let Step::Say(status, note) = step {
        let object = Backup { status: Some(*status), ..(*backup).clone() };
        core.write_status(&core.caches.backups, object).await?;
        core.tell(&*backup, note.as_slice());
    }
    Ok(Requeue::After(core.options.settings.app.resync_period.to_std()))
}

/// What the last Pod of a Job has said at its end.
fn said(core: &Core, namespace: &str, job: &str) -> Option<String> {
    let of_job = |pod: &Arc<Pod>| {
        let mut owners = pod.owner_references().iter();
        owners.any(|owner| owner.controller == Some(true) && owner.kind == "Job" && owner.name == job)
    };
    let mut pods: Vec<Arc<Pod>> =
        core.caches.backup_pods.list(Some(namespace)).into_iter().filter(of_job).collect();
    pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    let status = pods.last()?.status.clone()?;
    let ended = |container: k8s_openapi::api::core::v1::ContainerStatus| container.state?.terminated?.message;
    status.container_statuses.unwrap_or_default().into_iter().find_map(ended)
}

/// The Job, after the plugin's template.
async fn wanted(core: &Core, backup: &Backup, app: &App) -> Result<Result<Job, Fault>, Error> {
    let namespace = app.namespace().unwrap_or_default();
    let spec = &app.spec;
    let refuse = |message: String| {
        Ok(Err(Fault { reason: agentcube_api::conditions::middleware::REASON_BACKUP_FAILED, message }))
    };
    let name = plugin_name(&spec.plugin.name, &spec.plugin.version);
    let Some(plugin) = core.plugin(&namespace, &name) else {
        return refuse(format!("there is no Plugin {name}"));
    };
    let group = serving_group(app, &plugin.spec).and_then(|name| core.caches.groups.get(&namespace, &name));
    let Some(group) = group else {
        return refuse(
            "the plugin says of no group of the App that it serves clients: connection is missing".into(),
        );
    };
    let texts = match look::texts(core, &plugin).await? {
        Ok(texts) => texts,
        Err(fault) => return Ok(Err(fault)),
    };
    let labels = BTreeMap::from([
        (MIDDLEWARE_APP.to_owned(), app.name_any()),
        (MIDDLEWARE_BACKUP.to_owned(), backup.name_any()),
        (MIDDLEWARE_PLUGIN.to_owned(), spec.plugin.name.clone()),
        (MANAGED_BY.to_owned(), "agentcube".to_owned()),
    ]);
    let rendered =
        render::job(&group, &plugin, &texts, render::BACKUP, &values(backup, app, &plugin), &labels);
    Ok(rendered.and_then(|object| complete(object, backup, app, &group)))
}

/// What the template sees as `.Values.backup`.
fn values(backup: &Backup, app: &App, plugin: &Plugin) -> Value {
    let settings = app.spec.backup.as_ref().and_then(|backup| backup.settings.as_ref());
    let consistency = settings.and_then(|settings| settings.consistency.as_ref());
    let limit = consistency.and_then(|it| it.timeout).map_or(CONSISTENCY, |limit| limit.to_std());
    let level = settings.and_then(|settings| settings.archive.as_ref()?.compression_level);
    let commands = plugin.spec.backup.as_ref().and_then(|backup| backup.commands.as_ref());
    json!({
        "name": taken_as(backup),
        "claim": claim_of(app),
        "consistency": consistency.map(|it| &it.command),
        "consistencySeconds": limit.as_secs().max(1),
        "level": level.unwrap_or(LEVEL),
        "command": commands.map(|commands| &commands.backup),
    })
}

/// Makes a rendered Job that of the Backup.
fn complete(object: Value, backup: &Backup, app: &App, group: &Group) -> Result<Job, Fault> {
    let reason = agentcube_api::conditions::middleware::REASON_TEMPLATE_ERROR;
    let mut job: Job = serde_json::from_value(object)
        .map_err(|error| Fault { reason, message: format!("template backup: {error}") })?;
    let mut origin = json!({ "plugin": app.spec.plugin, "runtime": group.spec.runtime });
    let spec = json!(app.spec);
    if spec.to_string().len() <= LARGEST_SPEC {
        origin["spec"] = spec;
    }
    let annotations =
        BTreeMap::from([(CLAIM.to_owned(), claim_of(app)), (ORIGIN.to_owned(), origin.to_string())]);
    job.metadata = ObjectMeta {
        name: Some(taken_as(backup)),
        namespace: backup.namespace(),
        labels: job.metadata.labels,
        annotations: Some(annotations),
        owner_references: owner(backup).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    Ok(job)
}

/// First the claim, then the Job: a Job that is there has everything.
async fn begin(core: &Core, app: &App, job: Job) -> Result<(), Error> {
    let namespace = app.namespace().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = core.api(&namespace);
    let there = claims.get_opt(&claim_of(app)).await;
    let there = there.map_err(|error| Error::from(error).about::<PersistentVolumeClaim>(&claim_of(app)))?;
    if there.is_none() {
        created(&claim_of(app), claims.create(&PostParams::default(), &claim(app)).await)?;
    }
    let made = core.api::<Job>(&namespace).create(&PostParams::default(), &job).await;
    if let Some(job) = created(&job.name_any(), made)? {
        core.caches.backup_jobs.put(job);
    }
    Ok(())
}

/// Somebody else may have made it meanwhile.
fn created<K: Resource<DynamicType = ()>>(
    name: &str,
    made: Result<K, kube::Error>,
) -> Result<Option<K>, Error> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(error) if is_code(&error, 409) => Ok(None),
        Err(error) => Err(Error::from(error).about::<K>(name)),
    }
}

/// As large as the largest volume of the App. It belongs to nobody: archives outlive their App.
fn claim(app: &App) -> PersistentVolumeClaim {
    let groups = app.spec.components.iter().flat_map(|component| &component.groups);
    let largest = groups.filter_map(|group| group.storage.as_ref()).max_by_key(|storage| &storage.size);
    let size = largest.map_or_else(|| SIZE.to_owned(), |storage| storage.size.to_string());
    let requests = BTreeMap::from([("storage".to_owned(), KubeQuantity(size))]);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(claim_of(app)),
            namespace: app.namespace(),
            labels: Some(BTreeMap::from([
                (MIDDLEWARE_APP.to_owned(), app.name_any()),
                (MANAGED_BY.to_owned(), "agentcube".to_owned()),
            ])),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: largest.and_then(|storage| storage.storage_class.clone()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(requests),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}
