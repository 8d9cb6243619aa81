//! The state machine under messages of every kind and order, and under bytes that are no messages at all.

use std::collections::HashMap;

use agentcube_instance::Endpoint;
use agentcube_instance::provider::{self, InstanceProvider, ReserveError};
use agentcube_instance::reserve::InUse;
use agentcube_instance::token::Token;
use agentcube_router::protocol::talk;
use agentcube_router::route::Route;
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue as Field};
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpTrailers, processing_response::Response};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::HeaderName;
use proptest::prelude::*;
use prost::Message;
use serde_json::json;

use super::*;

fn names() -> Names {
    Names {
        tenant: HeaderName::from_static("x-tenant-id"),
        subject: HeaderName::from_static("x-agentcube-subject"),
    }
}

/// Has one instance, for everybody.
struct One;

impl InstanceProvider for One {
    fn reserve_instance(&self, _: provider::Request) -> BoxFuture<'_, Result<Reserved, ReserveError>> {
        Box::pin(std::future::ready(Ok(reserved())))
    }

    fn instance_statistics(
        &self,
        _: &agentcube_instance::TaskId,
        _: &agentcube_instance::SpecId,
    ) -> agentcube_api::agentcube::task::InstanceStatistics {
        Default::default()
    }
}

/// What comes of a request whose instance is wanted.
fn settle(wanted: Wanted) -> Result<Picked, Refusal> {
    let Wanted { mut plan, found } = wanted;
    let settling = async {
        let mut talk = talk::settle(&One, &mut plan, &found).await?;
        let reserved = talk::reserve(&One, &mut plan, &mut talk).await?;
        Ok::<_, Refusal>((talk, reserved))
    };
    let (talk, reserved) = settling.now_or_never().expect("nobody is waited for")?;
    Ok(Picked { plan, talk, reserved })
}

fn table() -> Table {
    let task = |name: &str, routing: serde_json::Value| {
        let task = json!({
            "apiVersion": "agentcube.io/v1alpha1", "kind": "Task",
            "metadata": { "name": name, "namespace": "prod", "uid": name },
            "spec": { "deployment": { "type": "sandbox", "sandboxTemplate": {} }, "routing": routing },
        });
        Route::read(&serde_json::from_value(task).unwrap()).unwrap()
    };
    let mut table = Table::default();
    let places = json!({ "extractors": [{ "type": "httpHeader", "name": "x-session" }] });
    table.set_task(task("chat", json!({ "routePolicy": "BySession", "sessionIdentifier": places })));
    table.set_task(task("once", json!({ "routePolicy": "Oneshot" })));
    table.set_task(task("tools", json!({ "routePolicy": "BySession", "protocol": "MCP" })));
    table.set_task(task("agent", json!({ "routePolicy": "BySession", "protocol": "A2A" })));
    table
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.into())) }
}

fn head(route: Option<&str>, fields: &[(&str, &str)]) -> ProcessingRequest {
    let of_request = [(":method", "GET"), (":path", "/prod/chat/a?b=c"), (":authority", "a.example")];
    let field = |(key, value): &(&str, &str)| Field {
        key: (*key).into(),
        raw_value: value.as_bytes().to_vec(),
        ..Field::default()
    };
    let own = |name: &str| fields.iter().any(|(key, _)| *key == name);
    let headers = of_request.iter().filter(|(key, _)| !own(key)).chain(fields).map(field).collect();
    let headers = HttpHeaders { headers: Some(HeaderMap { headers }), ..HttpHeaders::default() };
    let attributes = route.map(|route| {
        let fields = HashMap::from([("xds.route_name".to_owned(), text(route))]);
        ("envoy.filters.http.ext_proc".to_owned(), Struct { fields })
    });
    ProcessingRequest {
        attributes: attributes.into_iter().collect(),
        request: Some(Request::RequestHeaders(headers)),
        ..ProcessingRequest::default()
    }
}

