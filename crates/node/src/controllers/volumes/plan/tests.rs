use serde_json::{Value, json};

use super::*;

const CLAIMS: &str = "/data/claims";

/// One claim and what there is for it; operations change it as the server and the disk would.
#[derive(Clone, Debug, PartialEq)]
struct World {
    claim: Option<PersistentVolumeClaim>,
    volumes: BTreeMap<String, PersistentVolume>,
    classes: Vec<StorageClass>,
    /// Volumes whose directories were removed.
    removed: Vec<String>,
}

fn world(claim: Value, volumes: &[Value]) -> World {
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let class = |name: &str, provisioner: &str, mode: &str, grows: bool| -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": name, "annotations": {
            DEFAULT_CLASS: (name == "local").to_string()}}, "provisioner": provisioner, "volumeBindingMode": mode,
            "allowVolumeExpansion": grows}))
        .unwrap()
    };
    let classes = vec![
        class("local", PROVISIONER, "Immediate", true),
        class("later", PROVISIONER, "WaitForFirstConsumer", false),
        class("manual", matching::NO_PROVISIONER, "Immediate", false),
        class("cloud", "example.com/disk", "Immediate", true),
    ];
    let volumes = volumes.iter().map(|volume| {
        let volume: PersistentVolume = serde_json::from_value(volume.clone()).unwrap();
        (volume_name(&volume), volume)
    });
    World { claim: Some(claim), volumes: volumes.collect(), classes, removed: Vec::new() }
}

impl World {
    fn plan(&self) -> Vec<Operation> {
        let supply = Supply {
            volumes: self.volumes.values().cloned().map(Arc::new).collect(),
            classes: self.classes.iter().cloned().map(Arc::new).collect(),
        };
        let mut operations = self.claim.as_ref().map(|one| claim(one, &supply)).unwrap_or_default();
        for one in self.volumes.values() {
            operations.extend(volume(&Arc::new(one.clone()), self.claim.as_ref(), Path::new(CLAIMS)));
        }
        operations
    }

    fn patch<K: serde::Serialize + serde::de::DeserializeOwned>(object: &mut K, change: Value) {
        let mut value = serde_json::to_value(&*object).unwrap();
        merge(&mut value, change);
        *object = serde_json::from_value(value).unwrap();
    }

    fn apply(&mut self, operation: &Operation) {
        let reference = self.claim.as_ref().map(|claim| {
            json!({"name": claim.metadata.name, "namespace": claim.metadata.namespace, "uid": claim.metadata.uid})
        });
        let name = |volume: &Arc<PersistentVolume>| volume_name(volume);
        match operation {
            Operation::AssignClass { class } => {
                self.change_claim(json!({"spec": {"storageClassName": class}}))
            }
            Operation::NameProvisioner { provisioner } => self.change_claim(
                json!({"metadata": {"annotations": {matching::STORAGE_PROVISIONER: provisioner}}}),
            ),
            Operation::Provision { class, volume } => {
                let claim = self.claim.as_ref().unwrap();
                let requests = claim.spec.as_ref().unwrap().resources.clone().unwrap().requests;
                let made = json!({"metadata": {"name": volume, "annotations": {PROVISIONED_BY: PROVISIONER},
                        "finalizers": [FINALIZER]},
                    "spec": {"capacity": requests, "accessModes": claim.spec.as_ref().unwrap().access_modes,
                        "claimRef": reference, "storageClassName": class.metadata.name,
                        "persistentVolumeReclaimPolicy": "Delete", "local": {"path": format!("{CLAIMS}/{volume}")}},
                    "status": {"phase": "Pending"}});
                self.volumes.insert(volume.clone(), serde_json::from_value(made).unwrap());
            }
            Operation::BindVolume { volume } => {
                let change = json!({"metadata": {"annotations": {BOUND_BY_CONTROLLER: "yes"}}, "spec": {"claimRef": reference}});
                World::patch(self.volumes.get_mut(&name(volume)).unwrap(), change);
            }
            Operation::VolumePhase { volume, phase, message } => {
                let change = json!({"status": {"phase": phase, "message": message}});
                World::patch(self.volumes.get_mut(volume).unwrap(), change);
            }
            Operation::BindClaim { volume } => self.change_claim(
                json!({"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": volume}}),
            ),
            Operation::ClaimStatus(status) => self.change_claim(json!({"status": {
                "phase": status.phase, "accessModes": status.access_modes, "capacity": status.capacity}})),
            Operation::Grow { volume, storage } => {
                let change = json!({"spec": {"capacity": {"storage": storage}}});
                World::patch(self.volumes.get_mut(volume).unwrap(), change);
            }
            Operation::Unbind { volume } => {
                let change = json!({"metadata": {"annotations": {BOUND_BY_CONTROLLER: null}}, "spec": {"claimRef": null}});
                World::patch(self.volumes.get_mut(volume).unwrap(), change);
            }
            Operation::Reclaim { volume, path } => {
                assert_eq!(*path, Path::new(CLAIMS).join(name(volume)));
                self.removed.push(name(volume));
                self.volumes.remove(&name(volume));
            }
            Operation::LetGo { volume } => {
                self.volumes.remove(&name(volume));
            }
            Operation::Tell { .. } => {}
        }
    }

    fn change_claim(&mut self, change: Value) {
        World::patch(self.claim.as_mut().unwrap(), change);
    }

    /// Plans and applies until nothing is left to do. What is told is not a change.
    fn settled(mut self) -> (World, Vec<String>) {
        let mut told = Vec::new();
        for _ in 0..10 {
            let operations = self.plan();
            for operation in &operations {
                if let Operation::Tell { reason, .. } = operation {
                    told.push((*reason).to_owned());
                }
            }
            if operations.iter().all(|operation| matches!(operation, Operation::Tell { .. })) {
                told.dedup();
                return (self, told);
            }
            // One at a time, as one key is handled at a time.
            for operation in operations {
                let before = self.clone();
                self.apply(&operation);
                if before != self {
                    break;
                }
            }
        }
        panic!("does not settle: {:?}", self.plan());
    }

    /// The phase and volume of the claim, and the phases of the volumes.
    fn told(&self) -> String {
        let claim = self.claim.as_ref().map(|claim| {
            let phase = claim.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
            format!("{phase} {volume}")
        });
        let volumes = self.volumes.iter().map(|(name, volume)| {
            format!(
                "; {name} {}",
                volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default()
            )
        });
        claim.unwrap_or_else(|| "gone".to_owned()) + &volumes.collect::<String>()
    }
}

