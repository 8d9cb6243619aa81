//! The state machine under messages of every kind and order, and under bytes that are no messages at all.

use std::collections::HashMap;

use agentcube_instance::reserve::InUse;
use agentcube_instance::token::Token;
use agentcube_instance::{Endpoint, InstanceId};
use agentcube_router::route::Route;
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue as Field};
use envoy_types::pb::envoy::service::ext_proc::v3::{
    HttpBody, HttpHeaders, HttpTrailers, processing_response::Response,
};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use proptest::prelude::*;
use prost::Message;
use serde_json::json;

use super::*;

const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");

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
    let headers = of_request.iter().chain(fields).map(field).collect();
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
        instance: InstanceId { name: "chat-0".into(), uid: "p1".into() },
        endpoint: Endpoint { host: [10, 0, 0, 1].into(), port: 8080 },
        token: Token::random(),
        path: provider::Path::Reused,
        in_use: InUse::detached(),
    }
}

const CHAT: Option<&str> = Some("httproute/prod/chat/rule/0/match/0/*");

#[test]
fn a_request_gets_its_instance() {
    let mut exchange = Exchange::default();
    let forged = [
        ("x-session", "u1"),
        ("x-reserved-token", "forged"),
        ("x_reserved_token", "forged"),
        ("x-gateway-destination-endpoint", "10.0.0.1:22"),
    ];
    let Step::Reserve(wanted) = exchange.take(&table(), &TENANT, head(CHAT, &forged)) else {
        panic!("an instance is wanted")
    };
    assert_eq!((&*wanted.task.name, wanted.key.unwrap().as_str()), ("chat", "u1"));
    let given = reserved();
    let token = given.token.reveal().to_owned();
    let settled = exchange.reserved(Ok(given), "pick-1").unwrap();
    assert!(settled.picked.is_some() && settled.refusal.is_none());

    let metadata = settled.response.dynamic_metadata.unwrap();
    let Some(Kind::StructValue(of_balancer)) = &metadata.fields["envoy.lb"].kind else { panic!("a struct") };
    assert_eq!(of_balancer.fields["x-gateway-destination-endpoint"], text("10.0.0.1:8080"));
    assert_eq!(of_balancer.fields["agentcube-pick"], text("pick-1"));
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
    let Step::Send(answer) = exchange.take(&table(), &TENANT, body) else { panic!("it is answered") };
    assert!(matches!(answer.response, Some(Response::ResponseBody(_))));
    assert!(matches!(exchange.take(&table(), &TENANT, head(CHAT, &[])), Step::Break(_)));
}

#[test]
fn refusals_are_answers_in_json() {
    type Case<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], i32, &'a str);
    let id = ("x-request-id", "id-1");
    let cases: [Case<'_>; 6] = [
        (None, &[("x-session", "u1"), id], 404, "NoRoute"),
        (Some("httproute/prod/gone/rule/0"), &[id], 404, "NoRoute"),
        // The route that a client would like to have is not asked for.
        (Some("other"), &[("xds.route_name", "httproute/prod/chat/rule/0"), id], 404, "NoRoute"),
        (CHAT, &[id], 400, "SessionKeyMissing"),
        (Some("httproute/prod/tools/rule/0"), &[("mcp-session-id", "s1"), id], 501, "NotSupported"),
        (CHAT, &[("x-session", "u1"), ("bad name", "x"), id], 400, "HeaderInvalid"),
    ];
    for (route, fields, status, code) in cases {
        let mut exchange = Exchange::default();
        let Step::Send(answer) = exchange.take(&table(), &TENANT, head(route, fields)) else {
            panic!("{code} is an answer")
        };
        let Some(Response::ImmediateResponse(answer)) = answer.response else { panic!("it is final") };
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
        assert!(exchange.reserved(Ok(reserved()), "pick").is_none());
    }
    let mut exchange = Exchange::default();
    exchange.take(&table(), &TENANT, head(CHAT, &[("x-session", "u1")]));
    let settled = exchange.reserved(Err(ReserveError::TooManyWaiting), "pick").unwrap();
    assert!(settled.picked.is_none());
    let Some(Response::ImmediateResponse(answer)) = settled.response.response else { panic!("it is final") };
    let set = answer.headers.unwrap().set_headers;
    let retry = set.iter().filter_map(|option| option.header.as_ref()).find(|it| it.key == "retry-after");
    assert_eq!(retry.unwrap().raw_value, b"2");
}

