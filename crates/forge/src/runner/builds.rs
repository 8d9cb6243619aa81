//! The client of the build service: keeps trying until its deadline, and believes nothing without its digest.

#[cfg(test)]
mod tests;

use std::time::Duration;

use agentcube_api::frontend::bundle::BundleFile;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Error;
use super::environment::Settings;
use crate::service::contract::{self, Build, BuildStatus, Files};
use crate::{canonical, files};

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How long one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// Larger answers than this are not bundles that fit into an object.
const LARGEST_ANSWER: usize = 4 << 20;

pub(super) struct Builds<'a> {
    settings: &'a Settings,
    client: Client<HttpConnector, Full<Bytes>>,
    deadline: Instant,
}

/// What came of one request.
#[derive(Debug)]
enum Answer {
    Done(Value),
    /// Not now.
    Later(String),
    /// The service does not know the build, which it may have forgotten.
    Unknown,
    Refused(String),
}

impl<'a> Builds<'a> {
    pub(super) fn new(settings: &'a Settings) -> Builds<'a> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Builds { settings, client, deadline: Instant::now() + settings.build_limit }
    }

    /// Has a manifest built. The id of a build is that of what is built, so asking again is harmless.
    pub(super) async fn begin(&self, manifest: &Value, hash: &str) -> Result<String, Error> {
        let order = json!({
            "manifestHash": hash,
            "manifest": canonical::canonical(manifest),
            "context": { "namespace": self.settings.namespace, "frontendIntegration": self.settings.name },
        });
        let answer = self.ask(Method::POST, contract::BUILDS, Some(&order)).await?;
        let build: Build = read(answer.ok_or_else(|| Error::Service("it has no /v1/builds".into()))?)?;
        // One that cannot even begin is not remembered, so nobody could be asked for it later.
        match build.status {
            BuildStatus::Failed => Err(failed(build)),
            _ => Ok(build.build_id),
        }
    }

    /// Waits until a build has ended; `None` if the service does not know it any more.
    pub(super) async fn wait(&self, id: &str) -> Result<Option<()>, Error> {
        let mut wait = FIRST_WAIT;
        loop {
            let answer = self.ask(Method::GET, &format!("{}/{id}", contract::BUILDS), None).await?;
            let Some(answer) = answer else { return Ok(None) };
            let build: Build = read(answer)?;
            match build.status {
                BuildStatus::Succeeded => return Ok(Some(())),
                BuildStatus::Failed => return Err(failed(build)),
                BuildStatus::Pending | BuildStatus::Running => {
                    self.pause(&mut wait, "the build is not done").await?
                }
            }
        }
    }

    /// The files of a build; `None` if the service does not have them any more.
    pub(super) async fn files(&self, id: &str) -> Result<Option<Vec<BundleFile>>, Error> {
        let answer = self.ask(Method::GET, &format!("{}/{id}/files", contract::BUILDS), None).await?;
        let Some(answer) = answer else { return Ok(None) };
        let Files { files, .. } = read(answer)?;
        files::check(&files).map_err(Error::Files)?;
        if files::weight(&files) > files::LARGEST_BUNDLE {
            return Err(Error::TooLarge(files::weight(&files)));
        }
        Ok(Some(files))
    }

    /// Asks until there is an answer or no time is left.
    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Option<Value>, Error> {
        let mut wait = FIRST_WAIT;
        loop {
            match self.once(&method, path, body).await? {
                Answer::Done(value) => return Ok(Some(value)),
                Answer::Unknown => return Ok(None),
                Answer::Refused(message) => return Err(Error::Refused(message)),
                Answer::Later(why) => self.pause(&mut wait, &why).await?,
            }
        }
    }

    async fn pause(&self, wait: &mut Duration, why: &str) -> Result<(), Error> {
        let until = Instant::now() + *wait;
        if until > self.deadline {
            let seconds = self.settings.build_limit.as_secs();
            return Err(Error::Service(format!("not done after {seconds} s: {why}")));
        }
        tokio::time::sleep_until(until).await;
        *wait = (*wait * 2).min(LONGEST_WAIT);
        Ok(())
    }

    async fn once(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Answer, Error> {
        let address = format!("{}{path}", self.settings.build_service.trim_end_matches('/'));
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(&address)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.settings.token))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(bytes))
            .map_err(|error| Error::Service(format!("{address} cannot be asked: {error}")))?;
        let limit = self.deadline.min(Instant::now() + REQUEST_LIMIT);
        let asking = async {
            let answer = self.client.request(request).await.map_err(|error| chain(&error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), LARGEST_ANSWER).collect().await;
            Ok::<_, String>((status, body.map_err(|error| error.to_string())?.to_bytes()))
        };
        Ok(match tokio::time::timeout_at(limit, asking).await {
            Err(_) => Answer::Later("it does not answer".into()),
            Ok(Err(error)) => Answer::Later(error),
            Ok(Ok((status, body))) => answer(status, &body),
        })
    }
}

fn answer(status: StatusCode, body: &Bytes) -> Answer {
    let value: Option<Value> = serde_json::from_slice(body).ok();
    let said = value.as_ref().and_then(|value| value["message"].as_str()).unwrap_or("it does not say why");
    let told = format!("{} {said}", status.as_u16());
    match (status, value) {
        (status, Some(value)) if status.is_success() => Answer::Done(value),
        (StatusCode::NOT_FOUND, _) => Answer::Unknown,
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT, _) => Answer::Later(told),
        (status, _) if status.is_client_error() => Answer::Refused(told),
        _ => Answer::Later(told),
    }
}

fn failed(build: Build) -> Error {
    let message = build.message.unwrap_or_else(|| "it does not say why".into());
    Error::Failed { reason: build.reason, message, is_final: build.is_final }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| Error::Service(format!("it is not understood: {error}")))
}

/// An error with its causes, which hyper hides.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
