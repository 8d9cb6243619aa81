use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use agentcube_runtime::spec::Source;
use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use super::super::lookup::fixed::Fixed;
use super::*;

/// A cluster that can change while its volumes are there.
#[derive(Clone, Default)]
struct Changing(Arc<parking_lot::RwLock<Fixed>>);

impl Changing {
    fn put(&self, object: Value) {
        self.0.write().put(object);
    }
}

impl Lookup for Changing {
    fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<v1::ConfigMap>> {
        self.0.read().config_map(namespace, name)
    }
    fn secret(&self, namespace: &str, name: &str) -> Option<Arc<v1::Secret>> {
        self.0.read().secret(namespace, name)
    }
    fn services(&self, namespace: &str) -> Vec<Arc<v1::Service>> {
        self.0.read().services(namespace)
    }
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<v1::PersistentVolumeClaim>> {
        self.0.read().claim(namespace, name)
    }
    fn volume(&self, name: &str) -> Option<Arc<v1::PersistentVolume>> {
        self.0.read().volume(name)
    }
    fn allocatable(&self) -> BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity> {
        self.0.read().allocatable()
    }
}

struct Node {
    directory: tempfile::TempDir,
    cluster: Changing,
    volumes: Volumes,
}

fn node() -> Node {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Changing::default();
    fs::create_dir(directory.path().join("open")).unwrap();
    let options = Options {
        directory: directory.path().join("volumes"),
        host_paths: vec![directory.path().join("open")],
    };
    let volumes = Volumes::new(options, Arc::new(cluster.clone())).unwrap();
    Node { directory, cluster, volumes }
}

fn pod(uid: &str, volume: Value, more: Value) -> Arc<Pod> {
    let mut volume = volume;
    volume["name"] = "v".into();
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": uid},
        "spec": {"volumes": [volume], "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/m"}]}]},
    });
    for (key, value) in more.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

impl Node {
    fn source(&self, pod: &Arc<Pod>) -> Result<(Source, bool), String> {
        let prepared = self.volumes.prepare(pod).map_err(|error| error.problem.to_string())?;
        let mounts = prepared.mounts(&pod.spec.as_ref().unwrap().containers[0], &[]).unwrap();
        Ok((mounts[0].source.clone(), mounts[0].read_only))
    }

    fn path(&self, pod: &Arc<Pod>) -> PathBuf {
        match self.source(pod).unwrap().0 {
            Source::Bind(path) => path,
            Source::Tmpfs { .. } => panic!("expected a directory"),
        }
    }
}

#[test]
fn an_empty_directory_is_kept_until_its_pod_ends() {
    let node = node();
    let pod = pod("u1", json!({"emptyDir": {}}), json!({}));
    let path = node.path(&pod);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o777);
    fs::write(path.join("kept"), "x").unwrap();
    assert_eq!(node.path(&pod), path);
    assert!(path.join("kept").exists());
    // Others cannot enter.
    let parent = path.parent().unwrap().parent().unwrap();
    assert_eq!(fs::metadata(parent).unwrap().permissions().mode() & 0o777, 0o700);
    node.volumes.remove("u1").unwrap();
    assert!(!path.exists());
    node.volumes.remove("u1").unwrap();
}

#[test]
fn memory_is_bounded_and_shared_memory_is_on_the_disk() {
    let node = node();
    let limit = json!({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/m"}],
        "resources": {"limits": {"memory": "8Mi"}}}]});
    for (size, more, expected) in [
        (json!("4Mi"), json!({}), 4 << 20),
        (Value::Null, json!({}), 1 << 30),
        (json!("16Mi"), limit.clone(), 8 << 20),
        (Value::Null, limit, 8 << 20),
    ] {
        let pod = pod("u", json!({"emptyDir": {"medium": "Memory", "sizeLimit": size}}), more);
        assert_eq!(node.source(&pod), Ok((Source::Tmpfs { bytes: expected }, false)));
    }
    let both = json!([{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/m"}]},
        {"name": "d", "volumeMounts": [{"name": "v", "mountPath": "/m"}]}]);
    let shared = pod("u", json!({"emptyDir": {"medium": "Memory"}}), json!({"containers": both}));
    assert!(node.path(&shared).is_dir());
}

#[test]
fn files_follow_what_they_show() {
    let node = node();
    let secret = |data: &str| json!({"kind": "Secret", "metadata": {"name": "s", "namespace": "ns"}, "data": {"k": data}});
    node.cluster.put(secret("b25l"));
    let pod = pod("u1", json!({"secret": {"secretName": "s", "defaultMode": 0o400}}), json!({}));
    let path = node.path(&pod);
    assert!(node.source(&pod).unwrap().1, "read-only");
    assert_eq!(fs::read_to_string(path.join("k")).unwrap(), "one");
    node.cluster.put(secret("dHdv"));
    let other = Reference::ConfigMap { namespace: "ns".into(), name: "s".into() };
    assert!(node.volumes.changed(&other).is_empty());
    assert_eq!(fs::read_to_string(path.join("k")).unwrap(), "one");
    let reference = Reference::Secret { namespace: "ns".into(), name: "s".into() };
    assert!(node.volumes.changed(&reference).is_empty());
    assert_eq!(fs::read_to_string(path.join("k")).unwrap(), "two");
    // Once the Pod has ended, a change does not bring its directory back; nor does a writer that comes late.
    let late = node.volumes.pods.lock()["u1"].clone();
    node.volumes.remove("u1").unwrap();
    node.volumes.rewrite(&late, |_| ()).unwrap();
    assert!(node.volumes.changed(&reference).is_empty());
    node.volumes.refresh(&pod).unwrap();
    assert!(!path.exists());
}

