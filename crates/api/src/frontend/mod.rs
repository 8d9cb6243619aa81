//! Group `frontend-forge.io`: pages of the console that are declared ([`FrontendIntegration`]) and what they are built
//! into ([`JSBundle`]). Some field names are in snake_case, as in the system that they come from.

pub mod bundle;
pub mod integration;
pub mod page;

pub use bundle::{JSBundle, JSBundleSpec, JSBundleStatus};
pub use integration::{FrontendIntegration, FrontendIntegrationSpec, FrontendIntegrationStatus};

/// The API group.
pub const GROUP: &str = "frontend-forge.io";
/// The API version.
pub const VERSION: &str = "v1alpha1";
