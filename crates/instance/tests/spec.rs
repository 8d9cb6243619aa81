//! What Tasks render to: tables over the pure part of the providers.
// The whole file is a test; clippy sees that of functions marked so only.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use agentcube_api::Task;
use agentcube_api::sandbox::SandboxSpec;
use agentcube_instance::provider::SpecError;
use agentcube_instance::revision::Form;
use agentcube_instance::spec::{
    BundleCache, Child, Config, Isolation, Reference, Referent, Rendered, references, render,
};
use serde_json::{Value, json};

fn task(spec: Value) -> Task {
    let object = json!({
        "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
        "metadata": { "name": "agent", "namespace": "prod", "uid": "u1", "generation": 1 },
        "spec": spec,
    });
    serde_json::from_value(object).expect("this is a Task")
}

fn by_session() -> Value {
    json!({ "routePolicy": "BySession", "sessionIdentifier": { "extractors": [{ "type": "httpHeader", "name": "X" }] } })
}

fn pod(template: Value) -> Value {
    json!({ "deployment": { "type": "pod", "podTemplate": template }, "routing": by_session() })
}

fn one_container() -> Value {
    json!({ "spec": { "containers": [{ "name": "agent", "image": "agent:1" }] } })
}

fn sandbox(template: Value) -> Value {
    json!({ "deployment": { "type": "sandbox", "sandboxTemplate": template }, "routing": by_session() })
}

/// The same on a pool.
fn on_pool(mut template: Value) -> Value {
    template["poolRef"] = json!("fast");
    template["rootfs"] = json!({ "image": "agent:1" });
    sandbox(template)
}

fn bundle(code: Value) -> Value {
    json!({ "deployment": { "type": "code-bundle", "codeBundle": code }, "routing": by_session() })
}

fn with(mut base: Value, change: impl FnOnce(&mut Value)) -> Value {
    change(&mut base);
    base
}

fn config() -> Config {
    let mut config = Config::default();
    config.program.image = "agentcube:1".into();
    config
}

fn rendered(spec: Value) -> Rendered {
    render(&task(spec), &config()).expect("this can be rendered")
}

fn template(rendered: &Rendered) -> Value {
    serde_json::to_value(&rendered.template).unwrap()
}

/// The error of a spec: whether it is final, and what it says.
fn error(spec: Value, config: &Config) -> (&'static str, String) {
    match render(&task(spec), config) {
        Ok(_) => panic!("this is rendered"),
        Err(SpecError::Invalid(message)) => ("Invalid", message),
        Err(SpecError::Missing { reason, message }) => (reason, message),
        Err(SpecError::Blocked(message)) => ("Blocked", message),
        Err(SpecError::Transient(message)) => ("Transient", message),
    }
}

#[test]
fn the_form_follows_route_and_reuse() {
    for (policy, reuse, form) in [
        ("Oneshot", "Never", Form::Job),
        ("Oneshot", "Always", Form::Slots),
        ("BySession", "Never", Form::Slots),
        ("BySession", "Always", Form::Slots),
    ] {
        let spec = with(pod(one_container()), |spec| {
            spec["routing"]["routePolicy"] = json!(policy);
            spec["scaling"] = json!({ "instanceLifecycle": { "reusePolicy": reuse } });
        });
        assert_eq!(rendered(spec).form, form, "{policy} {reuse}");
    }
    // A Task that says nothing serves single requests, each by an instance that ends after it.
    let spec = json!({ "deployment": { "type": "pod", "podTemplate": one_container() } });
    let rendered = rendered(spec);
    assert_eq!(rendered.form, Form::Job);
    assert_eq!(template(&rendered)["spec"]["restartPolicy"], "Never");
}

