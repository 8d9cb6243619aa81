//! How authorisation services are asked by other protocols than HTTP. The router itself speaks no gRPC: whoever does
//! gives it a [`Protocol`].

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::header::HeaderName;
use http::{HeaderMap, Method, StatusCode};
use tokio::net::TcpStream;

/// Opens a connection to a service, to whichever of its endpoints has its turn.
pub type Dial = Arc<dyn Fn() -> BoxFuture<'static, io::Result<TcpStream>> + Send + Sync>;

/// A protocol of authorisation services.
pub trait Protocol: Send + Sync + 'static {
    /// A service that is reached by `dial`, under this name. Nothing is connected before it is asked.
    fn open(&self, name: &str, dial: Dial) -> Arc<dyn Authorizer>;
}

/// A service that says who may come in.
pub trait Authorizer: Send + Sync + 'static {
    /// Asks it; an error says why it cannot be asked, or did not answer. How long that may take is for the caller to say.
    fn check(&self, question: Question) -> BoxFuture<'_, Result<Answer, String>>;
}

/// A request that wants to come in.
#[derive(Clone, Debug)]
pub struct Question {
    pub method: Method,
    pub scheme: &'static str,
    pub host: String,
    /// Path and query, as they came.
    pub target: String,
    pub headers: HeaderMap,
    pub client: IpAddr,
}

/// What a service says.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It may come in.
    Yes {
        /// Headers that the instance is told, in place of the client's.
        set: HeaderMap,
        /// Headers of the client's that the instance does not see.
        remove: Vec<HeaderName>,
    },
    /// It may not; with headers for the client.
    No { status: StatusCode, headers: HeaderMap },
}
