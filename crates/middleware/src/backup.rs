//! The Backup controller: has a Job take the data of an App that is ready, after the plugin's template, and writes down where the
//! archive is. A Backup that has ended stays as it is; its archive outlives it.

mod apply;
pub mod plan;
#[cfg(test)]
mod tests;

pub(crate) use apply::reconcile;
