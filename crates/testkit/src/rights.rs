//! What the ServiceAccounts of our roles may do on a cluster: everything that the server has is asked for, and the answers are
//! held to a table that people read.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use serde_json::{Value, json};

use crate::golden;
use crate::http_client::{HttpClient, Request};
use crate::inventory::resources;

const NAMESPACE: &str = "agentcube-system";
/// Where rights are asked for: a namespace, the name of an object, and what to call that. The wider comes first.
const PLACES: [(&str, &str, &str); 5] = [
    ("", "", "everywhere"),
    ("team", "", "in another namespace"),
    (NAMESPACE, "", "in its own namespace"),
    (NAMESPACE, "agentcube-token-keys", "of the keys of tokens"),
    (NAMESPACE, "agentcube-fastpath", "of the fast path's own"),
];
/// Questions to the server at once.
const AT_ONCE: usize = 16;

/// What each role may do, asked of the server for every resource and verb, in the operator's namespace, in another one, and
/// in all; held to the golden table.
pub async fn check(http: &HttpClient, record: bool) -> Result<()> {
    let questions = questions(http).await?;
    let mut text = String::new();
    for role in ["controllers", "router", "fastpath", "janitor", "build-service", "console"] {
        text.push_str(&format!("agentcube-{role}\n"));
        let answers = stream::iter(&questions).map(|question| allowed(http, role, question));
        let answers: Vec<Option<&str>> = answers.buffered(AT_ONCE).try_collect().await?;
        let mut rights: BTreeMap<(String, usize), Vec<&str>> = BTreeMap::new();
        for (question, place) in questions.iter().zip(answers) {
            let Some(place) = place else { continue };
            let rank = PLACES.iter().position(|(_, _, known)| *known == place).unwrap_or_default();
            let what = format!("{} {}", question.group_version, question.resource);
            rights.entry((what, rank)).or_default().push(&question.verb);
        }
        for ((what, rank), verbs) in rights {
            text.push_str(&format!("  {what}: {} ({})\n", verbs.join(" "), PLACES[rank].2));
        }
    }
    let path = golden::root().join("rights.txt");
    if record {
        golden::write_text(&path, &text)?;
    }
    let expected = std::fs::read_to_string(&path).context("record it first")?;
    if text == expected {
        return Ok(());
    }
    let differing = |left: &str, right: &str| {
        let right: BTreeSet<&str> = right.lines().collect();
        left.lines().filter(|line| !right.contains(line)).map(str::to_owned).collect::<Vec<_>>()
    };
    bail!(
        "allowed and not in the table: {:?}; the other way: {:?}",
        differing(&text, &expected),
        differing(&expected, &text)
    )
}

/// A verb of a resource.
struct Question {
    group_version: String,
    resource: String,
    verb: String,
}

/// Every verb of every resource.
async fn questions(http: &HttpClient) -> Result<Vec<Question>> {
    let mut questions = Vec::new();
    for (path, resource) in resources(http).await? {
        let group_version = path.trim_start_matches("/apis/").trim_start_matches("/api/");
        let mut verbs: Vec<&str> =
            resource["verbs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        verbs.sort_unstable();
        for verb in verbs {
            let resource = resource["name"].as_str().unwrap_or_default().to_owned();
            let (group_version, verb) = (group_version.to_owned(), verb.to_owned());
            questions.push(Question { group_version, resource, verb });
        }
    }
    Ok(questions)
}

/// The widest place in which a role may do something.
async fn allowed(http: &HttpClient, role: &str, question: &Question) -> Result<Option<&'static str>> {
    for (namespace, object, place) in PLACES {
        // Only of these some are named.
        let named = matches!(&*question.resource, "secrets" | "leases");
        if (object.is_empty() || named) && may(http, role, question, namespace, object).await? {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// Asks the server whether the ServiceAccount of a role may do something.
async fn may(
    http: &HttpClient,
    role: &str,
    question: &Question,
    namespace: &str,
    object: &str,
) -> Result<bool> {
    let group = question.group_version.split_once('/').map_or("", |(group, _)| group);
    let (resource, subresource) = question.resource.split_once('/').unwrap_or((&question.resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": format!("system:serviceaccount:{NAMESPACE}:agentcube-{role}"),
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{NAMESPACE}")],
            "resourceAttributes": {
                "group": group, "resource": resource, "subresource": subresource, "verb": question.verb,
                "namespace": namespace, "name": object,
            },
        },
    });
    let request =
        Request::new(Method::POST, "/apis/authorization.k8s.io/v1/subjectaccessreviews").json(&review);
    let reply = http.send(request).await?;
    ensure!(reply.is_success(), "{}", reply.value());
    Ok(reply.value()["status"]["allowed"] == true)
}
