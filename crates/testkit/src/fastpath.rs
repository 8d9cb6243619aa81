//! A client of the fast path, at the address and with the token of an HTTP client.

use agentcube_protos::fastpath::fast_path_client::FastPathClient;
use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};

use crate::http_client::HttpClient;

pub type FastPath = FastPathClient<InterceptedService<Channel, Bearer>>;

/// Puts a token into every call.
#[derive(Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

/// Connects to the fast path that an API server serves beside its own protocol.
pub async fn connect(http: &HttpClient) -> Result<FastPath> {
    let authorization = http.authorization().to_str()?.parse().context("the token is not text")?;
    let server = http.clone();
    let connector = tower::service_fn(move |_: http::Uri| {
        let server = server.clone();
        async move { server.connect_as(b"h2").await.map(TokioIo::new).map_err(std::io::Error::other) }
    });
    let endpoint = Endpoint::from_shared(format!("https://{}", http.addr()))?;
    let channel =
        endpoint.connect_with_connector(connector).await.context("cannot connect to the fast path")?;
    Ok(FastPathClient::with_interceptor(channel, Bearer(authorization)))
}