/// A JSON merge patch.
fn merge(target: &mut Value, change: Value) {
    let Value::Object(change) = change else {
        *target = change;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in change {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(&key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn pending(more: Value) -> Value {
    let mut claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}},
        "status": {"phase": "Pending"}});
    merge(&mut claim, json!({"spec": more}));
    claim
}

fn free(name: &str, more: Value) -> Value {
    let mut volume = json!({"metadata": {"name": name}, "spec": {"capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"], "storageClassName": "manual", "persistentVolumeReclaimPolicy": "Retain"},
        "status": {"phase": "Available"}});
    merge(&mut volume, more);
    volume
}

fn manual() -> Value {
    json!({"storageClassName": "manual"})
}

fn scenarios() -> Vec<(World, &'static str, Vec<&'static str>)> {
    let wants = |name: &str| json!({"storageClassName": "manual", "volumeName": name});
    let held = |uid: &str| json!({"spec": {"claimRef": {"name": "c", "namespace": "ns", "uid": uid}}});
    let mut later = pending(json!({"storageClassName": "later"}));
    let waiting = later.clone();
    later["metadata"]["annotations"] = json!({SELECTED_NODE: "n"});
    let mut lost = pending(wants("v"));
    lost["metadata"]["annotations"] = json!({BIND_COMPLETED: "yes"});
    let made = free(
        "pvc-u",
        json!({"metadata": {"annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {"local": {"path": "/data/claims/pvc-u"}, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"name": "c", "namespace": "ns", "uid": "u"}}}),
    );
    vec![
        (world(pending(json!({})), &[]), "Bound pvc-u; pvc-u Bound", vec![]),
        (world(pending(manual()), &[free("v", json!({}))]), "Bound v; v Bound", vec![]),
        (world(pending(manual()), &[free("v", held("u"))]), "Bound v; v Bound", vec![]),
        (world(pending(manual()), &[]), "Pending ", vec!["ProvisioningFailed"]),
        (world(pending(json!({"storageClassName": ""})), &[]), "Pending ", vec!["FailedBinding"]),
        (world(pending(json!({"storageClassName": "none"})), &[]), "Pending ", vec!["ProvisioningFailed"]),
        (world(pending(json!({"storageClassName": "cloud"})), &[]), "Pending ", vec!["ExternalProvisioning"]),
        (world(pending(json!({"volumeMode": "Block"})), &[]), "Pending ", vec!["ProvisioningFailed"]),
        (world(pending(wants("v")), &[free("v", json!({}))]), "Bound v; v Bound", vec![]),
        (world(pending(wants("v")), &[]), "Pending v", vec![]),
        (
            world(pending(wants("v")), &[free("v", json!({"spec": {"capacity": {"storage": "1Gi"}}}))]),
            "Pending v; v Available",
            vec!["VolumeMismatch"],
        ),
        (
            world(
                pending(wants("v")),
                &[free("v", json!({"spec": {"claimRef": {"name": "d", "namespace": "ns"}}}))],
            ),
            "Pending v; v Available",
            vec!["FailedBinding"],
        ),
        (world(waiting, &[]), "Pending ", vec!["WaitForFirstConsumer"]),
        (world(later, &[]), "Bound pvc-u; pvc-u Bound", vec![]),
        (world(lost.clone(), &[]), "Lost v", vec!["ClaimLost"]),
        (world(lost, &[free("v", held("other"))]), "Lost v; v Released", vec!["ClaimMisbound"]),
        // Made for this claim, which then was given another.
        (world(pending(wants("v")), &[free("v", json!({})), made]), "Bound v; v Bound", vec![]),
    ]
}

#[test]
fn every_claim_settles() {
    for (index, (world, expected, events)) in scenarios().into_iter().enumerate() {
        let (settled, told) = world.settled();
        assert_eq!(settled.told(), expected, "scenario {index}");
        assert_eq!(told.last().map(String::as_str), events.last().copied(), "scenario {index}");
    }
}

#[test]
fn whoever_stops_half_way_is_continued() {
    for (index, (world, _, _)) in scenarios().into_iter().enumerate() {
        let (expected, _) = world.clone().settled();
        let mut sofar = world;
        for step in 0..10 {
            let Some(operation) = sofar.plan().into_iter().find(|one| !matches!(one, Operation::Tell { .. }))
            else {
                break;
            };
            // Twice: the first one's answer was lost.
            sofar.apply(&operation);
            if !matches!(operation, Operation::Reclaim { .. } | Operation::Provision { .. }) {
                sofar.apply(&operation);
            }
            assert_eq!(sofar.clone().settled().0, expected, "scenario {index} after step {step}");
        }
    }
}

#[test]
fn a_bound_claim_grows_where_its_class_allows() {
    let (bound, _) = world(pending(json!({})), &[]).settled();
    let mut larger = bound.clone();
    larger.change_claim(json!({"spec": {"resources": {"requests": {"storage": "7Gi"}}}}));
    let (grown, told) = larger.clone().settled();
    let size = |world: &World| {
        world.claim.as_ref().unwrap().status.as_ref().unwrap().capacity.as_ref().unwrap()["storage"].0.clone()
    };
    assert_eq!((size(&grown).as_str(), told), ("7Gi", vec!["VolumeResizeSuccessful".to_owned()]));
    assert_eq!(matching::capacity(&grown.volumes["pvc-u"]).unwrap().to_string(), "7Gi");
    for class in &mut larger.classes {
        class.allow_volume_expansion = None;
    }
    let (same, told) = larger.settled();
    assert_eq!((size(&same).as_str(), told), ("5Gi", vec!["VolumeResizeFailed".to_owned()]));
}

#[test]
fn what_becomes_of_a_volume_without_its_claim() {
    let held = json!({"name": "c", "namespace": "ns", "uid": "u"});
    let ours = |policy: &str, path: &str, deleting: bool| {
        let time = deleting.then_some("2026-01-01T00:00:00Z");
        free(
            "pvc-u",
            json!({"metadata": {"annotations": {PROVISIONED_BY: PROVISIONER}, "finalizers": [FINALIZER],
                "deletionTimestamp": time},
            "spec": {"local": {"path": path}, "persistentVolumeReclaimPolicy": policy, "claimRef": held},
            "status": {"phase": "Bound"}}),
        )
    };
    let own = "/data/claims/pvc-u";
    for (volume, expected, removed) in [
        (ours("Delete", own, false), "gone", true),
        (ours("Delete", own, true), "gone", true),
        (ours("Retain", own, false), "gone; pvc-u Released", false),
        (ours("Retain", own, true), "gone", false),
        // It says that it is ours, but its directory is somebody else's.
        (ours("Delete", "/data/claims/pvc-v", false), "gone; pvc-u Failed", false),
        (ours("Delete", "/etc", false), "gone; pvc-u Failed", false),
        (ours("Delete", "/data/claims/../claims/pvc-u", false), "gone; pvc-u Failed", false),
        (ours("Recycle", own, false), "gone; pvc-u Failed", false),
    ] {
        let mut world = world(pending(json!({})), std::slice::from_ref(&volume));
        world.claim = None;
        let (settled, _) = world.settled();
        assert_eq!((settled.told().as_str(), !settled.removed.is_empty()), (expected, removed), "{volume}");
    }
    // Another claim of the same name is not the one that it was promised to.
    let mut other = world(pending(json!({"storageClassName": "manual"})), &[ours("Retain", own, false)]);
    other.claim.as_mut().unwrap().metadata.uid = Some("other".to_owned());
    assert_eq!(other.settled().0.told(), "Pending ; pvc-u Released");
}
