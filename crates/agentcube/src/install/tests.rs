//! What the manifests hold, whatever is chosen.

use std::collections::BTreeSet;

use clap::Parser;
use serde_json::{Value, json};

use super::*;
use crate::cli::Cli;

/// What the parts make for themselves, so that nobody has to.
const MADE_LATER: [&str; 2] = ["agentcube-admin-token", "agentcube-forge-key"];

fn arguments(words: &[&str]) -> Arguments {
    let words = ["agentcube", "install"].iter().chain(words);
    match Cli::try_parse_from(words).unwrap().command {
        crate::cli::Command::Install(arguments) => arguments,
        _ => panic!("install"),
    }
}

fn objects(words: &[&str]) -> Vec<Value> {
    let arguments = arguments(words);
    let text = parts(&arguments.checked().unwrap(), &arguments.namespace).unwrap();
    assert!(!text.contains("{{"), "{text}");
    manifest::parse("install", &text).unwrap().into_iter().map(|document| document.object).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn names(objects: &[Value], kind: &str) -> BTreeSet<String> {
    of_kind(objects, kind).into_iter().map(|object| name(object).to_owned()).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

const WAYS: [&[&str]; 10] = [
    &["--image", "place/agentcube:1.2"],
    &["--image", "place/agentcube:1.2", "--namespace", "elsewhere", "--envoy-gateway", "plain"],
    &["--image", "place/agentcube:1.2", "--envoy-gateway", "none", "--no-janitor", "--replicas", "7"],
    &["--image", "place/agentcube:1.2", "--no-fastpath", "--gateway-class", "eg", "--gateway-namespace", ""],
    &["--image", "place/agentcube:1.2", "--rate-limits", "proxy", "--namespace", "default"],
    &["--image", "place/agentcube:1.2", "--no-fastpath", "--fastpath"],
    &["--image", "place/agentcube:1.2", "--no-middleware"],
    &["--image", "place/agentcube:1.2", "--watch-namespace", "team", "--envoy-gateway", "none"],
    &["--image", "place/agentcube:1.2", "--no-forge", "--no-middleware"],
    &["--image", "place/agentcube:1.2", "--no-console"],
];

#[test]
fn everything_is_labelled_and_in_its_namespace() {
    for words in WAYS {
        let namespace = words.iter().position(|word| *word == "--namespace");
        let namespace = namespace.map_or("agentcube-system", |at| words[at + 1]);
        let objects = objects(words);
        let mut seen = BTreeSet::new();
        for object in &objects {
            let kind = object["kind"].as_str().unwrap();
            assert_eq!(object["metadata"]["labels"][PART_OF], US, "{kind} {}", name(object));
            assert!(seen.insert((kind, name(object))), "{kind} {} is there twice", name(object));
            let everywhere = matches!(
                kind,
                "Namespace"
                    | "CustomResourceDefinition"
                    | "ClusterRole"
                    | "ClusterRoleBinding"
                    | "GatewayClass"
            );
            let expected = if everywhere { Value::Null } else { json!(namespace) };
            assert_eq!(object["metadata"]["namespace"], expected, "{kind} {}", name(object));
        }
        assert_eq!(names(&objects, "Namespace").len(), usize::from(namespace != "default"));
    }
    let text = definitions().unwrap();
    let definitions = manifest::parse("install", &text).unwrap();
    assert_eq!(definitions.len(), 11);
    for definition in definitions {
        assert_eq!(definition.text(&["metadata", "labels", PART_OF]), US);
    }
}

#[test]
fn every_part_is_probed_limited_and_without_privileges() {
    for words in WAYS {
        let objects = objects(words);
        let budgets = of_kind(&objects, "PodDisruptionBudget");
        let policies = of_kind(&objects, "NetworkPolicy");
        let parts = [of_kind(&objects, "Deployment"), of_kind(&objects, "DaemonSet")].concat();
        assert!(parts.len() >= 2);
        for part in parts {
            let (called, pod) = (name(part), &part["spec"]["template"]);
            let labels = &pod["metadata"]["labels"];
            let selects = |selector: &Value| selector["matchLabels"]["app.kubernetes.io/name"] == called;
            assert!(selects(&part["spec"]["selector"]) && labels["app.kubernetes.io/name"] == called);
            assert!(policies.iter().any(|policy| selects(&policy["spec"]["podSelector"])), "{called}");
            let budget = budgets.iter().any(|budget| selects(&budget["spec"]["selector"]));
            assert_eq!(budget, part["kind"] == "Deployment", "{called}");
            let janitor = called == "agentcube-janitor";
            let context = &pod["spec"]["securityContext"];
            assert_eq!(context["runAsNonRoot"], if janitor { Value::Null } else { json!(true) });
            assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault", "{called}");
            for container in list(&pod["spec"]["containers"]) {
                assert_eq!(container["image"], "place/agentcube:1.2", "{called}");
                for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                    assert!(container[probe]["httpGet"]["path"].is_string(), "{called} {probe}");
                }
                for amount in ["/requests/cpu", "/requests/memory", "/limits/memory"] {
                    assert!(container["resources"].pointer(amount).is_some(), "{called} {amount}");
                }
                let context = &container["securityContext"];
                assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{called}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{called}");
                assert_eq!(context["allowPrivilegeEscalation"], false, "{called}");
            }
        }
    }
}

#[test]
fn the_command_of_every_part_is_one() {
    for words in WAYS {
        let objects = objects(words);
        for part in [of_kind(&objects, "Deployment"), of_kind(&objects, "DaemonSet")].concat() {
            for container in list(&part["spec"]["template"]["spec"]["containers"]) {
                let line = list(&container["command"]).iter().chain(list(&container["args"]));
                // What Kubernetes puts in.
                let line = line.map(|word| word.as_str().unwrap().replace("$(POD_IP)", "10.0.0.1"));
                let line: Vec<String> = line.collect();
                let parsed = Cli::try_parse_from(&line).map(drop).map_err(|error| error.to_string());
                assert_eq!(parsed, Ok(()), "{line:?}");
            }
        }
    }
}

#[test]
fn whatever_is_referred_to_is_there() {
    for words in WAYS {
        let objects = objects(words);
        let (accounts, maps) = (names(&objects, "ServiceAccount"), names(&objects, "ConfigMap"));
        for part in [of_kind(&objects, "Deployment"), of_kind(&objects, "DaemonSet")].concat() {
            let spec = &part["spec"]["template"]["spec"];
            assert!(accounts.contains(spec["serviceAccountName"].as_str().unwrap()));
            let volumes: BTreeSet<&str> =
                list(&spec["volumes"]).iter().map(|v| v["name"].as_str().unwrap()).collect();
            for volume in list(&spec["volumes"]) {
                if let Some(map) = volume["configMap"]["name"].as_str() {
                    assert!(maps.contains(map), "{map}");
                }
                if let Some(secret) = volume["secret"]["secretName"].as_str() {
                    assert!(MADE_LATER.contains(&secret), "{secret}");
                }
            }
            for container in list(&spec["containers"]) {
                let mounted: BTreeSet<&str> =
                    list(&container["volumeMounts"]).iter().map(|v| v["name"].as_str().unwrap()).collect();
                assert_eq!(mounted, volumes, "{}", name(part));
            }
        }
        for binding in [of_kind(&objects, "RoleBinding"), of_kind(&objects, "ClusterRoleBinding")].concat() {
            let role = &binding["roleRef"];
            assert!(names(&objects, role["kind"].as_str().unwrap()).contains(role["name"].as_str().unwrap()));
            for subject in list(&binding["subjects"]) {
                assert!(accounts.contains(subject["name"].as_str().unwrap()));
            }
        }
        for service in of_kind(&objects, "Service") {
            let selected = &service["spec"]["selector"]["app.kubernetes.io/name"];
            let part = of_kind(&objects, "Deployment").into_iter().find(|part| name(part) == selected);
            let containers = &part.unwrap()["spec"]["template"]["spec"]["containers"];
            for port in list(&service["spec"]["ports"]) {
                let ports = list(&containers[0]["ports"]);
                assert!(ports.iter().any(|one| one["name"] == port["targetPort"]), "{}", name(service));
            }
        }
    }
}

#[test]
fn no_role_has_a_wildcard_or_more_than_a_role_may_have() {
    for words in WAYS {
        let objects = objects(words);
        for role in [of_kind(&objects, "Role"), of_kind(&objects, "ClusterRole")].concat() {
            for rule in list(&role["rules"]) {
                let text = rule.to_string();
                for word in ["*", "pods/exec", "nodes", "nonResourceURLs"] {
                    assert!(!text.contains(word), "{}: {text}", name(role));
                }
                for verb in ["escalate", "bind", "impersonate"] {
                    assert!(!list(&rule["verbs"]).contains(&json!(verb)), "{}: {text}", name(role));
                }
            }
        }
    }
}

#[test]
fn options_say_what_there_is() {
    let all = objects(WAYS[0]);
    assert_eq!(names(&all, "Deployment").len(), 5);
    assert_eq!(names(&all, "GatewayClass"), ["agentcube-envoy".to_owned()].into());
    let enforced = |objects: &[Value]| {
        let namespace = of_kind(objects, "Namespace")[0];
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"].clone()
    };
    assert_eq!(enforced(&all), "privileged");
    let by_hand = objects(WAYS[2]);
    assert!(names(&by_hand, "GatewayClass").is_empty() && names(&by_hand, "DaemonSet").is_empty());
    assert_eq!(enforced(&by_hand), "restricted");
    let router =
        of_kind(&by_hand, "Deployment").into_iter().find(|part| name(part) == "agentcube-router").unwrap();
    assert_eq!(router["spec"]["replicas"], 7);
    let alone = objects(WAYS[3]);
    assert_eq!(names(&alone, "Deployment").len(), 4);
    assert!(names(&alone, "GatewayClass").is_empty() && names(&alone, "DaemonSet").is_empty());
    assert_eq!(names(&objects(WAYS[5]), "Deployment").len(), 5);
    for wrong in [["--image", ""], ["--namespace", "a b"], ["--gateway-class", "x: y"]] {
        assert!(arguments(&wrong).checked().is_err(), "{wrong:?}");
    }
}

#[test]
fn the_console_has_no_rights_and_no_token_and_is_a_choice() {
    let (all, without) = (objects(WAYS[0]), objects(WAYS[9]));
    let ours = |object: &&Value| name(object) == "agentcube-console";
    assert!(!without.iter().any(|object| ours(&object)) && names(&without, "Deployment").len() == 4);
    for kind in ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"] {
        for object in of_kind(&all, kind) {
            assert!(!object.to_string().contains("agentcube-console"), "{kind} {}", name(object));
        }
    }
    let console = of_kind(&all, "Deployment").into_iter().find(ours).unwrap();
    let (spec, pod) = (&console["spec"], &console["spec"]["template"]["spec"]);
    // Sessions are in its memory.
    assert_eq!((&spec["replicas"], &spec["strategy"]["type"]), (&json!(1), &json!("Recreate")));
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert!(!pod["volumes"].to_string().contains("serviceAccountToken"), "{}", pod["volumes"]);
    let policy = |objects: &[Value]| {
        let found = of_kind(objects, "NetworkPolicy").into_iter().find(ours);
        found.unwrap()["spec"]["ingress"].clone()
    };
    assert_eq!(policy(&all), Value::Null, "nobody is let in");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    std::fs::write(&file, "console: { frontNamespace: front }\n").unwrap();
    let fronted = policy(&objects(&["--image", "a:1", "--values", file.to_str().unwrap()]));
    let from = &fronted[0]["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"];
    assert_eq!(from, "front");
}

