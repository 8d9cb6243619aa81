//! Tables over what a runtime is told, with an image that is a small directory.

use std::net::Ipv4Addr;

use agentcube_runtime::spec::Capability;
use serde_json::{Value, json};

use super::*;

fn pod(spec: Value) -> Pod {
    let meta = json!({"name": "web-0", "namespace": "shop", "uid": "u"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

fn config() -> Config {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Config {
        entrypoint: words(&["/bin/serve"]),
        cmd: words(&["--all"]),
        env: words(&["PATH=/opt/bin", "MODE=image"]),
        working_dir: "/srv".into(),
        ..Config::default()
    }
}

fn described(spec: Value, config: &Config) -> Result<ContainerSpec, Refusal> {
    let pod = pod(spec);
    let image = tempfile::tempdir().unwrap();
    let container = pod.spec.as_ref().unwrap().containers[0].clone();
    let own =
        container.env.iter().flatten().map(|it| (it.name.clone(), it.value.clone().unwrap_or_default()));
    let names = names(&pod, "cluster.local").unwrap();
    let run = Run {
        id: ContainerId::new("run").unwrap(),
        sandbox: SandboxId::new("u").unwrap(),
        root: Root::Directory(image.path().to_owned()),
        config,
        env: own.collect(),
        volumes: vec![],
        directory: Path::new("/data/run"),
        files: Path::new("/data/etc"),
        names: &names,
        allowed: &Allowed::default(),
    };
    describe(&pod, &container, run)
}

fn one(container: Value) -> Value {
    let mut container = container;
    container["name"] = json!("c");
    json!({"containers": [container]})
}

#[test]
fn commands_of_pods_and_images() {
    let table = [
        (json!({}), vec!["/bin/serve", "--all"]),
        (json!({"args": ["-x"]}), vec!["/bin/serve", "-x"]),
        (json!({"command": ["sh"]}), vec!["sh"]),
        (
            json!({"command": ["sh"], "args": ["-c", "$(A) $$(A) $(B)"], "env": [{"name": "A", "value": "1"}]}),
            vec!["sh", "-c", "1 $(A) $(B)"],
        ),
        (json!({"args": ["$(MODE)"]}), vec!["/bin/serve", "image"]),
    ];
    for (container, args) in table {
        assert_eq!(described(one(container.clone()), &config()).unwrap().args, args, "{container}");
    }
    let refusal = described(one(json!({})), &Config::default()).unwrap_err();
    assert_eq!(refusal.reason, "CreateContainerError");
    assert!(refusal.message.starts_with("no command specified"), "{}", refusal.message);
}

#[test]
fn the_pods_variables_win() {
    let container = json!({"env": [{"name": "MODE", "value": "pod"}, {"name": "HOME", "value": "/h"}]});
    let spec = described(one(container), &config()).unwrap();
    let env: Vec<String> = spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(env, ["PATH=/opt/bin", "MODE=pod", "HOME=/h", "HOSTNAME=web-0"]);
    assert_eq!(spec.cwd, Path::new("/srv"));
}

#[test]
fn limits_become_numbers() {
    let table = [
        (json!({}), (None, None, None)),
        (json!({"limits": {"cpu": "1500m", "memory": "64Mi"}}), (Some(64 << 20), Some(1500), Some(1500))),
        (
            json!({"limits": {"cpu": "2"}, "requests": {"cpu": "100m", "memory": "1Gi"}}),
            (None, Some(2000), Some(100)),
        ),
        (json!({"limits": {"memory": "0"}}), (None, None, None)),
    ];
    for (resources, (memory, cpu, request)) in table {
        let found = described(one(json!({"resources": resources})), &config()).unwrap().resources;
        assert_eq!((found.memory_bytes, found.cpu_millis, found.cpu_request_millis), (memory, cpu, request));
        assert_eq!(found.processes, Some(4096));
    }
}

#[test]
fn privileges_are_the_least_that_the_pod_asks_for() {
    let capabilities = |context: Value| {
        described(one(json!({"securityContext": context})), &config()).map(|spec| spec.capabilities)
    };
    let named = |name: &str| Capability::named(name).unwrap();
    let default = capabilities(json!({})).unwrap();
    assert!(default.contains(&named("CHOWN")) && !default.contains(&named("SYS_ADMIN")));
    assert!(capabilities(json!({"capabilities": {"drop": ["ALL"]}})).unwrap().is_empty());
    let one_only = capabilities(json!({"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}})).unwrap();
    assert_eq!(one_only, [named("NET_ADMIN")].into());
    let without = capabilities(json!({"capabilities": {"drop": ["CAP_CHOWN"]}})).unwrap();
    assert_eq!(without.len(), default.len() - 1);
    assert!(capabilities(json!({"capabilities": {"add": ["FLY"]}})).is_err());
    let refusal = capabilities(json!({"privileged": true})).unwrap_err();
    assert_eq!(refusal.reason, "CreateContainerConfigError");

    let spec = |context: Value| described(one(json!({"securityContext": context})), &config());
    let plain = spec(json!({})).unwrap();
    assert!(plain.seccomp && !plain.no_new_privileges && !plain.read_only_root);
    let tight = spec(json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true})).unwrap();
    assert!(tight.no_new_privileges && tight.read_only_root);
    assert!(!spec(json!({"seccompProfile": {"type": "Unconfined"}})).unwrap().seccomp);
    assert!(spec(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}})).is_err());
}

#[test]
fn the_pods_own_hosts_file_stays() {
    let message = json!({"terminationMessagePath": "/dev/termination-log"});
    let spec = described(one(message), &config()).unwrap();
    let targets: Vec<_> = spec.mounts.iter().map(|mount| mount.target.to_str().unwrap()).collect();
    assert_eq!(targets, ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log"]);
    let own = Mount { target: "/etc/hosts".into(), source: Source::Bind("/v".into()), read_only: true };
    let container = pod(one(json!({}))).spec.unwrap().containers[0].clone();
    let found = mounts(&container, vec![own.clone()], Path::new("/run"), Path::new("/etc-files"));
    assert_eq!((found[0].clone(), found.len()), (own, 3));
}

#[test]
fn names_and_hosts() {
    let long = "x".repeat(62) + "-y";
    let fqdn = json!({"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true, "containers": []});
    let table = [
        (json!({"containers": []}), "web-0", "", "web-0"),
        (json!({"hostname": "h", "subdomain": "s", "containers": []}), "h", "s.shop.svc.cluster.local", "h"),
        (fqdn, "h", "s.shop.svc.cluster.local", "h.s.shop.svc.cluster.local"),
        (json!({"hostname": long, "containers": []}), &long[..62], "", &long[..62]),
    ];
    for (spec, short, domain, hostname) in table {
        let names = names(&pod(spec), "cluster.local").unwrap();
        assert_eq!(
            (names.short.as_str(), names.domain.as_str(), names.hostname.as_str()),
            (short, domain, hostname)
        );
    }
    let endless = json!({"subdomain": "x".repeat(60), "setHostnameAsFQDN": true, "containers": []});
    assert!(names(&pod(endless), "cluster.local").unwrap_err().contains("too long"));

    let spec = json!({"subdomain": "s", "containers": [],
        "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["a", "b"]}]});
    let pod = pod(spec);
    let text = hosts(&pod, &names(&pod, "cluster.local").unwrap(), Ipv4Addr::new(10, 244, 0, 3));
    assert!(text.contains("\n10.244.0.3\tweb-0.s.shop.svc.cluster.local\tweb-0\n"), "{text}");
    assert!(text.ends_with("\n# Entries added by HostAliases.\n192.0.2.7\ta\tb\n"), "{text}");
}

#[test]
fn what_cannot_be_had_is_refused_by_name() {
    let plain = json!({"containers": [{"name": "c"}]});
    assert_eq!(refusal(pod(plain.clone()).spec.as_ref().unwrap()), None);
    let table = [
        (json!({"hostNetwork": true}), "hostNetwork"),
        (json!({"hostPID": true}), "hostPID"),
        (json!({"hostIPC": true}), "hostIPC"),
        (json!({"shareProcessNamespace": true}), "shareProcessNamespace"),
        (json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 1}]}]}), "hostPort"),
    ];
    for (more, word) in table {
        let mut spec = plain.clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let why = refusal(pod(spec).spec.as_ref().unwrap()).unwrap();
        assert!(why.contains(word) && why.ends_with("is not supported by this node"), "{why}");
    }
}