#[test]
fn a_pod_is_as_the_task_says_and_can_be_explained() {
    let given = json!({
        "metadata": {
            "labels": { "team": "support" },
            "annotations": {
                "scheduling.volcano.sh/queue-name": "agents", "scheduling.k8s.io/group-name": "group-1",
            },
        },
        "spec": {
            "schedulerName": "volcano",
            "priorityClassName": "high",
            "restartPolicy": "OnFailure",
            "initContainers": [{ "name": "init", "image": "init:1", "terminationMessagePolicy": "File" }],
            "containers": [
                { "name": "side", "image": "side:1" },
                { "name": "agent", "image": "agent:1", "ports": [{ "containerPort": 9000 }] },
            ],
        },
    });
    let spec =
        with(pod(given.clone()), |spec| spec["requestHandling"] = json!({ "backend": { "port": 9000 } }));
    let mut expected = given;
    for container in ["/spec/containers/0", "/spec/containers/1"] {
        expected.pointer_mut(container).unwrap()["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    }
    // The container that listens on the port of the Task gets the probe, and nothing else changes.
    expected["spec"]["containers"][1]["readinessProbe"] = json!({ "tcpSocket": { "port": 9000 }, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 3 });
    let found = rendered(spec);
    assert_eq!(template(&found), expected);
    assert_eq!((found.children, found.prepare), (Vec::new(), Vec::new()));

    let own = json!({ "httpGet": { "path": "/healthz", "port": 8080 } });
    let spec = with(pod(one_container()), |spec| {
        spec["deployment"]["podTemplate"]["spec"]["containers"][0]["readinessProbe"] = own.clone();
    });
    assert_eq!(template(&rendered(spec))["spec"]["containers"][0]["readinessProbe"], own);
}

#[test]
fn what_cannot_work_is_said() {
    let config = config();
    let restart = with(pod(one_container()), |spec| {
        spec["routing"] = json!({ "routePolicy": "Oneshot" });
        spec["deployment"]["podTemplate"]["spec"]["restartPolicy"] = json!("OnFailure");
    });
    let reserved = with(pod(one_container()), |spec| {
        spec["deployment"]["podTemplate"]["metadata"] =
            json!({ "annotations": { "agentcube.io/releasing": "x" } });
    });
    let inline = |path: &str| {
        bundle(json!({
            "inline": { path: "x" }, "entrypoint": "main.py", "codeRuntime": { "name": "python3.11" },
        }))
    };
    let code = |change: fn(&mut Value)| {
        with(inline("main.py"), |spec| change(&mut spec["deployment"]["codeBundle"]))
    };
    let image = json!({ "image": "box:1" });
    for (spec, kind, expected) in [
        (restart, "Invalid", "restartPolicy is OnFailure"),
        (reserved, "Invalid", "annotation agentcube.io/releasing cannot be set"),
        (sandbox(json!({})), "Invalid", "rootfs.image is missing"),
        (
            sandbox(json!({ "runtime": "zen", "rootfs": image })),
            "RuntimeClassMissing",
            "\"zen\" has no RuntimeClass",
        ),
        (
            sandbox(json!({ "runtime": "gvisor", "rootfs": image, "kernel": { "image": "k:1" } })),
            "Invalid",
            "RuntimeClass gvisor boots no kernel",
        ),
        (
            sandbox(json!({ "rootfs": image, "kernel": { "image": "k:1" } })),
            "Invalid",
            "kernel.image \"k:1\" is none of the kernels",
        ),
        (inline("../main.py"), "Invalid", "codeBundle.inline \"../main.py\": the path leads out"),
        (code(|code| code["entrypoint"] = json!("a/../main.py")), "Invalid", "codeBundle.entrypoint"),
        (code(|code| code["codeRuntime"]["name"] = json!("cobol")), "Invalid", "known are node20,"),
        (code(|code| code["sha256"] = json!("0".repeat(64))), "Invalid", "with zipUrl only"),
        (code(|code| code["sizeLimit"] = json!("0")), "Invalid", "sizeLimit must be above 0"),
        (code(|code| code["dependencies"] = json!({ "packages": ["--pre"] })), "Invalid", "names no package"),
        (code(|code| code["inline"]["big"] = json!("x".repeat(1_000_001))), "Invalid", "use zipUrl"),
    ] {
        let (found, message) = error(spec, &config);
        assert_eq!(found, kind, "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_sandbox_is_closed() {
    let mut config = config();
    config.kernels = BTreeMap::from([("k:1".into(), "/opt/kernels/k1".into())]);
    let spec = with(
        sandbox(json!({
            "runtime": "firecracker",
            "resources": { "cpu": "2000m", "memory": "4Gi", "diskSize": "10Gi" },
            "kernel": { "image": "k:1", "args": "quiet" },
            "rootfs": { "image": "box:1" },
            "command": ["/agent"], "args": ["--port", "9000"],
            "env": [{ "name": "DEPTH", "value": "3" }],
            "workingDir": "/srv",
            "nodeSelector": { "disk": "fast" },
        })),
        |spec| spec["requestHandling"] = json!({ "backend": { "port": 9000 } }),
    );
    let found = render(&task(spec), &config).unwrap();
    let amounts = json!({ "cpu": "2", "memory": "4Gi", "ephemeral-storage": "10Gi" });
    let expected = json!({
        "metadata": { "annotations": {
            "io.katacontainers.config.hypervisor.kernel": "/opt/kernels/k1",
            "io.katacontainers.config.hypervisor.kernel_params": "quiet",
        } },
        "spec": {
            "runtimeClassName": "kata-fc",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 5,
            "nodeSelector": { "disk": "fast" },
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "sandbox", "image": "box:1", "command": ["/agent"], "args": ["--port", "9000"],
                "env": [{ "name": "PORT", "value": "9000" }, { "name": "DEPTH", "value": "3" }],
                "workingDir": "/srv",
                "ports": [{ "containerPort": 9000 }],
                "resources": { "requests": amounts, "limits": amounts },
                "securityContext": {
                    "allowPrivilegeEscalation": false, "privileged": false, "capabilities": { "drop": ["ALL"] },
                },
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "readinessProbe": {
                    "tcpSocket": { "port": 9000 }, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 3,
                },
            }],
        },
    });
    assert_eq!(template(&found), expected);
    assert_eq!(found.children, [Child::Closed { port: 9000 }]);
}

#[test]
fn isolations_differ() {
    let read_only = json!({ "rootfs": { "image": "box:1", "readOnly": true } });
    let mut config = config();
    config.sandbox_user = None;
    let own = Isolation {
        runtime_class: "own-class".into(),
        guard: Default::default(),
        image: Some("default:1".into()),
        annotations: BTreeMap::from([("own.example/flag".into(), "on".into())]),
    };
    config.isolations.insert("own".into(), own);
    let of = |template: Value| {
        let rendered = render(&task(sandbox(template)), &config).unwrap();
        serde_json::to_value(&rendered.template).unwrap()
    };
    let gvisor = of(with(read_only.clone(), |template| template["runtime"] = json!("gvisor")));
    assert_eq!(gvisor["spec"]["runtimeClassName"], "gvisor");
    let container = &gvisor["spec"]["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    assert_eq!(container["volumeMounts"], json!([{ "name": "tmp", "mountPath": "/tmp" }]));
    assert_eq!(gvisor["metadata"]["annotations"]["dev.gvisor.spec.mount.tmp.type"], "tmpfs");
    assert_eq!(gvisor["spec"]["securityContext"], json!({ "seccompProfile": { "type": "RuntimeDefault" } }));
    // The default isolation, and one of the operator's own.
    let default = of(read_only);
    assert_eq!(default["spec"]["runtimeClassName"], "kata-qemu");
    assert_eq!(default["metadata"], json!({}));
    let own = of(json!({ "runtime": "own" }));
    assert_eq!(own["spec"]["containers"][0]["image"], "default:1");
    assert_eq!(own["metadata"]["annotations"], json!({ "own.example/flag": "on" }));
}

#[test]
fn a_zip_is_fetched_checked_and_run() {
    let mut config = config();
    config.bundle_cache =
        Some(BundleCache { size: "1Gi".into(), storage_class: None, access_mode: "ReadWriteMany".into() });
    let digest = "ab".repeat(32);
    let spec = bundle(json!({
        "zipUrl": "https://bucket.example/code.zip", "sha256": digest, "sizeLimit": "1Mi",
        "entrypoint": "src/main.py", "codeRuntime": { "name": "python3.11" },
        "dependencies": { "packages": ["requests==2.32"] },
        "args": ["--fast"], "env": [{ "name": "MODEL", "value": "small" }],
        "resources": { "memory": "256Mi" },
    }));
    let found = render(&task(spec), &config).unwrap();
    let spec = &template(&found)["spec"];
    let amounts = json!({ "memory": "256Mi" });
    let resources = json!({ "requests": amounts, "limits": amounts });
    let safe = json!({ "allowPrivilegeEscalation": false });
    let expected = json!([
        {
            "name": "fetch", "image": "agentcube:1",
            "command": [
                "agentcube", "bundle", "fetch", "--into", "/bundle", "--limit", "1048576",
                "--entrypoint", "src/main.py", "--url", "https://bucket.example/code.zip", "--sha256", digest,
                "--cache", "/cache",
            ],
            "resources": resources, "securityContext": safe,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [
                { "name": "bundle", "mountPath": "/bundle" }, { "name": "cache", "mountPath": "/cache" },
            ],
        },
        {
            "name": "install-packages", "image": "python:3.11-slim",
            "command": [
                "python3", "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check",
                "--target", "/bundle/packages", "requests==2.32",
            ],
            "env": [{ "name": "HOME", "value": "/tmp" }], "workingDir": "/bundle",
            "resources": resources, "securityContext": safe,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{ "name": "bundle", "mountPath": "/bundle" }],
        },
    ]);
    assert_eq!(spec["initContainers"], expected);
    let annotations = &template(&found)["metadata"]["annotations"];
    assert_eq!(*annotations, json!({ "kubectl.kubernetes.io/default-container": "agent" }));
    let agent = &spec["containers"][0];
    assert_eq!(agent["command"], json!(["python3", "-u", "/bundle/code/src/main.py"]));
    assert_eq!(agent["args"], json!(["--fast"]));
    let env = json!([
        { "name": "PORT", "value": "8080" }, { "name": "MODEL", "value": "small" },
        { "name": "PYTHONPATH", "value": "/bundle/packages" },
        { "name": "INSTANCE_UID", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } },
    ]);
    assert_eq!(agent["env"], env);
    let volumes = json!([
        { "name": "cache", "persistentVolumeClaim": { "claimName": "agent-bundles" } },
        { "name": "bundle", "emptyDir": {} },
        { "name": "token", "secret": { "secretName": "agent-token" } },
    ]);
    assert_eq!(spec["volumes"], volumes);
    assert_eq!(found.children, [Child::Cache { name: "agent-bundles".into() }]);
    let steps: Vec<&str> = found.prepare.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(steps, ["fetch", "install-packages"]);
}

#[test]
fn code_comes_from_other_places() {
    let command = |rendered: &Rendered, place: usize| -> Vec<String> {
        let containers = rendered.template.spec.as_ref().unwrap().init_containers.as_ref().unwrap();
        containers[place].command.clone().unwrap()
    };
    let inline = rendered(bundle(json!({
        "inline": { "main.py": "print(1)", "lib/x.py": "" },
        "entrypoint": "main.py", "codeRuntime": { "name": "python3.12", "image": "host" },
    })));
    let [Child::Code { name, files }] = inline.children.as_slice() else { panic!("{:?}", inline.children) };
    assert!(name.starts_with("agent-code-") && name.len() == 21, "{name}");
    assert_eq!(files["file-1"], "print(1)");
    let source = ["--from", "/source", "--file", "file-0=lib/x.py", "--file", "file-1=main.py"];
    assert_eq!(command(&inline, 0)[9..], source);
    assert_eq!(template(&inline)["spec"]["containers"][0]["image"], "host");

    let map = rendered(bundle(json!({
        "configMap": { "name": "code", "items": [{ "key": "server", "path": "src/server.js" }] },
        "entrypoint": "src/server.js", "codeRuntime": { "name": "nodejs20" },
        "dependencies": { "file": "src/package.json" },
    })));
    let source = ["--from", "/source", "--file", "server=src/server.js"];
    assert_eq!(command(&map, 0)[9..13], source);
    let lifted =
        ["--require", "src/package.json", "--lift", "src/package.json", "--lift", "src/package-lock.json"];
    assert_eq!(command(&map, 0)[13..], lifted);
    assert_eq!(command(&map, 1)[..2], ["npm", "install"]);
    assert_eq!(command(&map, 1).last().unwrap(), "/bundle");

    let claim = rendered(bundle(json!({
        "pvc": { "claimName": "agents", "subPath": "research" },
        "entrypoint": "main.py", "codeRuntime": { "name": "python3.11" }, "dependencies": {},
    })));
    let mount = json!({ "name": "source", "mountPath": "/source", "subPath": "research", "readOnly": true });
    assert_eq!(template(&claim)["spec"]["initContainers"][0]["volumeMounts"][1], mount);
    assert_eq!(command(&claim, 1).last().unwrap(), "/bundle/code/requirements.txt");
}

#[test]
fn the_hash_is_of_what_instances_are_made_of() {
    let base = pod(one_container());
    let hash = |spec: Value| rendered(spec).hash();
    let change = |pointer: &'static str, value: Value| {
        with(base.clone(), |spec| {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            let place = if parent.is_empty() { spec } else { spec.pointer_mut(parent).unwrap() };
            place[key] = value;
        })
    };
    // Pinned: instances must not be replaced because the program was.
    assert_eq!(hash(base.clone()), "9887040da17ce7a41d6aac9cf44998eb");
    for same in [
        change("/scaling", json!({ "scalingMode": "OnDemand", "minInstances": 3, "maxInstances": 9 })),
        change("/routing/reserveTimeout", json!("5s")),
        change("/routing/pathPrefix", json!("/x")),
        change("/requestHandling", json!({ "timeout": { "http": { "request": "9s" } } })),
        change("/scaling", json!({ "instanceLifecycle": { "reusePolicy": "Always", "ttl": "1h" } })),
    ] {
        assert_eq!(hash(same.clone()), hash(base.clone()), "{same}");
    }
    for other in [
        change("/deployment/podTemplate/spec/containers/0/image", json!("agent:2")),
        change("/deployment/podTemplate/metadata", json!({ "labels": { "a": "b" } })),
        change("/routing", json!({ "routePolicy": "Oneshot" })),
        change("/requestHandling", json!({ "backend": { "port": 9000 } })),
    ] {
        assert_ne!(hash(other.clone()), hash(base.clone()), "{other}");
    }
    let inline = |text: &str| {
        bundle(json!({
            "inline": { "main.py": text }, "entrypoint": "main.py", "codeRuntime": { "name": "python3.11" },
        }))
    };
    assert_ne!(hash(inline("1")), hash(inline("2")));
}

