//! The agent: remembers each session's conversation in memory, and shows which instance answered.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Body, Frame};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::SESSION_HEADER;

const MESSAGE_LIMIT: usize = 64 << 10;
/// Sessions remembered at once, and turns of each.
const MOST_SESSIONS: usize = 1024;
const MOST_TURNS: usize = 256;
const DRAIN_LIMIT: Duration = Duration::from_secs(20);
/// How long `/wait` takes, for whoever wants to see what becomes of a request in flight.
const LONG_WAIT: Duration = Duration::from_secs(60);
const HEADER_LIMIT: Duration = Duration::from_secs(30);

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Serves until told to stop, then lets what was begun come to its end.
pub(super) async fn serve(listener: TcpListener, agent: Agent, mut stopped: watch::Receiver<bool>) {
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, most likely: give connections time to close.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let agent = agent.clone();
        let service = hyper::service::service_fn(move |request| {
            let agent = agent.clone();
            async move { Ok::<_, Infallible>(agent.answer(request).await) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT);
        let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    // Readiness fails from here on for whoever still has a connection.
    agent.drain();
    if tokio::time::timeout(DRAIN_LIMIT, graceful.shutdown()).await.is_err() {
        tracing::warn!("not all requests ended within {} s", DRAIN_LIMIT.as_secs());
    }
}

#[derive(Clone)]
pub(super) struct Agent {
    instance: Arc<str>,
    word_delay: Duration,
    memory: Arc<Mutex<Memory>>,
}

#[derive(Default)]
struct Memory {
    sessions: HashMap<String, Vec<String>>,
    draining: bool,
}

struct Turn {
    session: String,
    number: usize,
    message: String,
}

impl Agent {
    pub(super) fn new(instance: String, word_delay: Duration) -> Self {
        Self { instance: instance.into(), word_delay, memory: Arc::default() }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Whoever panicked left a conversation as it was, or one turn longer.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drain(&self) {
        self.memory().draining = true;
    }

    async fn answer<B>(&self, request: Request<B>) -> Reply
    where
        B: Body<Data: Send> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match (request.method(), request.uri().path()) {
            (_, "/healthz") => text(StatusCode::OK, "ok\n"),
            (_, "/readyz") => {
                let draining = self.memory().draining;
                if draining {
                    text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
                } else {
                    text(StatusCode::OK, "ok\n")
                }
            }
            (&Method::GET | &Method::POST, path @ ("/" | "/stream")) => {
                let streamed = path == "/stream";
                match self.turn(request).await {
                    Ok(turn) if streamed => self.stream(&turn),
                    Ok(turn) => self.whole(&turn),
                    Err((code, message)) => text(code, message),
                }
            }
            (_, "/wait") => {
                tokio::time::sleep(LONG_WAIT).await;
                text(StatusCode::OK, "that was long\n")
            }
            (_, "/" | "/stream") => text(StatusCode::METHOD_NOT_ALLOWED, "GET or POST\n"),
            _ => text(StatusCode::NOT_FOUND, "there are /, /stream, /wait, /healthz and /readyz\n"),
        }
    }

    /// Hears what a session says, and remembers it.
    async fn turn<B>(&self, request: Request<B>) -> Result<Turn, (StatusCode, &'static str)>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let session = request.headers().get(SESSION_HEADER).and_then(|value| value.to_str().ok());
        let session = session.unwrap_or("default").to_owned();
        let body = Limited::new(request.into_body(), MESSAGE_LIMIT).collect().await;
        let body = body.map_err(|_| (StatusCode::PAYLOAD_TOO_LARGE, "the message is too long\n"))?.to_bytes();
        let said = String::from_utf8_lossy(&body).trim().to_owned();
        let mut memory = self.memory();
        if !memory.sessions.contains_key(&session) && memory.sessions.len() >= MOST_SESSIONS {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "too many sessions\n"));
        }
        let turns = memory.sessions.entry(session.clone()).or_default();
        if turns.len() >= MOST_TURNS {
            return Err((StatusCode::CONFLICT, "this conversation is over\n"));
        }
        let message = reply(&said, turns);
        turns.push(said);
        Ok(Turn { session, number: turns.len(), message })
    }

    fn whole(&self, turn: &Turn) -> Reply {
        let value = json!({
            "session": turn.session, "turn": turn.number, "message": turn.message, "instance": &*self.instance,
        });
        let mut response = text(StatusCode::OK, format!("{value}\n"));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }

    /// Word by word as server-sent events; the last one says who spoke.
    fn stream(&self, turn: &Turn) -> Reply {
        let word = |word: &str| format!("data: {}\n\n", json!({"word": word}));
        let mut events: Vec<String> = turn.message.split_whitespace().map(word).collect();
        let end = json!({"session": turn.session, "turn": turn.number, "instance": &*self.instance});
        events.push(format!("event: done\ndata: {end}\n\n"));
        let delay = self.word_delay;
        let frames = stream::iter(events).then(move |event| async move {
            tokio::time::sleep(delay).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from(event)))
        });
        let frames: Pin<Box<dyn futures_util::Stream<Item = _> + Send>> = Box::pin(frames);
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

