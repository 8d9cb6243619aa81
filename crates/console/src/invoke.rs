//! The form that talks to a Task: a request through the Task's gateway, as any client would send it. Where that is, the
//! Task says, which is read as whoever logged in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::answer::{self, Answer};
use crate::kube_api;
use crate::server::State;
use crate::session::Session;

/// What is shown of an answer.
const SHOWN_LIMIT: usize = 1 << 20;
/// The first request of a session may start an instance.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// What somebody wants to say to a Task.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Call {
    pub path: String,
    pub session: Option<String>,
    pub method: Option<String>,
    /// As `name: value`.
    #[serde(default)]
    pub headers: Vec<String>,
    pub body: Option<String>,
}

/// The request, and host and port of the gateway.
pub struct Composed {
    pub request: Request<Full<Bytes>>,
    pub host: String,
    pub port: u16,
}

/// Makes the request from the Task's address, the Task and the call; or says what is wrong with the call.
pub type Compose = Arc<dyn Fn(&str, &Value, &Call) -> Result<Composed, String> + Send + Sync>;

/// Sends what the form has, and shows what comes back. `task` is `<namespace>/<name>`.
pub(crate) async fn answer(
    state: &State,
    session: &Session,
    method: &Method,
    task: &str,
    body: &[u8],
) -> Answer {
    if *method != Method::POST {
        return answer::refuse(StatusCode::METHOD_NOT_ALLOWED, "POST what is to be said");
    }
    let call: Call = match serde_json::from_slice(body) {
        Ok(call) => call,
        Err(error) => return answer::refuse(StatusCode::BAD_REQUEST, &format!("this is no call: {error}")),
    };
    match invoke(state, session, task, &call).await {
        Ok(shown) => answer::json(StatusCode::OK, &shown),
        Err((status, why)) => answer::refuse(status, &why),
    }
}

async fn invoke(
    state: &State,
    session: &Session,
    task: &str,
    call: &Call,
) -> Result<Value, (StatusCode, String)> {
    let bad = |why: &str| (StatusCode::BAD_REQUEST, why.to_owned());
    let (namespace, name) = task.split_once('/').ok_or_else(|| bad("name the Task as namespace/name"))?;
    let tasks = format!("/apis/agentcube.io/v1alpha1/namespaces/{namespace}");
    let task = kube_api::read(state, session, &format!("{tasks}/tasks/{name}")).await?;
    let address = task["status"]["address"].as_str();
    let address = address.ok_or((StatusCode::CONFLICT, format!("the Task {name} has no address yet")))?;
    let composed = (state.options.compose)(address, &task, call).map_err(|why| bad(&why))?;
    // A Task's address may be a name that this machine cannot resolve; its gateway knows where it is.
    let gateway = task["spec"]["routing"]["gatewayRefs"][0].as_str().unwrap_or("default");
    let gateway = kube_api::read(state, session, &format!("{tasks}/taskgateways/{gateway}")).await.ok();
    let host = gateway.as_ref().and_then(|gateway| gateway["status"]["addresses"][0]["value"].as_str());
    let host = host.unwrap_or(&composed.host).to_owned();
    let began = Instant::now();
    let exchange = exchange(&host, composed.port, composed.request);
    let (status, headers, shown, whole) = match tokio::time::timeout(ANSWER_LIMIT, exchange).await {
        Ok(answered) => answered.map_err(|why| (StatusCode::BAD_GATEWAY, why))?,
        Err(_) => {
            return Err((StatusCode::GATEWAY_TIMEOUT, "there was no answer within two minutes".to_owned()));
        }
    };
    let headers: Vec<[String; 2]> = headers
        .iter()
        .map(|(name, value)| [name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()])
        .collect();
    Ok(json!({
        "status": status.as_u16(), "reason": status.canonical_reason(), "headers": headers,
        "body": String::from_utf8_lossy(&shown), "whole": whole,
        "milliseconds": u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    }))
}

/// What came back: status, headers, the beginning of the body, and whether that is all of it.
async fn exchange(
    host: &str,
    port: u16,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, HeaderMap, Vec<u8>, bool), String> {
    let connecting = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect((host, port)));
    let stream = match connecting.await {
        Ok(Ok(stream)) => stream,
        _ => return Err(format!("the Task's gateway does not listen on {host}:{port}")),
    };
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let connection = tokio::spawn(connection);
    let answered = sender.send_request(request).await;
    let mut answered = answered.map_err(|error| format!("the gateway gave no answer: {error}"))?;
    let (mut shown, mut whole) = (Vec::new(), true);
    while let Some(frame) = answered.frame().await {
        let frame = frame.map_err(|error| format!("the answer broke off: {error}"))?;
        if let Ok(data) = frame.into_data() {
            shown.extend_from_slice(&data);
        }
        if shown.len() > SHOWN_LIMIT {
            shown.truncate(SHOWN_LIMIT);
            whole = false;
            break;
        }
    }
    connection.abort();
    Ok((answered.status(), answered.headers().clone(), shown, whole))
}
