//! Who may do what, by the API server's word: a TokenReview says who asks, a SubjectAccessReview whether that user may.
//! What it said is believed for a moment, and for longer only while it cannot be asked. Refuses in doubt.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::access::{Access, Subject, Verb};

/// For so long an answer is not asked for again.
const FRESH: Duration = Duration::from_secs(10);
/// For so long a permission holds while the API server cannot be asked.
const STALE: Duration = Duration::from_secs(300);
const MOST_KNOWN: usize = 4_096;
/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// No token is longer.
const LONGEST_TOKEN: usize = 16 << 10;

type Key = (Vec<u8>, Verb, String);

/// Asks the API server.
pub struct Reviews {
    client: Client,
    known: Mutex<HashMap<Key, (Instant, Answer)>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Allowed(Subject),
    /// Nobody knows this token.
    Unknown,
    Denied(String),
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reviews")
    }
}

impl Reviews {
    pub fn new(client: Client) -> Reviews {
        Reviews { client, known: Mutex::default() }
    }

    async fn check(&self, metadata: &MetadataMap, verb: Verb, namespace: &str) -> Result<Subject, Status> {
        let header = metadata.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let token = header.strip_prefix("Bearer ").unwrap_or_default().trim();
        if token.is_empty() || token.len() > LONGEST_TOKEN {
            return Err(Status::unauthenticated("a bearer token is needed"));
        }
        let key = (digest(&SHA256, token.as_bytes()).as_ref().to_vec(), verb, namespace.to_owned());
        let known = self.known.lock().get(&key).cloned();
        if let Some((at, answer)) = &known
            && at.elapsed() < FRESH
        {
            return outcome(answer.clone());
        }
        let asked = tokio::time::timeout(PATIENCE, self.ask(token, verb, namespace)).await;
        match asked {
            Ok(Ok(answer)) => {
                self.remember(key, answer.clone());
                outcome(answer)
            }
            Ok(Err(_)) | Err(_) => match known {
                Some((at, Answer::Allowed(subject))) if at.elapsed() < STALE => Ok(subject),
                _ => Err(Status::unavailable("the API server cannot be asked who may do this")),
            },
        }
    }

    fn remember(&self, key: Key, answer: Answer) {
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN {
            known.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(key, (Instant::now(), answer));
    }

    async fn ask(&self, token: &str, verb: Verb, namespace: &str) -> Result<Answer, kube::Error> {
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        let (Some(true), Some(user)) = (status.authenticated, status.user) else {
            return Ok(Answer::Unknown);
        };
        let name = user.username.clone().unwrap_or_default();
        let review =
            SubjectAccessReview { spec: question(user, verb, namespace), ..SubjectAccessReview::default() };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status.unwrap_or_default();
        Ok(match status.allowed {
            true => Answer::Allowed(Subject(name)),
            false => Answer::Denied(format!("{name} may not {} in namespace {namespace}", words(verb))),
        })
    }
}

fn outcome(answer: Answer) -> Result<Subject, Status> {
    match answer {
        Answer::Allowed(subject) => Ok(subject),
        Answer::Unknown => Err(Status::unauthenticated("the API server does not know this token")),
        Answer::Denied(message) => Err(Status::permission_denied(message)),
    }
}

/// As in roles: verb, and subresource of sandboxes.
fn role(verb: Verb) -> (&'static str, Option<&'static str>) {
    match verb {
        Verb::Create => ("create", None),
        Verb::Delete => ("delete", None),
        Verb::Get => ("get", None),
        Verb::List => ("list", None),
        Verb::Watch => ("watch", None),
        Verb::Update => ("update", None),
        Verb::Logs => ("get", Some("log")),
        Verb::Exec => ("create", Some("exec")),
    }
}

fn words(verb: Verb) -> String {
    let (verb, subresource) = role(verb);
    match subresource {
        None => format!("{verb} sandboxes.sandbox.fast.io"),
        Some(part) => format!("{verb} sandboxes.sandbox.fast.io/{part}"),
    }
}

fn question(user: UserInfo, verb: Verb, namespace: &str) -> SubjectAccessReviewSpec {
    let (verb, subresource) = role(verb);
    let attributes = ResourceAttributes {
        group: Some("sandbox.fast.io".into()),
        resource: Some("sandboxes".into()),
        subresource: subresource.map(str::to_owned),
        verb: Some(verb.into()),
        namespace: Some(namespace.into()),
        ..ResourceAttributes::default()
    };
    SubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        user: user.username,
        groups: user.groups,
        uid: user.uid,
        extra: user.extra,
        ..SubjectAccessReviewSpec::default()
    }
}

impl Access for Reviews {
    fn allow<'a>(
        &'a self,
        metadata: &'a MetadataMap,
        verb: Verb,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Subject, Status>> {
        Box::pin(self.check(metadata, verb, namespace))
    }
}

#[cfg(test)]
mod tests;
