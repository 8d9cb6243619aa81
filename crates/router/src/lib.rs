//! Finds the instance of every request: the Task by its route, the session's key by the Task's extractors, the
//! instance by reservation. The built-in gateway is a thin shell around that.

pub mod authorize;
mod body;
pub mod breaker;
mod classes;
mod converse;
pub mod decide;
pub mod extract;
mod gateway;
mod guard;
mod headers;
pub mod observe;
pub mod owner;
mod path;
mod pool;
mod ports;
pub mod protocol;
mod proxy;
pub mod refusal;
mod room;
pub mod route;
mod server;
mod slots;
mod socket;
mod status;
mod tls;
mod tunnel;
mod upload;
mod usage;
mod watch;

pub use gateway::{CONTROLLER, Gateway, Options};
pub use pool::{Connect, Tcp};
