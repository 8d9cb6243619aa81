//! A registry that behaves as a test wants it to. HTTP/1.1 by hand, so that it can also break off in the middle.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Break the connection off after so many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// Never end: keep the connection open after the body.
    pub(crate) hang: bool,
}

pub(crate) fn answer(status: u16, body: impl Into<Vec<u8>>) -> Answer {
    Answer { status, headers: Vec::new(), body: body.into(), cut: None, hang: false }
}

impl Answer {
    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(handle: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::listen(None, handle).await
    }

    /// With encryption.
    pub(crate) async fn start_tls(
        tls: tokio_rustls::TlsAcceptor,
        handle: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::listen(Some(tls), handle).await
    }

    async fn listen(
        tls: Option<tokio_rustls::TlsAcceptor>,
        handle: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (handle, log) = (Arc::new(handle), asked.clone());
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, handle, log) = (tls.clone(), handle.clone(), log.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => serve(tls.accept(stream).await.ok()?, handle, log).await,
                        None => serve(stream, handle, log).await,
                    }
                });
            }
        });
        Self { address, asked, task }
    }

    /// Everything that was asked for until now.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, path: &str) -> usize {
        self.asked().iter().filter(|asked| asked.path.contains(path)).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve<H: Fn(&Asked) -> Answer>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    handle: Arc<H>,
    log: Arc<Mutex<Vec<Asked>>>,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    // A client that tries TLS first sends no line of text; the connection is closed on it.
    let first = *stream.fill_buf().await.ok()?.first()?;
    if !first.is_ascii_alphabetic() {
        return None;
    }
    stream.read_until(b'\n', &mut line).await.ok()?;
    let path = String::from_utf8_lossy(&line).split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let asked = Asked { path, headers };
    let answer = handle(&asked);
    log.lock().unwrap().push(asked);
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", answer.status);
    let length = answer.body.len() + usize::from(answer.hang);
    head.push_str(&format!("content-length: {length}\r\n"));
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    let sent = answer.cut.unwrap_or(answer.body.len());
    stream.write_all(&answer.body[..sent]).await.ok()?;
    stream.flush().await.ok()?;
    if answer.hang {
        std::future::pending::<()>().await;
    }
    stream.shutdown().await.ok()
}
