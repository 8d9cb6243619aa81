//! The TaskGateway controller: makes the Gateway, and for Envoy the policies that say who may send what. For the
//! built-in class only the Gateway is made. What serves that does no authentication, CORS or rate limits: a TaskGateway
//! that asks for them is told so, and one that asks for authentication gets no Gateway, so that nothing is served to all.

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
