//! The operator's keys over the embedded API server: made once, however many make them.

use agentcube_apiserver::Server;
use agentcube_apiserver::faults::Plan;
use agentcube_instance::token::{Claims, Keys, MASTER_SECRET, Nonce, StoreError, ensure_master_keys};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// Whether one's tokens are the other's.
fn same(a: &Keys, b: &Keys) -> bool {
    let expires = Timestamp::now() + SignedDuration::from_secs(60);
    let claims = Claims { instance: "i".into(), key: None, expires };
    let token = a.for_task("t").sign(&claims, Nonce::random());
    b.for_task("t").verify(token.reveal(), Timestamp::now()).is_ok()
}

#[tokio::test]
async fn all_who_make_keys_at_once_get_the_same() {
    let server = Server::builder().memory().embed().await.expect("a server starts");
    let client = Client::new(server.front(), "default");
    // Some are told that it failed although it was done.
    server.api().faults().set(Plan { seed: 3, lost_reply: 0.5, ..Plan::default() });
    let makers = (0..8).map(|_| ensure_master_keys(client.clone(), "default"));
    let all = futures_util::future::join_all(makers).await;
    server.api().faults().clear();
    let all: Vec<Keys> = all.into_iter().collect::<Result<_, _>>().expect("every one gets keys");
    assert!(all.iter().all(|keys| same(keys, &all[0])));
    assert!(same(&all[0], &ensure_master_keys(client, "default").await.unwrap()));
    assert!(!same(&all[0], &Keys::generate(agentcube_instance::token::KeyId::new("k1").unwrap())));
}

#[tokio::test]
async fn a_spoilt_secret_is_told_and_left_alone() {
    let server = Server::builder().memory().embed().await.expect("a server starts");
    let client = Client::new(server.front(), "default");
    ensure_master_keys(client.clone(), "default").await.unwrap();
    let api: Api<Secret> = Api::namespaced(client.clone(), "default");
    let change = Patch::Merge(json!({ "data": { "current": "bm9uZQ==" } }));
    let spoilt = api.patch(MASTER_SECRET, &PatchParams::default(), &change).await.unwrap();
    let error = ensure_master_keys(client.clone(), "default").await.unwrap_err();
    assert!(matches!(error, StoreError::Spoilt { .. }), "{error}");
    assert!(
        error.to_string().contains("default/agentcube-token-keys") && error.to_string().contains("none.key")
    );
    assert_eq!(api.get(MASTER_SECRET).await.unwrap(), spoilt);
    let error = ensure_master_keys(client, "nowhere").await.unwrap_err();
    assert!(matches!(error, StoreError::Request { .. }), "{error}");
}
