//! The embedded cluster around the embedded API server: schedules Pods, runs them on this machine, and keeps
//! Deployments, StatefulSets, Jobs and Services as Kubernetes would. It knows none of our own kinds.

pub mod controllers;
pub mod kubelet;
pub mod network;
mod node;
pub mod scheduler;

pub use node::{Error, Node, Options, Parts};
