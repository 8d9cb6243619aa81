//! What an App leaves for others to read: a ConfigMap that says what it is made of, and a Secret to connect with. And who
//! may reach its Pods.

use std::collections::BTreeMap;

use agentcube_api::App;
use agentcube_api::labels::{MIDDLEWARE_APP, MIDDLEWARE_PLUGIN};
use agentcube_api::middleware::PluginSpec;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::json;

use crate::app::plan::component_name;
use crate::component::plan::group_name;
use crate::core::{Core, Error, is_code, owner};
use crate::remote::{PROCESSES_PORT, TOOLS_PORT};

fn metadata(app: &App, suffix: &str) -> ObjectMeta {
    let labels = BTreeMap::from([
        (MIDDLEWARE_APP.to_owned(), app.name_any()),
        (MIDDLEWARE_PLUGIN.to_owned(), app.spec.plugin.name.clone()),
        ("app.kubernetes.io/managed-by".to_owned(), "agentcube".to_owned()),
    ]);
    ObjectMeta {
        name: Some(format!("{}-{suffix}", app.name_any())),
        namespace: app.namespace(),
        labels: Some(labels),
        owner_references: owner(app).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// The name of the Group that serves clients, as the plugin says; none if the App has no such component.
pub(crate) fn serving_group(app: &App, plugin: &PluginSpec) -> Option<String> {
    let connection = plugin.connection.as_ref()?;
    let component = app.spec.components.iter().find(|component| component.name == connection.component)?;
    let group = match &connection.group {
        Some(name) => component.groups.iter().find(|group| group.name == *name)?,
        None => component.groups.first()?,
    };
    Some(group_name(&component_name(&app.name_any(), &component.name), &group.name))
}

/// Host, port and user of it.
fn address(app: &App, plugin: &PluginSpec) -> Option<(String, String, String)> {
    let (connection, group) = (plugin.connection.as_ref()?, serving_group(app, plugin)?);
    let suffix = connection.service_suffix.as_deref().unwrap_or("-primary");
    let host = format!("{group}{suffix}.{}.svc", app.namespace().unwrap_or_default());
    Some((host, connection.port.to_string(), connection.user.clone().unwrap_or_default()))
}

/// Keeps everything that Pods and clients may need to begin.
pub(crate) async fn ensure(core: &Core, app: &App, plugin: &PluginSpec) -> Result<(), Error> {
    ensure_agent_secret(core, app).await?;
    ensure_connection(core, app, plugin).await?;
    ensure_policy(core, app).await?;
    ensure_metadata(core, app).await
}

/// Keeps the Secret `<app>-connection`. Its password is made once and never changed.
async fn ensure_connection(core: &Core, app: &App, plugin: &PluginSpec) -> Result<(), Error> {
    let Some((host, port, user)) = address(app, plugin) else { return Ok(()) };
    let namespace = app.namespace().unwrap_or_default();
    let metadata = metadata(app, "connection");
    let name = metadata.name.clone().unwrap_or_default();
    let current = match core.caches.secrets.get(&namespace, &name) {
        Some(current) => Some((*current).clone()),
        // Another password would lock everybody out: nobody guesses here.
        None => {
            let found = core.api::<Secret>(&namespace).get_opt(&name).await;
            found.map_err(|error| Error::from(error).about::<Secret>(&name))?
        }
    };
    let kept = current.as_ref().and_then(|secret| secret.data.as_ref()?.get("password").cloned());
    let password = match kept.filter(|kept| !kept.0.is_empty()) {
        Some(kept) => kept,
        None => new_password()?,
    };
    let text = |text: String| ByteString(text.into_bytes());
    let data = BTreeMap::from([
        ("host".to_owned(), text(host)),
        ("port".to_owned(), text(port)),
        ("user".to_owned(), text(user)),
        ("password".to_owned(), password),
    ]);
    let desired = Secret { metadata, data: Some(data), type_: Some("Opaque".into()), ..Secret::default() };
    if current.is_none() {
        return create(core, &namespace, &desired).await;
    }
    core.ensure(&core.caches.secrets, &desired).await
}

/// Name of the Secret with the token of an App's agents. It is not for clients.
pub(crate) fn agent_secret(app: &str) -> String {
    format!("{app}-agent")
}

/// Makes the Secret `<app>-agent`, if there is none. Its token is never changed.
async fn ensure_agent_secret(core: &Core, app: &App) -> Result<(), Error> {
    let namespace = app.namespace().unwrap_or_default();
    if core.caches.secrets.get(&namespace, &agent_secret(&app.name_any())).is_some() {
        return Ok(());
    }
    let data = BTreeMap::from([("token".to_owned(), new_password()?)]);
    let secret = Secret {
        metadata: metadata(app, "agent"),
        data: Some(data),
        type_: Some("Opaque".into()),
        ..Secret::default()
    };
    create(core, &namespace, &secret).await
}

/// Creates a Secret where there is none: if another made one meanwhile, that counts.
async fn create(core: &Core, namespace: &str, secret: &Secret) -> Result<(), Error> {
    match core.api::<Secret>(namespace).create(&kube::api::PostParams::default(), secret).await {
        Ok(created) => {
            core.caches.secrets.put(created);
            Ok(())
        }
        Err(error) if is_code(&error, 409) => Ok(()),
        Err(error) => Err(Error::from(error).about::<Secret>(&secret.name_any())),
    }
}

fn new_password() -> Result<ByteString, Error> {
    let mut bytes = [0u8; 24];
    let failed = |_| Error::Agent("the system has no random numbers".into());
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(ByteString(bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()))
}

/// Keeps the NetworkPolicy `<app>-agents`, where there are such: only who is named may connect to agents, and only Pods of the
/// namespace to everything else. A policy of the user's own lets in others.
async fn ensure_policy(core: &Core, app: &App) -> Result<(), Error> {
    let Some(peers) = &core.options.agent_peers else { return Ok(()) };
    core.ensure(&core.caches.policies, &policy(app, peers)).await
}

fn policy(app: &App, peers: &[NetworkPolicyPeer]) -> NetworkPolicy {
    let ports = |protocol: &str, first: u16, last: u16| NetworkPolicyPort {
        protocol: Some(protocol.into()),
        port: Some(IntOrString::Int(first.into())),
        end_port: (last > first).then(|| last.into()),
    };
    let neighbours =
        NetworkPolicyPeer { pod_selector: Some(LabelSelector::default()), ..NetworkPolicyPeer::default() };
    let others = NetworkPolicyIngressRule {
        from: Some(vec![neighbours]),
        ports: Some(vec![
            ports("TCP", 1, PROCESSES_PORT - 1),
            ports("TCP", TOOLS_PORT + 1, u16::MAX),
            ports("UDP", 1, u16::MAX),
        ]),
    };
    // Nobody asks the process manager from outside of its Pod.
    let agents = NetworkPolicyIngressRule {
        from: Some(peers.to_vec()),
        ports: Some(vec![ports("TCP", TOOLS_PORT, TOOLS_PORT)]),
    };
    let selected = BTreeMap::from([(MIDDLEWARE_APP.to_owned(), app.name_any())]);
    NetworkPolicy {
        metadata: metadata(app, "agents"),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(selected), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(if peers.is_empty() { vec![others] } else { vec![others, agents] }),
            ..NetworkPolicySpec::default()
        }),
    }
}