#[test]
fn everything_that_is_named_is_known() {
    let spec = pod(json!({ "spec": {
        "serviceAccountName": "runner", "priorityClassName": "high", "runtimeClassName": "gvisor",
        "imagePullSecrets": [{ "name": "pull" }],
        "initContainers": [{ "name": "i", "image": "i", "envFrom": [{ "configMapRef": { "name": "from" } }] }],
        "containers": [{ "name": "c", "image": "c", "env": [
            { "name": "A", "valueFrom": { "secretKeyRef": { "name": "key", "key": "k" } } },
            { "name": "B", "valueFrom": { "configMapKeyRef": { "name": "maybe", "key": "k", "optional": true } } },
        ] }],
        "volumes": [
            { "name": "a", "secret": { "secretName": "agent-token" } },
            { "name": "b", "persistentVolumeClaim": { "claimName": "data" } },
            { "name": "c", "projected": { "sources": [{ "secret": { "name": "projected" } }] } },
        ],
    } }));
    let of = |spec: Value| -> Vec<(Referent, String)> {
        let task = task(spec);
        let found = references(&task, &render(&task, &config()).unwrap());
        found.into_iter().map(|Reference { kind, name }| (kind, name)).collect()
    };
    let named = |kind, name: &str| (kind, name.to_string());
    // The Secret with the keys of tokens is ours, and what is optional may be missing.
    let expected = [
        named(Referent::Secret, "key"),
        named(Referent::Secret, "projected"),
        named(Referent::Secret, "pull"),
        named(Referent::ConfigMap, "from"),
        named(Referent::Claim, "data"),
        named(Referent::ServiceAccount, "runner"),
        named(Referent::PriorityClass, "high"),
        named(Referent::RuntimeClass, "gvisor"),
    ];
    assert_eq!(of(spec), expected);
    assert_eq!(of(on_pool(json!({}))), [named(Referent::SandboxPool, "fast")]);
    let inline = bundle(json!({
        "inline": { "main.py": "" }, "entrypoint": "main.py", "codeRuntime": { "name": "python3.11" },
    }));
    assert_eq!(of(inline), []);
}

