//! What the API server would say of an object: asked of one in memory, with our definitions. Schemas, rules and unknown fields
//! are judged by the same code as in `agentcube up`, and need no cluster.

use std::time::Duration;

use agentcube_apiserver::Server;
use anyhow::Context;
use http::Request;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::manifest::Document;
use crate::up::definitions::DEFINITIONS;

/// Longer than a definition takes to be served.
const LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);

/// A server that keeps nothing.
pub(super) struct Judge {
    client: kube::Client,
    _server: Server,
}

/// A field that is wrong, and what is wrong about it.
pub(super) type Wrong = (String, String);

impl Judge {
    pub(super) async fn start() -> anyhow::Result<Judge> {
        let server = Server::builder().memory().embed().await.context("cannot start a server in memory")?;
        let judge = Judge { client: kube::Client::new(server.front(), "default"), _server: server };
        let ours = DEFINITIONS.lines().filter(|line| line.contains("\"group\":\"middleware.io\""));
        let mut paths = Vec::new();
        for line in ours {
            let definition: Value = serde_json::from_str(line).context("a definition is not JSON")?;
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            judge.post(path, &definition).await?;
            let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default().to_owned();
            paths.push(format!("/apis/middleware.io/v1alpha1/{plural}"));
        }
        let deadline = Instant::now() + LIMIT;
        for path in paths {
            while judge.get(&path).await.is_err() {
                anyhow::ensure!(Instant::now() < deadline, "{path} is not served");
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(judge)
    }

    async fn get(&self, path: &str) -> Result<Value, kube::Error> {
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }

    async fn post(&self, path: &str, object: &Value) -> Result<Value, kube::Error> {
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(object.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }

    /// The object as a server would keep it, or all that is wrong with it.
    pub(super) async fn judge(&self, document: &Document) -> anyhow::Result<Result<Value, Vec<Wrong>>> {
        let mut object = document.object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        let path = match (document.text(&["apiVersion"]), document.text(&["kind"])) {
            ("middleware.io/v1alpha1", "Plugin") => "/apis/middleware.io/v1alpha1/namespaces/default/plugins",
            ("middleware.io/v1alpha1", "App") => "/apis/middleware.io/v1alpha1/namespaces/default/apps",
            ("v1", "ConfigMap") => "/api/v1/namespaces/default/configmaps",
            (version, kind) => {
                let message = format!("{kind} of {version} is none of Plugin, App and ConfigMap");
                return Ok(Err(vec![("kind".into(), message)]));
            }
        };
        let mut wrong = Vec::new();
        // Unknown fields are refused before anything else is looked at; so each is asked for.
        for validation in ["Strict", "Ignore"] {
            let path = format!("{path}?dryRun=All&fieldValidation={validation}");
            match self.post(&path, &object).await {
                Ok(mut kept) if wrong.is_empty() => {
                    kept["metadata"]["namespace"] = document.object["metadata"]["namespace"].clone();
                    return Ok(Ok(kept));
                }
                Ok(_) => {}
                Err(kube::Error::Api(status)) => wrong.extend(causes(&json!(*status))),
                Err(error) => return Err(error.into()),
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        wrong.retain(|one| seen.insert(one.clone()));
        Ok(Err(wrong))
    }
}

fn causes(status: &Value) -> Vec<Wrong> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let message = text(&status["message"]);
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    // That rules were not looked at, because something else is wrong, is no mistake of its own.
    let causes = causes.filter(|one| one["field"] != "<nil>");
    let causes: Vec<Wrong> = causes.map(|one| (text(&one["field"]), text(&one["message"]))).collect();
    if !causes.is_empty() {
        return causes;
    }
    let unknown: Vec<Wrong> = message
        .split("unknown field \"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(field, _)| (field.to_owned(), "there is no such field".to_owned()))
        .collect();
    if unknown.is_empty() { vec![(String::new(), message)] } else { unknown }
}
