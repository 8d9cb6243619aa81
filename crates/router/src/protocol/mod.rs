//! Protocols whose conversations the router follows. Every conversation is a session with a key; protocols differ only in
//! how a request finds it: by an id that an instance minted, by one that the client chose, or by what it is about. All
//! but [`talk`] is pure, and nothing here knows of sockets: every front calls the same.

pub mod a2a;
pub mod answer;
pub mod card;
pub mod intake;
pub mod json;
pub mod mcp;
pub mod seal;
pub mod talk;

use std::collections::BTreeMap;
use std::sync::Arc;

use agentcube_api::agentcube::routing::{Protocol, RoutingSpec, SessionIds};
use http::{HeaderMap, Method};
use serde_json::Value;

use crate::refusal::Refusal;

/// A protocol that the router knows, and what the Task says of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Spoken {
    Http,
    Mcp(mcp::Rule),
    /// With the agent card that the Task gives.
    A2a(Option<Arc<BTreeMap<String, Value>>>),
}

impl Spoken {
    pub(crate) fn read(routing: &RoutingSpec) -> Spoken {
        match routing.protocol {
            Protocol::Http => Spoken::Http,
            Protocol::Mcp => {
                let spec = routing.mcp.clone().unwrap_or_default();
                let param = spec.session_param.map(|name| format!("mcp-param-{name}").to_ascii_lowercase());
                let param = param.and_then(|name| name.parse().ok());
                Spoken::Mcp(mcp::Rule { param, sealed: spec.session_ids == SessionIds::Sealed })
            }
            Protocol::A2a => {
                let card = routing.a2a.as_ref().and_then(|spec| spec.agent_card.clone());
                Spoken::A2a(card.map(Arc::new))
            }
        }
    }
}

/// How a request finds its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// It has a key, or needs none.
    Plain,
    /// It needs no instance: it asks for the agent card.
    Card(card::Which),
    Mcp(mcp::Ask),
    A2a(a2a::Ask),
}

impl Ask {
    /// Nothing has to be found out about the session any more.
    pub fn is_plain(&self) -> bool {
        *self == Ask::Plain
    }

    /// What the head of a request asks for; the path is the one below the Task's prefix.
    pub fn read(
        spoken: &Spoken,
        method: &Method,
        path: &str,
        query: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<Ask, Refusal> {
        match spoken {
            Spoken::Http => Ok(Ask::Plain),
            Spoken::Mcp(rule) => mcp::ask(rule, method, headers).map(Ask::Mcp),
            Spoken::A2a(_) => a2a::ask(method, path, query, headers).map(Ask::A2a),
        }
    }

    /// What to look for in the body before the request can go on; nothing if it need not be read.
    pub fn shape(&self) -> Option<&'static json::Shape> {
        match self {
            Ask::Plain | Ask::Card(_) => None,
            Ask::Mcp(mcp::Ask::First) => Some(mcp::first_shape()),
            Ask::Mcp(_) => None,
            Ask::A2a(ask) => ask.shape(),
        }
    }

    /// The body is not what it has to be.
    pub fn broken(&self, why: json::Error) -> Refusal {
        match self {
            Ask::Mcp(_) => mcp::broken(why),
            _ => a2a::broken(why),
        }
    }
}
