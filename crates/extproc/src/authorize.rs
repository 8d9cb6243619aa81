//! Authorisation services that speak Envoy's gRPC protocol (`envoy.service.auth.v3`), asked for the built-in gateway.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use agentcube_router::authorize::{Answer, Authorizer, Dial, Protocol, Question};
use envoy_types::pb::envoy::config::core::v3::{Address, HeaderValueOption, SocketAddress, address};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Peer, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest, CheckResponse};
use futures_util::future::BoxFuture;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// The most that is read of an answer, in bytes.
const LARGEST: usize = 64 << 10;

/// How long it may take to connect, and how often the other side has to show that it is there.
const DIAL: Duration = Duration::from_secs(2);
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// Envoy's protocol.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

impl Protocol for Grpc {
    fn open(&self, name: &str, dial: Dial) -> Arc<dyn Authorizer> {
        // The name is only said in `:authority`; what is dialled is what the gateway knows of the Service.
        let endpoint = Endpoint::from_shared(format!("http://{name}"));
        let endpoint = endpoint.unwrap_or_else(|_| Endpoint::from_static("http://authorization"));
        // One connection serves all questions: a dead one must not hold them up until each runs out of time.
        let endpoint = endpoint
            .http2_keep_alive_interval(SIGN_OF_LIFE)
            .keep_alive_timeout(SIGN_OF_LIFE)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
            let dialling = tokio::time::timeout(DIAL, dial());
            async move { dialling.await.map_err(std::io::Error::from)?.map(TokioIo::new) }
        }));
        Arc::new(Service(AuthorizationClient::new(channel).max_decoding_message_size(LARGEST)))
    }
}

struct Service(AuthorizationClient<Channel>);

impl Authorizer for Service {
    fn check(&self, question: Question) -> BoxFuture<'_, Result<Answer, String>> {
        // A copy shares the connection.
        let mut client = self.0.clone();
        Box::pin(async move {
            let answer = client.check(asked(&question)).await.map_err(|status| status.to_string())?;
            Ok(answered(answer.into_inner()))
        })
    }
}

fn asked(question: &Question) -> CheckRequest {
    let mut headers: HashMap<String, String> = HashMap::new();
    for (name, value) in &question.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        // Several of a name are one, as Envoy has them.
        headers
            .entry(name.as_str().to_owned())
            .and_modify(|all| {
                all.push(',');
                all.push_str(&value);
            })
            .or_insert_with(|| value.into_owned());
    }
    let http = HttpRequest {
        method: question.method.to_string(),
        headers,
        path: question.target.clone(),
        host: question.host.clone(),
        scheme: question.scheme.to_owned(),
        protocol: "HTTP/1.1".to_owned(),
        ..HttpRequest::default()
    };
    let source = SocketAddress { address: question.client.to_string(), ..SocketAddress::default() };
    let source = Address { address: Some(address::Address::SocketAddress(source)) };
    let attributes = AttributeContext {
        source: Some(Peer { address: Some(source), ..Peer::default() }),
        request: Some(Request { http: Some(http), ..Request::default() }),
        ..AttributeContext::default()
    };
    CheckRequest { attributes: Some(attributes) }
}

/// Whatever is not a yes is a no.
fn answered(answer: CheckResponse) -> Answer {
    let yes = answer.status.is_some_and(|status| status.code == 0);
    match answer.http_response {
        Some(HttpResponse::OkResponse(ok)) if yes => {
            let remove = ok.headers_to_remove.iter().filter_map(|name| name.parse().ok()).collect();
            Answer::Yes { set: headers(&ok.headers), remove }
        }
        None if yes => Answer::Yes { set: HeaderMap::new(), remove: Vec::new() },
        Some(HttpResponse::DeniedResponse(denied)) => {
            let status = denied.status.and_then(|status| u16::try_from(status.code).ok());
            let status = status.and_then(|status| StatusCode::from_u16(status).ok());
            Answer::No { status: status.unwrap_or(StatusCode::FORBIDDEN), headers: headers(&denied.headers) }
        }
        _ => Answer::No { status: StatusCode::FORBIDDEN, headers: HeaderMap::new() },
    }
}

