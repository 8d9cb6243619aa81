//! The volume controller on the embedded API server: claims get volumes, and lose them, through faults and crashes.

mod parts;

use std::fs;
use std::os::unix::fs::symlink;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use parts::{Cluster, create, gone, insist, list, object, until};

fn claim(name: &str, more: Value) -> PersistentVolumeClaim {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    for (key, value) in more.as_object().expect("fields") {
        spec[key] = value.clone();
    }
    object(json!({"metadata": {"name": name}, "spec": spec}))
}

fn phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    phase(claim) == "Bound"
}

fn volume_phase(wanted: &'static str) -> impl Fn(&PersistentVolume) -> bool {
    move |volume| volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(wanted)
}

fn capacity(claim: &PersistentVolumeClaim) -> Option<&str> {
    Some(claim.status.as_ref()?.capacity.as_ref()?.get("storage")?.0.as_str())
}

async fn delete<K: Clone + serde::de::DeserializeOwned + std::fmt::Debug>(api: &Api<K>, name: &str) {
    api.delete(name, &DeleteParams::default()).await.expect("is there");
}

#[tokio::test]
async fn a_claim_gets_a_directory_and_takes_it_with_it() {
    let cluster = Cluster::start().await;
    let claims = cluster.own::<PersistentVolumeClaim>();
    let volumes = cluster.all::<PersistentVolume>();
    create(&claims, &claim("data", json!({}))).await;
    let bound = until(&claims, "data", "bound", is_bound).await;
    let spec = bound.spec.unwrap();
    let name = spec.volume_name.unwrap();
    assert_eq!(name, format!("pvc-{}", bound.metadata.uid.clone().unwrap()));
    assert_eq!(spec.storage_class_name.as_deref(), Some("local"));
    let annotations = bound.metadata.annotations.unwrap();
    for (key, value) in [
        ("pv.kubernetes.io/bind-completed", "yes"),
        ("pv.kubernetes.io/bound-by-controller", "yes"),
        ("volume.kubernetes.io/storage-provisioner", "agentcube.io/local"),
        ("volume.beta.kubernetes.io/storage-provisioner", "agentcube.io/local"),
    ] {
        assert_eq!(annotations.get(key).map(String::as_str), Some(value), "{key}");
    }
    let status = bound.status.unwrap();
    assert_eq!(status.access_modes.unwrap(), ["ReadWriteOnce"]);
    assert_eq!(status.capacity.unwrap()["storage"].0, "1Gi");

    let volume = until(&volumes, &name, "bound", volume_phase("Bound")).await;
    let spec = volume.spec.unwrap();
    assert_eq!(spec.claim_ref.unwrap().uid, bound.metadata.uid);
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
    let directory = cluster.claims.join(&name);
    assert_eq!(spec.local.unwrap().path, directory.to_str().unwrap());
    assert_eq!(
        cluster.event("data", "ProvisioningSucceeded").await,
        format!("Successfully provisioned volume {name}")
    );

    // What a Pod wrote goes, but not what it pointed to.
    let outside = cluster.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    fs::create_dir(directory.join("sub")).unwrap();
    symlink(&outside, directory.join("sub/link")).unwrap();
    delete(&claims, "data").await;
    gone(&claims, "data").await;
    gone(&volumes, &name).await;
    assert!(!directory.exists());
    assert!(outside.join("precious").exists());
    cluster.stop().await;
}

#[tokio::test]
async fn a_claim_in_use_stays_until_its_pod_ends() {
    let cluster = Cluster::start().await;
    cluster.node("1").await;
    let claims = cluster.own::<PersistentVolumeClaim>();
    create(&claims, &claim("data", json!({}))).await;
    let pods = cluster.own::<Pod>();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "host"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    create(&pods, &object(pod)).await;
    until(&pods, "p", "bound", |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()))
        .await;
    let bound = claims.get("data").await.unwrap();
    let directory = cluster.claims.join(bound.spec.unwrap().volume_name.unwrap());
    delete(&claims, "data").await;
    assert!(directory.exists());
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    gone(&claims, "data").await;
    gone(&cluster.all::<PersistentVolume>(), directory.file_name().unwrap().to_str().unwrap()).await;
    assert!(!directory.exists());
    cluster.stop().await;
}

