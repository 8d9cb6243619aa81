//! Envoy's messages in our words and ours in Envoy's. Pure; nothing that a message can hold makes it panic.

use std::collections::HashMap;

use agentcube_instance::provider;
use agentcube_instance::{Endpoint, InstanceId};
use agentcube_router::decide::{DESTINATION, Decision, TOKEN};
use agentcube_router::refusal::Refusal;
use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::{
    HeaderValue as Field, HeaderValueOption, header_value_option::HeaderAppendAction,
};
use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::{
    ProcessingMode,
    processing_mode::{BodySendMode, HeaderSendMode},
};
use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpHeaders, ImmediateResponse,
    ProcessingResponse, TrailersResponse, processing_request::Request, processing_response::Response,
};
use envoy_types::pb::envoy::r#type::v3::HttpStatus;
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

use crate::mark::{self, MARK, Mark};

/// The namespace of metadata that Envoy's load balancer and its access log read.
pub const METADATA: &str = "envoy.lb";

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
    /// How the client reached Envoy.
    pub scheme: &'static str,
    pub path: String,
    pub query: Option<String>,
    pub headers: HeaderMap,
}

/// Reads the head of a request, and takes the values of its headers out of the message: they are not copied.
pub fn head(message: &mut HttpHeaders) -> Result<Head, Refusal> {
    let fields = message.headers.as_mut().map(|map| &mut *map.headers).unwrap_or_default();
    if fields.len() > MOST_HEADERS {
        let message = format!("the request has {} headers; at most {MOST_HEADERS} are allowed", fields.len());
        return Err(Refusal::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "HeadersTooLarge", message));
    }
    let mut headers = HeaderMap::with_capacity(fields.len());
    for field in fields.iter_mut().filter(|field| !field.key.starts_with(':')) {
        let name = HeaderName::from_bytes(field.key.as_bytes());
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(taken(field))) else {
            let message = "the request has a header that is not allowed in HTTP";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "HeaderInvalid", message));
        };
        headers.append(name, value);
    }
    let pseudo = fields.iter().filter(|field| field.key.starts_with(':'));
    let text = |name: &str| {
        let value = pseudo.clone().rfind(|field| field.key == name).map(bytes);
        value.and_then(|value| std::str::from_utf8(value).ok())
    };
    let method = text(":method").and_then(|method| method.parse().ok()).unwrap_or(Method::GET);
    let target = text(":path").unwrap_or("/");
    let target = target.split('#').next().unwrap_or_default();
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (target, None),
    };
    let host = text(":authority").filter(|host| !host.is_empty()).map(str::to_owned);
    let scheme = if text(":scheme") == Some("https") { "https" } else { "http" };
    Ok(Head { method, host, scheme, path: path.to_owned(), query, headers })
}

/// The status of an answer, and its headers but for those that nobody could pass on.
pub fn answer_head(message: &HttpHeaders) -> (StatusCode, HeaderMap) {
    let fields = message.headers.as_ref().map(|map| &*map.headers).unwrap_or_default();
    let (mut status, mut headers) = (StatusCode::BAD_GATEWAY, HeaderMap::new());
    for field in fields.iter().take(MOST_HEADERS) {
        if field.key == ":status" {
            status = StatusCode::from_bytes(bytes(field)).unwrap_or(status);
        } else if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(field.key.as_bytes()), HeaderValue::from_bytes(bytes(field)))
        {
            headers.append(name, value);
        }
    }
    (status, headers)
}

/// Envoy sends values as bytes; older ones as text.
fn bytes(field: &Field) -> &[u8] {
    if field.raw_value.is_empty() { field.value.as_bytes() } else { &field.raw_value }
}

/// The value of a field, out of it.
fn taken(field: &mut Field) -> Bytes {
    match field.raw_value.is_empty() {
        true => std::mem::take(&mut field.value).into(),
        false => std::mem::take(&mut field.raw_value).into(),
    }
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

/// What Envoy waits to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    RequestHead,
    RequestBody,
    AnswerHead,
    AnswerBody,
}

impl About {
    fn with(self, common: CommonResponse) -> Response {
        let response = Some(common);
        match self {
            About::RequestHead => Response::RequestHeaders(HeadersResponse { response }),
            About::RequestBody => Response::RequestBody(BodyResponse { response }),
            About::AnswerHead => Response::ResponseHeaders(HeadersResponse { response }),
            About::AnswerBody => Response::ResponseBody(BodyResponse { response }),
        }
    }
}

/// What Envoy is to ask about from now on, beside what it is configured to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// About the body of the request, whole and held back, and about the head of the answer.
    RequestBody,
    AnswerHead,
    /// About the body of the answer, held back until there is as much of it as Envoy keeps.
    AnswerBody,
    /// About each piece of it.
    AnswerPieces,
}

