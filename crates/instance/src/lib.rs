//! Instances of Tasks: how they are made, how a session gets one of its own, and how they are given back.
//!
//! The control plane prepares (a `PodTemplate` per revision, a Job where the work runs to completion); the data plane
//! reserves, from memory where a session is bound. `docs/decisions/0011-reservation.md` has the protocol.

pub mod alias;
pub mod identity;
pub mod lifecycle;
pub mod provider;
pub mod record;
pub mod reserve;
pub mod revision;
pub mod spec;
pub mod timing;
pub mod token;

pub use identity::{Endpoint, InstanceId, SessionKey, SpecId, TaskId};
