//! The Component controller: tells Groups what to be, in the order that the agent gives, and sums up how they stand. It
//! remembers nothing but the order of what it is doing; a Component that is told something else in the middle goes there
//! from where it is.

mod apply;
pub mod plan;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use apply::{object, reconcile};
pub(crate) use status::reason_of;
