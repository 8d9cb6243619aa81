//! The tokens that routers sign.

use agentcube_instance::token::{MASTER_SECRET, ensure_master_keys};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::world::{SYSTEM, World, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_is_used_as_soon_as_it_is_current() {
    let world = World::new().await;
    let task = world.task("agent", json!({})).await;
    ensure_master_keys(world.client.clone(), SYSTEM).await.unwrap();
    let router = world.router("a").await;
    let signed_with = async || {
        let token = router.reserve(&task, "user-1").await.unwrap().token;
        token.reveal().split('.').nth(1).map(str::to_owned)
    };
    assert_eq!(signed_with().await.as_deref(), Some("k1"));
    let secrets: Api<Secret> = Api::namespaced(world.client.clone(), SYSTEM);
    let change = async |data| {
        let patch = Patch::Merge(json!({ "stringData": data }));
        secrets.patch(MASTER_SECRET, &PatchParams::default(), &patch).await.unwrap();
    };
    change(json!({ "k2.key": "0123456789abcdef0123456789abcdef", "current": "k2" })).await;
    until("the new key is used", async || (signed_with().await.as_deref() == Some("k2")).then_some(())).await;
    // What cannot be read changes nothing.
    change(json!({ "current": "k9" })).await;
    change(json!({ "k3.key": "abcdef0123456789abcdef0123456789" })).await;
    assert_eq!(signed_with().await.as_deref(), Some("k2"));
    change(json!({ "current": "k3" })).await;
    until("the mended Secret is read", async || (signed_with().await.as_deref() == Some("k3")).then_some(()))
        .await;
}
