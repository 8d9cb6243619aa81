//! The controllers of `Sandbox` and `SandboxPool`, and the fast path: objects say what should run, agents what does,
//! and the registry is a cache of both. Definite answers of agents are data, errors are doubt; one run id is offered to
//! one agent only.

mod access;
mod agents;
mod controllers;
mod core;
mod counts;
mod fastpath;
mod fleet;
mod link;
mod locks;
mod log;
mod names;
mod object;
mod options;
mod pending;
mod pods;
mod pool;
mod registry;
mod reviews;
mod rush;
mod sandbox;
mod start;
mod validate;

pub use access::{Access, OneToken, Subject, Verb};
pub use controllers::Controllers;
pub use fastpath::FastPathService;
pub use fleet::{Fleet, FleetError, Place};
pub use log::{Disk, FileDisk, Log, LogError};
pub use names::{AgentId, Name, PoolKey, RunId};
pub use options::{Leading, Limits, Options, Timing};
pub use pods::{Dial, PodFleet, PodOptions, Tokens};
pub use registry::{Audit, Full, Registry, Slot};
pub use reviews::Reviews;