fn reserved() -> Reserved {
    Reserved {
        instance: InstanceId::pod("chat-0", "p1"),
        endpoint: Endpoint { host: [10, 0, 0, 1].into(), port: 8080 },
        token: Token::random(),
        path: provider::Path::Reused,
        in_use: InUse::detached(),
    }
}

const CHAT: Option<&str> = Some("httproute/prod/chat/rule/0/match/0/*");

#[test]
fn an_instance_can_be_told_by_a_header() {
    let mut exchange = Exchange::default();
    let forged = [("x-session", "u1"), ("x-gateway-destination-endpoint", "10.0.0.1:22")];
    let Step::Reserve(wanted) = exchange.take(&table(), &names(), head(CHAT, &forged)) else {
        panic!("an instance is wanted")
    };
    let mut settled = exchange.reserved(settle(*wanted), "pick-1").unwrap();
    crate::message::steer(&mut settled.response, &settled.picked.as_ref().unwrap().endpoint);
    let Some(Response::RequestHeaders(answer)) = settled.response.response else { panic!("about the head") };
    let common = answer.response.unwrap();
    let mutation = common.header_mutation.unwrap();
    let named = |name: &str| {
        let fields = mutation.set_headers.iter().filter_map(|option| option.header.as_ref());
        fields.filter(|field| field.key == name).map(|field| &*field.raw_value).collect::<Vec<_>>()
    };
    assert!(common.clear_route_cache);
    assert_eq!(named("x-gateway-destination-endpoint"), [b"10.0.0.1:8080"]);
    assert!(!mutation.remove_headers.iter().any(|name| name == "x-gateway-destination-endpoint"));
}

#[test]
fn a_request_gets_its_instance() {
    let mut exchange = Exchange::default();
    let forged = [
        ("x-session", "u1"),
        ("x-reserved-token", "forged"),
        ("x_reserved_token", "forged"),
        ("x-gateway-destination-endpoint", "10.0.0.1:22"),
    ];
    let Step::Reserve(wanted) = exchange.take(&table(), &names(), head(CHAT, &forged)) else {
        panic!("an instance is wanted")
    };
    let asked = &wanted.plan.wanted;
    assert_eq!((&*asked.task.name, asked.key.as_ref().unwrap().as_str()), ("chat", "u1"));
    let settled = exchange.reserved(settle(*wanted), "pick-1").unwrap();
    let token = settled.picked.as_ref().unwrap().token.reveal().to_owned();
    assert!(settled.refusal.is_none() && settled.response.mode_override.is_none());

    let metadata = settled.response.dynamic_metadata.unwrap();
    let Some(Kind::StructValue(of_balancer)) = &metadata.fields["envoy.lb"].kind else { panic!("a struct") };
    assert_eq!(of_balancer.fields["x-gateway-destination-endpoint"], text("10.0.0.1:8080"));
    assert_eq!(of_balancer.fields["agentcube"], text("pick-1\nprod/chat\nchat-0/p1\nu1\n"));
    let Some(Response::RequestHeaders(answer)) = settled.response.response else { panic!("about the head") };
    let mutation = answer.response.unwrap().header_mutation.unwrap();
    for name in ["x-gateway-destination-endpoint", "x_reserved_token"] {
        assert!(mutation.remove_headers.contains(&name.to_owned()), "{name}");
    }
    let set: HashMap<String, Vec<u8>> = mutation
        .set_headers
        .into_iter()
        .map(|option| {
            assert_eq!(option.append_action, 2, "it takes the place of the client's");
            let field = option.header.unwrap();
            assert!(field.value.is_empty(), "as text it would be empty in Envoy");
            (field.key, field.raw_value)
        })
        .collect();
    assert_eq!(set["x-reserved-token"], token.into_bytes());

    // Whatever else Envoy is configured to ask about is let through.
    let body = ProcessingRequest {
        request: Some(Request::ResponseBody(HttpBody::default())),
        ..ProcessingRequest::default()
    };
    let Step::Send(answer) = exchange.take(&table(), &names(), body) else { panic!("it is answered") };
    assert!(matches!(answer[0].response, Some(Response::ResponseBody(_))));
    assert!(matches!(exchange.take(&table(), &names(), head(CHAT, &[])), Step::Break(_)));
}

