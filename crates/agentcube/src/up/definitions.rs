//! Installs the CustomResourceDefinitions of AgentCube's own kinds, built into the program as they are generated, and
//! those of the Gateway API, unless somebody has installed those. What is there already, and is the same, costs one
//! read.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::future::try_join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;
use serde_json::{Value, json};

const GATEWAY_API: &str = "gateway.networking.k8s.io";
const FIELD_MANAGER: &str = "agentcube-up";
/// Which text a definition was made from.
const SOURCE: &str = "agentcube.io/definition-source";
const ESTABLISH_LIMIT: Duration = Duration::from_secs(20);

/// The files of deploy/crds, each as one line of JSON: YAML takes many times as long to read, at every first start.
pub(crate) const DEFINITIONS: &str = include_str!("definitions.jsonl");

/// Installs what is missing or differs, and waits until all are served.
pub(super) async fn install(client: &kube::Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let present = api.list_metadata(&ListParams::default()).await?.items;
    let own = DEFINITIONS.lines().map(Cow::Borrowed);
    let of_gateways = gateway_definitions(&present)?.into_iter().map(Cow::Owned);
    let missing = own.chain(of_gateways).filter(|text| !is_installed(&present, text));
    // Each on a task of its own: there may be more than one core.
    let installing = missing.map(|text| tokio::spawn(apply(client.clone(), text)));
    for installed in try_join_all(installing).await? {
        let name = installed?;
        let established = tokio::time::timeout(ESTABLISH_LIMIT, until_established(&api, &name)).await;
        established
            .with_context(|| format!("{name} is not served after {} s", ESTABLISH_LIMIT.as_secs()))??;
    }
    Ok(())
}

/// Those of the Gateway API that nobody else has installed. The policies of Envoy Gateway mean nothing where there is
/// none.
fn gateway_definitions(
    present: &[PartialObjectMeta<CustomResourceDefinition>],
) -> anyhow::Result<Vec<String>> {
    let mut texts = Vec::new();
    for definition in agentcube_task::definitions() {
        if definition.spec.group != GATEWAY_API {
            continue;
        }
        let theirs = present.iter().any(|one| {
            let ours =
                one.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(SOURCE));
            one.metadata.name == definition.metadata.name && !ours
        });
        if !theirs {
            texts.push(serde_json::to_string(&definition)?);
        }
    }
    Ok(texts)
}

fn is_installed(present: &[PartialObjectMeta<CustomResourceDefinition>], text: &str) -> bool {
    let fingerprint = fingerprint(text);
    present.iter().any(|definition| {
        let annotations = definition.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(SOURCE)) == Some(&fingerprint)
    })
}

/// Another release of the compiler may count differently; then the definition is applied once more.
fn fingerprint(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

async fn apply(client: kube::Client, text: Cow<'static, str>) -> anyhow::Result<String> {
    let mut definition: Value = serde_json::from_str(&text).context("a definition is not JSON")?;
    let Some(name) = definition["metadata"]["name"].as_str().map(str::to_owned) else {
        bail!("a definition has no name")
    };
    definition["metadata"]["annotations"][SOURCE] = json!(fingerprint(&text));
    let path = format!(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager={FIELD_MANAGER}&force=true"
    );
    let request = http::Request::patch(path)
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(serde_json::to_vec(&definition)?)?;
    client.request::<Value>(request).await.with_context(|| name.clone())?;
    Ok(name)
}

async fn until_established(api: &Api<CustomResourceDefinition>, name: &str) -> anyhow::Result<()> {
    loop {
        let definition = api.get(name).await?;
        let conditions = definition.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True") {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[cfg(test)]
mod tests {
    use agentcube_apiserver::Server;

    use super::*;

    #[tokio::test]
    async fn installs_once_and_again_only_what_differs() {
        let server = Server::builder().memory().embed().await.unwrap();
        let client = kube::Client::new(server.front(), "default");
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let versions = || async {
            let list = api.list(&ListParams::default()).await.unwrap().items;
            let versions = list.into_iter().map(|d| (d.metadata.name, d.metadata.generation));
            versions.collect::<Vec<_>>()
        };
        install(&client).await.unwrap();
        let first = versions().await;
        assert_eq!(first.len(), 15);
        let tasks: Value = client
            .request(http::Request::get("/apis/agentcube.io/v1alpha1/tasks").body(Vec::new()).unwrap())
            .await
            .unwrap_or_else(|error| panic!("tasks are served: {error}"));
        assert_eq!(tasks["items"], json!([]));
        install(&client).await.unwrap();
        assert_eq!(versions().await, first);
        let changed =
            json!({"metadata": {"annotations": {SOURCE: "older"}}, "spec": {"preserveUnknownFields": false}});
        let patch = kube::api::Patch::Merge(changed);
        api.patch("tasks.agentcube.io", &Default::default(), &patch).await.unwrap();
        install(&client).await.unwrap();
        let tasks = api.get("tasks.agentcube.io").await.unwrap();
        assert_ne!(tasks.metadata.annotations.unwrap()[SOURCE], "older");
        server.shutdown().await;
    }

    #[tokio::test]
    async fn the_definitions_of_others_are_left_alone() {
        let server = Server::builder().memory().embed().await.unwrap();
        let client = kube::Client::new(server.front(), "default");
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let mut theirs = agentcube_task::definitions().remove(0);
        theirs.spec.names.short_names = Some(vec!["theirs".into()]);
        let theirs = api.create(&Default::default(), &theirs).await.unwrap();
        install(&client).await.unwrap();
        let after = api.get(theirs.metadata.name.as_deref().unwrap()).await.unwrap();
        assert_eq!(after.metadata.generation, theirs.metadata.generation);
        assert_eq!(after.spec.names.short_names, Some(vec!["theirs".to_owned()]));
        server.shutdown().await;
    }
}
