//! What an A2A request is about: a task, a context, or neither. Pure. Versions 1.0 and 0.3, JSON-RPC and REST; ids stand
//! in the path, the query or the body, and in no header. A task goes before a context: it is in one.

use std::ops::Range;
use std::sync::LazyLock;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value as Json, json};

use super::json::{Found, Shape, Value};
use crate::extract;
use crate::refusal::Refusal;

/// What a request is, as far as its head says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// REST, and the head says it all.
    Rest(Call),
    /// REST, and the message in the body has the ids.
    RestMessage,
    /// JSON-RPC: the body says it all.
    Rpc,
}

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub about: About,
    pub reply: Reply,
}

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A message: in a task, or in a context, or a new one.
    Message {
        task: Option<String>,
        context: Option<String>,
    },
    Task(String),
    /// The tasks of a context.
    Tasks {
        context: String,
    },
    /// Nothing that an instance remembers.
    Anything,
}

/// How answers look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Rest,
    /// JSON-RPC, to the request with this id, as it stands.
    Rpc {
        id: Json,
    },
}

/// What is looked for in a body: of JSON-RPC, and of a message by REST.
const RPC: [&str; 11] = [
    "method",
    "id",
    "params.message.taskId",
    "params.message.task_id",
    "params.message.contextId",
    "params.message.context_id",
    "params.taskId",
    "params.task_id",
    "params.id",
    "params.contextId",
    "params.context_id",
];
/// By REST of 0.3 the official client says `request` and writes names as protobuf has them.
const MESSAGE: [&str; 8] = [
    "message.taskId",
    "message.task_id",
    "request.taskId",
    "request.task_id",
    "message.contextId",
    "message.context_id",
    "request.contextId",
    "request.context_id",
];

/// What is looked for in an answer: ids of tasks and ids of contexts, of REST first, then of JSON-RPC.
const ANSWER: [&str; 30] = [
    "task.id",
    "message.taskId",
    "message.task_id",
    "msg.taskId",
    "msg.task_id",
    "statusUpdate.taskId",
    "status_update.task_id",
    "artifactUpdate.taskId",
    "artifact_update.task_id",
    "task.contextId",
    "task.context_id",
    "message.contextId",
    "message.context_id",
    "msg.contextId",
    "msg.context_id",
    "statusUpdate.contextId",
    "status_update.context_id",
    "artifactUpdate.contextId",
    "artifact_update.context_id",
    "result.task.id",
    "result.message.taskId",
    "result.statusUpdate.taskId",
    "result.artifactUpdate.taskId",
    // In 0.3 the result is the task, the message or the event itself.
    "result.id",
    "result.taskId",
    "result.task.contextId",
    "result.message.contextId",
    "result.statusUpdate.contextId",
    "result.artifactUpdate.contextId",
    "result.contextId",
];
const REST_TASKS: Range<usize> = 0..9;
const REST_CONTEXTS: Range<usize> = 9..19;
const RPC_TASKS: Range<usize> = 19..25;
const RPC_CONTEXTS: Range<usize> = 25..30;

static RPC_SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape::new(&RPC));
static MESSAGE_SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape::new(&MESSAGE));
static ANSWER_SHAPE: LazyLock<Shape> = LazyLock::new(|| Shape::new(&ANSWER));

/// What to look for in an answer.
pub fn answer_shape() -> &'static Shape {
    &ANSWER_SHAPE
}

impl Ask {
    /// What to look for in the body; nothing if it need not be read.
    pub fn shape(&self) -> Option<&'static Shape> {
        match self {
            Ask::Rest(_) => None,
            Ask::RestMessage => Some(&MESSAGE_SHAPE),
            Ask::Rpc => Some(&RPC_SHAPE),
        }
    }
}

/// Reads the head of a request; the path is the one below the Task's prefix.
pub fn ask(method: &Method, path: &str, query: Option<&str>, headers: &HeaderMap) -> Result<Ask, Refusal> {
    no_grpc(headers)?;
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let last = segments.last().copied().unwrap_or_default();
    let (is_get, is_post) = (*method == Method::GET, *method == Method::POST);
    if is_post && matches!(last, "message:send" | "message:stream") {
        return Ok(Ask::RestMessage);
    }
    let rest = |about| Ok(Ask::Rest(Call { about, reply: Reply::Rest }));
    if let Some(at) = segments.iter().rposition(|segment| *segment == "tasks") {
        return match segments.get(at + 1) {
            Some(id) => rest(About::Task(task_id(id)?)),
            None => rest(About::Tasks { context: context_of(query)? }),
        };
    }
    let old_card = last == "card" && segments.len() > 1 && segments[segments.len() - 2] == "v1";
    if is_get && (last == "extendedAgentCard" || old_card) {
        return rest(About::Anything);
    }
    match is_post {
        true => Ok(Ask::Rpc),
        false => {
            let message = "this is no request of A2A, and it names no session: for other paths give \
                           routing.sessionIdentifier.extractors in the Task";
            Err(Refusal::new(StatusCode::NOT_FOUND, "NotA2a", message))
        }
    }
}

