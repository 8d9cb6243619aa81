//! Group `sandbox.fast.io`: pools of agents that start sandboxes in milliseconds ([`SandboxPool`]), and the sandboxes
//! themselves ([`Sandbox`]).

pub mod allocation;
pub mod pool;
#[allow(clippy::module_inception)] // The module is named after its kind, as is the group.
pub mod sandbox;

pub use allocation::AllocationInfo;
pub use pool::{PreparedSpec, SandboxDefaults, SandboxPool, SandboxPoolSpec, SandboxPoolStatus};
pub use sandbox::{
    FailurePolicy, KeyRef, Sandbox, SandboxEgress, SandboxFile, SandboxNetwork, SandboxPhase, SandboxSpec,
    SandboxStatus,
};

/// The API group.
pub const GROUP: &str = "sandbox.fast.io";
/// The API version.
pub const VERSION: &str = "v1alpha1";
