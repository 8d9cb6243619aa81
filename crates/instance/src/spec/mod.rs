//! What instances are made of: turns a Task into the objects that its instances come from, keeps them as they should
//! be, and says how a revision stands. Rendering is pure; only `providers` talks to the API server. Starts no instance
//! itself: that is for routers and the lifecycle manager.

mod children;
mod code;
mod config;
mod health;
mod lookup;
mod on_pool;
mod pod;
mod providers;
mod references;
mod render;
mod sandbox;
mod wakes;

pub use config::{BundleCache, Config, Guard, Installer, Isolation, Program, Runtime};
pub use providers::Providers;
pub use references::{Reference, Referent, references};
pub use render::{Child, Rendered, render};
