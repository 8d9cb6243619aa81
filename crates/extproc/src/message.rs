//! Envoy's messages in our words and ours in Envoy's. Pure; nothing that a message can hold makes it panic.

use std::collections::HashMap;

use agentcube_instance::provider;
use agentcube_router::decide::{DESTINATION, Decision, TOKEN};
use agentcube_router::refusal::Refusal;
use envoy_types::pb::envoy::config::core::v3::{
    self as core, HeaderValue as Field, HeaderValueOption, header_value_option::HeaderAppendAction,
};
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpHeaders, ImmediateResponse,
    ProcessingResponse, TrailersResponse, processing_request::Request, processing_response::Response,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

/// The namespace of metadata that Envoy's load balancer and its access log read.
pub const METADATA: &str = "envoy.lb";
/// Which pick it was; comes back in the access log.
pub const PICK: &str = "agentcube-pick";
/// For whom it was, so that another router can take the request over.
pub const TASK: &str = "agentcube-task";
pub const SESSION: &str = "agentcube-session";
/// What whoever hears of the end is to know of the decision.
pub const SEEN: &str = "agentcube-seen";

/// The most headers that a request may have.
const MOST_HEADERS: usize = 512;
/// The longest id that is repeated to a client.
const LONGEST_REQUEST_ID: usize = 128;
const ROUTE_NAME: &str = "xds.route_name";
const REQUEST_ID: &str = "x-request-id";
/// What Envoy says of our answers in its own logs begins so; by that its configuration knows them from its own.
pub(crate) const DETAILS: &str = "agentcube_";

/// The head of a request.
#[derive(Debug)]
pub struct Head {
    pub method: Method,
    pub host: Option<String>,
    pub path: String,
    pub query: Option<String>,
    pub headers: HeaderMap,
}

/// Reads the head of a request.
pub fn head(message: &HttpHeaders) -> Result<Head, Refusal> {
    let fields = message.headers.as_ref().map(|map| &*map.headers).unwrap_or_default();
    if fields.len() > MOST_HEADERS {
        let message = format!("the request has {} headers; at most {MOST_HEADERS} are allowed", fields.len());
        return Err(Refusal::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "HeadersTooLarge", message));
    }
    let mut pseudo: HashMap<&str, &[u8]> = HashMap::new();
    let mut headers = HeaderMap::new();
    for field in fields {
        if field.key.starts_with(':') {
            pseudo.insert(&field.key, bytes(field));
            continue;
        }
        let name = HeaderName::from_bytes(field.key.as_bytes());
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(bytes(field))) else {
            let message = "the request has a header that is not allowed in HTTP";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "HeaderInvalid", message));
        };
        headers.append(name, value);
    }
    let text = |name: &str| pseudo.get(name).and_then(|value| std::str::from_utf8(value).ok());
    let method = text(":method").and_then(|method| method.parse().ok()).unwrap_or(Method::GET);
    let target = text(":path").unwrap_or("/");
    let target = target.split('#').next().unwrap_or_default();
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (target, None),
    };
    let host = text(":authority").filter(|host| !host.is_empty()).map(str::to_owned);
    Ok(Head { method, host, path: path.to_owned(), query, headers })
}

/// Envoy sends values as bytes; older ones as text.
fn bytes(field: &Field) -> &[u8] {
    if field.raw_value.is_empty() { field.value.as_bytes() } else { &field.raw_value }
}

/// The id by which Envoy knows a request.
pub fn request_id(message: &HttpHeaders) -> HeaderValue {
    let fields = message.headers.iter().flat_map(|map| &map.headers);
    let given = fields.filter(|field| field.key == REQUEST_ID).map(bytes).next().unwrap_or_default();
    let decent = (1..=LONGEST_REQUEST_ID).contains(&given.len()) && given.iter().all(u8::is_ascii_graphic);
    let given = decent.then(|| HeaderValue::from_bytes(given).ok()).flatten();
    given.unwrap_or(HeaderValue::from_static("-"))
}

/// The Task that a request is for, as the control plane named its route; never from what a client sent.
pub fn task(attributes: &HashMap<String, Struct>) -> Option<(&str, &str)> {
    route_task(route_name(attributes)?)
}

pub(crate) fn route_name(attributes: &HashMap<String, Struct>) -> Option<&str> {
    string(attributes.values().find_map(|given| given.fields.get(ROUTE_NAME))?)
}

/// A header of a request; nothing if it has several of that name.
pub(crate) fn field<'a>(message: &'a HttpHeaders, name: &str) -> Option<&'a [u8]> {
    let mut fields = message.headers.iter().flat_map(|map| &map.headers).filter(|field| field.key == name);
    let first = fields.next();
    first.filter(|_| fields.next().is_none()).map(bytes)
}

/// The namespace and the name in `httproute/<namespace>/<name>/rule/…`.
pub fn route_task(route: &str) -> Option<(&str, &str)> {
    let mut parts = route.strip_prefix("httproute/")?.split('/');
    let (namespace, name) = (parts.next()?, parts.next()?);
    let whole = parts.next() == Some("rule") && !namespace.is_empty() && !name.is_empty();
    whole.then_some((namespace, name))
}

