use serde_json::{Value, json};

use super::*;

fn pool(spec: Value) -> SandboxPool {
    let mut spec = spec;
    spec["capacity"] = json!({ "poolMax": 3 });
    serde_json::from_value(json!({
        "apiVersion": "sandbox.fast.io/v1alpha1", "kind": "SandboxPool",
        "metadata": { "name": "fast", "namespace": "team", "uid": "u1" }, "spec": spec,
    }))
    .expect("a pool")
}

fn options() -> PodOptions {
    PodOptions { image: Some("agentcube:1".into()), secret: Some("agents".into()), ..PodOptions::default() }
}

fn env(pod: &Pod) -> BTreeMap<String, String> {
    let container = &pod.spec.as_ref().expect("a spec").containers[0];
    let env = container.env.iter().flatten();
    env.map(|one| (one.name.clone(), one.value.clone().unwrap_or_else(|| "a field".into()))).collect()
}

#[test]
fn a_pool_without_a_template_has_agents_of_this_program() {
    let pod = template::pod(&pool(json!({})), 2, &options()).expect("a Pod");
    assert_eq!(place_of(&pod), Some((PoolKey::new("team", "fast"), 2)));
    assert_eq!(pod.name_any(), "fast-agent-2");
    let spec = pod.spec.clone().expect("a spec");
    assert_eq!(spec.containers[0].image.as_deref(), Some("agentcube:1"));
    assert_eq!(spec.automount_service_account_token, Some(false));
    let env = env(&pod);
    assert_eq!(env["AGENTCUBE_AGENT_TOKEN_FILE"], "/etc/agentcube/agent/token");
    assert_eq!(env["AGENTCUBE_AGENT_RUNTIME"], "native");
    assert_eq!(env["AGENTCUBE_AGENT_HOST"], "a field");
    assert_eq!(env.get("AGENTCUBE_AGENT_CLOSED_TO"), None, "nothing more is closed");
    let no_image = PodOptions { image: None, ..options() };
    assert!(template::pod(&pool(json!({})), 0, &no_image).is_err());
}

#[test]
fn agents_are_told_what_is_closed_to_their_sandboxes() {
    let closed_to = ["10.96.0.0/12", "10.244.0.0/16"].map(str::to_owned).to_vec();
    let pod = template::pod(&pool(json!({})), 0, &PodOptions { closed_to, ..options() }).expect("a Pod");
    assert_eq!(env(&pod)["AGENTCUBE_AGENT_CLOSED_TO"], "10.96.0.0/12,10.244.0.0/16");
}

#[test]
fn each_pool_has_a_token_of_its_own() {
    let tokens = Tokens::new("a text that nobody can guess");
    let options = PodOptions { secret: None, tokens: Some(tokens.clone()), ..options() };
    let fast = pool(json!({}));
    let pod = template::pod(&fast, 0, &options).expect("a Pod");
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.clone()).unwrap_or_default();
    let mounted = volumes.iter().find_map(|volume| volume.secret.as_ref()?.secret_name.clone());
    let secret = tokens.secret(&fast);
    assert_eq!(mounted, secret.metadata.name);
    assert_eq!(env(&pod)["AGENTCUBE_AGENT_TOKEN_FILE"], "/etc/agentcube/agent/token");
    assert_eq!(secret.owner_references()[0].uid, owner_of(&pod));
    let token = secret.data.expect("data").remove("token").expect("a token").0;
    assert_eq!(token, tokens.of(&owner_of(&pod)).into_bytes());
    assert_ne!(tokens.of("u1"), tokens.of("u2"));
    assert_ne!(tokens.of("u1"), Tokens::new("another text that nobody can guess").of("u1"));
    assert_eq!(tokens.of("u1").len(), 64);
}

#[test]
fn a_template_wins_but_for_who_the_agent_is() {
    let template = json!({ "agentTemplate": {
        "metadata": { "labels": { "a": "b", "sandbox.fast.io/pool": "other" } },
        "spec": { "containers": [{ "name": "side", "image": "x" }, { "name": "agent", "image": "mine:2",
            "command": ["run"], "env": [{ "name": "AGENTCUBE_AGENT_UID", "value": "forged" },
                { "name": "AGENTCUBE_AGENT_LISTEN", "value": "0.0.0.0:1" }] }] } } });
    let pod = template::pod(&pool(template), 0, &options()).expect("a Pod");
    assert_eq!(place_of(&pod), Some((PoolKey::new("team", "fast"), 0)));
    assert_eq!(pod.labels()["a"], "b");
    let mut pod = pod;
    let agent = pod.spec.as_mut().expect("a spec").containers.remove(1);
    assert_eq!(
        (agent.image.as_deref(), agent.command.as_deref()),
        (Some("mine:2"), Some(&["run".into()][..]))
    );
    let value = |name: &str| {
        agent.env.iter().flatten().find(|one| one.name == name).and_then(|one| one.value.clone())
    };
    assert_eq!(value("AGENTCUBE_AGENT_UID"), None, "a field of the Pod");
    assert_eq!(value("AGENTCUBE_AGENT_LISTEN").as_deref(), Some("0.0.0.0:1"));
}

fn seen(status: Value, node: Option<&str>, deleted: bool) -> Pod {
    let deleted = deleted.then_some("2026-01-01T00:00:00Z");
    serde_json::from_value(json!({
        "metadata": { "name": "p", "deletionTimestamp": deleted },
        "spec": { "nodeName": node, "containers": [{ "name": "agent" }] }, "status": status,
    }))
    .expect("a Pod")
}

#[test]
fn only_what_its_node_says_proves_that_an_agent_is_dead() {
    let ended = json!({ "phase": "Running", "containerStatuses": [{ "name": "agent", "ready": false, "image": "",
        "imageID": "", "restartCount": 0, "state": { "terminated": { "exitCode": 0 } } }] });
    let table = [
        (seen(json!({ "phase": "Running" }), Some("n"), false), false),
        (seen(json!({ "phase": "Running" }), Some("n"), true), false),
        (seen(json!({ "phase": "Failed" }), Some("n"), false), true),
        (seen(json!({ "phase": "Succeeded" }), Some("n"), true), true),
        (seen(json!({ "phase": "Failed", "reason": "NodeLost" }), Some("n"), true), false),
        (seen(ended.clone(), Some("n"), true), true),
        // It is about to be started again.
        (seen(ended, Some("n"), false), false),
        (seen(json!({ "phase": "Pending" }), None, true), true),
        (seen(json!({ "phase": "Pending" }), None, false), false),
        (seen(json!({}), Some("n"), true), false),
    ];
    for (pod, expected) in table {
        assert_eq!(has_ended(&pod), expected, "{pod:?}");
    }
}

#[test]
fn a_pod_that_nobody_owns_is_no_agent() {
    let mut pod = template::pod(&pool(json!({})), 1, &options()).expect("a Pod");
    pod.metadata.owner_references = None;
    assert_eq!(place_of(&pod), None);
}
