//! The janitor of a machine: finds containers of sandboxes in containerd whose agent or object is gone, proves that, and
//! removes them. What it cannot prove it leaves: it never ends what a living agent runs.

mod counts;
mod observe;
pub mod plan;
mod removals;
mod scan;

use std::time::Duration;

pub use removals::Removals;
pub use scan::{Error, Janitor};

/// How careful it is, and how often it looks.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub interval: Duration,
    /// How long it has to be proved of a container that it is nobody's. Longer than a create may still be on its way
    /// to the API server, and than a start may take.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { interval: Duration::from_secs(120), grace: Duration::from_secs(300) }
    }
}
