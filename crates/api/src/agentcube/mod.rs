//! Group `agentcube.io`: how an agent is deployed, scaled and routed to ([`Task`]), and where its traffic
//! comes in ([`TaskGateway`]).

pub mod deployment;
pub mod gateway;
pub mod request;
pub mod routing;
pub mod security;
pub mod task;
pub mod traffic;

pub use gateway::{TaskGateway, TaskGatewaySpec, TaskGatewayStatus};
pub use task::{Task, TaskSpec, TaskStatus};

/// The API group.
pub const GROUP: &str = "agentcube.io";
/// The API version.
pub const VERSION: &str = "v1alpha1";
