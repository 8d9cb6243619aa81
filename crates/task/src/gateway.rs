//! The TaskGateway controller: makes the Gateway, and for Envoy the policies that say who may send what. For the
//! built-in class only the Gateway is made: what serves it reads the TaskGateway itself.

mod apply;
mod grants;
mod listeners;
mod observe;
mod plan;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use apply::{Key, Reconciler};
pub(crate) use grants::namespace_of;
