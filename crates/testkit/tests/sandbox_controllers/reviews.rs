//! Who may do what on the fast path, by the word of a kube-apiserver: ServiceAccounts, their tokens, and a Role in one
//! namespace.

use agentcube_api::sandbox::SandboxPhase;
use agentcube_protos::fastpath::{ConsistencyMode, CreateRequest, ExecRequest, ListRequest};
use agentcube_protos::session::ExecStart;
use futures_util::stream;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::stage::{NAMESPACE, Stage, ask_as, until, unwanted, wanted};

const OTHER: &str = "others";

pub(crate) async fn an_account_gets_as_far_as_its_role() {
    let stage = Stage::open(1).await.reviewing();
    let (worker, guest) = accounts(&stage.client).await;
    let mut controller = stage.start().await;
    let fastpath = &mut controller.fastpath;
    let strong = CreateRequest { consistency_mode: ConsistencyMode::Strong.into(), ..wanted("strong") };
    for request in [wanted("fast"), strong] {
        let name = request.name.clone();
        fastpath.create_sandbox(ask_as(&worker, request)).await.unwrap();
        let made = stage.until_phase(&name, SandboxPhase::Running).await;
        let by = made.annotations().get("sandbox.fast.io/created-by").map(String::as_str);
        assert_eq!(by, Some(user("worker").as_str()), "{name}");
    }
    let elsewhere = || CreateRequest { namespace: OTHER.into(), ..wanted("elsewhere") };
    for (token, request) in [(&worker, elsewhere()), (&guest, elsewhere()), (&guest, wanted("refused"))] {
        let namespace = request.namespace.clone();
        let refused = fastpath.create_sandbox(ask_as(token, request)).await.unwrap_err();
        let words = format!("may not create sandboxes.sandbox.fast.io in namespace {namespace}");
        denied(&refused, &words);
    }
    // What the Role does not name is refused where the rest is allowed.
    let list = ListRequest { namespace: NAMESPACE.into(), ..ListRequest::default() };
    let refused = fastpath.list_sandboxes(ask_as(&worker, list)).await.unwrap_err();
    denied(&refused, "may not list sandboxes.sandbox.fast.io");
    let start = Some(ExecStart { command: vec!["id".into()], ..ExecStart::default() });
    let command = ExecRequest { sandbox_id: "fast".into(), namespace: NAMESPACE.into(), start, input: None };
    let refused = fastpath.exec(ask_as(&worker, stream::iter([command]))).await.unwrap_err();
    denied(&refused, "may not create sandboxes.sandbox.fast.io/exec");
    let refused = fastpath.delete_sandbox(ask_as(&guest, unwanted("fast"))).await.unwrap_err();
    denied(&refused, "may not delete");
    let forged = format!("{worker}x");
    let unknown = fastpath.create_sandbox(ask_as(&forged, wanted("forged"))).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unauthenticated, "{unknown}");
    let others = Api::<agentcube_api::Sandbox>::namespaced(stage.client.clone(), OTHER);
    assert!(others.list(&ListParams::default()).await.unwrap().items.is_empty());
    assert_eq!((stage.objects().await.len(), stage.agents.book.begun()), (2, 2));
    for name in ["fast", "strong"] {
        fastpath.delete_sandbox(ask_as(&worker, unwanted(name))).await.unwrap();
        stage.until_gone(name).await;
    }
    stage.until_at_rest(&controller).await;
    controller.stop().await;
}

fn denied(status: &Status, words: &str) {
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(status.message().contains(words), "{status}");
}

fn user(account: &str) -> String {
    format!("system:serviceaccount:{NAMESPACE}:{account}")
}

/// The tokens of one that may create and delete sandboxes in one namespace, and of one that may nothing.
async fn accounts(client: &Client) -> (String, String) {
    let namespace = json!({ "metadata": { "name": OTHER } });
    make::<Namespace>(&Api::all(client.clone()), namespace).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    for name in ["worker", "guest"] {
        make(&accounts, json!({ "metadata": { "name": name } })).await;
    }
    let rule = json!({ "apiGroups": ["sandbox.fast.io"], "resources": ["sandboxes"], "verbs": ["create", "delete"] });
    let role = json!({ "metadata": { "name": "worker" }, "rules": [rule] });
    make::<Role>(&Api::namespaced(client.clone(), NAMESPACE), role).await;
    let binding = json!({
        "metadata": { "name": "worker" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "worker" },
        "subjects": [{ "kind": "ServiceAccount", "name": "worker", "namespace": NAMESPACE }],
    });
    make::<RoleBinding>(&Api::namespaced(client.clone(), NAMESPACE), binding).await;
    // A server learns of rights a little later than they are written.
    until("the account has its rights", async || may_delete(client).await.then_some(())).await;
    (token(&accounts, "worker").await, token(&accounts, "guest").await)
}

/// Unless an earlier run on this server has made it.
async fn make<K>(api: &Api<K>, object: Value)
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => panic!("{error}"),
    }
}

async fn may_delete(client: &Client) -> bool {
    let review: SubjectAccessReview = serde_json::from_value(json!({ "spec": {
        "user": user("worker"),
        "resourceAttributes": {
            "group": "sandbox.fast.io", "resource": "sandboxes", "verb": "delete", "namespace": NAMESPACE,
        },
    } }))
    .unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
    answer.status.is_some_and(|status| status.allowed)
}

async fn token(accounts: &Api<ServiceAccount>, name: &str) -> String {
    let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
    let answer = accounts.create_token_request(name, &PostParams::default(), &request).await.unwrap();
    answer.status.unwrap().token.unwrap()
}
