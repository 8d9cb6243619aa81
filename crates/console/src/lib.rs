//! The web console: serves its pages, which are built into the program, and reads and writes through to the API server as
//! whoever logged in. It has no rights of its own, keeps no objects, and never writes a token anywhere.
//!
//! A session is two secrets that a browser keeps apart: a cookie, which no script can read, and a proof, which only
//! pages of this very origin can read. Cookies know no ports, so an agent behind the gateway of the same machine may be
//! sent ours; without the proof it is of no use to it.

mod answer;
mod assets;
mod bundle;
mod extension;
mod figures;
mod frames;
mod guard;
mod invoke;
mod kube_api;
mod live;
mod login;
pub mod sandboxes;
mod server;
mod session;
mod socket;
mod terminal;

pub use invoke::{Call, Compose, Composed};
pub use server::Console;

/// How to serve.
pub struct Options {
    /// A client of the API server that has no credentials: each request brings those of its user.
    pub api: kube::Client,
    /// The version that pages show.
    pub version: String,
    /// Cookies are for TLS only, which somebody in front of us speaks.
    pub behind_tls: bool,
    /// Makes the request of the form that talks to a Task.
    pub compose: Compose,
    /// The way to sandboxes, for their logs and terminals.
    pub sandboxes: sandboxes::Open,
}