impl Asking {
    fn mode(self) -> ProcessingMode {
        let (request, answer) = match self {
            Asking::RequestBody => (BodySendMode::BufferedPartial, BodySendMode::None),
            Asking::AnswerHead => (BodySendMode::None, BodySendMode::None),
            Asking::AnswerBody => (BodySendMode::None, BodySendMode::BufferedPartial),
            Asking::AnswerPieces => (BodySendMode::None, BodySendMode::Streamed),
        };
        ProcessingMode {
            request_header_mode: HeaderSendMode::Send.into(),
            response_header_mode: HeaderSendMode::Send.into(),
            request_body_mode: request.into(),
            response_body_mode: answer.into(),
            request_trailer_mode: HeaderSendMode::Skip.into(),
            response_trailer_mode: HeaderSendMode::Skip.into(),
        }
    }
}

/// The answer for a request that has its instance.
pub fn picked(
    about: About,
    decision: &Decision,
    instance: &InstanceId,
    wanted: &provider::Request,
    pick: &str,
) -> ProcessingResponse {
    let fields = HashMap::from([
        (DESTINATION.as_str().to_owned(), text(decision.endpoint.to_string())),
        (MARK.to_owned(), text(Mark::write(pick, wanted, instance))),
    ]);
    let of_balancer = Value { kind: Some(Kind::StructValue(Struct { fields })) };
    let metadata = Struct { fields: HashMap::from([(METADATA.to_owned(), of_balancer)]) };
    let set: Vec<_> = decision.set.iter().map(|(name, value)| set(name, value)).collect();
    let remove = decision.remove.iter().map(HeaderName::to_string).collect();
    ProcessingResponse { dynamic_metadata: Some(metadata), ..changed(about, set, remove) }
}

/// Tells the picked instance by a header too, and has Envoy look for the route once more: for Envoys whose routes lead to
/// what the header says, and to a refusal without it.
pub fn steer(response: &mut ProcessingResponse, endpoint: &Endpoint) {
    let common = match &mut response.response {
        Some(Response::RequestHeaders(headers)) => &mut headers.response,
        Some(Response::RequestBody(body)) => &mut body.response,
        _ => return,
    };
    let (Some(common), Ok(value)) = (common, HeaderValue::from_str(&endpoint.to_string())) else { return };
    let mutation = common.header_mutation.get_or_insert_default();
    mutation.remove_headers.retain(|name| name != DESTINATION.as_str());
    mutation.set_headers.push(set(&DESTINATION, &value));
    common.clear_route_cache = true;
}

fn changed(
    about: About,
    set_headers: Vec<HeaderValueOption>,
    remove_headers: Vec<String>,
) -> ProcessingResponse {
    let mutation = HeaderMutation { set_headers, remove_headers };
    let common = CommonResponse { header_mutation: Some(mutation), ..CommonResponse::default() };
    ProcessingResponse { response: Some(about.with(common)), ..ProcessingResponse::default() }
}

/// Lets something through as it is.
pub fn untouched(about: About) -> ProcessingResponse {
    let response = about.with(CommonResponse::default());
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

/// The same, and Envoy is to ask about more.
pub fn asking(response: ProcessingResponse, asking: Asking) -> ProcessingResponse {
    ProcessingResponse { mode_override: Some(asking.mode()), ..response }
}

/// Lets the head of an answer through, with this header as it is in `now`; instances do not show their tokens to
/// clients.
pub fn shown(
    name: &HeaderName,
    before: Option<&HeaderValue>,
    now: Option<&HeaderValue>,
) -> ProcessingResponse {
    let mut remove = vec![TOKEN.to_string()];
    let set = match now {
        Some(value) if before != Some(value) => vec![set(name, value)],
        None if before.is_some() => {
            remove.push(name.to_string());
            Vec::new()
        }
        _ => Vec::new(),
    };
    changed(About::AnswerHead, set, remove)
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

/// The answer that lets through what it was asked about.
pub fn passed(request: &Request) -> ProcessingResponse {
    let response = match request {
        Request::RequestHeaders(_) => return untouched(About::RequestHead),
        Request::ResponseHeaders(_) => {
            return changed(About::AnswerHead, Vec::new(), vec![TOKEN.to_string()]);
        }
        Request::RequestBody(_) => return untouched(About::RequestBody),
        Request::ResponseBody(_) => return untouched(About::AnswerBody),
        Request::RequestTrailers(_) => Response::RequestTrailers(TrailersResponse::default()),
        Request::ResponseTrailers(_) => Response::ResponseTrailers(TrailersResponse::default()),
    };
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

/// Has this come back with the end of the request.
pub(crate) fn see(response: &mut ProcessingResponse, seen: &str) {
    let fields = response.dynamic_metadata.as_mut().and_then(|metadata| metadata.fields.get_mut(METADATA));
    if let Some(Value { kind: Some(Kind::StructValue(of_balancer)) }) = fields {
        mark::see(&mut of_balancer.fields, seen);
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3 as core;

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
        let mut message =
            HttpHeaders { headers: Some(core::HeaderMap { headers }), ..HttpHeaders::default() };
        assert_eq!(request_id(&message), "id-1");
        let head = head(&mut message).unwrap();
        assert_eq!((head.method, head.host.as_deref()), (Method::POST, Some("a.example")));
        assert_eq!((&*head.path, head.query.as_deref()), ("/prod/chat", Some("session=u1")));
        assert_eq!(head.headers["x-session"].as_bytes(), "Grüße".as_bytes());
    }
}