fn any_message() -> impl Strategy<Value = ProcessingRequest> {
    let field = ("[ -~]{0,12}|:path|:method|:authority|x-session|x-request-id", any::<Vec<u8>>());
    let head =
        (prop::collection::vec(field, 0..8), prop::option::of("httproute/prod/(chat|once)/rule/0|\\PC*"))
            .prop_map(|(fields, route)| {
                let mut message = head(route.as_deref(), &[]);
                if let Some(Request::RequestHeaders(headers)) = &mut message.request {
                    let fields = fields.into_iter().map(|(key, raw_value)| Field {
                        key,
                        raw_value,
                        ..Field::default()
                    });
                    headers.headers.get_or_insert_default().headers.extend(fields);
                }
                message
            });
    let other = (0..6_u8, any::<bool>()).prop_map(|(kind, observed)| {
        let request = match kind {
            0 => Some(Request::ResponseHeaders(HttpHeaders::default())),
            1 => Some(Request::RequestBody(HttpBody::default())),
            2 => Some(Request::ResponseBody(HttpBody::default())),
            3 => Some(Request::RequestTrailers(HttpTrailers::default())),
            4 => Some(Request::ResponseTrailers(HttpTrailers::default())),
            _ => None,
        };
        ProcessingRequest {
            request,
            observability_mode: observed && kind == 5,
            ..ProcessingRequest::default()
        }
    });
    prop_oneof![head, other]
}

/// Whether an answer is about what was asked.
fn fits(request: &Request, response: &ProcessingResponse) -> bool {
    matches!(
        (request, response.response.as_ref()),
        (Request::RequestHeaders(_), Some(Response::RequestHeaders(_) | Response::ImmediateResponse(_)))
            | (Request::ResponseHeaders(_), Some(Response::ResponseHeaders(_)))
            | (Request::RequestBody(_), Some(Response::RequestBody(_)))
            | (Request::ResponseBody(_), Some(Response::ResponseBody(_)))
            | (Request::RequestTrailers(_), Some(Response::RequestTrailers(_)))
            | (Request::ResponseTrailers(_), Some(Response::ResponseTrailers(_)))
    )
}

proptest! {
    #[test]
    fn every_stream_is_about_one_request(
        messages in prop::collection::vec(any_message(), 0..8),
        given in any::<bool>(),
    ) {
        let table = table();
        let mut exchange = Exchange::default();
        let (mut asked, mut broken) = (0, false);
        for message in messages {
            let request = message.request.clone();
            match exchange.take(&table, &TENANT, message) {
                Step::Reserve(_) => {
                    asked += 1;
                    let outcome = if given { Ok(reserved()) } else { Err(ReserveError::NoSuchTask) };
                    let settled = exchange.reserved(outcome, "pick").unwrap();
                    prop_assert!(!broken && fits(&request.unwrap(), &settled.response));
                }
                Step::Send(response) => prop_assert!(!broken && fits(&request.unwrap(), &response)),
                Step::Wait => prop_assert!(request.is_none()),
                Step::Break(_) => broken = true,
            }
        }
        prop_assert!(asked <= 1);
    }

    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>()) {
        let table = table();
        let mut whole = head(CHAT, &[("x-session", "u1")]).encode_to_vec();
        let place = at.index(whole.len());
        whole.splice(place..place, bytes.iter().copied());
        for bytes in [&bytes, &whole] {
            if let Ok(message) = ProcessingRequest::decode(&**bytes) {
                let _any = Exchange::default().take(&table, &TENANT, message);
            }
            if let Ok(entry) = Message::decode(&**bytes) {
                let _any = crate::Entry::read(&entry);
            }
        }
    }
}
