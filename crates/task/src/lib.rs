//! Controllers of Task and TaskGateway: they make and mend what Envoy Gateway and the routers read, and report. They
//! never write the spec of what they reconcile, and never touch a session.

mod caches;
mod child;
mod controllers;
mod counts;
mod definitions;
mod duration;
pub mod envoy;
mod gateway;
mod missing;
mod options;
mod passes;
mod said;
mod task;

pub use controllers::Controllers;
pub use definitions::definitions;
pub use options::{BUILT_IN_CLASS, Envoy, Options, Picking, RateLimits, ServicePort};

/// Event: an object of ours was gone and was made again.
const RECREATED: &str = "ResourceRecreated";
/// Event: an object of ours was changed and was put right.
const DRIFT_REPAIRED: &str = "DriftRepaired";

/// An object of a namespace, by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Name {
    namespace: String,
    name: String,
}
