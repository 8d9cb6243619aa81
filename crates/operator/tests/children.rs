//! Children over the embedded API server: made, left alone, mended, and never taken from others.

use agentcube_apiserver::Server;
use agentcube_operator::children::{self, Ensured, Error};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

const MANAGER: &str = "agentcube-test";

async fn server() -> (Server, Client) {
    let server = Server::builder().memory().embed().await.expect("a server in memory starts");
    let client = Client::new(server.front(), "default");
    (server, client)
}

/// An owner that exists: what belongs to nobody is collected.
async fn owner(client: &Client, name: &str) -> Value {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let object =
        serde_json::from_value(json!({ "metadata": { "name": name } })).expect("this is a ConfigMap");
    let uid = api.create(&PostParams::default(), &object).await.expect("it can be created").uid();
    json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "controller": true }])
}

fn config_map(owner: &Value, data: Value) -> ConfigMap {
    let metadata = json!({ "name": "child", "ownerReferences": owner });
    serde_json::from_value(json!({ "metadata": metadata, "data": data })).expect("this is a ConfigMap")
}

/// A policy whose rules count as one value to the server, and to which it adds defaults.
fn policy(owner: &Value, ports: Value) -> NetworkPolicy {
    let object = json!({
        "metadata": { "name": "child", "ownerReferences": owner },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "ports": ports }] },
    });
    serde_json::from_value(object).expect("this is a NetworkPolicy")
}

#[tokio::test]
async fn a_child_is_made_kept_updated_mended_and_made_again() {
    let (_server, client) = server().await;
    let owner = owner(&client, "owner").await;
    let api: Api<NetworkPolicy> = Api::namespaced(client, "default");
    let desired = policy(&owner, json!([{ "port": 80 }, { "port": 81 }]));
    let Ensured::Created(child) = children::ensure(&api, MANAGER, &desired, None).await.unwrap() else {
        panic!("it did not exist")
    };
    let defaulted = serde_json::to_value(&child).unwrap();
    assert_eq!(defaulted["spec"]["ingress"][0]["ports"][0]["protocol"], "TCP", "the server sets defaults");
    // Nothing is written when nothing is wrong; a cache that is behind changes nothing.
    for known in [Some(&child), None] {
        assert_eq!(children::ensure(&api, MANAGER, &desired, known).await.unwrap(), Ensured::Same);
    }
    // Fewer ports, in a list that the server does not merge.
    let fewer = policy(&owner, json!([{ "port": 80 }]));
    let Ensured::Updated(child) = children::ensure(&api, MANAGER, &fewer, Some(&child)).await.unwrap() else {
        panic!("something else is wanted")
    };
    assert_eq!(children::ensure(&api, MANAGER, &fewer, Some(&child)).await.unwrap(), Ensured::Same);

    // Somebody opens the policy, by saying more than we do.
    let mut edited = serde_json::to_value(&child).unwrap();
    edited["spec"]["ingress"][0]["ports"][0]["endPort"] = 99.into();
    let edited = serde_json::from_value(edited).unwrap();
    let edited = api.replace("child", &PostParams::default(), &edited).await.unwrap();
    let repaired = children::ensure(&api, MANAGER, &fewer, Some(&edited)).await.unwrap();
    let Ensured::Repaired { object, at } = repaired else { panic!("{repaired:?}") };
    assert_eq!(at, "/spec/ingress");
    let mended = serde_json::to_value(&object).unwrap();
    assert_eq!(mended["spec"]["ingress"][0]["ports"], json!([{ "port": 80, "protocol": "TCP" }]));

    api.delete("child", &DeleteParams::default()).await.unwrap();
    let again = children::ensure(&api, MANAGER, &fewer, None).await.unwrap();
    assert_ne!(again.written().unwrap().uid(), child.uid());
}