#[test]
fn refusals_are_answers_in_json() {
    type Case<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], i32, &'a str);
    let id = ("x-request-id", "id-1");
    let cases: [Case<'_>; 5] = [
        (None, &[("x-session", "u1"), id], 404, "NoRoute"),
        (Some("httproute/prod/gone/rule/0"), &[id], 404, "NoRoute"),
        // The route that a client would like to have is not asked for.
        (Some("other"), &[("xds.route_name", "httproute/prod/chat/rule/0"), id], 404, "NoRoute"),
        (CHAT, &[id], 400, "SessionKeyMissing"),
        (CHAT, &[("x-session", "u1"), ("bad name", "x"), id], 400, "HeaderInvalid"),
    ];
    for (route, fields, status, code) in cases {
        let mut exchange = Exchange::default();
        let Step::Send(mut answer) = exchange.take(&table(), &names(), head(route, fields)) else {
            panic!("{code} is an answer")
        };
        let Some(Response::ImmediateResponse(answer)) = answer.remove(0).response else {
            panic!("it is final")
        };
        assert_eq!(answer.status.unwrap().code, status);
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((&body["error"]["code"], &body["error"]["requestId"]), (&json!(code), &json!("id-1")));
        let set = answer.headers.unwrap().set_headers;
        let fields: HashMap<&str, &[u8]> = set
            .iter()
            .map(|option| option.header.as_ref().unwrap())
            .map(|field| (&*field.key, &*field.raw_value))
            .collect();
        assert_eq!(fields["content-type"], b"application/json");
        assert_eq!(fields["x-request-id"], b"id-1");
        assert!(exchange.reserved(Err(ReserveError::NoSuchTask.into()), "pick").is_none());
    }
    let mut exchange = Exchange::default();
    exchange.take(&table(), &names(), head(CHAT, &[("x-session", "u1")]));
    let settled = exchange.reserved(Err(ReserveError::TooManyWaiting.into()), "pick").unwrap();
    assert!(settled.picked.is_none());
    let Some(Response::ImmediateResponse(answer)) = settled.response.response else { panic!("it is final") };
    let set = answer.headers.unwrap().set_headers;
    let retry = set.iter().filter_map(|option| option.header.as_ref()).find(|it| it.key == "retry-after");
    assert_eq!(retry.unwrap().raw_value, b"2");
}

fn about(request: Request) -> ProcessingRequest {
    ProcessingRequest { request: Some(request), ..ProcessingRequest::default() }
}

fn answer(status: u16, fields: &[(&str, &str)]) -> ProcessingRequest {
    let field = |(key, value): (&str, &str)| Field {
        key: key.into(),
        raw_value: value.as_bytes().to_vec(),
        ..Field::default()
    };
    let status = status.to_string();
    let headers =
        [(":status", status.as_str())].into_iter().chain(fields.iter().copied()).map(field).collect();
    let headers = HttpHeaders { headers: Some(HeaderMap { headers }), ..HttpHeaders::default() };
    about(Request::ResponseHeaders(headers))
}

fn body(text: &str, end_of_stream: bool) -> HttpBody {
    HttpBody { body: text.as_bytes().to_vec(), end_of_stream, ..HttpBody::default() }
}

const TOOLS: Option<&str> = Some("httproute/prod/tools/rule/0");
const AGENT: Option<&str> = Some("httproute/prod/agent/rule/0");

/// Modes that the last answer asks for: of the request's body, of the answer's head and of its body.
fn asks(responses: &[ProcessingResponse]) -> Option<(i32, i32, i32)> {
    let mode = responses.last()?.mode_override.as_ref()?;
    Some((mode.request_body_mode, mode.response_header_mode, mode.response_body_mode))
}

fn status(responses: &[ProcessingResponse]) -> Option<i32> {
    match responses.last()?.response.as_ref()? {
        Response::ImmediateResponse(answer) => Some(answer.status.as_ref()?.code),
        _ => None,
    }
}

