//! The Group planner in a world of its own: a StatefulSet's controller, Pods that come up or do not, a leader among them,
//! agents that answer or do not.

mod cases;
mod leads;
mod storms;
mod world;
