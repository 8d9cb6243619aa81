//! A plain HTTP/1.1 client over TLS with a bearer token: what a test sends is exactly what goes out, and
//! what comes back is not interpreted.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// No single answer may take longer than this.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A request to send; the path carries the query.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Request {
    /// A request without a body.
    pub fn new(method: Method, path: impl Into<String>) -> Request {
        Request { method, path: path.into(), headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// A JSON body.
    #[must_use]
    pub fn json(self, body: &Value) -> Request {
        self.body("application/json", body.to_string())
    }

    /// A body of any content type; an empty `content_type` sends none.
    #[must_use]
    pub fn body(mut self, content_type: &str, body: impl Into<Bytes>) -> Request {
        self.body = body.into();
        if content_type.is_empty() { self } else { self.header("content-type", content_type) }
    }

    /// One more header; a name or value that HTTP cannot carry is a mistake of the test.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Request {
        let name = HeaderName::try_from(name).expect("tests name headers that exist");
        self.headers.insert(name, HeaderValue::try_from(value).expect("tests send printable headers"));
        self
    }
}

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub bytes: Bytes,
}

impl Reply {
    /// The body as JSON, or as a string where it is none.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&self.bytes).into_owned()))
    }

    /// The string at a JSON pointer of the body.
    pub fn text(&self, pointer: &str) -> Result<String> {
        let value = self.value();
        match value.pointer(pointer) {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => bail!("no string at {pointer} in {value}"),
        }
    }

    /// Whether the server did what was asked.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A client of one server. Clones share the idle connections.
#[derive(Clone)]
pub struct HttpClient {
    inner: Arc<Inner>,
}

struct Inner {
    addr: SocketAddr,
    tls: TlsConnector,
    authorization: HeaderValue,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl HttpClient {
    /// A client for `addr` that trusts the certificates in `ca_pem` and presents `token`.
    pub fn new(addr: SocketAddr, ca_pem: &str, token: &str) -> Result<HttpClient> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            roots.add(certificate.context("a certificate of the server is not PEM")?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let authorization = HeaderValue::try_from(format!("Bearer {token}"))?;
        let tls = TlsConnector::from(Arc::new(config));
        Ok(HttpClient { inner: Arc::new(Inner { addr, tls, authorization, idle: Mutex::default() }) })
    }

    /// The address that requests go to.
    pub fn addr(&self) -> SocketAddr {
        self.inner.addr
    }

    /// Sends a request and reads the whole answer.
    pub async fn send(&self, request: Request) -> Result<Reply> {
        let what = format!("{} {}", request.method, request.path);
        timeout(ANSWER_LIMIT, self.send_whole(request))
            .await
            .context("no answer in time")
            .flatten()
            .context(what)
    }

    async fn send_whole(&self, request: Request) -> Result<Reply> {
        let (mut connection, response) = self.dispatch(&request).await?;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await?.to_bytes();
        if connection.ready().await.is_ok() {
            self.inner.idle.lock().expect("no holder panics").push(connection);
        }
        Ok(Reply { status: parts.status.as_u16(), headers: parts.headers, bytes })
    }

    /// Opens a stream of lines, as a watch is. It has a connection of its own.
    pub async fn stream(&self, request: Request) -> Result<Lines> {
        let (connection, response) = timeout(ANSWER_LIMIT, self.dispatch(&request)).await??;
        let (parts, body) = response.into_parts();
        let status = parts.status.as_u16();
        Ok(Lines { status, headers: parts.headers, body, buffer: BytesMut::new(), _connection: connection })
    }

    /// An idle connection may have been closed by the server meanwhile: then, and only when nothing was
    /// sent over it, a new one is tried.
    async fn dispatch(
        &self,
        request: &Request,
    ) -> Result<(SendRequest<Full<Bytes>>, http::Response<Incoming>)> {
        loop {
            let idle = self.inner.idle.lock().expect("no holder panics").pop();
            let Some(mut connection) = idle else { break };
            if connection.ready().await.is_err() {
                continue;
            }
            match connection.try_send_request(self.build(request)?).await {
                Ok(response) => return Ok((connection, response)),
                Err(mut error) => {
                    if error.take_message().is_none() {
                        return Err(error.into_error().into());
                    }
                }
            }
        }
        let mut connection = self.connect().await?;
        let response = connection.send_request(self.build(request)?).await?;
        Ok((connection, response))
    }

    fn build(&self, request: &Request) -> Result<http::Request<Full<Bytes>>> {
        let mut built = http::Request::new(Full::new(request.body.clone()));
        *built.method_mut() = request.method.clone();
        *built.uri_mut() = request.path.parse().with_context(|| format!("bad path {}", request.path))?;
        let headers = built.headers_mut();
        headers.insert(http::header::HOST, HeaderValue::try_from(self.inner.addr.to_string())?);
        headers.insert(http::header::AUTHORIZATION, self.inner.authorization.clone());
        headers.insert(http::header::USER_AGENT, HeaderValue::from_static("testkit"));
        headers.extend(request.headers.clone());
        Ok(built)
    }

    /// What requests present to the server.
    pub fn authorization(&self) -> &HeaderValue {
        &self.inner.authorization
    }

    /// A connection of its own that speaks this protocol (`h2`).
    pub async fn connect_as(&self, protocol: &[u8]) -> Result<TlsStream<TcpStream>> {
        let mut config = self.inner.tls.config().as_ref().clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        self.handshake(&TlsConnector::from(Arc::new(config))).await
    }

    async fn handshake(&self, tls: &TlsConnector) -> Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.inner.addr).await.context("cannot connect")?;
        tcp.set_nodelay(true)?;
        let name = ServerName::IpAddress(self.inner.addr.ip().into());
        tls.connect(name, tcp).await.context("TLS handshake")
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let tls = self.handshake(&self.inner.tls).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(tls)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// A streamed answer, one line at a time.
pub struct Lines {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    buffer: BytesMut,
    _connection: SendRequest<Full<Bytes>>,
}

/// What reading a line came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Text(Bytes),
    /// The server ended the stream.
    End,
    /// Nothing (more) came before the deadline.
    Deadline,
}

impl Lines {
    /// The next line without its end, or how the wait for it ended.
    pub async fn next(&mut self, deadline: Instant) -> Result<Line> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(end + 1);
                line.truncate(end);
                return Ok(Line::Text(line.freeze()));
            }
            match timeout_at(deadline, self.body.frame()).await {
                Err(_) => return Ok(Line::Deadline),
                Ok(None) if self.buffer.is_empty() => return Ok(Line::End),
                Ok(None) => return Ok(Line::Text(self.buffer.split().freeze())),
                Ok(Some(frame)) => {
                    if let Ok(data) = frame.context("the stream broke off")?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}
