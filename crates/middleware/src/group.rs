//! The Group controller: renders the plugin's templates, applies what they give, and changes Pods in order within their
//! limits. A revision is everything that was rendered; a revision that cannot be reached is left for the last complete
//! one.

mod apply;
mod check;
mod lead;
pub(crate) mod look;
pub mod observe;
pub mod plan;
pub mod revision;
mod roll;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use apply::reconcile;
