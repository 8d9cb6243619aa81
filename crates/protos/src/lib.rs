//! The contracts of the fast path, as gRPC has them: what clients say to the controller of sandboxes
//! ([`fastpath`]), what the controller says to agents ([`agent`]), and what both share ([`session`]); and what controllers of
//! middleware say to the agents in its Pods ([`middleware`]). The code
//! in `generated` comes from `proto/` by `cargo xtask gen`; no protoc is needed.

mod generated;
pub mod link;
pub mod refused;

pub use generated::agent::v1 as agent;
pub use generated::fastpath::v1 as fastpath;
pub use generated::middleware::v1 as middleware;
pub use generated::sandbox::v1 as session;
