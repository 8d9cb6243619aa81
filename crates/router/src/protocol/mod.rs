//! Protocols whose conversations the router follows. Every conversation is a session with a key; protocols differ only in
//! how a request finds it: by an id that an instance minted, by one that the client chose, or by what it is about. All
//! but [`talk`] is pure, and nothing here knows of sockets: every front calls the same.

pub mod a2a;
pub mod answer;
pub mod card;
pub mod json;
pub mod mcp;
pub mod seal;
pub mod talk;

use http::{HeaderMap, Method};

use crate::refusal::Refusal;
use crate::route::Spoken;

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
            Spoken::A2a(_) => match card::asked(method, path) {
                Some(card) => Ok(Ask::Card(card)),
                None => a2a::ask(method, path, query, headers).map(Ask::A2a),
            },
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
