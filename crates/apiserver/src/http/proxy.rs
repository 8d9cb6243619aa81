//! `pods/NAME[:PORT]/proxy/PATH` and `services/NAME[:PORT]/proxy/PATH`: HTTP to a Pod or a Service through the API
//! server, as `kubectl get --raw` and `kubectl proxy` use it. Bodies stream both ways; nothing is rewritten.

use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, header};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::reply::ReplyBody;
use crate::api::{Api, Name};
use crate::hooks::Connection;
use crate::request::{Query, percent_decode};
use crate::status::Status;

/// Headers that are about one connection, and the client's proof to us, which is none of the Pod's business.
const NOT_PASSED_ON: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::AUTHORIZATION,
    header::HOST,
];

/// What stands before and after `/proxy/` in the path of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    namespace: String,
    resource: &'static str,
    name: String,
    port: String,
    path: String,
}

impl Target {
    /// `None` when the path is not one of a proxy.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/api/v1/namespaces/")?;
        let mut parts = rest.splitn(5, '/');
        let namespace = percent_decode(parts.next()?)?;
        let resource = match parts.next()? {
            "pods" => "pods",
            "services" => "services",
            _ => return None,
        };
        let id = percent_decode(parts.next()?)?;
        if parts.next()? != "proxy" {
            return None;
        }
        let path = format!("/{}", parts.next().unwrap_or_default());
        // `scheme:name:port`, of which only the name is needed.
        let id: Vec<&str> = id.split(':').collect();
        let (name, port) = match id.as_slice() {
            [name] => (*name, ""),
            [name, port] | ["http", name, port] => (*name, *port),
            _ => return None,
        };
        Some(Self { namespace, resource, name: name.to_owned(), port: port.to_owned(), path })
    }
}

/// Answers what the Pod answers.
pub(super) async fn serve<B>(
    api: &Api,
    target: Target,
    parts: Parts,
    body: B,
) -> Result<Response<ReplyBody>, Status>
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let connection = connect(api, &target).await?;
    let request = outgoing(&target, parts, body)?;
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(connection))
        .await
        .map_err(|error| unreachable(&error))?;
    tokio::spawn(async move {
        if let Err(error) = driver.await {
            tracing::debug!(%error, "a proxied connection ended early");
        }
    });
    let response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
    Ok(incoming(response))
}

async fn connect(api: &Api, target: &Target) -> Result<Connection, Status> {
    let registry = api.registry();
    let resource = registry.find("", "v1", target.resource).ok_or_else(Status::page_not_found)?;
    let named = Name { namespace: Some(&target.namespace), name: &target.name };
    let object = resource.typed(&*api.find(&resource, &named)?);
    if target.resource == "pods" {
        let port = pod_port(&object, &target.port)?;
        return api.connect_pod(object, port).await;
    }
    let port = service_port(&object, &target.port)?;
    api.connect_service(object, port).await
}

/// The port by number or name; without one, the first that the Pod declares.
fn pod_port(pod: &Value, port: &str) -> Result<u16, Status> {
    if let Ok(number) = port.parse() {
        return Ok(number);
    }
    let declared = pod["spec"]["containers"].as_array().into_iter().flatten();
    let mut declared = declared.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let found = declared.find(|declared| port.is_empty() || declared["name"] == port);
    match found.and_then(|found| u16::try_from(found["containerPort"].as_u64()?).ok()) {
        Some(number) => Ok(number),
        None if port.is_empty() => Ok(80),
        None => Err(Status::bad_request(format!("the Pod declares no port {port:?}"))),
    }
}

/// The Service's own port by number or name; without one, its only port.
fn service_port(service: &Value, port: &str) -> Result<Value, Status> {
    let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = match (ports, port.parse::<u64>()) {
        ([only], _) if port.is_empty() => Some(only),
        (ports, Ok(number)) => ports.iter().find(|p| p["port"] == number),
        (ports, Err(_)) => ports.iter().find(|p| p["name"].as_str().unwrap_or_default() == port),
    };
    found.cloned().ok_or_else(|| {
        Status::service_unavailable(format!(
            "no endpoints available for service \"{}:{port}\"",
            service["metadata"]["name"].as_str().unwrap_or_default()
        ))
    })
}

