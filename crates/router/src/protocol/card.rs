//! The agent card that a Task gives, as clients of A2A get it: without an instance, and with the address under which
//! they reached the Task where the card leaves it open. Pure.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::refusal::Refusal;

/// Which card a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    Current,
    /// Where version 0.3 has it at last.
    Old,
}

/// The card that a request asks for; the path is the one below the Task's prefix.
pub fn asked(method: &Method, path: &str) -> Option<Which> {
    let which = match path {
        "/.well-known/agent-card.json" => Which::Current,
        "/.well-known/agent.json" => Which::Old,
        _ => return None,
    };
    matches!(*method, Method::GET | Method::HEAD).then_some(which)
}

/// The card for a client that reached the Task under this address, without a slash at its end. A signed card is left as
/// it is: a change would break its signature.
pub fn render(card: Option<&BTreeMap<String, Value>>, which: Which, address: &str) -> Result<Value, Refusal> {
    let Some(card) = card else {
        let message = "this Task has no agent card: give routing.a2a.agentCard in the Task";
        return Err(Refusal::new(StatusCode::NOT_FOUND, "NoAgentCard", message));
    };
    let mut card = Value::Object(card.clone().into_iter().collect());
    let signed = card["signatures"].as_array().is_some_and(|signatures| !signatures.is_empty());
    if signed {
        return Ok(card);
    }
    let given = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for field in ["supportedInterfaces", "additionalInterfaces"] {
        for interface in card[field].as_array_mut().into_iter().flatten() {
            if interface.is_object() {
                interface["url"] = json!(below(address, &given(&interface["url"])));
            }
        }
    }
    let listed = card["supportedInterfaces"].as_array().is_some_and(|all| !all.is_empty());
    let old = which == Which::Old || !card["url"].is_null() || !card["preferredTransport"].is_null();
    if !listed && !old {
        let version = "1.0";
        card["supportedInterfaces"] =
            json!([{ "url": address, "protocolBinding": "JSONRPC", "protocolVersion": version }]);
    }
    if old {
        card["url"] = json!(below(address, &given(&card["url"])));
        let fill = |card: &mut Value, field: &str, value: &str| {
            if card[field].is_null() {
                card[field] = json!(value);
            }
        };
        fill(&mut card, "preferredTransport", "JSONRPC");
        fill(&mut card, "protocolVersion", "0.3.0");
    }
    // Looking for a field has made it.
    if let Value::Object(fields) = &mut card {
        fields.retain(|_, value| !value.is_null());
    }
    Ok(card)
}

/// An address that is whole is the owner's choice; a path is one below the Task.
fn below(address: &str, url: &str) -> String {
    match url {
        whole if whole.contains("://") => whole.to_owned(),
        path => match path.trim_start_matches('/') {
            "" => address.to_owned(),
            path => format!("{address}/{path}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(card: Value, which: Which) -> Value {
        let card: BTreeMap<String, Value> = serde_json::from_value(card).unwrap();
        render(Some(&card), which, "http://gw:80/prod/agent").unwrap()
    }

    #[test]
    fn the_address_is_the_one_that_the_client_used() {
        let interfaces = json!([
            { "url": "/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0" },
            { "url": "/rest", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0" },
            { "url": "https://elsewhere.example/a", "protocolBinding": "GRPC" },
        ]);
        let card = rendered(json!({ "name": "a", "supportedInterfaces": interfaces }), Which::Current);
        let urls: Vec<&str> = card["supportedInterfaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|interface| interface["url"].as_str().unwrap())
            .collect();
        assert_eq!(
            urls,
            ["http://gw:80/prod/agent", "http://gw:80/prod/agent/rest", "https://elsewhere.example/a"]
        );
        assert!(card.get("url").is_none() && card.get("signatures").is_none(), "{card}");

        let bare = rendered(json!({ "name": "a" }), Which::Current);
        assert_eq!(bare["supportedInterfaces"][0]["url"], "http://gw:80/prod/agent");
        let old = rendered(json!({ "name": "a" }), Which::Old);
        assert_eq!(
            (&old["url"], &old["preferredTransport"], &old["protocolVersion"]),
            (&json!("http://gw:80/prod/agent"), &json!("JSONRPC"), &json!("0.3.0"))
        );
        let old = rendered(json!({ "url": "/v0", "protocolVersion": "0.3.1" }), Which::Current);
        assert_eq!(
            (&old["url"], &old["protocolVersion"]),
            (&json!("http://gw:80/prod/agent/v0"), &json!("0.3.1"))
        );
    }

    #[test]
    fn what_is_signed_stays_and_what_is_missing_is_said() {
        let signed = json!({ "url": "/", "signatures": [{ "signature": "x" }] });
        assert_eq!(rendered(signed.clone(), Which::Current), signed);
        let refusal = render(None, Which::Current, "http://gw").unwrap_err();
        assert!(refusal.status == 404 && refusal.message.contains("routing.a2a.agentCard"));
        assert_eq!(asked(&Method::GET, "/.well-known/agent-card.json"), Some(Which::Current));
        assert_eq!(asked(&Method::POST, "/.well-known/agent-card.json"), None);
        assert_eq!(asked(&Method::GET, "/x/.well-known/agent-card.json"), None);
    }
}
