//! The router as Envoy's external processor: Envoy asks it for the instance of every request, and tells it by the access
//! log when requests have ended. What is decided is decided by `agentcube_router::decide`, as for the built-in gateway.
//!
//! It also asks authorisation services by gRPC for the built-in gateway ([`Grpc`]).
//!
//! A crate of its own because gRPC and Envoy's messages take long to compile, and whoever works on the router or the
//! built-in gateway needs neither. `docs/decisions/0012-envoy.md` says how it holds together.

mod access_log;
mod authorize;
pub mod exchange;
mod hold;
pub mod ledger;
mod listen;
pub mod mark;
pub mod message;
mod peers;
mod processor;
mod seen;
mod server;
mod tasks;
mod tls;
pub mod who;

pub use access_log::{Entry, Place};
pub use authorize::Grpc;
pub use listen::{incoming, incoming_with};
pub use server::{Front, Holds, Options, Sessions, drain_for, transport};
pub use tls::{Error, Tls};
