//! The FrontendIntegration controller: begins a build when the bundle is not that of the spec, judges how it ended, and tries
//! again. It never builds anything itself, and never writes a bundle.

mod access;
mod apply;
mod job;
mod observe;
pub mod plan;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use apply::reconcile;
pub use status::Failure;
