//! Finds the instance of every request: the Task by its route, the session's key by the Task's extractors, the
//! instance by reservation. The built-in gateway is a thin shell around that.

mod body;
pub mod extract;
mod headers;
mod pool;
mod proxy;
pub mod refusal;
pub mod route;
mod server;
mod tunnel;

pub use pool::{Connect, Tcp};
