//! Runs the Pods of this node.

pub mod environment;
pub mod lookup;
pub mod volumes;
