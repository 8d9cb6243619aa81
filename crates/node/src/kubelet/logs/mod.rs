//! The logs of containers, and how the API server asks for them. They are written and read by the runtime.

mod hook;

pub use agentcube_runtime::logs::{Logs, Run, Selection};
pub use hook::PodLogs;