fn outgoing<B>(target: &Target, parts: Parts, body: B) -> Result<Request<B>, Status> {
    let path = match parts.uri.query() {
        Some(query) => format!("{}?{query}", target.path),
        None => target.path.clone(),
    };
    let uri: Uri = path.parse().map_err(|error| Status::bad_request(format!("the path: {error}")))?;
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.uri_mut() = uri;
    *request.headers_mut() = passed_on(parts.headers);
    let host = HeaderValue::from_str(&target.name).unwrap_or(HeaderValue::from_static("pod"));
    request.headers_mut().insert(header::HOST, host);
    Ok(request)
}

fn passed_on(mut headers: HeaderMap) -> HeaderMap {
    // What `Connection` names is about this connection too.
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&NOT_PASSED_ON) {
        headers.remove(name);
    }
    headers
}

fn incoming(response: Response<hyper::body::Incoming>) -> Response<ReplyBody> {
    let (mut parts, body) = response.into_parts();
    parts.headers = passed_on(parts.headers);
    parts.version = http::Version::default();
    // A Pod that breaks off in the middle ends the body; the length that it announced tells the client.
    let body = futures_util::stream::unfold(body, |mut body| async move {
        match body.frame().await? {
            Ok(frame) => Some((Ok(frame), body)),
            Err(error) => {
                tracing::debug!(%error, "a proxied answer ended early");
                None
            }
        }
    });
    Response::from_parts(parts, http_body_util::StreamBody::new(body).boxed_unsync())
}

fn unreachable(error: &dyn std::error::Error) -> Status {
    Status::service_unavailable(format!("error trying to reach service: {error}"))
}

/// The numbers in `?ports=`, for `portforward`.
pub(super) fn ports(query: &Query) -> Result<Vec<u16>, Status> {
    let listed = query.all("ports").iter().flat_map(|value| value.split(','));
    let ports: Result<Vec<u16>, _> = listed.map(str::parse).collect();
    match ports {
        Ok(ports) if !ports.is_empty() && ports.len() <= 16 => Ok(ports),
        Ok(_) => Err(Status::bad_request("query parameter \"ports\" must name 1 to 16 ports")),
        Err(error) => Err(Status::bad_request(format!("query parameter \"ports\": {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        let target = |resource, name: &str, port: &str, path: &str| {
            Some(Target {
                namespace: "n".into(),
                resource,
                name: name.into(),
                port: port.into(),
                path: path.into(),
            })
        };
        for (path, expected) in [
            ("/api/v1/namespaces/n/pods/p/proxy", target("pods", "p", "", "/")),
            ("/api/v1/namespaces/n/pods/p:8080/proxy/", target("pods", "p", "8080", "/")),
            ("/api/v1/namespaces/n/pods/p%3A8080/proxy/a/b", target("pods", "p", "8080", "/a/b")),
            (
                "/api/v1/namespaces/n/services/http:s:web/proxy/a//b/",
                target("services", "s", "web", "/a//b/"),
            ),
            ("/api/v1/namespaces/n/services/ftp:s:web/proxy/", None),
            ("/api/v1/namespaces/n/pods/p/log", None),
            ("/api/v1/namespaces/n/configmaps/p/proxy", None),
            ("/apis/v1/namespaces/n/pods/p/proxy", None),
        ] {
            assert_eq!(Target::parse(path), expected, "{path}");
        }
    }

    #[test]
    fn ports_are_found_by_number_name_or_alone() {
        let pod = json!({"spec": {"containers": [{}, {"ports": [{"name": "web", "containerPort": 8080}]}]}});
        for (port, expected) in [("9", Some(9)), ("web", Some(8080)), ("", Some(8080)), ("other", None)] {
            assert_eq!(pod_port(&pod, port).ok(), expected, "{port}");
        }
        let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}});
        for (port, expected) in [("1", Some(1)), ("b", Some(2)), ("", None), ("3", None)] {
            let found = service_port(&service, port).ok().and_then(|p| p["port"].as_u64());
            assert_eq!(found, expected, "{port}");
        }
    }

    #[test]
    fn the_clients_token_stays_here() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("x-hop, keep-alive"));
        headers.insert("x-hop", HeaderValue::from_static("1"));
        headers.insert("x-mine", HeaderValue::from_static("2"));
        let passed = passed_on(headers);
        assert_eq!(passed.len(), 1);
        assert!(passed.contains_key("x-mine"));
    }
}