#[test]
fn a_session_of_mcp_is_named_before_its_client_hears_of_it() {
    let begin = || {
        let mut stream = Stream::default();
        let asked = stream.take(head(TOOLS, &[(":method", "POST"), (":path", "/prod/tools")]), true).unwrap();
        assert_eq!(asks(&asked), Some((3, 1, 0)), "the body, held back, and the head of the answer");
        stream
    };
    let request = |text: &str| about(Request::RequestBody(body(text, true)));
    let mut stream = begin();
    let picked = stream.take(request(r#"{"method":"initialize","id":1}"#), true).unwrap();
    assert!(
        matches!(picked[0].response, Some(Response::RequestBody(_))) && picked[0].dynamic_metadata.is_some()
    );
    let minted = answer(200, &[("mcp-session-id", "s1"), ("content-type", "application/json")]);
    let step = stream.exchange.take(&table(), &names(), minted);
    let Step::Name(aliases) = step else { panic!("it has to be named: {step:?}") };
    assert_eq!((aliases.len(), &*aliases[0].text), (1, "s1"));
    let Some(Step::Send(passed)) = stream.exchange.named(Ok(())) else { panic!("it goes on") };
    assert!(matches!(passed[0].response, Some(Response::ResponseHeaders(_))) && asks(&passed).is_none());
    assert_eq!(stream.exchange.told(), Some(Told { ends: false, complete: false }));

    // What cannot be written down is not told.
    let mut stream = begin();
    stream.take(request(r#"{"method":"initialize","id":1}"#), true).unwrap();
    let failed = stream.take(answer(200, &[("mcp-session-id", "s1")]), false).unwrap();
    assert_eq!(status(&failed), Some(502));
    // One that refuses has no session, whatever it says.
    let mut stream = begin();
    stream.take(request(r#"{"method":"initialize","id":1}"#), true).unwrap();
    let refused = stream.take(answer(400, &[("mcp-session-id", "s1")]), true).unwrap();
    let Some(Response::ResponseHeaders(headers)) = &refused[0].response else { panic!("it goes on") };
    let mutation = headers.response.as_ref().unwrap().header_mutation.as_ref().unwrap();
    assert!(mutation.remove_headers.contains(&"mcp-session-id".to_owned()));
    assert_eq!(stream.exchange.told(), Some(Told { ends: true, complete: false }));
    for (text, all, expected) in [("{", true, 400), ("{}", false, 413), (r#"{"method":"ping"}"#, true, 400)] {
        let refused = begin().take(about(Request::RequestBody(body(text, all))), true).unwrap();
        assert_eq!(status(&refused), Some(expected), "{text}");
    }
}

#[test]
fn the_ids_of_an_a2a_answer_are_learned_before_it_goes_on() {
    let message = r#"{"method":"SendMessage","id":1,"params":{"message":{}}}"#;
    let begin = |content: &str| {
        let mut stream = Stream::default();
        stream.take(head(AGENT, &[(":method", "POST"), (":path", "/prod/agent")]), true).unwrap();
        stream.take(about(Request::RequestBody(body(message, true))), true).unwrap();
        let asked = stream.take(answer(200, &[("content-type", content)]), true).unwrap();
        (stream, asks(&asked))
    };
    let take = |stream: &mut Stream, text: &str, end: bool| {
        stream.exchange.take(&table(), &names(), about(Request::ResponseBody(body(text, end))))
    };
    let event = r#"data: {"result":{"task":{"id":"t1","contextId":"c1"}}}"#;
    let (mut stream, asked) = begin("text/event-stream");
    assert_eq!(asked, Some((0, 1, 1)), "each piece");
    // What has no data goes on; what may be part of an id is held back.
    assert!(matches!(take(&mut stream, ": ping\n\n", false), Step::Send(passed) if passed.len() == 1));
    assert!(matches!(take(&mut stream, &event[..20], false), Step::Wait));
    assert!(matches!(take(&mut stream, &event[20..], false), Step::Wait));
    let Step::Name(aliases) = take(&mut stream, "\n\n", false) else { panic!("it has to be named") };
    assert_eq!(aliases.iter().map(|alias| &*alias.text).collect::<Vec<_>>(), ["t1", "c1"]);
    let Some(Step::Send(passed)) = stream.exchange.named(Ok(())) else { panic!("it goes on") };
    assert_eq!((passed.len(), stream.exchange.told().map(|told| told.ends)), (3, Some(false)));

    let (mut stream, asked) = begin("application/json");
    assert_eq!(asked, Some((0, 1, 3)), "as much as Envoy keeps");
    assert!(matches!(take(&mut stream, &event[6..], true), Step::Name(_)));
    stream.exchange.named(Ok(()));
    assert_eq!(stream.exchange.told(), Some(Told { ends: false, complete: true }));
    // Without ids nobody can ask for it again; and ids that never come would lead nowhere.
    let (mut stream, _) = begin("application/json");
    assert!(matches!(take(&mut stream, r#"{"error":{}}"#, true), Step::Send(_)));
    assert_eq!(stream.exchange.told(), Some(Told { ends: true, complete: true }));
    let (mut stream, _) = begin("application/json");
    let Step::Send(refused) = take(&mut stream, r#"{"result":{"#, false) else { panic!("it is refused") };
    assert_eq!(status(&refused), Some(502));
    let (mut stream, _) = begin("text/event-stream");
    let long = format!("data: {}", "x".repeat(MOST_HELD));
    assert!(matches!(take(&mut stream, &long, false), Step::Send(refused) if status(&refused) == Some(502)));
}

#[test]
fn an_agent_card_needs_no_instance() {
    let mut exchange = Exchange::default();
    let path = (":path", "/prod/agent/.well-known/agent-card.json");
    let Step::Reserve(wanted) = exchange.take(&table(), &names(), head(AGENT, &[path, (":scheme", "https")]))
    else {
        panic!("the card is asked for")
    };
    assert_eq!(wanted.plan.scheme, "https");
    let settled = exchange.reserved(settle(*wanted), "pick").unwrap();
    assert!(settled.picked.is_none());
}

fn any_message() -> impl Strategy<Value = ProcessingRequest> {
    let field = ("[ -~]{0,12}|:path|:method|:authority|x-session|x-request-id", any::<Vec<u8>>());
    let head = (
        prop::collection::vec(field, 0..8),
        prop::option::of("httproute/prod/(chat|once|tools|agent)/rule/0|\\PC*"),
    )
        .prop_map(|(fields, route)| {
            let mut message = head(route.as_deref(), &[]);
            if let Some(Request::RequestHeaders(headers)) = &mut message.request {
                let fields =
                    fields.into_iter().map(|(key, raw_value)| Field { key, raw_value, ..Field::default() });
                headers.headers.get_or_insert_default().headers.extend(fields);
            }
            message
        });
    let piece = || {
        let text = r#"|\{"method":"(initialize|SendMessage|GetTask)","id":1\}|data: \{"result":\{"task":\{"id":"t","contextId":"c"\}\}\}|\n\n|\PC*"#;
        (text, any::<bool>()).prop_map(|(text, end_of_stream)| HttpBody {
            body: text.into_bytes(),
            end_of_stream,
            ..HttpBody::default()
        })
    };
    let answer = (100..600_u16, "application/json|text/event-stream|\\PC*", any::<bool>()).prop_map(
        |(status, content, end_of_stream)| {
            let mut message = answer(status, &[("content-type", &content), ("mcp-session-id", "s1")]);
            if let Some(Request::ResponseHeaders(headers)) = &mut message.request {
                headers.end_of_stream = end_of_stream;
            }
            message
        },
    );
    let about = |request| ProcessingRequest { request: Some(request), ..ProcessingRequest::default() };
    let bodies = prop_oneof![
        piece().prop_map(move |piece| about(Request::RequestBody(piece))),
        piece().prop_map(move |piece| about(Request::ResponseBody(piece))),
    ];
    let other = (0..3_u8, any::<bool>()).prop_map(|(kind, observed)| {
        let request = match kind {
            0 => Some(Request::RequestTrailers(HttpTrailers::default())),
            1 => Some(Request::ResponseTrailers(HttpTrailers::default())),
            _ => None,
        };
        ProcessingRequest {
            request,
            observability_mode: observed && kind == 2,
            ..ProcessingRequest::default()
        }
    });
    prop_oneof![head, answer, bodies, other]
}

/// Whether an answer is about what was asked, or final.
fn fits(request: &Request, response: &ProcessingResponse) -> bool {
    matches!(
        (request, response.response.as_ref()),
        (_, Some(Response::ImmediateResponse(_)))
            | (Request::RequestHeaders(_), Some(Response::RequestHeaders(_)))
            | (Request::ResponseHeaders(_), Some(Response::ResponseHeaders(_)))
            | (Request::RequestBody(_), Some(Response::RequestBody(_)))
            | (Request::ResponseBody(_), Some(Response::ResponseBody(_)))
            | (Request::RequestTrailers(_), Some(Response::RequestTrailers(_)))
            | (Request::ResponseTrailers(_), Some(Response::ResponseTrailers(_)))
    )
}

/// A stream of messages, and what it is owed.
#[derive(Default)]
struct Stream {
    exchange: Exchange,
    reserved: usize,
    /// Pieces of the answer that Envoy holds back.
    held: usize,
}

impl Stream {
    /// What is said to a message; nothing if the stream is over.
    fn take(&mut self, message: ProcessingRequest, given: bool) -> Option<Vec<ProcessingResponse>> {
        self.held += usize::from(matches!(message.request, Some(Request::ResponseBody(_))));
        let mut step = self.exchange.take(&table(), &names(), message);
        if let Step::Name(_) = step {
            let outcome = if given { Ok(()) } else { Err(NameError::SessionGone) };
            step = self.exchange.named(outcome).expect("names were asked for");
        }
        match step {
            Step::Reserve(wanted) => {
                self.reserved += 1;
                let outcome = if given { settle(*wanted) } else { Err(ReserveError::NoSuchTask.into()) };
                Some(vec![self.exchange.reserved(outcome, "pick").unwrap().response])
            }
            Step::Send(responses) => Some(responses),
            Step::Wait => Some(Vec::new()),
            Step::Name(_) => panic!("they are named"),
            Step::Break(_) => None,
        }
    }
}

proptest! {
    #[test]
    fn every_stream_is_about_one_request(
        messages in prop::collection::vec(any_message(), 0..8),
        given in any::<bool>(),
    ) {
        let mut stream = Stream::default();
        for message in messages {
            let request = message.request.clone();
            let Some(responses) = stream.take(message, given) else { break };
            for response in &responses {
                prop_assert!(fits(request.as_ref().unwrap(), response), "{response:?}");
                stream.held -= usize::from(matches!(response.response, Some(Response::ResponseBody(_))));
            }
            let last = responses.last().and_then(|response| response.response.as_ref());
            if matches!(last, Some(Response::ImmediateResponse(_))) {
                break;
            }
            // Nothing is held back when nothing more will be said.
            prop_assert!(stream.exchange.told().is_none() || stream.held == 0);
            prop_assert!(responses.len() <= 1 || stream.held == 0);
        }
        prop_assert!(stream.reserved <= 1);
    }

    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>()) {
        let table = table();
        let mut whole = head(CHAT, &[("x-session", "u1")]).encode_to_vec();
        let place = at.index(whole.len());
        whole.splice(place..place, bytes.iter().copied());
        for bytes in [&bytes, &whole] {
            if let Ok(message) = ProcessingRequest::decode(&**bytes) {
                let _any = Exchange::default().take(&table, &names(), message);
            }
            if let Ok(entry) = Message::decode(&**bytes) {
                let _any = crate::Entry::read(&entry);
            }
        }
    }
}
