//! Requests to one API server, below typed clients: objects are JSON, whatever their kind.

use std::time::Duration;

use anyhow::Context;
use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube::client::{Body, UpgradeConnectionError};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

use super::error::{Error, Refusal, innermost};
use crate::exit::Usage;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a server may take for an answer that is not a stream.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The largest answer, and the longest line of a stream.
const SIZE_LIMIT: usize = 512 << 20;
const JSON: &str = "application/json";

/// One server, as one user.
#[derive(Clone)]
pub(crate) struct Server {
    client: kube::Client,
    address: String,
    pub(crate) namespace: String,
}

impl Server {
    pub(crate) async fn connect(kubeconfig: Kubeconfig, context: Option<String>) -> anyhow::Result<Self> {
        if let Some(context) = &context
            && !kubeconfig.contexts.iter().any(|known| known.name == *context)
        {
            let known: Vec<&str> = kubeconfig.contexts.iter().map(|known| known.name.as_str()).collect();
            return Err(Usage(format!(
                "the kubeconfig has no context {context:?}, only: {}",
                known.join(", ")
            ))
            .into());
        }
        let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .context("the kubeconfig is wrong")?;
        config.connect_timeout = Some(CONNECT_LIMIT);
        // Watches and logs are silent for as long as nothing happens; other answers have a limit of their own.
        config.read_timeout = None;
        config.write_timeout = None;
        let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = config.default_namespace.clone();
        let client = kube::Client::try_from(config).context("the kubeconfig is wrong")?;
        Ok(Self { client, address, namespace })
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, Error> {
        self.get_as(path, JSON).await
    }

    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Result<Value, Error> {
        let request = Request::get(path).header(header::ACCEPT, accept);
        Ok(self.answer(request, Vec::new()).await?.1)
    }

    /// Sends a body; the answer's code tells a created object from a changed one.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<(StatusCode, Value), Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, JSON)
            .header(header::CONTENT_TYPE, content_type);
        self.answer(request, body.to_string().into_bytes()).await
    }

    /// An answer that goes on, line by line.
    pub(crate) async fn lines(&self, path: &str, accept: &str) -> Result<Lines, Error> {
        let request = Request::get(path).header(header::ACCEPT, accept);
        let response = self.limited(self.ask(request, Vec::new())).await?;
        Ok(Lines { body: response.into_body(), buffer: BytesMut::new(), address: self.address.clone() })
    }

    /// An upgrade that is refused says only a number; asked again without one, the server says why.
    pub(crate) async fn why_not_upgraded(&self, path: &str, what: &str, error: kube::Error) -> anyhow::Error {
        let kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) = &error else {
            return anyhow::Error::new(error).context(format!("cannot {what}"));
        };
        match self.send(Method::POST, path, JSON, &Value::Null).await {
            Err(reason) => reason.into(),
            Ok(_) => anyhow::anyhow!("cannot {what}: the server answered {code}"),
        }
    }

    async fn answer(
        &self,
        request: http::request::Builder,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Value), Error> {
        self.limited(async {
            let response = self.ask(request, body).await?;
            let code = response.status();
            let bytes = self.body(response).await?;
            let value = serde_json::from_slice(&bytes).map_err(|error| self.garbled(&error))?;
            Ok((code, value))
        })
        .await
    }

    async fn ask(&self, request: http::request::Builder, body: Vec<u8>) -> Result<Response<Body>, Error> {
        let request = request.body(Body::from(body)).map_err(|error| self.garbled(&error))?;
        let response = self.client.send(request).await.map_err(|error| Error::Unreachable {
            address: self.address.clone(),
            reason: innermost(&error),
        })?;
        let code = response.status();
        if code.is_success() {
            return Ok(response);
        }
        if code == StatusCode::UNAUTHORIZED {
            return Err(Error::Unauthorized { address: self.address.clone() });
        }
        let body = self.body(response).await?;
        Err(Error::Refused(Box::new(Refusal::parse(code.as_u16(), &body))))
    }

    async fn body(&self, response: Response<Body>) -> Result<Bytes, Error> {
        let body = Limited::new(response.into_body(), SIZE_LIMIT).collect().await;
        Ok(body.map_err(|error| self.garbled(error.as_ref()))?.to_bytes())
    }

    async fn limited<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let seconds = ANSWER_LIMIT.as_secs();
        let silent = |_| Error::Silent { address: self.address.clone(), seconds };
        tokio::time::timeout(ANSWER_LIMIT, work).await.map_err(silent)?
    }

    fn garbled(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        Error::Garbled { address: self.address.clone(), reason: innermost(error) }
    }
}

/// The lines of an answer, as they come.
pub(crate) struct Lines {
    body: Body,
    buffer: BytesMut,
    address: String,
}

impl Lines {
    /// The next line with its line end; the last may have none. `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.buffer.split_to(searched + end + 1).freeze()));
            }
            searched = self.buffer.len();
            if searched > SIZE_LIMIT {
                return Err(self.broken("a line is too long".to_owned()));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(data.chunk());
                    }
                }
                Some(Err(error)) => return Err(self.broken(innermost(&error))),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Ok(Some(self.buffer.split().freeze())),
            }
        }
    }

    fn broken(&self, reason: String) -> Error {
        Error::Unreachable { address: self.address.clone(), reason }
    }
}

/// A query string of the pairs that have a value; empty when none has.
pub(crate) fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        let Some(value) = value else { continue };
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(key);
        text.push('=');
        text.push_str(&escape(value));
    }
    text
}

/// Text as one segment of a path or one value of a query.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_escaped() {
        assert_eq!(query(&[("a", None), ("b", None)]), "");
        let text = query(&[("a", None), ("labelSelector", Some("x in (y,é)")), ("force", Some("true"))]);
        assert_eq!(text, "?labelSelector=x%20in%20%28y%2C%C3%A9%29&force=true");
    }
}