#[test]
fn the_configuration_can_be_written() {
    let config: Config = serde_json::from_value(json!({
        "program": { "image": "host", "path": "/.agentcube/agentcube" },
        "isolations": { "native": { "runtimeClass": "native" } },
        "defaultIsolation": "native",
        "runtimes": { "bash": { "image": "host", "command": ["bash", "{entrypoint}"] } },
        "bundleCache": { "size": "1Gi" },
    }))
    .unwrap();
    assert_eq!(config.bundle_cache.unwrap().access_mode, "ReadWriteMany");
    assert_eq!(config.sandbox_user, Some(65532));
    assert!(serde_json::from_value::<Config>(json!({ "runtime": {} })).is_err());
}

/// Every Task among the examples renders, and what its init container would run is what it says; two need something of
/// the operator's configuration.
#[test]
fn the_examples_render() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut refused = Vec::new();
    let mut count = 0;
    for folder in ["stories", "tasks", "tokens"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let documents: Vec<Value> =
                serde_saphyr::from_multiple(&std::fs::read_to_string(&path).unwrap()).unwrap();
            for document in documents.into_iter().filter(|document| document["kind"] == "Task") {
                let task: Task = serde_json::from_value(document).unwrap();
                count += 1;
                if let Err(error) = render(&task, &config()) {
                    refused.push(format!("{}: {error}", path.file_name().unwrap().to_string_lossy()));
                }
            }
        }
    }
    refused.sort();
    assert!(count > 15, "{count}");
    let [kernel, image] = refused.as_slice() else { panic!("{refused:?}") };
    assert!(kernel.starts_with("code-interpreter.yaml: sandboxTemplate.kernel.image"), "{kernel}");
    assert!(image.starts_with("untrusted-code.yaml: sandboxTemplate.rootfs.image is missing"), "{image}");
}