#[tokio::test]
async fn claims_grow() {
    let cluster = Cluster::start().await;
    let claims = cluster.own::<PersistentVolumeClaim>();
    create(&claims, &claim("data", json!({}))).await;
    let bound = until(&claims, "data", "bound", is_bound).await;
    let name = bound.spec.unwrap().volume_name.unwrap();
    let larger = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "5Gi"}}}}));
    claims.patch("data", &PatchParams::default(), &larger).await.unwrap();
    until(&claims, "data", "larger", |claim| capacity(claim) == Some("5Gi")).await;
    let volume = cluster.all::<PersistentVolume>().get(&name).await.unwrap();
    assert_eq!(volume.spec.unwrap().capacity.unwrap()["storage"].0, "5Gi");
    let smaller = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}}));
    claims.patch("data", &PatchParams::default(), &smaller).await.unwrap_err();
    cluster.stop().await;
}

fn existing(name: &str, size: &str, policy: &str) -> PersistentVolume {
    object(
        json!({"metadata": {"name": name, "labels": {"name": name}}, "spec": {"capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "persistentVolumeReclaimPolicy": policy,
        "storageClassName": "manual", "hostPath": {"path": format!("/srv/{name}")}}}),
    )
}

#[tokio::test]
async fn volumes_that_are_there_are_bound_and_kept() {
    let cluster = Cluster::start().await;
    let claims = cluster.own::<PersistentVolumeClaim>();
    let volumes = cluster.all::<PersistentVolume>();
    let manual = json!({"storageClassName": "manual"});
    // First the claim, then the volume: it waits.
    create(&claims, &claim("waits", manual.clone())).await;
    assert_eq!(
        cluster.event("waits", "ProvisioningFailed").await,
        "storageclass.storage.k8s.io \"manual\" not found"
    );
    create(&volumes, &existing("large", "20Gi", "Retain")).await;
    let bound = until(&claims, "waits", "bound", is_bound).await;
    assert_eq!(capacity(&bound), Some("20Gi"));
    let volume = volumes.get("large").await.unwrap();
    assert_eq!(volume.metadata.annotations.unwrap()["pv.kubernetes.io/bound-by-controller"], "yes");

    // A class without a provisioner; the smallest that suits; a volume by name; a volume by label.
    let class = json!({"metadata": {"name": "manual"}, "provisioner": "kubernetes.io/no-provisioner"});
    create(&cluster.all(), &object::<StorageClass>(class)).await;
    for (name, size) in [("s", "2Gi"), ("m", "3Gi"), ("l", "4Gi")] {
        create(&volumes, &existing(name, size, "Retain")).await;
        until(&volumes, name, "available", volume_phase("Available")).await;
    }
    for (name, more, expected) in [
        ("named", json!({"storageClassName": "manual", "volumeName": "l"}), "l"),
        ("labelled", json!({"storageClassName": "manual", "selector": {"matchLabels": {"name": "m"}}}), "m"),
        ("any", manual.clone(), "s"),
    ] {
        create(&claims, &claim(name, more)).await;
        let bound = until(&claims, name, "bound", is_bound).await;
        assert_eq!(bound.spec.unwrap().volume_name.as_deref(), Some(expected), "{name}");
    }

    // Retained: released, and not given to anybody else.
    delete(&claims, "any").await;
    until(&volumes, "s", "released", volume_phase("Released")).await;
    create(&claims, &claim("late", manual)).await;
    let message = cluster.event("late", "ProvisioningFailed").await;
    assert_eq!(message, "no volume plugin matched name: kubernetes.io/no-provisioner");
    assert_eq!(phase(&claims.get("late").await.unwrap()), "Pending");
    cluster.stop().await;
}

