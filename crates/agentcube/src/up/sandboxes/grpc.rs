//! The fast path behind the API server's socket.

use std::pin::Pin;

use agentcube_apiserver::hooks::{Grpc, GrpcBody};
use agentcube_protos::fastpath::fast_path_server::FastPathServer;
use agentcube_sandbox::FastPathService;
use http::{Request, Response};
use http_body_util::BodyExt;
use tower::Service;

pub(super) struct Served(pub(super) FastPathServer<FastPathService>);

impl Grpc for Served {
    fn call(&self, request: Request<GrpcBody>) -> Pin<Box<dyn Future<Output = Response<GrpcBody>> + Send>> {
        let mut service = self.0.clone();
        Box::pin(async move {
            let Ok(response) = service.call(request.map(tonic::body::Body::new)).await;
            response.map(|body| body.map_err(Into::into).boxed_unsync())
        })
    }
}
