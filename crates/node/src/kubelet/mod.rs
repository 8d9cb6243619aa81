//! Runs the Pods that are bound to this node, and tells the API how they do.

pub mod environment;
pub mod logs;
pub mod lookup;
mod machine;
mod status;
pub mod volumes;

pub use machine::Timing;