fn sandbox_of(spec: Value) -> Result<SandboxSpec, String> {
    let rendered = render(&task(spec), &config()).map_err(|error| error.to_string())?;
    assert_eq!(rendered.form, Form::Sandboxes);
    Ok(agentcube_instance::revision::sandbox(&rendered.template).expect("it says what its Sandboxes are"))
}

#[test]
fn instances_on_a_pool_are_sandboxes() {
    let made = sandbox_of(on_pool(json!({
        "command": ["/agent"], "args": ["-v"], "env": [{ "name": "A", "value": "1" }], "workingDir": "/srv",
        "resources": { "memory": "256Mi" },
    })))
    .unwrap();
    assert_eq!((made.image.as_str(), made.pool_ref.as_str()), ("agent:1", "fast"));
    assert_eq!((made.command, made.args), (vec!["/agent".to_string()], vec!["-v".to_string()]));
    let names: Vec<&str> = made.envs.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!((names, made.exposed_ports), (vec!["PORT", "A"], vec![8080]));
    // A change of the template is another revision.
    let hash = |spec: Value| render(&task(spec), &config()).unwrap().hash();
    assert_ne!(hash(on_pool(json!({}))), hash(on_pool(json!({ "workingDir": "/srv" }))));
}

#[test]
fn what_a_pool_cannot_do_is_refused_by_name() {
    let refused = |spec: Value| sandbox_of(spec).unwrap_err();
    assert!(refused(sandbox(json!({ "poolRef": "fast" }))).contains("rootfs.image is missing"));
    assert!(refused(on_pool(json!({ "kernel": { "image": "k" } }))).contains("sandboxTemplate.kernel"));
    assert!(refused(on_pool(json!({ "nodeSelector": { "a": "b" } }))).contains("nodeSelector"));
    assert!(refused(on_pool(json!({ "args": ["x".repeat(4097)] }))).contains("4097 characters"));
    let many: Vec<Value> = (0..128).map(|n| json!({ "name": format!("V{n}") })).collect();
    assert!(refused(on_pool(json!({ "env": many }))).contains("129 variables"));
    let code = |source: Value| {
        let mut code =
            json!({ "entrypoint": "main.py", "codeRuntime": { "name": "python3.11" }, "poolRef": "fast" });
        code.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        bundle(code)
    };
    let https = "https://bucket.example/code.zip";
    assert!(refused(code(json!({ "zipUrl": https }))).contains("codeRuntime.image"));
    assert!(refused(code(json!({ "pvc": { "claimName": "data" } }))).contains("codeBundle.pvc"));
    assert!(refused(code(json!({ "inline": { "other.py": "" } }))).contains("not among the files"));
    assert!(refused(code(json!({ "configMap": { "name": "code" } }))).contains("items"));
    assert!(
        refused(code(json!({ "inline": { "main.py": "" }, "dependencies": {} }))).contains("dependencies")
    );
    assert!(refused(code(json!({ "inline": { "main.py": "x".repeat(300_000) } }))).contains("300000 bytes"));
}

