//! The agent in each Pod of a middleware. It is the parent of the middleware's process, and runs the plugin's tools for the
//! controllers: without a shell, within time limits, with bounded output, and only for who has the token. It knows nothing of
//! Kubernetes.

pub mod archive;
pub mod command;
pub mod process;
pub mod ready;
mod reload;
pub mod serve;
pub mod settings;
pub mod words;

pub use serve::{Agent, Options};
pub use settings::Settings;