pub(crate) fn string(value: &Value) -> Option<&str> {
    match &value.kind {
        Some(Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

fn text(value: impl Into<String>) -> Value {
    Value { kind: Some(Kind::StringValue(value.into())) }
}

/// The answer for a request that has its instance.
pub fn picked(decision: &Decision, wanted: &provider::Request, pick: &str) -> ProcessingResponse {
    let mut fields = HashMap::from([
        (DESTINATION.as_str().to_owned(), text(decision.endpoint.to_string())),
        (PICK.to_owned(), text(pick)),
        (TASK.to_owned(), text(wanted.task.to_string())),
    ]);
    if let Some(key) = &wanted.key {
        fields.insert(SESSION.to_owned(), text(key.as_str()));
    }
    let of_balancer = Value { kind: Some(Kind::StructValue(Struct { fields })) };
    let metadata = Struct { fields: HashMap::from([(METADATA.to_owned(), of_balancer)]) };
    let mutation = HeaderMutation {
        set_headers: decision.set.iter().map(|(name, value)| set(name, value)).collect(),
        remove_headers: decision.remove.iter().map(HeaderName::to_string).collect(),
    };
    let response = CommonResponse { header_mutation: Some(mutation), ..CommonResponse::default() };
    ProcessingResponse {
        dynamic_metadata: Some(metadata),
        response: Some(Response::RequestHeaders(HeadersResponse { response: Some(response) })),
        ..ProcessingResponse::default()
    }
}

/// With the value as bytes: as text Envoy would take it for empty. It takes the place of whatever was there.
fn set(name: &HeaderName, value: &HeaderValue) -> HeaderValueOption {
    let field = Field { key: name.to_string(), raw_value: value.as_bytes().to_vec(), ..Field::default() };
    HeaderValueOption {
        header: Some(field),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

/// The answer for a request that is not passed on.
pub fn refused(refusal: &Refusal, request_id: &HeaderValue) -> ProcessingResponse {
    let mut headers = refusal.headers();
    headers.insert(HeaderName::from_static(REQUEST_ID), request_id.clone());
    let mutation = HeaderMutation {
        set_headers: headers.iter().map(|(name, value)| set(name, value)).collect(),
        ..HeaderMutation::default()
    };
    let response = ImmediateResponse {
        status: Some(HttpStatus { code: refusal.status.as_u16().into() }),
        headers: Some(mutation),
        body: refusal.body(request_id).into_bytes(),
        details: format!("{DETAILS}{}", refusal.code),
        ..ImmediateResponse::default()
    };
    ProcessingResponse {
        response: Some(Response::ImmediateResponse(response)),
        ..ProcessingResponse::default()
    }
}

/// The answer that lets through what it was asked about; instances do not show their tokens to clients.
pub fn passed(request: &Request) -> ProcessingResponse {
    let response = match request {
        Request::RequestHeaders(_) => Response::RequestHeaders(HeadersResponse::default()),
        Request::ResponseHeaders(_) => {
            let remove_headers = vec![TOKEN.to_string()];
            let mutation = HeaderMutation { remove_headers, ..HeaderMutation::default() };
            let common = CommonResponse { header_mutation: Some(mutation), ..CommonResponse::default() };
            Response::ResponseHeaders(HeadersResponse { response: Some(common) })
        }
        Request::RequestBody(_) => Response::RequestBody(BodyResponse::default()),
        Request::ResponseBody(_) => Response::ResponseBody(BodyResponse::default()),
        Request::RequestTrailers(_) => Response::RequestTrailers(TrailersResponse::default()),
        Request::ResponseTrailers(_) => Response::ResponseTrailers(TrailersResponse::default()),
    };
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

/// Has this come back with the end of the request.
pub(crate) fn see(response: &mut ProcessingResponse, seen: String) {
    let fields = response.dynamic_metadata.as_mut().and_then(|metadata| metadata.fields.get_mut(METADATA));
    if let Some(Value { kind: Some(Kind::StructValue(of_balancer)) }) = fields {
        of_balancer.fields.insert(SEEN.to_owned(), text(seen));
    }
}

/// What the metadata of an access log entry says of a pick.
pub(crate) fn picked_metadata(metadata: &core::Metadata) -> Option<&HashMap<String, Value>> {
    metadata.filter_metadata.get(METADATA).map(|of_balancer| &of_balancer.fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_named_by_their_routes() {
        let route = "httproute/prod/chat/rule/0/match/0/*";
        assert_eq!(route_task(route), Some(("prod", "chat")));
        for bad in ["", "prod/chat", "httproute/prod", "httproute/prod/chat", "httproute//chat/rule/0"] {
            assert_eq!(route_task(bad), None, "{bad}");
        }
        let attributes = |route: Value| {
            let given = Struct { fields: HashMap::from([(ROUTE_NAME.to_owned(), route)]) };
            HashMap::from([("envoy.filters.http.ext_proc".to_owned(), given)])
        };
        assert_eq!(task(&attributes(text(route))), Some(("prod", "chat")));
        assert_eq!(task(&attributes(Value { kind: Some(Kind::BoolValue(true)) })), None);
        assert_eq!(task(&HashMap::new()), None);
    }

    #[test]
    fn values_are_bytes_or_text() {
        let field = |key: &str, value: &str, raw: &[u8]| Field {
            key: key.into(),
            value: value.into(),
            raw_value: raw.to_vec(),
        };
        let headers = vec![
            field(":method", "", b"POST"),
            field(":path", "", b"/prod/chat?session=u1#x"),
            field(":authority", "a.example", b""),
            field("x-session", "", "Grüße".as_bytes()),
            field("x-request-id", "", b"id-1"),
        ];
        let message = HttpHeaders { headers: Some(core::HeaderMap { headers }), ..HttpHeaders::default() };
        let head = head(&message).unwrap();
        assert_eq!((head.method, head.host.as_deref()), (Method::POST, Some("a.example")));
        assert_eq!((&*head.path, head.query.as_deref()), ("/prod/chat", Some("session=u1")));
        assert_eq!(head.headers["x-session"].as_bytes(), "Grüße".as_bytes());
        assert_eq!(request_id(&message), "id-1");
    }
}
