//! Clients: each keeps its connections, asks for one session after the other, and reads every answer closely.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::Size;
use crate::book::Book;
use crate::fronts::Doors;

const ANSWER_LIMIT: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(5);

type Sender = SendRequest<Empty<Bytes>>;

/// A client, with a connection to each door.
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) doors: Doors,
    pub(crate) book: Arc<Book>,
    connections: Vec<Option<Sender>>,
}

impl Client {
    pub(crate) fn new(number: usize, doors: Doors, book: Arc<Book>) -> Client {
        let connections = doors.addresses.iter().map(|_| None).collect();
        Client { number, doors, book, connections }
    }

    /// Asks until it is over. Two clients share each session, and take turns at the doors.
    pub(crate) async fn run(mut self, size: Size, over: Arc<AtomicBool>) -> Result<()> {
        for turn in 0.. {
            if over.load(Ordering::SeqCst) {
                break;
            }
            let session = format!("s-{}", (self.number / 2 + turn * (size.clients / 2)) % size.sessions);
            let asked = tokio::time::timeout(ANSWER_LIMIT, self.ask(turn, &session)).await;
            asked.with_context(|| format!("{session} is not answered"))?.with_context(|| session)?;
        }
        Ok(())
    }

    /// One request, of which the outcome is noted. Where nobody listens another door is tried, and so it is when a
    /// front that stops has closed a connection; a connection that breaks is a failure, which only a front that is
    /// killed may cause.
    async fn ask(&mut self, turn: usize, session: &str) -> Result<()> {
        for attempt in 0.. {
            let door = (self.number + turn + attempt) % self.connections.len();
            let Some(mut sender) = self.connection(door).await? else { continue };
            let killed = self.doors.kills();
            let name = format!("{}-{turn}-{attempt}", self.number);
            match send(&mut sender, session, &name).await {
                Ok(answer) => {
                    self.connections[door] = Some(sender);
                    return note(&answer, session, &self.book);
                }
                // It was not sent.
                Err(error) if error.is_canceled() => {}
                Err(_) if self.doors.kills() > killed || self.doors.is_down(door) => {
                    self.book.failed("the gateway was killed".to_owned());
                    return Ok(());
                }
                Err(_) if self.doors.is_stopping(door) => self.book.closed(&name),
                Err(error) => return Err(error).with_context(|| format!("by door {door}")),
            }
        }
        Ok(())
    }

    /// A connection to a door; none if nobody is there, and there are others to try.
    async fn connection(&mut self, door: usize) -> Result<Option<Sender>> {
        if let Some(kept) = self.connections[door].take().filter(|sender| !sender.is_closed()) {
            return Ok(Some(kept));
        }
        match connect(self.doors.addresses[door]).await {
            Ok(sender) => Ok(Some(sender)),
            Err(_) if self.connections.len() > 1 => {
                tokio::time::sleep(PAUSE).await;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

async fn connect(address: SocketAddr) -> Result<Sender> {
    let stream = TcpStream::connect(address).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn send(sender: &mut Sender, session: &str, attempt: &str) -> Result<Response<Bytes>, hyper::Error> {
    sender.ready().await?;
    let request = Request::get("/default/agent/say").header("host", "localhost");
    let request = request.header("x-session", session).header("x-attempt", attempt);
    let request = request.body(Empty::new()).expect("this is a request");
    let (parts, body) = sender.send_request(request).await?.into_parts();
    Ok(Response::from_parts(parts, body.collect().await?.to_bytes()))
}

fn note(answer: &Response<Bytes>, session: &str, book: &Book) -> Result<()> {
    let body: Value =
        serde_json::from_slice(answer.body()).with_context(|| format!("no JSON: {answer:?}"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if answer.status().is_success() {
        let (instance, number) = (text(&body["instance"]), body["number"].as_u64());
        ensure!(text(&body["session"]) == session, "{session} was answered {body}");
        book.served(session, &instance, number.context("answers are numbered")?);
        return Ok(());
    }
    let (code, message) = (text(&body["error"]["code"]), text(&body["error"]["message"]));
    // Of what befalls its external processor Envoy has no message, but a detail.
    let detail = text(&body["error"]["detail"]);
    let silent = code.is_empty() || message.is_empty() && detail.is_empty();
    let told = !silent && body["error"]["requestId"].is_string();
    let is_json = answer.headers().get("content-type").is_some_and(|it| it == "application/json");
    ensure!(answer.status().is_server_error() && told && is_json, "{session}: {answer:?}");
    book.failed(format!("{} {code} {detail}", answer.status().as_u16()));
    Ok(())
}
