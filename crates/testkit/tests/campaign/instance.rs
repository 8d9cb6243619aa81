//! Instances: servers that believe nobody. Each takes requests only with a genuine token that names it and the session
//! that it serves, and it serves one session as long as it lives.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use agentcube_instance::token::TaskKeys;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::book::Book;

pub(crate) struct Instance {
    pub(crate) uid: String,
    pub(crate) keys: TaskKeys,
    pub(crate) book: Arc<Book>,
    /// The session that it serves, and how many requests of it have come.
    pub(crate) serves: Mutex<Option<(String, u64)>>,
}

impl Instance {
    /// Listens until the task is aborted, which ends its connections as well.
    pub(crate) async fn start(self, address: SocketAddr) -> Result<JoinHandle<()>> {
        let listener = TcpListener::bind(address).await?;
        let instance = Arc::new(self);
        Ok(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let instance = instance.clone();
                let service = hyper::service::service_fn(move |request| {
                    let instance = instance.clone();
                    async move { Ok::<_, Infallible>(instance.answer(&request)) }
                });
                let builder = hyper::server::conn::http1::Builder::new();
                connections.spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        }))
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        match self.check(request) {
            Ok((session, number)) => {
                let said = json!({ "instance": self.uid, "session": session, "number": number });
                Response::new(said.to_string().into())
            }
            Err(error) => {
                self.book.wrong(format!("at {}: {error:#}", self.uid));
                let mut response = Response::new(Full::default());
                *response.status_mut() = http::StatusCode::FORBIDDEN;
                response
            }
        }
    }

    fn check(&self, request: &Request<Incoming>) -> Result<(String, u64)> {
        let header = |name: &str| -> Result<&str> {
            let mut values = request.headers().get_all(name).iter();
            let value = values.next().with_context(|| format!("no {name}"))?;
            ensure!(values.next().is_none(), "{name} came twice");
            Ok(value.to_str()?)
        };
        self.book.reached(header("x-attempt")?);
        let asked = header("x-session")?;
        let now = jiff::Timestamp::now();
        let token =
            self.keys.verify(header("x-reserved-token")?, now).and_then(|it| it.for_instance(&self.uid));
        let token = token.with_context(|| format!("a request of {asked}"))?;
        let told = token.claims.key.as_ref().map(|key| key.as_str()).unwrap_or_default();
        ensure!(told == asked, "the token is for {told:?}, the request of {asked:?}");
        let mut serves = self.serves.lock();
        let (session, number) = serves.get_or_insert_with(|| (asked.to_owned(), 0));
        ensure!(session == asked, "it serves {session}, and a request of {asked} came");
        *number += 1;
        Ok((session.clone(), *number))
    }
}
