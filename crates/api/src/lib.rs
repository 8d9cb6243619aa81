//! The four API groups of AgentCube: types, schemas with defaults and rules, conditions, names of labels.
//! No I/O and no clock: a controller, the server and the command line all build on it, and so do tests.
#![warn(missing_docs)]
// The lint takes the print columns of one kind for copies of each other.
#![allow(clippy::duplicated_attributes)]

pub mod agentcube;
mod cel;
pub mod conditions;
mod crd;
mod decimal;
pub mod duration;
pub mod frontend;
#[cfg(test)]
mod gostring;
pub mod labels;
pub mod middleware;
mod pod_template;
pub mod quantity;
pub mod reasons;
pub mod sandbox;
pub mod yaml;

pub use agentcube::{Task, TaskGateway};
pub use crd::{crd_files, crds, render};
pub use duration::GoDuration;
pub use frontend::{FrontendIntegration, JSBundle};
pub use middleware::{App, Backup, Component, Group, Plugin};
pub use quantity::Quantity;
pub use sandbox::{Sandbox, SandboxPool};