#[test]
fn labels_of_a_pod_show_when_it_is_refreshed() {
    let node = node();
    let volume =
        json!({"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels['a']"}}]}});
    let mut first = pod("u1", volume, json!({}));
    let path = node.path(&first).join("l");
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
    Arc::make_mut(&mut first).metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    node.volumes.refresh(&first).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "b");
}

#[test]
fn what_pods_left_behind_is_swept() {
    let node = node();
    let (living, gone) =
        (pod("u1", json!({"emptyDir": {}}), json!({})), pod("u2", json!({"emptyDir": {}}), json!({})));
    let (living, gone) = (node.path(&living), node.path(&gone));
    node.volumes.sweep(&["u1".to_owned()].into()).unwrap();
    assert!(living.exists() && !gone.parent().unwrap().exists());
}

#[test]
fn the_host_is_out_of_reach_unless_allowed() {
    let node = node();
    let base = node.directory.path().canonicalize().unwrap();
    let open = base.join("open");
    fs::create_dir(open.join("d")).unwrap();
    fs::write(base.join("secret"), "x").unwrap();
    symlink(&base, open.join("up")).unwrap();
    let at =
        |path: PathBuf, kind: &str| pod("u", json!({"hostPath": {"path": path, "type": kind}}), json!({}));
    assert_eq!(node.path(&at(open.join("d"), "Directory")), open.join("d"));
    assert_eq!(node.path(&at(open.join("made"), "DirectoryOrCreate")), open.join("made"));
    assert_eq!(node.path(&at(open.join("file"), "FileOrCreate")), open.join("file"));
    for path in [
        "/etc".into(),
        "/".into(),
        base.join("secret"),
        open.join("up/secret"),
        open.join("up"),
        open.join("../secret"),
        "relative".into(),
    ] {
        let refused = node.source(&at(path.clone(), "")).unwrap_err();
        assert!(
            refused.contains("is not below a directory of the host that Pods may use"),
            "{path:?}: {refused}"
        );
    }
    for path in [base.join("new"), open.join("up/new")] {
        node.source(&at(path, "DirectoryOrCreate")).unwrap_err();
    }
    assert!(!base.join("new").exists());
    let wrong = node.source(&at(open.join("d"), "File")).unwrap_err();
    assert_eq!(wrong, format!("hostPath type check failed: {} is not a file", open.join("d").display()));
}

#[test]
fn names_cannot_lead_elsewhere() {
    let node = node();
    for uid in ["", ".", "..", "../x", "a/b", "/x"] {
        let refused = node.source(&pod(uid, json!({"emptyDir": {}}), json!({}))).unwrap_err();
        assert_eq!(refused, format!("{uid:?} cannot be the name of a directory"));
        node.volumes.remove(uid).unwrap();
    }
    assert!(node.volumes.options().directory.exists());
}

fn claimed(node: &Node, path: &Path, claim_uid: &str, phase: &str) {
    node.cluster.put(json!({"kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "ns", "uid": claim_uid},
        "spec": {"volumeName": "pv"}, "status": {"phase": phase}}));
    node.cluster.put(json!({"kind": "PersistentVolume", "metadata": {"name": "pv"},
        "spec": {"local": {"path": path}, "claimRef": {"uid": "c1"}}}));
}

#[test]
fn claims() {
    let node = node();
    let directory = node.volumes.options().claims().join("pv");
    fs::create_dir(&directory).unwrap();
    let wanted = |read_only: bool| {
        let source = json!({"persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}});
        pod("u", source, json!({"securityContext": {"fsGroup": fs::metadata(&directory).unwrap().gid()}}))
    };
    assert_eq!(node.source(&wanted(false)).unwrap_err(), "persistentvolumeclaim \"data\" not found");
    claimed(&node, &directory, "c1", "Pending");
    assert_eq!(node.source(&wanted(false)).unwrap_err(), "persistentvolumeclaim \"data\" is not bound");
    claimed(&node, &directory, "c2", "Bound");
    assert_eq!(
        node.source(&wanted(false)).unwrap_err(),
        "persistentvolume \"pv\" is bound to another claim than \"data\""
    );
    claimed(&node, &directory, "c1", "Bound");
    assert_eq!(node.source(&wanted(true)), Ok((Source::Bind(directory.clone()), true)));
    assert_eq!(node.source(&wanted(false)), Ok((Source::Bind(directory.clone()), false)));
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o2070, 0o2070);
    for outside in [Path::new("/etc"), &directory.join("../.."), node.volumes.options().directory.as_path()] {
        claimed(&node, outside, "c1", "Bound");
        let refused = node.source(&wanted(false)).unwrap_err();
        assert!(refused.contains("is not below a directory of the host"), "{refused}");
    }
    // The volumes of Pods stay when they end.
    node.volumes.remove("u").unwrap();
    assert!(directory.exists());
}

#[test]
fn what_this_node_cannot_do_is_said() {
    let node = node();
    for (volume, expected) in [
        (json!({"image": {"reference": "x"}}), "image volumes are not supported by this node"),
        (json!({"ephemeral": {}}), "persistentvolumeclaim \"p-v\" not found"),
    ] {
        assert_eq!(node.source(&pod("u", volume, json!({}))).unwrap_err(), expected);
    }
    let error = node.volumes.prepare(&pod("u", json!({"configMap": {"name": "x"}}), json!({}))).unwrap_err();
    assert_eq!(error.to_string(), "MountVolume.SetUp failed for volume \"v\" : configmap \"x\" not found");
    let blocks: Container = serde_json::from_value(
        json!({"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}),
    )
    .unwrap();
    assert!(Prepared::default().mounts(&blocks, &[]).unwrap_err().to_string().contains("block device"));
}