/// Refuses gRPC, whose ids stand in messages that nobody here reads, and which does not go over HTTP/1.1, as instances are
/// asked: whatever finds the session, the call would fail there.
pub fn no_grpc(headers: &HeaderMap) -> Result<(), Refusal> {
    let content = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !content.starts_with("application/grpc") {
        return Ok(());
    }
    let message = "A2A over gRPC is not served by this gateway: use JSON-RPC or HTTP+JSON, and leave GRPC out of the \
                   supportedInterfaces of the agent card";
    Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "NotSupported", message))
}

fn task_id(segment: &str) -> Result<String, Refusal> {
    let verbs = [":cancel", ":subscribe", ":resubscribe"];
    let id = verbs.iter().find_map(|verb| segment.strip_suffix(verb)).unwrap_or(segment);
    let id = extract::decoded(id).filter(|id| !id.is_empty() && id.len() <= super::json::LONGEST);
    id.map(|id| id.into_owned()).ok_or_else(|| invalid(&Reply::Rest, "the task id in the path cannot be one"))
}

fn context_of(query: Option<&str>) -> Result<String, Refusal> {
    let found = extract::parameter(query.unwrap_or_default(), "contextId");
    let found = found.ok_or_else(|| invalid(&Reply::Rest, "contextId in the query cannot be read"))?;
    let context = found.filter(|context| !context.is_empty()).map(|context| context.into_owned());
    context.ok_or_else(|| invalid(&Reply::Rest, NO_CONTEXT))
}

const NO_CONTEXT: &str =
    "give contextId: each context has an instance of its own, and there is no list over all of them";

/// What a request is about, with what its body says.
pub fn call(ask: Ask, found: &Found) -> Result<Call, Refusal> {
    match ask {
        Ask::Rest(call) => Ok(call),
        Ask::RestMessage => {
            let reply = Reply::Rest;
            let (task, context) = (id(found, &[0, 1, 2, 3], &reply)?, id(found, &[4, 5, 6, 7], &reply)?);
            Ok(Call { about: About::Message { task, context }, reply })
        }
        Ask::Rpc => rpc(found),
    }
}

fn rpc(found: &Found) -> Result<Call, Refusal> {
    let reply = Reply::Rpc { id: request_id(found) };
    let method = found.text(0).ok_or_else(|| error(&reply, Trouble::NoRequest, "method is missing"))?;
    let message = |reply: &Reply| -> Result<About, Refusal> {
        let (task, context) = (id(found, &[2, 3], reply)?, id(found, &[4, 5], reply)?);
        Ok(About::Message { task, context })
    };
    let needed = |task: Option<String>| task.ok_or_else(|| invalid(&reply, "params have no task id"));
    let about = match method {
        "SendMessage" | "SendStreamingMessage" | "message/send" | "message/stream" => message(&reply)?,
        "GetTask" | "CancelTask" | "SubscribeToTask" | "tasks/get" | "tasks/cancel" | "tasks/resubscribe" => {
            About::Task(needed(id(found, &[8], &reply)?)?)
        }
        "ListTasks" | "tasks/list" => match id(found, &[9, 10], &reply)? {
            Some(context) => About::Tasks { context },
            None => return Err(invalid(&reply, NO_CONTEXT)),
        },
        "GetExtendedAgentCard" | "agent/getAuthenticatedExtendedCard" => About::Anything,
        // Here `id` is that of the configuration, if there is a taskId; in 0.3 it is the task's.
        method if method.contains("ushNotificationConfig") => {
            let task = id(found, &[6, 7], &reply)?;
            let task = if task.is_none() { id(found, &[8], &reply)? } else { task };
            About::Task(needed(task)?)
        }
        // Of an extension, maybe: what it says of tasks and contexts counts.
        _ => match (id(found, &[6, 7], &reply)?, id(found, &[9, 10], &reply)?, message(&reply)?) {
            (Some(task), _, _) => About::Task(task),
            (None, Some(context), _) => About::Message { task: None, context: Some(context) },
            (None, None, About::Message { task: None, context: None }) => {
                return Err(error(&reply, Trouble::NoMethod, "this gateway knows no such method"));
            }
            (None, None, message) => message,
        },
    };
    Ok(Call { about, reply })
}