#[test]
fn code_gets_into_a_sandbox() {
    let code = |source: Value| {
        let mut code = json!({
            "entrypoint": "src/main.py", "args": ["-v"], "poolRef": "fast",
            "codeRuntime": { "name": "python3.11", "image": config().program.image },
        });
        code.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        sandbox_of(bundle(code)).unwrap()
    };
    let inline = code(json!({ "inline": { "src/main.py": "a", "words.py": "b" } }));
    assert_eq!(inline.command, ["python3", "-u", "/bundle/code/src/main.py"]);
    let files: Vec<(&str, &str)> = inline
        .files
        .iter()
        .map(|file| (file.path.as_str(), file.config_map_key_ref.as_ref().unwrap().key.as_str()))
        .collect();
    assert_eq!(files, [("/bundle/code/src/main.py", "file-0"), ("/bundle/code/words.py", "file-1")]);
    let fetched = code(json!({ "zipUrl": "https://bucket.example/code.zip", "sha256": "ab".repeat(32) }));
    let text = fetched.command.join(" ");
    assert!(
        text.contains("bundle run --into /bundle --limit 104857600 --entrypoint src/main.py --url"),
        "{text}"
    );
    assert!(text.ends_with(" -- python3 -u /bundle/code/src/main.py"), "{text}");
    assert_eq!(fetched.args, ["-v"]);
}