fn headers(given: &[HeaderValueOption]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for option in given {
        let Some(field) = &option.header else { continue };
        let value = if field.raw_value.is_empty() { field.value.as_bytes() } else { &field.raw_value };
        let name = HeaderName::from_bytes(field.key.as_bytes());
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) else { continue };
        // Several of a name are several; what the client sent under it goes in any case.
        headers.append(name, value);
    }
    headers
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::HeaderValue as Field;
    use envoy_types::pb::envoy::service::auth::v3::authorization_server::{
        Authorization, AuthorizationServer,
    };
    use envoy_types::pb::envoy::service::auth::v3::{DeniedHttpResponse, OkHttpResponse};
    use envoy_types::pb::envoy::r#type::v3::HttpStatus;
    use envoy_types::pb::google::rpc;
    use http::Method;
    use tokio::net::{TcpListener, TcpStream};
    use tonic::{Response, Status};

    use super::*;

    fn field(key: &str, value: &str) -> HeaderValueOption {
        let header = Field { key: key.into(), value: value.into(), ..Field::default() };
        HeaderValueOption { header: Some(header), ..HeaderValueOption::default() }
    }

    /// Answers as the header `badge` of a request says.
    struct Doorman;

    #[tonic::async_trait]
    impl Authorization for Doorman {
        async fn check(
            &self,
            request: tonic::Request<CheckRequest>,
        ) -> Result<Response<CheckResponse>, Status> {
            let attributes = request.into_inner().attributes.unwrap();
            let http = attributes.request.unwrap().http.unwrap();
            let told = format!("{} {}{} {}", http.method, http.host, http.path, http.headers["several"]);
            let code = |code: i32| Some(rpc::Status { code, ..rpc::Status::default() });
            let ok = OkHttpResponse {
                headers: vec![field("x-user", "ada"), field("x-told", &told), field("bad name", "x")],
                headers_to_remove: vec!["x-secret".into()],
                ..OkHttpResponse::default()
            };
            let denied = DeniedHttpResponse {
                status: Some(HttpStatus { code: 302 }),
                headers: vec![field("location", "https://login.example.com/")],
                ..DeniedHttpResponse::default()
            };
            let (status, http_response) = match http.headers["badge"].as_str() {
                "good" => (code(0), Some(HttpResponse::OkResponse(ok))),
                "plain" => (code(0), None),
                "login" => (code(7), Some(HttpResponse::DeniedResponse(denied))),
                "odd" => (code(7), Some(HttpResponse::OkResponse(ok))),
                "empty" => (None, None),
                _ => return Err(Status::unavailable("not now")),
            };
            Ok(Response::new(CheckResponse { status, http_response, ..CheckResponse::default() }))
        }
    }

    #[tokio::test]
    async fn a_service_is_asked_in_envoys_words() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = tonic::transport::Server::builder().add_service(AuthorizationServer::new(Doorman));
        tokio::spawn(server.serve_with_incoming(incoming));
        let dial: Dial = Arc::new(move || Box::pin(TcpStream::connect(address)));
        let service = Grpc.open("auth.default", dial);
        let ask = async |badge: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("badge", HeaderValue::from_static(badge));
            headers.append("several", HeaderValue::from_static("1"));
            headers.append("several", HeaderValue::from_static("2"));
            let (host, target) = ("a.example".to_owned(), "/b?c=d".to_owned());
            let client = [127, 0, 0, 1].into();
            service
                .check(Question { method: Method::POST, scheme: "http", host, target, headers, client })
                .await
        };
        let Ok(Answer::Yes { set, remove }) = ask("good").await else { panic!("it is a yes") };
        assert_eq!(
            (set["x-user"].as_bytes(), set["x-told"].as_bytes()),
            (&b"ada"[..], &b"POST a.example/b?c=d 1,2"[..])
        );
        assert_eq!((set.len(), remove), (2, vec![HeaderName::from_static("x-secret")]));
        assert!(matches!(ask("plain").await, Ok(Answer::Yes { .. })));
        let Ok(Answer::No { status, headers }) = ask("login").await else { panic!("it is a no") };
        assert_eq!(
            (status, headers["location"].as_bytes()),
            (StatusCode::FOUND, &b"https://login.example.com/"[..])
        );
        for odd in ["odd", "empty"] {
            let no = Answer::No { status: StatusCode::FORBIDDEN, headers: HeaderMap::new() };
            assert_eq!(ask(odd).await, Ok(no), "{odd}");
        }
        assert!(ask("broken").await.unwrap_err().contains("not now"));
    }
}