/// An id under one of several names.
fn id(found: &Found, names: &[usize], reply: &Reply) -> Result<Option<String>, Refusal> {
    let mut given = None;
    for name in names {
        match found.get(*name) {
            None => {}
            Some(Value::Scalar(null)) if null == "null" => {}
            Some(Value::Text(text)) if text.is_empty() => {}
            Some(Value::Text(text)) if given.is_none() => given = Some(text.clone()),
            Some(Value::Text(_)) => return Err(invalid(reply, "an id is given under two names")),
            Some(_) => return Err(invalid(reply, "an id is no text, or has more than 1024 bytes")),
        }
    }
    Ok(given)
}

fn request_id(found: &Found) -> Json {
    match found.get(1) {
        Some(Value::Text(text)) => json!(text),
        Some(Value::Scalar(text)) => serde_json::from_str(text).unwrap_or_default(),
        _ => Json::Null,
    }
}

/// The ids in an answer: of the task, and of the context.
pub fn ids<'a>(reply: &Reply, found: &'a Found) -> (Option<&'a str>, Option<&'a str>) {
    let first =
        |mut leaves: Range<usize>| leaves.find_map(|leaf| found.text(leaf)).filter(|id| !id.is_empty());
    match reply {
        Reply::Rest => (first(REST_TASKS), first(REST_CONTEXTS)),
        Reply::Rpc { .. } => (first(RPC_TASKS), first(RPC_CONTEXTS)),
    }
}

/// Whether all that an answer can tell has been read: a task with its context.
pub fn is_enough(has: impl Fn(usize) -> bool) -> bool {
    let task = |tasks: Range<usize>, context: usize| has(tasks.start) && has(context);
    let (first, snake) = (REST_CONTEXTS.start, REST_CONTEXTS.start + 1);
    task(REST_TASKS, first) || task(REST_TASKS, snake) || task(RPC_TASKS, RPC_CONTEXTS.start)
}

/// What can be wrong, as the protocol numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    NoTask,
    Invalid,
    NoRequest,
    NoMethod,
}

fn error(reply: &Reply, trouble: Trouble, message: impl Into<String>) -> Refusal {
    let (number, status, name, reason) = match trouble {
        Trouble::NoTask => (-32001, StatusCode::NOT_FOUND, "NOT_FOUND", "TASK_NOT_FOUND"),
        Trouble::Invalid => (-32602, StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", "INVALID_PARAMS"),
        Trouble::NoRequest => (-32600, StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", "INVALID_REQUEST"),
        Trouble::NoMethod => (-32601, StatusCode::NOT_FOUND, "UNIMPLEMENTED", "METHOD_NOT_FOUND"),
    };
    let code = if trouble == Trouble::NoTask { "TaskNotFound" } else { "A2aInvalid" };
    let info = json!({ "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason,
        "domain": "a2a-protocol.org", "metadata": {} });
    let message = message.into();
    let (status, body) = match reply {
        // An error of the application is no error of HTTP.
        Reply::Rpc { id } => {
            let error = json!({ "code": number, "message": message, "data": [info] });
            (StatusCode::OK, json!({ "jsonrpc": "2.0", "id": id, "error": error }))
        }
        Reply::Rest => {
            let error =
                json!({ "code": status.as_u16(), "status": name, "message": message, "details": [info] });
            (status, json!({ "error": error }))
        }
    };
    Refusal::new(status, code, message).in_words(body)
}

fn invalid(reply: &Reply, message: &str) -> Refusal {
    error(reply, Trouble::Invalid, message)
}

/// The task is unknown, or its instance is gone.
pub fn no_task(reply: &Reply) -> Refusal {
    error(reply, Trouble::NoTask, "Task not found")
}

/// The body is not what it has to be.
pub fn broken(why: super::json::Error) -> Refusal {
    error(&Reply::Rpc { id: Json::Null }, Trouble::NoRequest, format!("the body cannot be read: {why}"))
        .with_status(StatusCode::BAD_REQUEST)
}

/// A context that nobody has talked in has no tasks.
pub fn no_tasks(reply: &Reply) -> Refusal {
    let list = json!({ "tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0 });
    let body = match reply {
        Reply::Rpc { id } => json!({ "jsonrpc": "2.0", "id": id, "result": list }),
        Reply::Rest => list,
    };
    Refusal::new(StatusCode::OK, "NoTasks", "no task of this context").in_words(body)
}

#[cfg(test)]
mod tests;