/// Keeps the ConfigMap `<app>-metadata`.
pub(crate) async fn ensure_metadata(core: &Core, app: &App) -> Result<(), Error> {
    let namespace = app.namespace().unwrap_or_default();
    let Some(app) = core.caches.apps.get(&namespace, &app.name_any()) else { return Ok(()) };
    let status = app.status.clone().unwrap_or_default();
    let of_component = |component: &agentcube_api::middleware::app::AppComponent| {
        let name = component_name(&app.name_any(), &component.name);
        let groups = component.groups.iter().map(|group| {
            let object = core.caches.groups.get(&namespace, &group_name(&name, &group.name));
            let status = object.as_ref().and_then(|object| object.status.clone()).unwrap_or_default();
            let pods = status
                .pods
                .iter()
                .map(|pod| json!({ "name": pod.name, "role": pod.role, "leader": pod.leader }));
            json!({ "name": group.name, "version": status.current_version, "pods": pods.collect::<Vec<_>>() })
        });
        json!({ "name": component.name, "groups": groups.collect::<Vec<_>>() })
    };
    let said = json!({
        "plugin": app.spec.plugin,
        "runtime": app.spec.runtime,
        "phase": status.phase,
        "generation": status.last_completed_generation,
        "components": app.spec.components.iter().map(of_component).collect::<Vec<_>>(),
    });
    let data = BTreeMap::from([("app.json".to_owned(), said.to_string())]);
    let desired =
        ConfigMap { metadata: metadata(&app, "metadata"), data: Some(data), ..ConfigMap::default() };
    core.ensure(&core.caches.config_maps, &desired).await
}