#[tokio::test]
async fn a_volume_that_was_not_made_here_is_not_deleted_here() {
    let cluster = Cluster::start().await;
    let claims = cluster.own::<PersistentVolumeClaim>();
    let volumes = cluster.all::<PersistentVolume>();
    // It says that it was made by us, but lies where we make none.
    let outside = cluster.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let mut forged = existing("forged", "2Gi", "Delete");
    forged.metadata.annotations =
        Some([("pv.kubernetes.io/provisioned-by".to_owned(), "agentcube.io/local".to_owned())].into());
    forged.spec.as_mut().unwrap().host_path.as_mut().unwrap().path = outside.to_str().unwrap().to_owned();
    create(&volumes, &forged).await;
    create(&claims, &claim("c", json!({"storageClassName": "manual"}))).await;
    until(&claims, "c", "bound", is_bound).await;
    delete(&claims, "c").await;
    let failed = until(&volumes, "forged", "failed", volume_phase("Failed")).await;
    assert!(failed.status.unwrap().message.unwrap().contains("no deletable volume plugin matched"));
    assert!(outside.exists());
    cluster.stop().await;
}

#[tokio::test]
async fn a_claim_is_lost_with_its_volume() {
    let cluster = Cluster::start().await;
    let claims = cluster.own::<PersistentVolumeClaim>();
    let volumes = cluster.all::<PersistentVolume>();
    create(&volumes, &existing("v", "2Gi", "Retain")).await;
    create(&claims, &claim("c", json!({"storageClassName": "manual"}))).await;
    until(&claims, "c", "bound", is_bound).await;
    delete(&volumes, "v").await;
    let unprotected = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes.patch("v", &PatchParams::default(), &unprotected).await.unwrap();
    until(&claims, "c", "lost", |claim| phase(claim) == "Lost").await;
    assert_eq!(
        cluster.event("c", "ClaimLost").await,
        "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_retained_volume_leaves_its_directory() {
    let cluster = Cluster::start().await;
    let class =
        json!({"metadata": {"name": "kept"}, "provisioner": "agentcube.io/local", "reclaimPolicy": "Retain"});
    create(&cluster.all(), &object::<StorageClass>(class)).await;
    let claims = cluster.own::<PersistentVolumeClaim>();
    let volumes = cluster.all::<PersistentVolume>();
    create(&claims, &claim("c", json!({"storageClassName": "kept"}))).await;
    let name = until(&claims, "c", "bound", is_bound).await.spec.unwrap().volume_name.unwrap();
    delete(&claims, "c").await;
    until(&volumes, &name, "released", volume_phase("Released")).await;
    delete(&volumes, &name).await;
    gone(&volumes, &name).await;
    assert!(cluster.claims.join(&name).exists());
    cluster.stop().await;
}

#[tokio::test]
async fn pods_bring_claims_of_their_own() {
    let cluster = Cluster::start().await;
    cluster.node("1").await;
    let pods = cluster.own::<Pod>();
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "host"}],
        "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]}});
    create(&pods, &object(pod)).await;
    until(&pods, "p", "bound", |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()))
        .await;
    let claims = cluster.own::<PersistentVolumeClaim>();
    let claim = claims.get("p-scratch").await.unwrap();
    assert_eq!(claim.metadata.labels.unwrap()["a"], "b");
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    gone(&claims, "p-scratch").await;
    cluster.stop().await;
}

#[tokio::test]
async fn faults_and_crashes_leave_nothing_half_done() {
    for seed in 0..3 {
        let mut cluster = Cluster::start().await;
        let claims = cluster.own::<PersistentVolumeClaim>();
        let volumes = cluster.all::<PersistentVolume>();
        let names: Vec<String> = (0..12).map(|index| format!("c{index}")).collect();
        cluster.trouble(seed);
        for name in &names {
            insist(&claims, &claim(name, json!({}))).await;
            // Wherever they are.
            cluster.restart_parts().await;
        }
        cluster.calm();
        for name in &names {
            until(&claims, name, "bound", is_bound).await;
        }
        assert_eq!(list(&volumes).await.len(), names.len());
        let directories = || fs::read_dir(&cluster.claims).unwrap().count();
        assert_eq!(directories(), names.len());
        let made: Vec<String> =
            list(&volumes).await.into_iter().filter_map(|volume| volume.metadata.name).collect();

        cluster.trouble(seed + 100);
        for name in &names {
            while !matches!(claims.delete(name, &DeleteParams::default()).await,
                Err(kube::Error::Api(status)) if status.reason == "NotFound")
            {}
            cluster.restart_parts().await;
        }
        cluster.calm();
        for name in &made {
            gone(&volumes, name).await;
        }
        assert_eq!(fs::read_dir(&cluster.claims).unwrap().count(), 0);
        cluster.stop().await;
    }
}