#[test]
fn middleware_is_a_choice_and_its_settings_are_looked_at_before_anything_is_applied() {
    let controllers = |objects: &[Value]| {
        let part =
            of_kind(objects, "Deployment").into_iter().find(|part| name(part) == "agentcube-controllers");
        part.unwrap()["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    let of_apps = |objects: &[Value]| {
        of_kind(objects, "ClusterRole").iter().any(|role| role.to_string().contains("middleware.io"))
    };
    let (all, without, one) = (objects(WAYS[0]), objects(WAYS[6]), objects(WAYS[7]));
    assert!(of_apps(&all) && of_apps(&one) && !of_apps(&without));
    assert!(
        controllers(&without).contains("--no-middleware") && !controllers(&all).contains("--no-middleware")
    );
    assert!(controllers(&one).contains("--watch-namespace=team"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    let told = |text: &str| {
        std::fs::write(&file, text).unwrap();
        arguments(&["--values", file.to_str().unwrap()]).checked().map_err(|error| error.to_string())
    };
    let settings =
        "middleware: { config: { controllers: { group: { rollingUpdate: { batchSize: 2 } } } } }\n";
    assert_eq!(
        told(settings).unwrap()["middleware"]["config"]["controllers"]["group"]["rollingUpdate"]["batchSize"],
        2
    );
    let error = told("middleware: { config: { controllers: { group: { worker: 2 } } } }\n").unwrap_err();
    assert!(error.contains("middleware.config") && error.contains("worker"), "{error}");
}

#[test]
fn what_is_closed_to_sandboxes_is_told_to_the_fast_path() {
    let closed = |words: &[&str]| {
        let objects = objects(words);
        let mut parts = of_kind(&objects, "Deployment").into_iter();
        let part = parts.find(|part| name(part) == "agentcube-fastpath").unwrap();
        let args = list(&part["spec"]["template"]["spec"]["containers"][0]["args"]).to_vec();
        args.into_iter().find(|word| word.as_str().unwrap().starts_with("--agent-closed-to"))
    };
    assert_eq!(closed(WAYS[0]), None);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    std::fs::write(&file, "fastpath: { closedTo: \"10.96.0.0/12,10.1.0.0/16\" }\n").unwrap();
    let told = closed(&["--image", "a:1", "--values", file.to_str().unwrap()]);
    assert_eq!(told, Some(json!("--agent-closed-to=10.96.0.0/12,10.1.0.0/16")));
}

#[test]
fn front_ends_are_a_choice() {
    let (all, without) = (objects(WAYS[0]), objects(WAYS[8]));
    let mentions = |objects: &[Value]| json!(objects).to_string().contains("frontend-forge.io");
    assert!(mentions(&all) && names(&all, "Service").contains("agentcube-build-service"));
    assert!(!mentions(&without) && !names(&without, "Deployment").contains("agentcube-build-service"));
    assert!(json!(without).to_string().contains("--no-forge"));
}

#[test]
fn values_of_a_file_count_less_than_options() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    std::fs::write(&file, "router: { replicas: 4 }\nimage: mine:1\nmetrics: { namespace: seen }\n").unwrap();
    let values = arguments(&["--values", file.to_str().unwrap(), "--replicas", "5"]).values().unwrap();
    assert_eq!((&values["router"]["replicas"], &values["image"]), (&json!(5), &json!("mine:1")));
    assert_eq!(values["metrics"]["namespace"], "seen");
    std::fs::write(&file, "router: { replica: 4 }\n").unwrap();
    let error = arguments(&["--values", file.to_str().unwrap()]).values().unwrap_err().to_string();
    assert!(error.contains("router.replica") && error.contains("values.yaml"), "{error}");
}

#[test]
fn the_schema_knows_every_value_and_no_other() {
    let schema = schema::root().unwrap();
    let values = chart::default_values().unwrap();
    schema::check(&values).unwrap();
    // What Helm adds by itself is the one name that the values do not have.
    fn known(schema: &Value, values: &Value) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            if name != "global" {
                known(schema, values.get(name).unwrap_or_else(|| panic!("{name} is not in values.yaml")));
            }
        }
    }
    known(&schema, &values);
    for (wrong, told) in [
        (
            json!({ "envoyGateway": { "mode": "patches" } }),
            r#"envoyGateway.mode is "patches", and has to be one of"#,
        ),
        (json!({ "router": { "replica": 1 } }), "there is no value router.replica"),
        (json!({ "router": { "replicas": "1" } }), "of the type integer"),
        (json!({ "router": { "replicas": 0 } }), "router.replicas is 0, and has to be at least 1"),
        (json!({ "router": { "replicas": 101 } }), "at most 100"),
        (json!({ "metrics": { "namespace": "A_b" } }), "metrics.namespace"),
        (json!({ "metrics": { "namespace": "n".repeat(64) } }), "at most 63 characters long"),
        (json!({ "image": "" }), "image is"),
        (json!({ "janitor": { "containerd": "run/containerd.sock" } }), "of the form ^/"),
        (json!({ "fastpath": { "closedTo": "10.96.0.0/12;10.1.0.0/16" } }), "fastpath.closedTo"),
        (
            json!({ "controllers": { "resources": { "request": {} } } }),
            "no value controllers.resources.request",
        ),
    ] {
        let error = schema::check(&wrong).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_file_of_values_is_held_to_the_schema() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    let checked = |text: &str| {
        std::fs::write(&file, text).unwrap();
        arguments(&["--image", "a:1", "--values", file.to_str().unwrap()]).checked()
    };
    checked("router: { replicas: 4 }").unwrap();
    let error = checked("router: { replicas: 0 }").unwrap_err();
    assert!(error.is::<Usage>() && error.to_string().contains("router.replicas is 0"), "{error}");
}

#[test]
fn the_chart_has_these_templates_and_this_version() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart/agentcube");
    let found: BTreeSet<String> = std::fs::read_dir(root.join("templates"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "NOTES.txt")
        .collect();
    let known = chart::TEMPLATES.iter().map(|(name, _)| format!("{name}.yaml")).collect();
    assert_eq!(found, known);
    let chart = std::fs::read_to_string(root.join("Chart.yaml")).unwrap();
    let chart: Value = serde_saphyr::from_str(&chart).unwrap();
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (&json!(env!("CARGO_PKG_VERSION")), &chart["version"])
    );
    let values = chart::default_values().unwrap();
    assert_eq!(values["image"], format!("agentcube:{}", env!("CARGO_PKG_VERSION")));
    let definitions = std::fs::read_dir(root.join("crds")).unwrap().count();
    assert_eq!(definitions, up::definitions::DEFINITIONS.lines().count());
}