fn reply(said: &str, before: &[String]) -> String {
    match (said, before.last()) {
        ("", None) => "Hello! Tell me something, and I will remember it.".to_owned(),
        ("", Some(last)) => format!("You last said {last:?}."),
        (said, None) => format!("Nice to meet you. You said {said:?}, and I will remember it."),
        (said, Some(last)) => format!("You said {said:?}. Before that you said {last:?}."),
    }
}

fn text(code: StatusCode, body: impl Into<Bytes>) -> Reply {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    response
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    async fn ask(agent: &Agent, path: &str, session: &str, body: &str) -> (StatusCode, String) {
        let request = Request::post(path)
            .header(SESSION_HEADER, session)
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap();
        let response = agent.answer(request).await;
        let code = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_are_remembered_apart() {
        let agent = Agent::new("pod-0".into(), Duration::from_millis(30));
        let value = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        let first = value(ask(&agent, "/", "a", "I am Ada").await.1);
        assert_eq!(
            (&first["session"], &first["turn"], &first["instance"]),
            (&json!("a"), &json!(1), &json!("pod-0"))
        );
        let other = value(ask(&agent, "/", "b", "").await.1);
        assert_eq!(other["turn"], 1);
        assert!(!other["message"].as_str().unwrap().contains("Ada"));
        let second = value(ask(&agent, "/", "a", "who am I?").await.1);
        assert_eq!(second["turn"], 2);
        assert!(second["message"].as_str().unwrap().contains("I am Ada"), "{second}");
        let (_, streamed) = ask(&agent, "/stream", "a", "").await;
        assert!(streamed.starts_with("data: {\"word\":\"You\"}\n\n"), "{streamed}");
        assert!(
            streamed
                .ends_with("event: done\ndata: {\"instance\":\"pod-0\",\"session\":\"a\",\"turn\":3}\n\n"),
            "{streamed}"
        );
    }

    #[tokio::test]
    async fn limits_and_health() {
        let agent = Agent::new("pod-0".into(), Duration::ZERO);
        assert_eq!(
            ask(&agent, "/", "a", &"x".repeat(MESSAGE_LIMIT + 1)).await.0,
            StatusCode::PAYLOAD_TOO_LARGE
        );
        for turn in 0..=MOST_TURNS {
            let expected = if turn < MOST_TURNS { StatusCode::OK } else { StatusCode::CONFLICT };
            assert_eq!(ask(&agent, "/", "a", "x").await.0, expected, "{turn}");
        }
        for session in 1..=MOST_SESSIONS {
            let expected =
                if session < MOST_SESSIONS { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            assert_eq!(ask(&agent, "/", &format!("s{session}"), "").await.0, expected, "{session}");
        }
        assert_eq!(ask(&agent, "/nonsense", "a", "").await.0, StatusCode::NOT_FOUND);
        assert_eq!(ask(&agent, "/healthz", "a", "").await.0, StatusCode::OK);
        assert_eq!(ask(&agent, "/readyz", "a", "").await.0, StatusCode::OK);
        agent.drain();
        assert_eq!(ask(&agent, "/readyz", "a", "").await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(&agent, "/healthz", "a", "").await.0, StatusCode::OK);
    }
}
