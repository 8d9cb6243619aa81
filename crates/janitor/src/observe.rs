//! Asks the API server. Only an answer that names what was asked for proves its absence: a server that does not know
//! the kind, or that is out of reach, says nothing.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use agentcube_api::Sandbox;
use k8s_openapi::api::core::v1::Pod;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::plan::{Answers, Container, Existence, Name, asks_for_sandbox};

/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks for the agents of all containers, and for those sandboxes that matter then.
pub(crate) async fn answers(client: &Client, containers: &[Container]) -> Answers {
    let mut answers = Answers::default();
    let agents: BTreeSet<&Name> = containers.iter().map(|one| &one.agent).collect();
    for name in agents {
        answers.agents.insert(name.clone(), existence::<Pod>(client, name).await);
    }
    let matters =
        |one: &&Container| answers.agents.get(&one.agent).is_some_and(|agent| asks_for_sandbox(one, agent));
    let sandboxes: BTreeSet<&Name> = containers.iter().filter(matters).map(|one| &one.sandbox).collect();
    for name in sandboxes {
        answers.sandboxes.insert(name.clone(), existence::<Sandbox>(client, name).await);
    }
    answers
}

async fn existence<K>(client: &Client, name: &Name) -> Existence
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let objects: Api<K> = Api::namespaced(client.clone(), &name.namespace);
    match tokio::time::timeout(PATIENCE, objects.get_metadata(&name.name)).await {
        Ok(Ok(found)) => match found.metadata.uid {
            Some(uid) => Existence::Present { uid },
            None => Existence::Unknown,
        },
        Ok(Err(kube::Error::Api(status))) if is_absence(&status, &name.name) => Existence::Absent,
        Ok(Err(error)) => {
            tracing::warn!(
                name = name.name,
                namespace = name.namespace,
                "the API server did not say: {error}"
            );
            Existence::Unknown
        }
        Err(_) => {
            tracing::warn!(name = name.name, namespace = name.namespace, "the API server does not answer");
            Existence::Unknown
        }
    }
}

/// A server that does not have the kind at all answers 404 as well, but names nothing.
fn is_absence(status: &kube::core::Status, name: &str) -> bool {
    let named = status.details.as_ref().is_some_and(|details| details.name == name);
    status.code == 404 && status.reason == "NotFound" && named
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_answer_about_the_name_proves_absence() {
        let status = |code: u16, reason: &str, name: Option<&str>| -> Status {
            let details = name.map(|name| json!({ "name": name }));
            serde_json::from_value(json!({ "code": code, "reason": reason, "details": details })).unwrap()
        };
        assert!(is_absence(&status(404, "NotFound", Some("box")), "box"));
        assert!(!is_absence(&status(404, "NotFound", Some("other")), "box"));
        assert!(!is_absence(&status(404, "NotFound", None), "box"));
        assert!(!is_absence(&status(403, "Forbidden", Some("box")), "box"));
        assert!(!is_absence(&status(503, "NotFound", Some("box")), "box"));
    }
}