#[tokio::test]
async fn a_field_that_is_no_longer_wanted_goes_and_those_of_others_stay() {
    let (_server, client) = server().await;
    let owner = owner(&client, "owner").await;
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let desired = config_map(&owner, json!({ "a": "1", "b": "2" }));
    let made = children::ensure(&api, MANAGER, &desired, None).await.unwrap();
    let change = json!({ "data": { "theirs": "3" }, "metadata": { "labels": { "team": "x" } } });
    let child = api.patch("child", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    assert_ne!(Some(&child), made.written());
    assert_eq!(children::ensure(&api, MANAGER, &desired, Some(&child)).await.unwrap(), Ensured::Same);
    let desired = config_map(&owner, json!({ "a": "1" }));
    let updated = children::ensure(&api, MANAGER, &desired, Some(&child)).await.unwrap();
    let data = updated.written().unwrap().data.clone().unwrap();
    assert_eq!(
        data.into_iter().collect::<Vec<_>>(),
        [("a".into(), "1".into()), ("theirs".into(), "3".into())]
    );
}

#[tokio::test]
async fn an_object_of_somebody_else_is_never_touched() {
    let (_server, client) = server().await;
    let (owner, other) = (owner(&client, "owner").await, owner(&client, "other").await);
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let foreign = [config_map(&other, json!({ "a": "theirs" })), {
        let mut by_hand = config_map(&other, json!({ "a": "theirs" }));
        by_hand.metadata.owner_references = None;
        by_hand
    }];
    for object in foreign {
        let before = api.create(&PostParams::default(), &object).await.unwrap();
        let desired = config_map(&owner, json!({ "a": "ours" }));
        for known in [Some(&before), None] {
            let error = children::ensure(&api, MANAGER, &desired, known).await.unwrap_err();
            assert!(matches!(error, Error::Foreign { .. }), "{error}");
            assert!(error.is_refusal() && error.to_string().contains("ConfigMap child exists"), "{error}");
        }
        assert_eq!(api.get("child").await.unwrap(), before);
        api.delete("child", &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn an_old_view_does_not_overwrite_what_took_the_name() {
    let (_server, client) = server().await;
    let (owner, other) = (owner(&client, "owner").await, owner(&client, "other").await);
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let desired = config_map(&owner, json!({ "a": "1" }));
    let made = children::ensure(&api, MANAGER, &desired, None).await.unwrap();
    let old = made.written().unwrap().clone();
    api.delete("child", &DeleteParams::default()).await.unwrap();
    let mut theirs = config_map(&other, json!({ "a": "theirs" }));
    theirs.metadata.owner_references = None;
    api.create(&PostParams::default(), &theirs).await.unwrap();
    let changed = config_map(&owner, json!({ "a": "2" }));
    let error = children::ensure(&api, MANAGER, &changed, Some(&old)).await.unwrap_err();
    assert!(matches!(&error, Error::Replaced { .. }) && !error.is_refusal(), "{error}");
    assert_eq!(api.get("child").await.unwrap().data.unwrap()["a"], "theirs");
}

#[tokio::test]
async fn what_the_server_refuses_is_told_apart_from_what_may_work_later() {
    let (_server, client) = server().await;
    let owner = owner(&client, "owner").await;
    let api: Api<NetworkPolicy> = Api::namespaced(client, "default");
    let error =
        children::ensure(&api, MANAGER, &policy(&owner, json!([{ "port": 99999 }])), None).await.unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("NetworkPolicy child"), "{error}");
    let mut nobody = policy(&owner, json!([]));
    nobody.metadata.owner_references = None;
    let error = children::ensure(&api, MANAGER, &nobody, None).await.unwrap_err();
    assert!(error.to_string().contains("controller: true"), "{error}");
}

#[tokio::test]
async fn what_others_add_goes_where_nobody_else_may_write() {
    let (_server, client) = server().await;
    let owner = owner(&client, "owner").await;
    let api: Api<NetworkPolicy> = Api::namespaced(client, "default");
    let desired = policy(&owner, json!([{ "port": 80 }]));
    let ensure = async |current: Option<&NetworkPolicy>| {
        children::ensure_alone(&api, MANAGER, &desired, current, &["spec"]).await.unwrap()
    };
    let Ensured::Created(child) = ensure(None).await else { panic!("it did not exist") };
    assert_eq!(ensure(Some(&child)).await, Ensured::Same);
    // Beside the spec others may write.
    let note = json!({ "metadata": { "annotations": { "note": "theirs" } } });
    let noted = api.patch("child", &PatchParams::default(), &Patch::Merge(note)).await.unwrap();
    assert_eq!(ensure(Some(&noted)).await, Ensured::Same);

    let hole = json!({ "spec": { "egress": [{}] } });
    let holed = api.patch("child", &PatchParams::default(), &Patch::Merge(hole)).await.unwrap();
    assert_eq!(children::ensure(&api, MANAGER, &desired, Some(&holed)).await.unwrap(), Ensured::Same);
    let Ensured::Repaired { object, at } = ensure(Some(&holed)).await else { panic!("it was changed") };
    assert_eq!((at.as_str(), object.spec.as_ref().unwrap().egress.as_ref()), ("/spec", None));
    assert_eq!(object.annotations()["note"], "theirs");
    for known in [Some(&object), None] {
        assert_eq!(ensure(known).await, Ensured::Same);
    }
    // Under another owner it is left alone, whoever wrote it.
    let mut other = owner.clone();
    other[0]["uid"] = "somebody-else".into();
    let foreign = policy(&other, json!([{ "port": 80 }]));
    let refused = children::ensure_alone(&api, MANAGER, &foreign, Some(&holed), &["spec"]).await;
    assert!(matches!(refused, Err(Error::Foreign { .. })), "{refused:?}");
}
